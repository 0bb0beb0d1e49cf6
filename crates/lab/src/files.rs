//! Files that are named on the command line: opening what is no regular file may wait for ever, and reading it may not end.

use std::fs::{File, metadata};
use std::io::Read;
use std::path::Path;

use anyhow::{Result, ensure};

/// Opens a regular file for reading.
pub(crate) fn open(path: &Path) -> Result<File> {
    ensure!(metadata(path)?.is_file(), "not a regular file");
    Ok(File::open(path)?)
}

/// Reads a small file of text.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    let mut text = String::new();
    open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= bytes_max, "more than {bytes_max} bytes");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_not_more_of_them_than_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        assert_eq!(read_text(&path, 3).unwrap_err().to_string(), "more than 3 bytes");
        let refused = |path: &Path| read_text(path, 10).unwrap_err().to_string();
        assert_eq!(refused(Path::new("/dev/zero")), "not a regular file");
        assert_eq!(refused(dir.path()), "not a regular file");
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(refused(&pipe), "not a regular file");
    }
}
