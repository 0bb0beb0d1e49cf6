//! A test reads every repository in testdata/formats.

use std::collections::BTreeSet;

use super::Finding;
use crate::checkout::Checkout;

const KEPT: &str = "testdata/formats/";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let versions: BTreeSet<&str> = checkout
        .paths
        .iter()
        .filter_map(|path| path.strip_prefix(KEPT)?.split_once('/'))
        .map(|(name, _)| name)
        .collect();
    let mut findings = Vec::new();
    for version in versions {
        let names = [format!("formats/{version}"), format!("\"{version}\"")];
        let mut tests = checkout.files.iter().filter(|file| file.is_rust() && file.is_test());
        if !tests.any(|file| names.iter().any(|name| file.text.contains(name))) {
            findings.push(Finding::new(&format!("{KEPT}{version}"), 0, "no test names this repository"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_that_no_test_names_is_found() {
        let kept = ("testdata/formats/7/config", "");
        assert_eq!(check(&Checkout::of(&[kept])).len(), 1);
        assert!(check(&Checkout::of(&[kept, ("crates/x/tests/old.rs", "open(\"formats/7\")")])).is_empty());
        assert_eq!(check(&Checkout::of(&[kept, ("crates/x/src/old.rs", "open(\"formats/7\")")])).len(), 1);
    }
}
