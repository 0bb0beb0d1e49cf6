//! A module of the engine imports from lower layers; among modules of one layer, imports form no cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::checkout::Checkout;

/// The layers, lowest first. ARCHITECTURE.md has the same table with what each module is for.
const LAYERS: [&[&str]; 8] = [
    &["types", "error", "codec"],
    &["io", "monitor"],
    &["chunk", "fingerprint", "compress", "crypto", "kv", "object", "spill"],
    &["container", "recipe", "snapshot", "source", "tree"],
    &["index", "store"],
    &["pipeline", "backup", "restore", "check", "inspect"],
    &["repo", "fuzzing", "vectors"],
    &["facade"],
];

const SOURCES: &str = "crates/engine/src/";

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut same_layer = BTreeMap::<String, BTreeSet<String>>::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let Some(module) = module_of(&file.path) else { continue };
        let Some(layer) = layer_of(module) else {
            findings.push(Finding::new(&file.path, 0, format!("module `{module}` has no layer; see {}", file!())));
            continue;
        };
        for (line, import) in imports(file.without_tests()) {
            match layer_of(import) {
                _ if import == module => {}
                Some(other) if other < layer => {}
                Some(other) if other == layer => {
                    same_layer.entry(module.to_owned()).or_default().insert(import.to_owned());
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
    if let Some(module) = same_layer.keys().find(|module| reaches_itself(&same_layer, module)) {
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

/// Returns the top modules that code names after `crate::`, each with its line. What the root re-exports begins
/// with a capital and belongs to the lowest layer.
fn imports(code: &str) -> Vec<(usize, &str)> {
    const ROOT: &str = "crate::";
    let mut found = Vec::new();
    for (start, _) in code.match_indices(ROOT) {
        let before = &code[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let in_comment = before[line_start..].contains("//");
        if in_comment || before.ends_with(|last: char| last.is_alphanumeric() || last == '_') {
            continue;
        }
        let line = before.matches('\n').count() + 1;
        let after = &code[start + ROOT.len()..];
        let names = if after.starts_with('{') { group(after) } else { vec![identifier(after)] };
        let is_module = |name: &&str| name.starts_with(|first: char| first.is_ascii_lowercase());
        found.extend(names.into_iter().filter(is_module).map(|name| (line, name)));
    }
    found
}

/// Returns the first identifier of each member of `{a::b, c::{d, e}}`.
fn group(braced: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut depth = 0_u32;
    for (at, character) in braced.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(character, '{' | ',') {
            names.push(identifier(braced[at + 1..].trim_start()));
        }
    }
    names
}

fn identifier(text: &str) -> &str {
    let end = text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len());
    &text[..end]
}

fn reaches_itself(edges: &BTreeMap<String, BTreeSet<String>>, start: &str) -> bool {
    let mut visited = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(module) = waiting.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if next == start {
                return true;
            }
            if visited.insert(next.as_str()) {
                waiting.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::checkout::TextFile;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(path, text)| TextFile { path: format!("{SOURCES}{path}"), text: (*text).to_owned() })
            .collect();
        let checkout = Checkout { root: PathBuf::new(), files, paths: Vec::new() };
        check(&checkout).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn imports_are_found_alone_in_groups_and_in_paths_but_not_in_comments() {
        let code = "use crate::io::Disk;\nuse crate::{\n    chunk::{self, cut},\n    types,\n};\n// crate::repo\nfn f() -> \
                    crate::Result<crate::kv::Kv> {}\n";
        let names: Vec<_> = imports(code).into_iter().collect();
        assert_eq!(names, [(1, "io"), (2, "chunk"), (2, "types"), (7, "kv")]);
    }

    #[test]
    fn an_import_from_above_is_reported_and_one_from_below_or_in_tests_is_not() {
        assert!(findings(&[("repo/mod.rs", "use crate::io::Disk;\n")]).is_empty());
        assert!(findings(&[("io/os.rs", "#[cfg(test)]\nmod tests {\nuse crate::repo;\n}\n")]).is_empty());
        assert_eq!(findings(&[("io/os.rs", "use crate::repo;\n")]).len(), 1);
        assert_eq!(findings(&[("misc.rs", "")]).len(), 1);
    }

    #[test]
    fn imports_inside_a_layer_are_fine_until_they_form_a_cycle() {
        let recipe = ("recipe.rs", "use crate::container::Pack;\n");
        assert!(findings(&[recipe]).is_empty());
        assert_eq!(findings(&[recipe, ("container.rs", "use crate::recipe::Cut;\n")]).len(), 1);
    }
}
