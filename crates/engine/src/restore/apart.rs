//! A restore does not write into the repository that it reads, nor into the repository's index.

use std::path::Path;

use crate::error::{Error, Result};
use crate::io::tree::SourceTree;

/// Refuses a target inside one of the directories that a restore reads. Each comes with a word for what is in it. The target
/// need not exist yet.
pub fn ensure_apart(tree: &dyn SourceTree, target: &Path, read: &[(&Path, &str)]) -> Result<()> {
    // The working directory is above every relative path.
    let above = target.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let Some(existing) = { above }.find_map(|path| tree.canonical(path).ok()) else { return Ok(()) };
    for (directory, what) in read {
        if tree.canonical(directory).is_ok_and(|directory| existing.starts_with(directory)) {
            let shown = target.display();
            return Err(Error::invalid(format!("{shown}: the {what} is there; restore to another directory")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mem_tree::MemTree;

    #[test]
    fn targets_inside_of_what_is_read_are_refused_however_they_are_spelled() {
        let tree = MemTree::new();
        tree.put_dir(Path::new("/home/repository/containers"));
        tree.put_dir(Path::new("/home/repository-2"));
        tree.put_symlink(Path::new("/link"), "home/repository".as_ref());
        tree.set_working_directory(Path::new("/home/repository"));
        let refused = |target: &str| {
            let read = [(Path::new("/gone"), "index"), (Path::new("/home/repository"), "repository")];
            let outcome = ensure_apart(&tree, Path::new(target), &read);
            outcome.is_err_and(|error| error.to_string().contains("the repository is there"))
        };
        let inside =
            ["/home/repository", "/home/repository/", "/home/repository/a/b", "/link", "/link/a", "new", ".", ""];
        for target in inside.into_iter().chain(["/home/repository-2/../repository/new"]) {
            assert!(refused(target), "{target}");
        }
        for target in ["/", "/home", "/home/repository-2", "/home/repository-2/new", "/home/repositor", "../new"] {
            assert!(!refused(target), "{target}");
        }
    }
}
