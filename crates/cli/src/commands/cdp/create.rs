//! `cdp create`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use onefold_cdp::journal::JournalSize;
use onefold_cdp::link::{Codec, Peer};
use onefold_cdp::log::Log;
use onefold_cdp::nbd::export::Export;
use onefold_cdp::nbd::file::{Access, FileExport};
use onefold_cdp::volume::Group;
use onefold_engine::io::os::{OsDisk, OsHost};
use onefold_engine::io::{Disk, Host};
use onefold_engine::source::exclude::parse_size;
use onefold_engine::types::RepositoryId;

use crate::args::cdp::{CreateArgs, DurabilityArg, ReceiverArgs, WhenBehindArg, WireCompressionArg};
use crate::commands::cdp::group_file::{DurabilityName, GroupFile, ReceiverFile, VolumeFile, WhenBehindName};
use crate::commands::cdp::keep::KeepFile;
use crate::commands::cdp::sending;
use crate::files;
use crate::open::open;
use crate::output::Output;
use crate::settings::Settings;
use crate::sources::absolute;

/// Unit of the size of volumes.
const BLOCK_BYTES: u64 = 4096;

/// Creates a group.
pub(crate) fn run(settings: &Settings, output: &Output, args: &CreateArgs) -> Result<()> {
    let receiver = receiver(&args.receiver)?;
    ensure!(
        receiver.is_none() || KeepFile::of(&args.keep).is_none(),
        "rules that keep moments hold where the checkpoints are made: use `onefold cdp thin` on the receiver's machine"
    );
    // The records of a group with a receiver go to a repository that only the receiver knows.
    let repository = match &receiver {
        Some(_) => RepositoryId(random()?).to_string(),
        None => open(settings, output)?.store.config.repository.to_string(),
    };
    let directory = absolute(&args.group)?;
    let volumes = args.volumes.iter().map(|text| volume(text)).collect::<Result<Vec<_>>>()?;
    let names: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    ensure!(names.len() == volumes.len(), "two volumes have the same name");
    let size = JournalSize::of(parse_size(&args.journal_size).context("--journal-size")? as u64);
    let of_directory = || directory.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.name.clone().or_else(of_directory).context("--name: the group needs a name")?;
    check_name("group", &name)?;
    let group = GroupFile {
        durability: match args.durability {
            DurabilityArg::Both => DurabilityName::Both,
            DurabilityArg::Journal => DurabilityName::Journal,
        },
        when_behind: match args.when_behind {
            WhenBehindArg::Block => WhenBehindName::Block,
            WhenBehindArg::Fail => WhenBehindName::Fail,
            WhenBehindArg::Bitmap => WhenBehindName::Bitmap,
        },
        keep: KeepFile::of(&args.keep),
        receiver,
        ..GroupFile::new(random()?, name, repository, volumes, size)
    };
    group.keep.as_ref().map(KeepFile::rules).transpose()?;
    group.spec()?;
    let disk = new_directory(&directory, settings)?;
    let sizes: Vec<u64> = group.volumes.iter().map(|volume| volume.size).collect();
    if group.receiver.is_some() {
        // The receiver has no initial images: all bytes get into the history as records.
        Group::create_unstored(&disk, Path::new(""), &sizes)?;
        sending::create_key(&disk)?;
    } else {
        Group::create(&disk, Path::new(""), &sizes)?;
    }
    group.create(&disk)?;
    output.note(&format!("created the group {} with {} of journal at most", group.name, size.bytes()));
    Ok(())
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    OsHost::new().random(&mut bytes)?;
    Ok(bytes)
}

/// Returns the receiver that options name; refuses certificates that are none.
fn receiver(args: &ReceiverArgs) -> Result<Option<ReceiverFile>> {
    let (Some(address), Some(authority), Some(certificate), Some(key)) =
        (&args.receiver, &args.tls_authority, &args.tls_certificate, &args.tls_key)
    else {
        return Ok(None);
    };
    ensure!(Peer::host(address).is_some(), "{address}: a receiver is HOST:PORT");
    let codec = match args.wire_compression {
        WireCompressionArg::Off => Codec::Off,
        WireCompressionArg::Lz4 => Codec::Lz4,
        WireCompressionArg::Zstd => Codec::Zstd,
        WireCompressionArg::Lzjb => Codec::Lzjb,
    };
    let receiver = ReceiverFile {
        address: address.clone(),
        authority: absolute(authority)?,
        certificate: absolute(certificate)?,
        key: absolute(key)?,
        compression: codec.name().to_owned(),
    };
    sending::tls(&receiver)?;
    Ok(Some(receiver))
}

/// Makes the directory of a group, or takes an empty one.
pub(super) fn new_directory(directory: &Path, settings: &Settings) -> Result<OsDisk> {
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
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = (1..=200).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.');
    ensure!(
        is_good && name != "history",
        "{name}: the name of a {what} has letters, digits, '-', '_' and '.', and is not \"history\""
    );
    Ok(())
}
