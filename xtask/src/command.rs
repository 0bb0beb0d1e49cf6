//! Child processes: cargo and other tools.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the cargo that runs this program, with arguments and a working directory.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    // Cargo sets this variable for its children.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(arguments).current_dir(root);
    command
}

/// Runs cargo, which must succeed.
pub(crate) fn run_cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    succeed(&mut cargo(root, arguments), &format!("cargo {}", arguments.join(" ")))
}

/// Runs a program that must succeed.
pub(crate) fn run_tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    succeed(command, &name)
}

/// Runs a program that must succeed; errors call it `name`.
pub(crate) fn succeed(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("run {name}"))?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}

/// Returns the standard output of a program that must succeed.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    ensure!(output.status.success(), "{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
