//! The sources of the kernels, and their checksum.

use anyhow::{Context, Result};

use crate::checkout::Checkout;

/// Directory of the sources.
const DIRECTORY: &str = "crates/accel/kernels/";

/// The files that devices compile, the first one with the others included.
const FILES: [&str; 7] = ["kernels.cu", "dialect.h", "blake3.h", "gear.h", "references.h", "sha.h", "stamp.h"];

/// The mark before the name of each kernel.
const KERNEL: &str = "KERNEL BOUNDS(";

/// The sources of the kernels.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Names and texts; the first file includes the others.
    pub(crate) files: Vec<(&'static str, String)>,
    /// BLAKE3 over names, lengths and texts, in hexadecimal digits.
    pub(crate) checksum: String,
    /// Names of the kernels, sorted.
    pub(crate) kernels: Vec<String>,
}

impl Sources {
    /// Takes the sources from a working tree.
    pub(crate) fn of(checkout: &Checkout) -> Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let (mut files, mut kernels) = (Vec::new(), Vec::new());
        for name in FILES {
            let path = format!("{DIRECTORY}{name}");
            let file = checkout.file(&path).with_context(|| format!("no {path}"))?;
            for part in [name, file.text.as_str()] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            kernels.extend(defined(&file.text));
            files.push((name, file.text.clone()));
        }
        kernels.sort();
        Ok(Self { files, checksum: hasher.finalize().to_hex().to_string(), kernels })
    }
}

/// Returns the names of the kernels that a source defines.
fn defined(text: &str) -> impl Iterator<Item = String> {
    let after = text.split(KERNEL).skip(1).filter_map(|rest| rest.split_once(')'));
    after.filter_map(|(_, rest)| rest.trim_start().split('(').next()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_changes_the_checksum() {
        let paths = FILES.map(|name| format!("{DIRECTORY}{name}"));
        let checksum = |changed: &str| {
            let text = |path: &str| if path == changed { "one" } else { "other" };
            let files: Vec<_> = paths.iter().map(|path| (path.as_str(), text(path))).collect();
            Sources::of(&Checkout::of(&files)).unwrap().checksum
        };
        let same = checksum("");
        assert!(paths.iter().all(|path| checksum(path) != same));
        assert!(Sources::of(&Checkout::of(&[])).is_err());
    }

    #[test]
    fn kernels_are_found_on_one_line_and_on_two() {
        let text = "#define KERNEL x\nKERNEL BOUNDS(128, 8) a(u32 n) {}\nKERNEL BOUNDS(1, 2)\nb_c(u32 n) {}\n";
        assert!(defined(text).eq(["a", "b_c"].map(str::to_owned)));
    }
}
