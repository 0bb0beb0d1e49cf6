//! Options and commands of restic that have no meaning here, or none yet. They are known, so that they can be answered
//! with a sentence.

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// Options of restic that every one of its commands takes and that mean nothing here. They are accepted only if
/// `ONEFOLD_COMPAT=restic` is set.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch that can be typed")]
pub(crate) struct IgnoredArgs {
    #[arg(long, global = true, hide = true)]
    option: Vec<String>,
    #[arg(long, global = true, hide = true)]
    cacert: Vec<OsString>,
    #[arg(long, global = true, hide = true)]
    tls_client_cert: Option<OsString>,
    #[arg(long, global = true, hide = true)]
    insecure_tls: bool,
    #[arg(long, global = true, hide = true)]
    http_user_agent: Option<String>,
    #[arg(long, global = true, hide = true)]
    stuck_request_timeout: Option<String>,
    #[arg(long, global = true, hide = true)]
    limit_upload: Option<String>,
    #[arg(long, global = true, hide = true)]
    limit_download: Option<String>,
    #[arg(long, global = true, hide = true)]
    pack_size: Option<String>,
    #[arg(long, global = true, hide = true)]
    no_extra_verify: bool,
    /// There is no password: the repository is not encrypted
    #[arg(long, global = true, hide = true)]
    pub(crate) insecure_no_password: bool,
    #[arg(long, global = true, hide = true)]
    repository_version: Option<String>,
    #[arg(long, global = true, hide = true)]
    check_unused: bool,
    #[arg(long, global = true, hide = true)]
    with_cache: bool,
    #[arg(long, global = true, hide = true)]
    with_atime: bool,
    #[arg(long, global = true, hide = true)]
    use_fs_snapshot: bool,
    #[arg(long, global = true, hide = true)]
    sparse: bool,
    #[arg(long, global = true, hide = true)]
    ownership_by_name: bool,
}

impl IgnoredArgs {
    /// Returns the names of the options that were typed.
    pub(crate) fn typed(&self) -> Vec<&'static str> {
        let all = [
            ("--option", !self.option.is_empty()),
            ("--cacert", !self.cacert.is_empty()),
            ("--tls-client-cert", self.tls_client_cert.is_some()),
            ("--insecure-tls", self.insecure_tls),
            ("--http-user-agent", self.http_user_agent.is_some()),
            ("--stuck-request-timeout", self.stuck_request_timeout.is_some()),
            ("--limit-upload", self.limit_upload.is_some()),
            ("--limit-download", self.limit_download.is_some()),
            ("--pack-size", self.pack_size.is_some()),
            ("--no-extra-verify", self.no_extra_verify),
            ("--insecure-no-password", self.insecure_no_password),
            ("--repository-version", self.repository_version.is_some()),
            ("--check-unused", self.check_unused),
            ("--with-cache", self.with_cache),
            ("--with-atime", self.with_atime),
            ("--use-fs-snapshot", self.use_fs_snapshot),
            ("--sparse", self.sparse),
            ("--ownership-by-name", self.ownership_by_name),
        ];
        all.into_iter().filter(|(_, is_typed)| *is_typed).map(|(name, _)| name).collect()
    }
}

/// Commands of restic that are to come.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Later {
    /// cache: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Cache(LaterArgs),
    /// copy: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Copy(LaterArgs),
    /// debug: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Debug(LaterArgs),
    /// forget: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Forget(LaterArgs),
    /// migrate: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Migrate(LaterArgs),
    /// mount: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Mount(LaterArgs),
    /// prune: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Prune(LaterArgs),
    /// rebuild-index: not in this version
    #[command(hide = true, disable_help_flag = true)]
    RebuildIndex(LaterArgs),
    /// recover: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Recover(LaterArgs),
    /// repair: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Repair(LaterArgs),
    /// rewrite: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Rewrite(LaterArgs),
    /// self-update: not in this version
    #[command(hide = true, disable_help_flag = true)]
    SelfUpdate(LaterArgs),
    /// tag: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Tag(LaterArgs),
    /// webdav: not in this version
    #[command(hide = true, disable_help_flag = true)]
    Webdav(LaterArgs),
}

/// Options of `unlock`.
#[derive(Args, Debug)]
pub(crate) struct UnlockArgs {
    /// Accepted for scripts: there are no locks of others either
    #[arg(long)]
    pub(crate) remove_all: bool,
}

/// Whatever follows a command that is to come.
#[derive(Args, Clone, Debug)]
pub(crate) struct LaterArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<OsString>,
}
