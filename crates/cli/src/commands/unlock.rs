//! `unlock`.

use anyhow::Result;

use crate::args::restic::UnlockArgs;
use crate::open::open;
use crate::output::Output;
use crate::settings::Settings;

/// Opens the repository, as restic does, and says that there is nothing to unlock: a repository holds no locks, and the
/// lock on this host's index ends with its process. `--remove-all` changes nothing about it.
pub(crate) fn run(settings: &Settings, output: &Output, _typed: &UnlockArgs) -> Result<()> {
    open(settings, output)?;
    output.note("there are no locks in the repository; nothing was removed");
    Ok(())
}
