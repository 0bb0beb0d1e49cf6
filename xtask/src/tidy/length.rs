//! A file is one concept, and a concept fits in 500 lines without its tests.

use super::Finding;
use crate::checkout::Checkout;

/// Longest file, tests left out. (Functions: `too-many-lines-threshold` in clippy.toml.)
const LINES_MAX: usize = 500;

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let lines = file.without_tests().lines().count();
        if LINES_MAX < lines {
            findings.push(Finding::new(&file.path, 0, format!("{lines} lines without tests, at most {LINES_MAX}")));
        }
    }
    findings
}
