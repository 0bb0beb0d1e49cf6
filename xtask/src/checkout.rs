//! The files of the working tree, as git knows them: tracked ones and new ones that are not ignored.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

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

/// All text files of the working tree. Files that are not UTF-8 are left out: test data, mostly.
#[derive(Debug)]
pub(crate) struct Checkout {
    /// Where the working tree stands.
    pub(crate) root: PathBuf,
    /// Its text files, sorted by path.
    pub(crate) files: Vec<TextFile>,
    /// Every path, those of files that are not text included.
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
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("run git ls-files")?;
        ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr).trim());
        let names = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
        let mut paths: Vec<String> = names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        paths.sort();
        paths.dedup();
        // A file that was deleted but is still tracked is not there to be checked.
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
        Self { root: PathBuf::new(), files: files.iter().map(file).collect(), paths: Vec::new() }
    }

    /// Returns the file at `path`, if it is there.
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

    /// Says whether the file is Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    /// Says whether the file is a program of any language.
    pub(crate) fn is_program(&self) -> bool {
        self.is_rust() || ["py", "sh"].iter().any(|end| self.has_extension(end)) || self.text.starts_with("#!/")
    }

    /// Says whether the file holds nothing but tests: `tests/..`, `benches/..`, `tests.rs`, `x_tests.rs`.
    pub(crate) fn is_test(&self) -> bool {
        let mut components = self.path.split('/');
        components.any(|name| matches!(name, "tests" | "benches" | "tests.rs") || name.ends_with("_tests.rs"))
    }

    /// Returns the text in front of the trailing `#[cfg(test)] mod tests { .. }`.
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
