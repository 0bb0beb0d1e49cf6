//! Sources contain no path of one machine and no setting that sends package managers to another registry.

use super::Finding;
use crate::checkout::Checkout;

/// Each in two halves, so that this list is no finding itself.
const HOME_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
const REGISTRY_SETTINGS: [&str; 6] = [
    concat!("replace", "-with"),
    concat!("index", "-url"),
    concat!("extra-", "index"),
    concat!("CARGO_", "REGISTR"),
    concat!("PIP_", "INDEX"),
    concat!("trusted", "-host"),
];

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &checkout.files {
        for (line, text) in (1..).zip(file.text.lines()) {
            for path in HOME_PATHS.iter().filter(|path| contains_absolute(text, path)) {
                findings.push(Finding::new(&file.path, line, format!("a path of one machine: {path}")));
            }
            for setting in REGISTRY_SETTINGS.iter().filter(|setting| text.contains(*setting)) {
                findings.push(Finding::new(&file.path, line, format!("a registry of one machine: {setting}")));
            }
        }
    }
    findings
}

/// Returns true if the text contains the path as an absolute one, not as the middle of another.
fn contains_absolute(text: &str, path: &str) -> bool {
    let continues = |last: char| last.is_alphanumeric() || matches!(last, '_' | '-' | '.' | '}' | '$' | '*');
    text.match_indices(path).any(|(start, _)| !text[..start].ends_with(continues))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_count() {
        let home = HOME_PATHS[0];
        assert!(contains_absolute(&format!("cd {home}x"), home));
        assert!(contains_absolute(&format!("\"{home}x\""), home));
        assert!(!contains_absolute(&format!("/tmp{home}x"), home));
        assert!(!contains_absolute(&format!("${{tmp}}{home}x"), home));
    }
}
