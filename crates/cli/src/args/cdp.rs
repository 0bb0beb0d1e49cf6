//! Options of `cdp`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Commands of continuous protection.
#[derive(Debug, Subcommand)]
pub(crate) enum CdpCommand {
    /// Create a consistency group of volumes, with a journal
    #[command(after_help = examples! {
        "Protect a disk image, with a journal of 16 GiB":
            "onefold cdp create /var/lib/onefold/web web=/srv/images/web.raw --journal-size 16G";
    })]
    Create(CreateArgs),
    /// Serve the volumes of a group to virtual machines and kernels, and protect every write
    #[command(after_help = examples! {
        "Serve a group on a socket in its directory": "onefold cdp serve /var/lib/onefold/web";
        "Serve it to other machines": "onefold cdp serve /var/lib/onefold/web --listen tcp:0.0.0.0:10809 \\
        --tls-certificate server.pem --tls-key server.key --tls-client-authority clients.pem";
    })]
    Serve(ServeArgs),
    /// Show the state of a group that is served
    Status(GroupArgs),
    /// Give the present moment a name
    #[command(after_help = examples! {
        "Name the moment before an upgrade": "onefold cdp mark /var/lib/onefold/web before-upgrade";
    })]
    Mark(MarkArgs),
}

/// A group.
#[derive(Args, Debug)]
pub(crate) struct GroupArgs {
    /// Directory of the group
    #[arg(value_name = "GROUP")]
    pub(crate) group: PathBuf,
}

/// Options of `cdp create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Directory of the group; created if it does not exist. Its journal lies there
    #[arg(value_name = "GROUP")]
    pub(crate) group: PathBuf,
    /// Volumes: a name, and the file or block device that holds the bytes. All writes to the volumes of a group have one order
    #[arg(value_name = "NAME=FILE", required = true)]
    pub(crate) volumes: Vec<String>,
    /// Name of the group in snapshots [default: the name of its directory]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Most bytes of the journal
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub(crate) journal_size: String,
    /// What a flush makes durable: the journal and the volume, or the journal alone, from which the volume is completed after a power
    /// cut
    #[arg(long, value_name = "WHAT", default_value = "both")]
    pub(crate) durability: DurabilityArg,
    /// What a write does when the journal is full: wait for a checkpoint, or fail
    #[arg(long, value_name = "WHAT", default_value = "block")]
    pub(crate) when_behind: WhenBehindArg,
}

/// What a flush makes durable.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Journal and volume
    Both,
    /// The journal
    Journal,
}

/// What happens to a write when the journal is full.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WhenBehindArg {
    /// It waits
    Block,
    /// It fails with ENOSPC
    Fail,
}

/// Options of `cdp serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Address, unix:PATH or tcp:HOST:PORT; several are possible [default: the socket nbd in the group's directory]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// Certificates of the server, in PEM. Clients must then use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the server, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities of which one must have signed the client's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_client_authority: Option<PathBuf>,
}

/// Options of `cdp mark`.
#[derive(Args, Debug)]
pub(crate) struct MarkArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Name of the moment, at most 255 bytes
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}
