//! A source file has at most 500 lines without its tests, unless it defines one type that cannot be divided.

use super::Finding;
use crate::checkout::Checkout;

/// Longest file, without tests. (Functions: `too-many-lines-threshold` in clippy.toml.)
const LINES_MAX: usize = 500;

/// The line that permits a longer file, followed by the reason.
const PERMIT: &str = "// One type: ";

/// Lines from the start of a file among which the permit must be.
const HEAD_LINES: usize = 60;

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let lines = file.without_tests().lines().count();
        let is_permitted =
            file.text.lines().take(HEAD_LINES).any(|line| line.len() > PERMIT.len() && line.starts_with(PERMIT));
        if LINES_MAX < lines && !is_permitted {
            findings.push(Finding::new(&file.path, 0, format!("{lines} lines without tests, at most {LINES_MAX}")));
        }
        if lines <= LINES_MAX && is_permitted {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("needs no `{PERMIT}`: it has {lines} lines without tests"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> usize {
        check(&Checkout::of(&[("crates/x/src/lib.rs", text)])).len()
    }

    #[test]
    fn a_long_file_needs_a_reason_and_a_short_one_has_none() {
        let long = "\n".repeat(LINES_MAX + 1);
        let reason = format!("{PERMIT}its fields change together.\n");
        assert_eq!((findings(&long), findings(&format!("{reason}{long}"))), (1, 0));
        assert_eq!(findings(&format!("{PERMIT}\n{long}")), 1);
        assert_eq!(findings(&format!("{long}{reason}")), 1);
        assert_eq!(findings(&reason), 1);
        assert_eq!(findings(&format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")), 0);
    }
}
