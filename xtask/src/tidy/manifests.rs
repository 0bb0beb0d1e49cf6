//! Each dependency has a line in docs/decisions and comes from the public registry. The engine depends on no crate of
//! certain kinds. A crate of the workspace depends on those below it.

use super::Finding;
use crate::checkout::{Checkout, TextFile};

/// Async runtimes, serialization frameworks, command-line parsers and erased errors, which the engine must not depend on.
const BANNED_IN_ENGINE: [&str; 7] = ["tokio", "async-std", "futures", "serde", "serde_json", "clap", "anyhow"];

/// The crates of the workspace that each other one may depend on. The command may depend on all of them.
const CRATES_BELOW: [(&str, &[&str]); 7] = [
    ("accel", &[]),
    ("sys", &[]),
    ("model", &[]),
    ("engine", &["accel", "sys"]),
    ("backends", &["engine"]),
    ("cdp", &["engine", "sys"]),
    ("lab", &["accel", "engine", "sys"]),
];

const ENGINE: &str = "crates/engine/Cargo.toml";
const PUBLIC_REGISTRY: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_decision = |file: &&TextFile| file.path.starts_with("docs/decisions/");
    for file in checkout.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for (line, name) in dependencies(&file.text) {
            if let Some(other) = name.strip_prefix("onefold-") {
                if let Some(package) = package_above(&file.path, other) {
                    let message = format!("`{package}` must not depend on `{other}`; see {}", file!());
                    findings.push(Finding::new(&file.path, line, message));
                }
                continue;
            }
            if file.path == ENGINE && BANNED_IN_ENGINE.contains(&name) {
                findings.push(Finding::new(&file.path, line, format!("the engine must not depend on `{name}`")));
            }
            let row = format!("| `{name}` |");
            if !checkout.files.iter().filter(is_decision).any(|file| file.text.contains(&row)) {
                findings.push(Finding::new(&file.path, line, format!("`{name}` has no line in docs/decisions")));
            }
        }
    }
    for file in checkout.files.iter().filter(|file| file.path.ends_with("Cargo.lock")) {
        for (line, text) in (1..).zip(file.text.lines()) {
            if text.starts_with("source = ") && text != PUBLIC_REGISTRY {
                findings.push(Finding::new(&file.path, line, "a dependency from outside the public registry"));
            }
        }
    }
    findings
}

/// Returns the package of a manifest if it must not depend on the other package of the workspace.
fn package_above<'a>(path: &'a str, other: &str) -> Option<&'a str> {
    let package = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    let (_, below) = CRATES_BELOW.iter().find(|(name, _)| *name == package)?;
    (package != other && !below.contains(&other)).then_some(package)
}

/// Returns the names in the tables of dependencies of a manifest, each with its line.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut names = Vec::new();
    for (line, text) in (1..).zip(manifest.lines()) {
        if let Some(table) = text.strip_prefix('[') {
            inside = table.trim_end().ends_with("dependencies]");
            if let Some((_, name)) = table.rsplit_once("dependencies.") {
                names.push((line, name.trim_end_matches(']')));
            }
        } else if let (true, Some((name, _))) = (inside, text.split_once(['=', '.', ' ']))
            && !name.is_empty()
            && !name.starts_with('#')
        {
            names.push((line, name));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found_in_every_kind_of_table() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\n# why\nring = \"1\"\nserde.workspace = true\n\
                        [dev-dependencies.tempfile]\nversion = \"3\"\n[target.'cfg(unix)'.dependencies]\nrustix = \"1\"\n";
        assert_eq!(dependencies(manifest), [(5, "ring"), (6, "serde"), (7, "tempfile"), (10, "rustix")]);
    }
    #[test]
    fn a_dependency_needs_a_decision_and_the_public_registry_and_some_are_banned_in_the_engine() {
        let manifest = (ENGINE, "[dependencies]\nserde = \"1\"\n");
        let decision = ("docs/decisions/1.md", "| `serde` | saves code |");
        let lock = ("Cargo.lock", "source = \"git+https://example.org/a\"\n");
        let other = ("crates/x/Cargo.toml", manifest.1);
        assert_eq!(check(&Checkout::of(&[manifest, decision])).len(), 1);
        assert!(check(&Checkout::of(&[other, decision])).is_empty());
        assert_eq!(check(&Checkout::of(&[other, lock])).len(), 2);
    }
    #[test]
    fn a_crate_depends_on_itself_and_on_those_below() {
        let findings = |package: &str, other: &str| {
            let manifest = format!("[dependencies]\nonefold-{other} = {{ workspace = true }}\n");
            check(&Checkout::of(&[(&format!("crates/{package}/Cargo.toml"), &manifest)])).len()
        };
        assert_eq!((findings("cdp", "engine"), findings("cdp", "cdp"), findings("cli", "cdp")), (0, 0, 0));
        assert_eq!((findings("cdp", "lab"), findings("engine", "cdp"), findings("sys", "engine")), (1, 1, 1));
    }
}
