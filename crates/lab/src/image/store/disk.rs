//! The files of a store.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onefold_engine::error::{Error, Result};
use onefold_engine::io::{Access, Disk, DiskFile};

/// The file of blocks.
pub(super) const BLOCKS: &str = "blocks";
const CHECKPOINT: &str = "checkpoint-";
const JOURNAL: &str = "journal-";
/// A checkpoint that is being written.
const UNFINISHED: &str = "unfinished";

/// Returns the path of a checkpoint.
pub(super) fn checkpoint_path(number: u64) -> PathBuf {
    format!("{CHECKPOINT}{number}").into()
}

/// Returns the path of a journal.
pub(super) fn journal_path(number: u64) -> PathBuf {
    format!("{JOURNAL}{number}").into()
}

/// Returns the number of the newest checkpoint, if there is one, and the paths of files that it makes useless.
pub(super) fn newest(disk: &dyn Disk) -> Result<(Option<u64>, Vec<PathBuf>)> {
    let names: Vec<String> = disk.list(Path::new(""))?.into_iter().map(|entry| entry.name).collect();
    let number = |name: &str, prefix| name.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
    let newest = names.iter().filter_map(|name| number(name, CHECKPOINT)).max();
    let is_old = |name: &&String| {
        let number = number(name, CHECKPOINT).or_else(|| number(name, JOURNAL));
        *name == UNFINISHED || number.is_some() && number != newest
    };
    Ok((newest, names.iter().filter(is_old).map(PathBuf::from).collect()))
}

/// Returns true if a file has the name of a checkpoint.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    path.to_str().is_some_and(|name| name.starts_with(CHECKPOINT))
}

/// Creates a file, in place of one that a failed attempt has left.
pub(super) fn create_again(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
    match disk.remove(path) {
        Err(error) if error.io_kind() != Some(ErrorKind::NotFound) => Err(error),
        _ => disk.create(path),
    }
}

/// Makes a checkpoint durable under its name, with an empty journal.
pub(super) fn publish(disk: &dyn Disk, number: u64, parts: &[&[u8]]) -> Result<Arc<dyn DiskFile>> {
    let journal = create_again(disk, &journal_path(number))?;
    journal.sync()?;
    let file = create_again(disk, Path::new(UNFINISHED))?;
    let mut offset = 0;
    for part in parts {
        file.write_at(offset, part)?;
        offset += part.len() as u64;
    }
    file.sync()?;
    // The journal has its name before the checkpoint has: a checkpoint without a journal is damaged.
    disk.sync_dir(Path::new(""))?;
    disk.rename(Path::new(UNFINISHED), &checkpoint_path(number))?;
    disk.sync_dir(Path::new(""))?;
    Ok(journal)
}

/// Reads a whole file of at most `most` bytes.
pub(super) fn read(disk: &dyn Disk, path: &Path, most: u64) -> Result<(Arc<dyn DiskFile>, Vec<u8>)> {
    let file = disk.open(path, Access::ReadWrite)?;
    let len = file.len()?;
    let too_long = || {
        Error::invalid(format_args!(
            "{} has {len} bytes, and {most} are read at most; --memory SIZE allows more for a checkpoint",
            disk.display(path)
        ))
    };
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= most).ok_or_else(too_long)?];
    file.read_at(0, &mut bytes)?;
    Ok((file, bytes))
}
