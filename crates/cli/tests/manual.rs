//! README and manual: links lead somewhere, and commands do what the pages have them do.

mod page;
mod sandbox;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use page::Page;
use sandbox::Sandbox;

use crate::fixture::Fixture;

/// A newcomer reads no more.
const README_LINES_MAX: usize = 120;

/// The list of the manual's chapters.
const SUMMARY: &str = "docs/manual/src/SUMMARY.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the documents of the checkout: those at its root and those below `docs`.
fn documents(root: &Path) -> BTreeMap<PathBuf, Page> {
    let mut pages = BTreeMap::new();
    let mut left = vec![root.join("docs")];
    let mut files: Vec<PathBuf> = entries(root);
    while let Some(directory) = left.pop() {
        let (directories, found) = entries(&directory).into_iter().partition(|path: &PathBuf| path.is_dir());
        left.extend::<Vec<_>>(directories);
        files.extend::<Vec<_>>(found);
    }
    for file in files.iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let path = file.strip_prefix(root).unwrap();
        pages.insert(path.to_path_buf(), Page::parse(path, &fs::read_to_string(file).unwrap()));
    }
    pages
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the pages that the manual's summary lists.
fn chapters(pages: &BTreeMap<PathBuf, Page>) -> BTreeSet<PathBuf> {
    let summary = &pages[Path::new(SUMMARY)];
    summary.links.iter().map(|link| resolve(&summary.path, &link.target).unwrap().0).collect()
}

/// Returns the path that a link leads to, from the root, and the heading there.
fn resolve(page: &Path, target: &str) -> Option<(PathBuf, Option<String>)> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    let mut resolved = if path.is_empty() { page.to_path_buf() } else { page.parent()?.to_path_buf() };
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir => resolved.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some((resolved, anchor))
}

/// Returns the links of a page that lead nowhere.
fn broken_links(root: &Path, pages: &BTreeMap<PathBuf, Page>, page: &Page) -> Vec<String> {
    let mut broken = Vec::new();
    for link in page.links.iter().filter(|link| !link.target.contains("://")) {
        let found = resolve(&page.path, &link.target).is_some_and(|(path, anchor)| match anchor {
            None => root.join(path).exists(),
            Some(anchor) => pages.get(&path).is_some_and(|page| page.anchors.contains(&anchor)),
        });
        if !found {
            broken.push(format!("{}:{}: {} leads nowhere", page.path.display(), link.line, link.target));
        }
    }
    broken
}

#[test]
fn links_of_all_documents_lead_somewhere() {
    let root = root();
    let pages = documents(&root);
    let broken: Vec<String> = pages.values().flat_map(|page| broken_links(&root, &pages, page)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(pages.values().map(|page| page.links.len()).sum::<usize>() > 100, "links are not found any more");
}

#[test]
fn broken_links_are_found() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("docs")).unwrap();
    let text = "# Here\n[1](docs/a.md#there) [2](#here) [3](docs) [4](https://example.org/x)\n\
        [5](docs/b.md)\n[6](docs/a.md#nowhere)\n[7](../../a.md)\n";
    fs::write(directory.path().join("README.md"), text).unwrap();
    fs::write(directory.path().join("docs/a.md"), "## There\n[8](../README.md#here)\n").unwrap();
    let pages = documents(directory.path());
    let broken: Vec<String> = pages.values().flat_map(|page| broken_links(directory.path(), &pages, page)).collect();
    let expected = [
        "README.md:3: docs/b.md leads nowhere",
        "README.md:4: docs/a.md#nowhere leads nowhere",
        "README.md:5: ../../a.md leads nowhere",
    ];
    assert_eq!(broken, expected);
}

#[test]
fn the_picture_of_a_session_has_the_words_of_this_program() {
    // Columns are as wide as what is in them.
    let narrow = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let picture = narrow(&fs::read_to_string(root().join("docs/images/session.svg")).unwrap().replace("&#160;", " "));
    let fixture = Fixture::without_repository(Some("correct horse"));
    fixture.write("file", b"1234");
    let mut shown = Vec::new();
    for arguments in [&["init"][..], &["backup", "source"], &["backup", "source"], &["snapshots"]] {
        let ran = fixture.run(arguments).code(0);
        shown.extend(format!("{}{}", ran.stderr(), ran.stdout()).lines().map(str::to_owned).collect::<Vec<_>>());
    }
    // Up to the first figure or path.
    let words = shown.iter().map(|line| {
        let words = line.split(|c: char| c.is_ascii_digit() || c == '/').next().unwrap();
        // An id may begin with letters.
        let whole =
            if words.len() < line.len() { words.rsplit_once(' ').map_or("", |(whole, _)| whole) } else { words };
        narrow(whole)
    });
    for words in words.filter(|words| 2 < words.split(' ').count()) {
        assert!(picture.contains(&words), "{words}: `bench/session` draws docs/images/session.svg again");
    }
}

#[test]
fn the_summary_lists_every_page_of_the_manual() {
    let pages = documents(&root());
    let listed = chapters(&pages);
    let written = pages.keys().filter(|path| path.starts_with("docs/manual/src") && *path != Path::new(SUMMARY));
    let unlisted: Vec<_> = written.filter(|path| !listed.contains(*path)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines");
}

#[test]
fn every_command_of_readme_and_manual_succeeds() {
    let pages = documents(&root());
    let mut paths = chapters(&pages);
    paths.insert(PathBuf::from("README.md"));
    let tried: Vec<&Page> = paths.iter().map(|path| &pages[path]).collect();
    let problems: Vec<&String> = tried.iter().flat_map(|page| &page.problems).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(tried.iter().map(|page| page.blocks.len()).sum::<usize>() > 30, "commands are not found any more");
    let left = Mutex::new(tried.into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(page) = left.lock().unwrap().next() else { return };
                    if let Err(output) = Sandbox::new().run(page) {
                        failed.lock().unwrap().push(output);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_failing_command_is_named_with_its_page_and_line() {
    let run = |text: &str| Sandbox::new().run(&Page::parse(Path::new("page.md"), text));
    let failed = run("# Page\n\n```sh\ntrue\nonefold snapshots --no-such-option\necho not reached\n```\n").unwrap_err();
    for part in ["--- page.md:3", "failed: onefold snapshots --no-such-option", "--no-such-option"] {
        assert!(failed.contains(part), "{failed}");
    }
    assert!(!failed.contains("not reached\n"), "{failed}");
    let wrong_code = run("```sh,exit=3\nonefold ls ffff\n```\n").unwrap_err();
    assert!(wrong_code.contains("page.md:1: exit code 1"), "{wrong_code}");
    assert!(run("<!-- sandbox: empty -->\n\n```sh\nfalse | true\n```\n").is_err());
}

#[test]
fn commands_of_a_page_share_a_shell_and_stay_in_the_sandbox() {
    let text = "<!-- sandbox: empty -->\n\n```sh\nexport WORD=1\ntouch /tmp/onefold-manual /mnt/backup/file\n```\n\n\
        ```sh,exit=7\nexit 7\n```\n\n<!-- sandbox\n[ -e $TMPDIR/onefold-manual ]\n[ $WORD = 1 ]\n-->\n";
    assert_eq!(Sandbox::new().run(&Page::parse(Path::new("page.md"), text)), Ok(()));
    assert!(!Path::new("/mnt/backup/file").exists());
}
