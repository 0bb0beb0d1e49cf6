//! A module of the engine imports from lower layers. Modules of one layer form no import cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::cycles::reach;
use crate::checkout::Checkout;
use crate::rust;

/// The layers, lowest first. ARCHITECTURE.md has the same table with the purpose of each module. Only tests import the
/// highest.
const LAYERS: [&[&str]; 9] = [
    &["types", "error", "codec", "random", "bloom", "bitmap", "lru"],
    &["io", "monitor", "pipeline"],
    &["accelerator", "chunk", "fingerprint", "compress", "crypto", "kv", "object", "spill"],
    &["container", "recipe", "similarity", "snapshot", "source", "tree"],
    &["identify", "store"],
    &["backup", "restore", "check", "collect", "inspect", "forget", "derive"],
    &["repo"],
    &["facade"],
    &["testing"],
];

const SOURCES: &str = "crates/engine/src/";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut same_layer = BTreeMap::<&str, BTreeSet<&str>>::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let Some(module) = module_of(&file.path) else { continue };
        let Some(layer) = layer_of(module) else {
            findings.push(Finding::new(&file.path, 0, format!("module `{module}` has no layer; see {}", file!())));
            continue;
        };
        for (line, import) in imports(&file.code) {
            match layer_of(import) {
                _ if import == module => {}
                Some(other) if other < layer => {}
                Some(other) if other == layer => {
                    same_layer.entry(module).or_default().insert(import);
                }
                Some(other) => {
                    let message = format!("`{module}` (L{layer}) imports `{import}` (L{other}) from above");
                    findings.push(Finding::new(&file.path, line, message));
                }
                None => {
                    findings.push(Finding::new(&file.path, line, format!("imports `{import}`, which has no layer")));
                }
            }
        }
    }
    let next = |module: &str| same_layer.get(module).into_iter().flatten().copied();
    if let Some(module) = same_layer.keys().find(|module| reach(module, next).contains(*module)) {
        findings.push(Finding::new(SOURCES, 0, format!("`{module}` imports itself through modules of its own layer")));
    }
    findings
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Returns the top module that a file belongs to; none for the crate's root.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(SOURCES)?;
    let name = inside.split('/').next()?;
    let module = name.strip_suffix(".rs").unwrap_or(name);
    (module != "lib").then_some(module)
}

/// Returns the top modules that code names after `crate::`, each with its line. Names that the root re-exports begin with
/// a capital and belong to the lowest layer.
fn imports(code: &str) -> Vec<(usize, &str)> {
    let is_module = |name: &&str| name.starts_with(|first: char| first.is_ascii_lowercase());
    let in_crate = rust::paths(code).into_iter().filter(|path| path.names[0] == "crate");
    in_crate
        .filter_map(|path| Some((rust::line_of(code, path.start), *path.names.get(1).filter(|name| is_module(name))?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> = files.iter().map(|(path, _)| format!("{SOURCES}{path}")).collect();
        let files: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        check(&Checkout::of(&files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn imports_are_found_alone_in_groups_and_in_paths_but_not_in_comments() {
        let code = "use crate::io::Disk;\nuse crate::{\n    chunk::{self, cut},\n    types,\n};\n// crate::repo\nfn f() -> \
                    crate::Result<crate::kv::Kv> {}\n";
        assert_eq!(imports(&rust::code_of(code)), [(1, "io"), (3, "chunk"), (3, "chunk"), (4, "types"), (7, "kv")]);
    }

    #[test]
    fn an_import_from_above_is_reported_and_one_from_below_or_in_tests_is_not() {
        assert!(findings(&[("repo/mod.rs", "use crate::io::Disk;\n")]).is_empty());
        assert!(findings(&[("io/os.rs", "#[cfg(test)]\nmod tests {\nuse crate::repo;\n}\n")]).is_empty());
        assert_eq!(findings(&[("io/os.rs", "use crate::repo;\n")]).len(), 1);
        assert_eq!(findings(&[("facade/mod.rs", "use crate::testing::sim;\n")]).len(), 1);
        assert_eq!(findings(&[("misc.rs", "")]).len(), 1);
    }

    #[test]
    fn imports_inside_a_layer_are_fine_until_they_form_a_cycle() {
        let recipe = ("recipe.rs", "use crate::container::Pack;\n");
        assert!(findings(&[recipe]).is_empty());
        assert_eq!(findings(&[recipe, ("container.rs", "use crate::recipe::Cut;\n")]).len(), 1);
    }
}
