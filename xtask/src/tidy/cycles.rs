//! The files of a crate form no import cycle.
//!
//! A file imports another if a path in its code leads to a name that the other defines. A re-export leads on to the
//! definition. A module and the modules below it belong together: imports between their files do not count. Tests may import
//! anything.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::checkout::Checkout;
use crate::rust::{self, Path};

/// Re-exports that lead from one to another, at most.
const REEXPORTS_MAX: usize = 8;

/// Names that a file takes from each file it imports.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

pub(super) fn check(checkout: &Checkout) -> Vec<Finding> {
    let mut crates = BTreeMap::<&str, Crate<'_>>::new();
    for file in checkout.files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let Some((name, module)) = module_of(&file.path) else { continue };
        crates.entry(name).or_default().modules.insert(module, Module::read(&file.path, &file.code));
    }
    let mut findings = Vec::new();
    for found in crates.values() {
        let imports = found.imports();
        findings.extend(cycles(&imports).iter().map(|cycle| Finding::new(cycle[0], 0, describe(cycle, &imports))));
    }
    findings
}

fn describe(cycle: &[&str], imports: &BTreeMap<&str, Imports<'_>>) -> String {
    let mut lines = vec![String::from("files import each other in a cycle:")];
    for from in cycle {
        for to in cycle {
            if let Some(names) = imports.get(from).and_then(|imported| imported.get(to)) {
                let names: Vec<&str> = names.iter().copied().collect();
                lines.push(format!("    {from} takes {} from {to}", names.join(", ")));
            }
        }
    }
    lines.join("\n")
}

/// Returns the root of the crate that a file belongs to, and the names of its module; none outside of `src`.
fn module_of(path: &str) -> Option<(&str, Vec<&str>)> {
    let (package, inside) = path.split_once("/src/")?;
    if inside.starts_with("bin/") {
        return Some((path, Vec::new()));
    }
    let mut names: Vec<&str> = inside.strip_suffix(".rs")?.split('/').collect();
    if matches!(names.last(), Some(&("mod" | "lib" | "main"))) {
        names.pop();
    }
    Some((package, names))
}

/// A file of a crate.
struct Module<'a> {
    path: &'a str,
    /// Names that its `use` declarations bring in, with the paths that they stand for.
    names: BTreeMap<&'a str, Vec<&'a str>>,
    /// Paths that it uses. Re-exports count if the code names them elsewhere.
    used: Vec<Vec<&'a str>>,
}

impl<'a> Module<'a> {
    fn read(path: &'a str, code: &'a str) -> Self {
        let declarations = rust::uses(code);
        let in_declaration = |offset: usize| declarations.iter().any(|found| found.range.contains(&offset));
        let words: BTreeSet<&str> =
            rust::tokens(code).into_iter().filter(|(start, _)| !in_declaration(*start)).map(|(_, word)| word).collect();
        let inline = rust::paths(code).into_iter().filter(|found| !in_declaration(found.start));
        let mut used: Vec<Vec<&str>> = inline.map(|found| found.names).collect();
        let mut names = BTreeMap::new();
        for declaration in declarations {
            for Path { names: target, alias, .. } in declaration.paths {
                let Some(name) = alias.or(target.last().copied()) else { continue };
                if !declaration.is_public || words.contains(name) {
                    used.push(target.clone());
                }
                names.insert(name, target);
            }
        }
        Self { path, names, used }
    }
}

#[derive(Default)]
struct Crate<'a> {
    modules: BTreeMap<Vec<&'a str>, Module<'a>>,
}

impl<'a> Crate<'a> {
    fn imports(&self) -> BTreeMap<&'a str, Imports<'a>> {
        let mut imports = BTreeMap::<&str, Imports<'_>>::new();
        for (own, module) in &self.modules {
            for path in &module.used {
                let Some((target, name)) = self.resolve(own, path, 0) else { continue };
                if !target.starts_with(own) && !own.starts_with(&target) {
                    let target = self.modules[&target].path;
                    imports.entry(module.path).or_default().entry(target).or_default().insert(name);
                }
            }
        }
        imports
    }

    /// Returns the module that defines the name a path leads to, and the name; none for a module and for other crates.
    fn resolve(&self, own: &[&'a str], path: &[&'a str], reexports: usize) -> Option<(Vec<&'a str>, &'a str)> {
        let mut module = own.to_vec();
        let mut rest = path;
        match *path.first()? {
            "crate" => (module, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {}
            first if self.modules.contains_key(&[own, &[first]].concat()) => {}
            first if self.modules[own].names.contains_key(first) => {}
            _ => return None,
        }
        while let [first, after @ ..] = rest {
            if *first == "super" {
                module.pop()?;
            } else if self.modules.contains_key(&[&module[..], &[*first]].concat()) {
                module.push(first);
            } else {
                break;
            }
            rest = after;
        }
        let name = rest.first()?;
        let found = self.modules.get(&module)?;
        match found.names.get(name) {
            Some(target) if *target != path && reexports < REEXPORTS_MAX => {
                self.resolve(&module, &[&target[..], &rest[1..]].concat(), reexports + 1)
            }
            _ => Some((module, name)),
        }
    }
}

/// Returns the sets of files that reach each other.
fn cycles<'a>(imports: &BTreeMap<&'a str, Imports<'a>>) -> Vec<Vec<&'a str>> {
    let next = |file: &str| imports.get(file).into_iter().flat_map(|imported| imported.keys().copied());
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|file| (*file, reach(file, next))).collect();
    let mut found = BTreeSet::new();
    for (file, reaches) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|reaches| reaches.contains(file));
        if reaches.contains(file) {
            found.insert(reaches.iter().filter(back).copied().collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

/// Returns every node that edges lead to from `start`; `start` itself if it lies on a cycle.
pub(super) fn reach<'a, I: Iterator<Item = &'a str>>(start: &'a str, next: impl Fn(&'a str) -> I) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(node) = waiting.pop() {
        waiting.extend(next(node).filter(|next| reached.insert(*next)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "crates/x/src/a.rs";
    const B: &str = "crates/x/src/b/mod.rs";
    const C: &str = "crates/x/src/b/c.rs";

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        check(&Checkout::of(files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn two_files_that_take_names_from_each_other_are_a_cycle() {
        let files = [(A, "use crate::b::B;"), (B, "pub struct B(crate::a::A);")];
        let found = findings(&files);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(&format!("{A} takes B from {B}")), "{found:?}");
        assert!(findings(&files[..1]).is_empty());
    }

    #[test]
    fn a_reexport_leads_to_the_definition_and_is_no_import_itself() {
        let through = [(B, "mod c;\npub use c::C;"), (A, "use crate::b::C;\nstruct A;"), (C, "use crate::a::A;")];
        assert!(findings(&through)[0].contains(&format!("{A} takes C from {C}")));
        assert!(findings(&through[..2]).is_empty());
        let back = [(B, "pub use crate::a::A;"), (A, "use crate::b::B;")];
        assert!(findings(&back).is_empty());
        assert_eq!(findings(&[(B, "pub use crate::a::A;\nstruct B(A);"), back[1]]).len(), 1);
    }

    #[test]
    fn modules_and_their_parents_tests_and_comments_make_no_cycle() {
        assert!(findings(&[(B, "mod c;\nuse c::C;"), (C, "use super::B;")]).is_empty());
        assert!(findings(&[(A, "use crate::b::B;"), (B, "#[cfg(test)]\nuse crate::a::A;\n// crate::a::A")]).is_empty());
        assert!(
            findings(&[(A, "use crate::b;\nfn f() { b::f() }"), ("crates/y/src/b.rs", "use crate::a::A;")]).is_empty()
        );
    }
}
