//! Files that experiments read: real data, which does not come with the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::point::dimension::unknown;

/// Names of all inputs, and how to make them.
pub const NAMES: [(&str, &str); 3] = [
    ("common", "bench/datasets/common-files DIR makes it: --input common=DIR/common"),
    ("dup", "bench/datasets/memory-dumps DIR makes it: --input dup=DIR/log"),
    ("dumps", "bench/datasets/memory-dumps DIR makes it: --input dumps=DIR/dumps"),
];

/// Most files of an input.
const FILES_MAX: usize = 1000;

/// Paths of inputs by name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Inputs(BTreeMap<String, PathBuf>);

impl Inputs {
    /// Reads `NAME=PATH` of each.
    pub fn parse(texts: &[String]) -> Result<Self> {
        let mut inputs = BTreeMap::new();
        for text in texts {
            let (name, path) = text.split_once('=').with_context(|| format!("--input {text}: NAME=PATH"))?;
            if !is_name(name) {
                return Err(unknown("input", name, NAMES.iter().map(|(name, _)| *name)));
            }
            ensure!(inputs.insert(name.to_owned(), path.into()).is_none(), "--input {name} is given twice");
        }
        Ok(Self(inputs))
    }

    /// Returns the files of an input, by name: those of its directory, or the one that it is. None if it was not given.
    pub(super) fn files(&self, name: &str) -> Result<Option<Vec<PathBuf>>> {
        let Some(path) = self.0.get(name) else { return Ok(None) };
        files_of(path).with_context(|| format!("--input {name}={}", path.display())).map(Some)
    }
}

/// Returns true if there is such an input.
pub(super) fn is_name(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// Returns how an input is made, for a remark.
pub(super) fn made_by(name: &str) -> String {
    let command = NAMES.iter().find(|(known, _)| *known == name).map_or("", |(_, command)| command);
    format!("It needs the input {name}; {command}.")
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if std::fs::metadata(path)?.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && std::fs::metadata(&path)?.is_file() {
            ensure!(files.len() < FILES_MAX, "more than {FILES_MAX} files");
            files.push(path);
        }
    }
    ensure!(!files.is_empty(), "there is no file");
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_known_names_and_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a", ".hidden"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("deeper")).unwrap();
        let path = dir.path().to_str().unwrap();
        let inputs = Inputs::parse(&[format!("dumps={path}"), format!("dup={path}/b")]).unwrap();
        assert_eq!(inputs.files("dumps").unwrap(), Some(vec![dir.path().join("a"), dir.path().join("b")]));
        assert_eq!(inputs.files("dup").unwrap(), Some(vec![dir.path().join("b")]));
        assert_eq!(inputs.files("common").unwrap(), None);
        let refused = |text: String| {
            let inputs = Inputs::parse(&[text])?;
            inputs.files("dup").map(drop)
        };
        let refused = |text: String| format!("{:#}", refused(text).unwrap_err());
        assert_eq!(refused("dumbs=x".to_owned()), "there is no input \"dumbs\"; did you mean \"dumps\"?");
        assert_eq!(refused("dup".to_owned()), "--input dup: NAME=PATH");
        assert!(refused(format!("dup={path}/none")).contains("none: No such file"));
        assert!(refused(format!("dup={path}/deeper")).ends_with("there is no file"));
        assert!(Inputs::parse(&["dup=a".to_owned(), "dup=b".to_owned()]).is_err());
    }
}
