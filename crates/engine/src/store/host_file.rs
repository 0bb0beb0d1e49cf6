//! Small files in which a host remembers something about repositories, outside of these.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use crate::crypto::slot::hex;
use crate::error::{Error, Result};
use crate::io::{Access, Disk, DiskFile, Host};

/// Replaces a file by one with these bytes, or leaves it as it is. Several processes may do so at a time: the last one
/// wins.
pub(crate) fn replace_file(disk: &dyn Disk, host: &dyn Host, path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file_with(disk, host, path, &mut |file| file.write_at(0, bytes))
}

/// Does what [`replace_file`] does with what `write` writes.
pub(crate) fn replace_file_with(
    disk: &dyn Disk,
    host: &dyn Host,
    path: &Path,
    write: &mut dyn FnMut(&Arc<dyn DiskFile>) -> Result<()>,
) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    remove_leftovers(disk, parent, name)?;
    let mut random = [0; 8];
    host.random(&mut random)?;
    let new = parent.join(format!("{name}.{}", hex(&random)));
    let file = disk.create(&new)?;
    // The lock tells other processes that the file is no leftover. It ends with this process.
    let written = file.try_lock().and_then(|_mine| write(&file)).and_then(|()| file.sync());
    let replaced = written.and_then(|()| disk.rename(&new, path));
    if replaced.is_err() {
        let _left_over = disk.remove(&new);
    }
    replaced?;
    disk.sync_dir(parent)
}

/// Removes what processes that were killed left under names like this one's. One that was just created and is not locked yet
/// may be among them: its writer fails then, and nothing is damaged.
fn remove_leftovers(disk: &dyn Disk, parent: &Path, name: &str) -> Result<()> {
    for entry in disk.list(parent)? {
        if entry.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')) {
            let path = parent.join(&entry.name);
            let is_left_over = disk.open(&path, Access::ReadWrite).and_then(|file| file.try_lock());
            if is_left_over.unwrap_or(false) {
                disk.remove(&path)?;
            }
        }
    }
    Ok(())
}

/// Reads a file of the host whole, refusing one that is longer than `len_max` before anything is allocated.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path, len_max: usize) -> Result<Vec<u8>> {
    let file = disk.open(path, Access::Read).map_err(|error| match error.io_kind() {
        Some(std::io::ErrorKind::NotFound) => Error::Missing { object: disk.display(path) },
        _ => error,
    })?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len_max < len {
        return Err(Error::damaged(disk.display(path), "longer than such a file can be"));
    }
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Splits a file into its contents and the BLAKE3 behind them, and compares.
pub(crate) fn checked<'a>(object: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((body, checksum)) = bytes.split_last_chunk::<32>() else {
        return Err(Error::damaged(object, "ends too early"));
    };
    if blake3::hash(body) != *checksum {
        return Err(Error::damaged(object, "its checksum is wrong"));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::read_file;
    use crate::testing::sim::{Fault, SimDisk, SimHost};

    const FILE: &str = "dir/file";

    fn names(disk: &SimDisk) -> Vec<String> {
        disk.list(Path::new("dir")).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all_and_no_leftover_outlives_the_next_time() {
        let host = SimHost::new(1);
        let before = SimDisk::new();
        let _dir = before.subdir("dir");
        replace_file(&before, &host, Path::new(FILE), b"old").unwrap();
        let run = before.fork();
        replace_file(&run, &host, Path::new(FILE), b"new").unwrap();
        for call in 1..=run.calls() {
            for fault in [Fault::Error(std::io::ErrorKind::Other), Fault::Die, Fault::DieAfter] {
                let disk = before.fork();
                disk.fail_at(call, fault);
                let replaced = replace_file(&disk, &host, Path::new(FILE), b"new");
                let disk = disk.reopen();
                let found = read_file(&disk, Path::new(FILE), 100).unwrap();
                assert!(found == b"new" || (replaced.is_err() && found == b"old"), "{fault:?} at {call}");
                replace_file(&disk, &host, Path::new(FILE), b"next").unwrap();
                assert_eq!(names(&disk), ["file"], "{fault:?} at {call}");
            }
        }
    }

    #[test]
    fn another_process_at_work_is_left_alone() {
        let (disk, host) = (SimDisk::new(), SimHost::new(2));
        let _dir = disk.subdir("dir");
        let theirs = disk.create(Path::new("dir/file.0123")).unwrap();
        assert!(theirs.try_lock().unwrap());
        replace_file(&disk, &host, Path::new(FILE), b"mine").unwrap();
        assert_eq!(names(&disk), ["file", "file.0123"]);
        drop(theirs);
        replace_file(&disk, &host, Path::new(FILE), b"mine").unwrap();
        assert_eq!(names(&disk), ["file"]);
    }
}
