//! Commands of restic that are to come, and what to do until then.

use anyhow::{Result, bail};

use crate::args::restic::Later;

/// Says that a command does not exist yet.
pub(crate) fn refuse(command: &Later) -> Result<()> {
    bail!("{}", sentence(command))
}

fn sentence(command: &Later) -> &'static str {
    match command {
        Later::Cache(_) => {
            "cache: not in this version; --cleanup-cache removes the caches of repositories not used for 30 days"
        }
        Later::Copy(_) => "copy: not in this version; restore the snapshot and back it up into the other repository",
        Later::Debug(_) => "debug: not in this version; `onefold cat` and `onefold list` show objects",
        Later::Forget(_) => "forget: not in this version; every snapshot is kept and space is not given back yet",
        Later::Migrate(_) => "migrate: not in this version; there is one version of the format",
        Later::Mount(_) => {
            "mount: not in this version; `onefold ls`, `onefold dump` and `onefold restore` read snapshots"
        }
        Later::Prune(_) => "prune: not in this version; space is not given back yet",
        Later::RebuildIndex(_) => {
            "rebuild-index: not needed; the index is kept on this host and rebuilt where it is missing"
        }
        Later::Recover(_) => "recover: not in this version; `onefold check` names what is damaged",
        Later::Repair(_) => "repair: not in this version; `onefold check` names what is damaged and what to do",
        Later::Rewrite(_) => "rewrite: not in this version; a snapshot is never changed",
        Later::SelfUpdate(_) => "self-update: not in this version; install the new version as you installed this one",
        Later::Tag(_) => "tag: not in this version; `onefold backup --tag` sets tags, which are not changed afterwards",
        Later::Webdav(_) => {
            "webdav: not in this version; `onefold ls`, `onefold dump` and `onefold restore` read snapshots"
        }
    }
}
