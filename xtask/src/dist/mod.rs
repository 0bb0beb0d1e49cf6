//! `cargo xtask dist [--check]`: a static program and its Debian package.

mod check;
mod deb;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::run_cargo;

/// The profile of the workspace that packages are built with.
const PROFILE: &str = "dist";

/// The variable from which dpkg-deb takes the time of every file, so that equal sources give equal packages.
const SOURCE_TIME: &str = "SOURCE_DATE_EPOCH";

/// Action after packages are built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Leave,
    Check,
}

/// Builds the program and the package into `target/packages`, prints their paths, and checks them on request.
pub(crate) fn run(root: &Path, then: Then) -> Result<()> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    need_target(&target)?;
    run_cargo(root, &["build", "--locked", "--package", "onefold-cli", "--profile", PROFILE, "--target", &target])?;
    let built = build_directory(root);
    let into = built.join("packages");
    std::fs::create_dir_all(&into).with_context(|| format!("create {}", into.display()))?;
    let name = format!("onefold-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let program = into.join(name);
    let source = built.join(&target).join(PROFILE).join("onefold");
    std::fs::copy(&source, &program).with_context(|| format!("copy {}", source.display()))?;
    let package = deb::pack(root, &program, &into, deb::Compression::Xz)?;
    for path in [&program, &package] {
        println!("{} bytes: {}", path.metadata()?.len(), path.display());
    }
    if then == Then::Check {
        check::program_alone(root, &program)?;
        check::package(&package, check::Runs::InEmptyRoot)?;
        println!("dist: ok");
    }
    Ok(())
}

/// Packs the program of a debug build and checks the contents of the package. Takes seconds; part of `cargo xtask ci`.
pub(crate) fn check_layout(root: &Path, program: &Path) -> Result<()> {
    let into = build_directory(root).join("packages-of-debug");
    std::fs::create_dir_all(&into).with_context(|| format!("create {}", into.display()))?;
    let package = deb::pack(root, program, &into, deb::Compression::None)?;
    check::package(&package, check::Runs::AsItIs)?;
    std::fs::remove_dir_all(&into).with_context(|| format!("remove {}", into.display()))
}

/// Fails unless the toolchain can build for the target; the error states the missing parts.
fn need_target(target: &str) -> Result<()> {
    let shown =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output().context("run rustc")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&shown.stdout).trim());
    ensure!(
        shown.status.success() && libraries.is_dir(),
        "the toolchain has no standard library for {target}: rustup target add {target}"
    );
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        bail!("musl-gcc is missing, which compiles the parts in C: install musl-tools");
    }
    Ok(())
}

fn build_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}

/// Returns the time of the last commit in seconds since 1970; 0 outside of a git checkout.
fn source_time(root: &Path) -> String {
    let shown = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output();
    let seconds = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).trim().to_owned()).unwrap_or_default();
    if seconds.is_empty() { "0".to_owned() } else { seconds }
}
