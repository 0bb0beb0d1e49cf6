//! The files of the working tree that git tracks or would add.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::output_of;
use crate::rust;

/// A text file of the working tree.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Path from the root, with `/` between components.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
    /// The text of a Rust source as [`rust::code_of`] returns it; empty for other files.
    pub(crate) code: String,
}

/// The text files of the working tree, without files that are not UTF-8.
#[derive(Debug)]
pub(crate) struct Checkout {
    /// Root of the working tree.
    pub(crate) root: PathBuf,
    /// Its text files, sorted by path.
    pub(crate) files: Vec<TextFile>,
    /// Paths of all files, text or not.
    pub(crate) paths: Vec<String>,
}

/// Returns the root of the workspace.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest.parent().context("xtask lies in the workspace")?.to_path_buf())
}

impl Checkout {
    /// Reads the working tree at `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let listing = output_of(Command::new("git").args(arguments).current_dir(root))?;
        let names = String::from_utf8(listing).context("a file name is not UTF-8")?;
        let mut paths: Vec<String> = names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        paths.sort();
        paths.dedup();
        // Git still lists a deleted file until the deletion is staged.
        paths.retain(|path| root.join(path).is_file());
        let mut files = Vec::new();
        for path in &paths {
            let bytes = std::fs::read(root.join(path)).with_context(|| format!("read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(TextFile::new(path, text));
            }
        }
        Ok(Self { root: root.to_path_buf(), files, paths })
    }

    /// Returns a working tree of the given paths and texts.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| TextFile::new(path, (*text).to_owned());
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self { root: PathBuf::new(), files: files.iter().map(file).collect(), paths }
    }

    /// Returns the text file at `path`.
    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl TextFile {
    fn new(path: &str, text: String) -> Self {
        let mut file = Self { path: path.to_owned(), text, code: String::new() };
        if file.is_rust() {
            file.code = rust::code_of(&file.text);
        }
        file
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// Returns true for Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    /// Returns true for a program in any language.
    pub(crate) fn is_program(&self) -> bool {
        self.is_rust() || ["py", "sh"].iter().any(|end| self.has_extension(end)) || self.text.starts_with("#!/")
    }

    /// Returns true for a file of tests: `tests/..`, `benches/..`, `tests.rs`, `x_tests.rs`.
    pub(crate) fn is_test(&self) -> bool {
        let mut components = self.path.split('/');
        components.any(|name| matches!(name, "tests" | "benches" | "tests.rs") || name.ends_with("_tests.rs"))
    }

    /// Returns the text before the trailing `#[cfg(test)] mod tests { .. }`.
    pub(crate) fn without_tests(&self) -> &str {
        without_tests(&self.text)
    }
}

fn without_tests(text: &str) -> &str {
    const MARK: &str = "#[cfg(test)]";
    let mut start = 0;
    while let Some(found) = text[start..].find(MARK) {
        let mark = start + found;
        start = mark + MARK.len();
        let item = text[start..].lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#["));
        let at_line_start = mark == 0 || text[..mark].ends_with('\n');
        if at_line_start && item.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{')) {
            return &text[..mark];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trailing_test_module_is_left_out() {
        let file = "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}\n#[cfg(test)]\n#[expect(x)]\nmod tests {\n}\n";
        assert_eq!(without_tests(file), "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}\n");
        assert_eq!(without_tests("fn f() {}\n"), "fn f() {}\n");
    }
}
