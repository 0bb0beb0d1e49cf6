//! `version`.

use anyhow::Result;

use crate::compat::Dialect;
use crate::json;
use crate::output::Output;

/// The name and version that snapshots are signed with.
pub(crate) const PROGRAM: &str = concat!("onefold ", env!("CARGO_PKG_VERSION"));

/// Prints it.
pub(crate) fn run(dialect: Dialect, output: &Output) -> Result<()> {
    if output.json {
        output.message(&json::version(dialect, PROGRAM))?;
    } else {
        output.line(dialect.version(PROGRAM))?;
    }
    Ok(())
}
