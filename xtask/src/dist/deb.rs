//! The Debian package: its files and their sources, and the call of dpkg-deb.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{output_of, run_tool};
use crate::dist::{SOURCE_TIME, source_time};

/// How dpkg-deb compresses the package.
#[derive(Clone, Copy)]
pub(super) enum Compression {
    Xz,
    None,
}

/// Directory of the manual pages in the package.
pub(super) const PAGES: &str = "usr/share/man/man1";

/// Shells with completions, and the file for each.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/onefold"),
    ("zsh", "usr/share/zsh/vendor-completions/_onefold"),
    ("fish", "usr/share/fish/vendor_completions.d/onefold.fish"),
];

/// Files of the sources that are packed unchanged: source, destination, mode.
const COPIED: [(&str, &str, u32); 10] = [
    ("packaging/onefold-backup.service", "usr/lib/systemd/system/onefold-backup.service", 0o644),
    ("packaging/onefold-backup.timer", "usr/lib/systemd/system/onefold-backup.timer", 0o644),
    ("packaging/backup.env", "etc/onefold/backup.env", 0o640),
    ("packaging/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/postrm", "DEBIAN/postrm", 0o755),
    ("CHANGELOG.md", "usr/share/doc/onefold/CHANGELOG.md", 0o644),
    ("LICENSE-APACHE", "usr/share/doc/onefold/LICENSE-APACHE", 0o644),
    ("LICENSE-MIT", "usr/share/doc/onefold/LICENSE-MIT", 0o644),
    ("packaging/copyright", "usr/share/doc/onefold/copyright", 0o644),
];

/// Files that an upgrade keeps if an administrator changed them.
const CONFIGURATION: &str = "/etc/onefold/backup.env\n";

/// Debian's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the description of the package for dpkg. The program is static, so the package has no dependencies.
fn control(installed_bytes: u64) -> String {
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture());
    let kibibytes = installed_bytes.div_ceil(1024);
    format!(
        "Package: onefold\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Onefold developers <onefold@localhost>\n\
         Installed-Size: {kibibytes}\n\
         Section: admin\n\
         Priority: optional\n\
         Description: encrypted, deduplicated backups of directory trees\n\
         \x20Onefold backs up directory trees into a repository, a local directory. Data that\n\
         \x20repeats is stored once, and all of it is compressed and encrypted. The timer unit\n\
         \x20onefold-backup.timer runs a backup each day after it was configured and enabled.\n"
    )
}

/// Packs a program with its manual pages, completions and units; returns the path of the package.
pub(super) fn pack(root: &Path, program: &Path, into: &Path, compression: Compression) -> Result<PathBuf> {
    let stem = format!("onefold_{}_{}", env!("CARGO_PKG_VERSION"), architecture());
    let tree = into.join(&stem);
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    copy(program, &tree.join("usr/bin/onefold"), 0o755)?;
    for (source, destination, mode) in COPIED {
        copy(&root.join(source), &tree.join(destination), mode)?;
    }
    write_pages(program, &tree.join(PAGES))?;
    for (shell, destination) in COMPLETIONS {
        let script = output_of(Command::new(program).args(["completions", shell]))?;
        write(&tree.join(destination), &script)?;
    }
    write(&tree.join("DEBIAN/conffiles"), CONFIGURATION.as_bytes())?;
    let installed = bytes_below(&tree)?;
    write(&tree.join("DEBIAN/control"), control(installed).as_bytes())?;
    let package = into.join(format!("{stem}.deb"));
    let compressed = match compression {
        Compression::Xz => "-Zxz",
        Compression::None => "-Znone",
    };
    run_tool(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", compressed, "--build"])
            .args([&tree, &package])
            .env(SOURCE_TIME, source_time(root))
            .stdout(std::process::Stdio::null()),
    )?;
    fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    Ok(package)
}

/// Writes the manual pages, compressed as Debian's policy requires.
fn write_pages(program: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    run_tool(Command::new(program).arg("--quiet").arg("man").arg(directory))?;
    for page in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let page = page?.path();
        fs::set_permissions(&page, fs::Permissions::from_mode(0o644))?;
        run_tool(Command::new("gzip").args(["-9", "--no-name"]).arg(&page))?;
    }
    Ok(())
}

fn copy(source: &Path, destination: &Path, mode: u32) -> Result<()> {
    make_parent(destination)?;
    fs::copy(source, destination).with_context(|| format!("copy {}", source.display()))?;
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(destination, permissions).with_context(|| format!("set the mode of {}", destination.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    make_parent(path)?;
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
        .with_context(|| format!("set the mode of {}", path.display()))
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("a path with a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))
}

/// Returns the bytes of all files below a directory.
fn bytes_below(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let entry = entry?;
        total += if entry.file_type()?.is_dir() { bytes_below(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(total)
}
