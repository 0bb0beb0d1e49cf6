//! Only two crates and one file lift the lint against `unsafe`; all members of the workspace inherit it.

use super::Finding;
use crate::checkout::{Checkout, TextFile};

/// Crates that may lift the lint, for system calls and vector kernels; and the file that calls the compiler of kernels for GPUs.
const MAY: [&str; 3] = ["crates/sys/", "crates/accel/", "xtask/src/kernels/nvrtc.rs"];

/// The lint, in two halves, so that this line is no finding itself.
const LINT: &str = concat!("unsafe", "_code");

/// Tests that count the allocations of decoders: every allocator is `unsafe`.
const COUNTING_ALLOCATORS: [&str; 2] = ["crates/engine/tests/corpus.rs", "crates/lab/tests/corpus.rs"];

const INHERITS: &str = "[lints]\nworkspace = true\n";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    checkout
        .files
        .iter()
        .filter(|file| !MAY.iter().any(|may| file.path.starts_with(may)))
        .flat_map(check_file)
        .collect()
}

fn check_file(file: &TextFile) -> Vec<Finding> {
    let is_member = ["crates/", "xtask/"].iter().any(|root| file.path.starts_with(root));
    let mut findings = Vec::new();
    if is_member && file.path.ends_with("Cargo.toml") && !file.text.contains(INHERITS) {
        findings.push(Finding::new(&file.path, 0, "does not inherit the lints of the workspace"));
    }
    if is_member {
        let lifts = |text: &str| text.contains(LINT) && !text.contains("forbid");
        let lines = (1..)
            .zip(file.text.lines())
            .filter(|(_, text)| lifts(text) && !COUNTING_ALLOCATORS.contains(&file.path.as_str()));
        findings
            .extend(lines.map(|(line, _)| Finding::new(&file.path, line, format!("only {MAY:?} may lift `{LINT}`"))));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&Checkout::of(&[(path, text)])).len()
    }

    #[test]
    fn only_two_crates_lift_the_lint_and_all_members_have_it() {
        let lifting = format!("#![allow({LINT})]\n");
        assert_eq!(findings("crates/engine/src/lib.rs", &lifting), 1);
        assert_eq!(findings("crates/engine/src/lib.rs", "// unsafe\n"), 0);
        assert_eq!(findings("crates/engine/src/lib.rs", &format!("#![forbid({LINT})]\n")), 0);
        assert_eq!(findings("crates/sys/src/lib.rs", &lifting), 0);
        assert_eq!(findings("crates/cli/Cargo.toml", "[package]\n"), 1);
        assert_eq!(findings("crates/cli/Cargo.toml", &format!("[package]\n\n{INHERITS}")), 0);
        assert_eq!(findings("crates/cli/Cargo.toml", &format!("{INHERITS}{LINT} = \"allow\"\n")), 1);
        assert_eq!(findings("Cargo.toml", &format!("rust.{LINT} = \"deny\"\n")), 0);
    }
}
