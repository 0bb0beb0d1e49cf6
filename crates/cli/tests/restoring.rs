//! `restore`.

use crate::place::{Place, contents};

#[test]
fn what_was_backed_up_comes_back() {
    let place = Place::encrypted();
    place.write("a/b/file", &vec![5; 70_000]);
    place.write("a/other", b"x");
    place.write("empty", b"");
    place.run(["backup", "source", "-q"]).code(0);
    let base = place.path("source").to_str().unwrap().to_owned();
    let part = format!(
        "latest:{}",
        if place.run(["ls", "latest", "-q"]).stdout().starts_with("/source") { "/source" } else { &base }
    );
    let ran = place.run(["restore", &part, "--target", "out", "--verify", "--json"]).code(0);
    assert_eq!(contents(&place.path("source")), contents(&place.path("out")));
    let summary = ran.messages().pop().unwrap();
    assert_eq!(summary["message_type"], "summary");
    assert_eq!((&summary["bytes_restored"], &summary["files_deleted"]), (&70_001.into(), &0.into()));
    assert_eq!(summary["files_verified"], 3);
    place
        .run(["restore", &part, "--target", "out"])
        .code(1)
        .says("onefold: out: not empty; restore into an empty directory, or say with --overwrite what is to happen");
    let again = place.run(["restore", &part, "--target", "out", "--overwrite", "if-changed"]).code(0);
    assert!(again.stdout().contains("Skipped 3 files"), "{}", again.stdout());
    place.run(["restore", &part, "--target", "some", "--include", "other"]).code(0);
    assert_eq!(contents(&place.path("some")).iter().filter(|(_, bytes)| bytes.is_some()).count(), 1);
    place.run(["restore", &part, "--target", "dry", "--dry-run"]).code(0);
    assert!(!place.path("dry").exists());
}

#[test]
fn what_to_take_and_what_to_leave_out_exclude_each_other() {
    let place = Place::encrypted();
    for take in ["--include", "--iinclude"] {
        for leave in ["--exclude", "--iexclude"] {
            place
                .run(["restore", "latest", "--target", "out", take, "a", leave, "b"])
                .code(1)
                .says("cannot be used with");
        }
    }
}

#[test]
fn what_is_left_as_it_stands_is_not_verified() {
    let place = Place::encrypted();
    place.write("file", b"1234");
    place.run(["backup", "source", "-q"]).code(0);
    for when in ["never", "if-newer", "if-changed"] {
        place
            .run(["restore", "latest", "--target", "out", "--verify", "--overwrite", when])
            .code(1)
            .says(&format!("--verify compares every file with the snapshot, and --overwrite {when} leaves some"));
        assert!(!place.path("out").exists(), "{when}");
    }
    for _ in 0..2 {
        let ran = place.run(["restore", "latest", "--target", "out", "--verify", "--overwrite", "always"]).code(0);
        assert!(ran.stdout().contains("Verified 1 files"), "{}", ran.stdout());
    }
}

#[test]
fn a_pattern_that_is_none_is_named() {
    let place = Place::encrypted();
    place.write("file", b"1234");
    place.run(["backup", "source", "--exclude", "a/["]).code(1).says("pattern `a/[`: unclosed bracket");
    place.run(["backup", "source", "-q"]).code(0);
    place.run(["restore", "latest", "--target", "out", "-e", "["]).code(1).says("pattern `[`: unclosed bracket");
}

#[test]
fn every_entry_is_named_on_request() {
    let place = Place::encrypted();
    place.write("dir/file", b"1234");
    place.write("other", b"x");
    place.run(["backup", "source", "-q"]).code(0);
    let actions = |options: &[&str]| {
        let ran = place.run(["restore", "latest", "--json", "-vv", "--target", "out"].iter().chain(options)).code(0);
        let of = |message: &serde_json::Value| {
            let item = message["item"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            (item, message["action"].as_str().unwrap().to_owned())
        };
        let messages = ran.messages();
        let mut told: Vec<_> =
            messages.iter().filter(|message| message["message_type"] == "verbose_status").map(of).collect();
        told.retain(|(item, _)| ["file", "other", "dir"].contains(&item.as_str()));
        told.sort();
        told
    };
    let entry = |item: &str, action: &str| (item.to_owned(), action.to_owned());
    let all = |action: &str| vec![entry("dir", "restored"), entry("file", action), entry("other", action)];
    assert_eq!(actions(&["--dry-run"]), all("restored"));
    assert_eq!(actions(&[]), all("restored"));
    assert_eq!(actions(&["--overwrite", "always"]), all("updated"));
    assert_eq!(actions(&["--overwrite", "never"]), all("unchanged"));
}

/// A user restored with `--overwrite never` beside what they had: a file stood where the snapshot had a directory of the
/// same name, and was deleted to make way for it. With `if-newer` a directory full of newer files was deleted, because
/// the snapshot had an old file of that name. What is promised to be left alone is left alone, and what would have to be
/// in its place is counted as skipped.
#[test]
fn nothing_that_is_to_be_left_alone_makes_way_for_something_of_another_kind() {
    let place = Place::new();
    place.write("name/below/file", b"from the snapshot");
    place.write("other", b"from the snapshot");
    place.run(["backup", "source", "-q"]).code(0);
    let part = "latest:/source";
    let target = place.path("out");
    std::fs::create_dir_all(target.join("other")).unwrap();
    std::fs::write(target.join("name"), b"precious").unwrap();
    std::fs::write(target.join("other/newer"), b"precious").unwrap();
    let before = contents(&target);
    let ran = place.run(["restore", part, "--target", "out", "--overwrite", "never", "--json"]).code(0);
    assert_eq!(contents(&target), before);
    let summary = ran.messages().pop().unwrap();
    assert_eq!((&summary["files_restored"], &summary["files_skipped"]), (&0.into(), &4.into()));
    place.run(["restore", part, "--target", "out", "--overwrite", "if-newer"]).code(0);
    assert_eq!(std::fs::read(target.join("other/newer")).unwrap(), b"precious");
    place.run(["restore", part, "--target", "out", "--overwrite", "always"]).code(0);
    assert_eq!(contents(&target), contents(&place.path("source")));
}
