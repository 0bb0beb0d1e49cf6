//! Files named on the command line, and files embedded in the program.
//!
//! Only regular files are read: opening another may wait for ever, and reading it may not end. No file is written over.

use std::fs::{File, OpenOptions, metadata, remove_file};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;

use crate::point::dimension::unknown;

/// Files of one directory in the program: their names without extension, and their text.
pub(crate) type Embedded = &'static [(&'static str, &'static str)];

/// Embeds the files of TOML with some names in a directory of the workspace.
macro_rules! embedded {
    ($directory:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $directory, "/", $name, ".toml"))),)*]
    };
}
pub(crate) use embedded;

/// Returns the names of embedded files.
pub(crate) fn names_of(files: Embedded) -> impl Iterator<Item = &'static str> {
    files.iter().map(|(name, _)| *name)
}

/// Returns the text of an embedded file.
pub(crate) fn text_of(kind: &str, name: &str, files: Embedded) -> Result<&'static str> {
    let found = files.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| unknown(kind, name, names_of(files)))
}

/// Longest file that describes one thing: a preset, a device, a data set.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// Returns true if a name is the path of a file: it has a slash or ends in `.toml`. Otherwise it is the name of something that comes
/// with the program.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

/// Returns the text of the file that a name stands for, if it is a path.
pub(crate) fn text_of_path(name: &str) -> Option<Result<String>> {
    is_path(name).then(|| read_text(Path::new(name), DESCRIPTION_BYTES_MAX))
}

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

/// Reads what a file of TOML says.
pub(crate) fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))
}

/// Writes a file. One that exists is not written over; after an error there is none.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let context = || format!("write {}", path.display());
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).with_context(context)?;
    // Half a file is of no use; that it cannot be removed is no second error.
    file.write_all(bytes).inspect_err(|_| drop(remove_file(path))).with_context(context)
}

/// Returns the sorted names, without extension, of the embedded files of a directory.
#[cfg(test)]
pub(crate) fn names_in(folder: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(name).map(|name| name.strip_suffix(".toml").unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns names, sorted.
#[cfg(test)]
pub(crate) fn sorted(names: impl Iterator<Item = &'static str>) -> Vec<String> {
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort();
    names
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
