//! `version`.

use anyhow::Result;

use crate::json::Version;
use crate::output::Output;

/// The name and version that snapshots are signed with.
pub(crate) const PROGRAM: &str = concat!("onefold ", env!("CARGO_PKG_VERSION"));

/// Prints it.
pub(crate) fn run(output: &Output) -> Result<()> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if output.json {
        output.message(&Version { message_type: "version", number: env!("CARGO_PKG_VERSION"), os, arch })?;
    } else {
        output.line(format!("{PROGRAM} on {os}/{arch}"))?;
    }
    Ok(())
}
