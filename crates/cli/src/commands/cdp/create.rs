//! `cdp create`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::JournalSize;
use onefold_cdp::log::Log;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::volume::Group;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::source::exclude::parse_size;

use crate::args::cdp::{CreateArgs, DurabilityArg, WhenBehindArg};
use crate::commands::cdp::group_file::{DurabilityName, GroupFile, VolumeFile, WhenBehindName};
use crate::commands::cdp::keep::KeepFile;
use crate::files;
use crate::open::open;
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;

/// Unit of the size of volumes.
const BLOCK_BYTES: u64 = 4096;

/// Creates a group.
pub(crate) fn run(settings: &Settings, output: &Output, args: &CreateArgs) -> Result<()> {
    let opened = open(settings, output)?;
    let directory = absolute(&args.group)?;
    let volumes = args.volumes.iter().map(|text| volume(text)).collect::<Result<Vec<_>>>()?;
    let names: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    ensure!(names.len() == volumes.len(), "two volumes have the same name");
    let size = JournalSize::of(parse_size(&args.journal_size).context("--journal-size")? as u64);
    let mut id = [0; 16];
    OsHost::new().random(&mut id)?;
    let of_directory = || directory.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.name.clone().or_else(of_directory).context("--name: the group needs a name")?;
    check_name("group", &name)?;
    let repository = opened.store.config.repository.to_string();
    let group = GroupFile {
        durability: match args.durability {
            DurabilityArg::Both => DurabilityName::Both,
            DurabilityArg::Journal => DurabilityName::Journal,
        },
        when_behind: match args.when_behind {
            WhenBehindArg::Block => WhenBehindName::Block,
            WhenBehindArg::Fail => WhenBehindName::Fail,
        },
        keep: KeepFile::of(&args.keep),
        ..GroupFile::new(id, name, repository, volumes, size)
    };
    group.keep.as_ref().map(KeepFile::rules).transpose()?;
    let disk = new_directory(&directory, settings)?;
    Group::create(&disk, Path::new(""))?;
    group.create(&disk)?;
    output.note(&format!("created the group {} with {} of journal at most", group.name, size.bytes()));
    Ok(())
}

/// Makes the directory of a group, or takes an empty one.
fn new_directory(directory: &Path, settings: &Settings) -> Result<OsDisk> {
    if !directory.exists() {
        files::create_new_directory(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let disk = OsDisk::with_backend(directory.to_path_buf(), settings.io);
    ensure!(disk.list(Path::new(""))?.is_empty(), "{} is not empty", directory.display());
    Ok(disk)
}

/// Parses NAME=FILE and looks at the file.
fn volume(text: &str) -> Result<VolumeFile> {
    let (name, path) = text.split_once('=').with_context(|| format!("{text}: a volume is NAME=FILE"))?;
    check_name("volume", name)?;
    let origin = absolute(&PathBuf::from(path))?;
    let export = FileExport::open(&origin, Access::ReadWrite, Log::none())
        .with_context(|| format!("open {}", origin.display()))?;
    let size = export.size();
    ensure!(
        size != 0 && size.is_multiple_of(BLOCK_BYTES),
        "{}: the size of a volume must be a multiple of {BLOCK_BYTES} bytes, and this one has {size}",
        origin.display()
    );
    Ok(VolumeFile { name: name.to_owned(), origin, size })
}

/// Names become names of directories in snapshots, and of exports.
fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = (1..=200).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.');
    ensure!(
        is_good && name != "history",
        "{name}: the name of a {what} has letters, digits, '-', '_' and '.', and is not \"history\""
    );
    Ok(())
}
