//! `recover`, `tag` and `rewrite`: snapshots that are made from others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::fixture::{Fixture, contents, noise};

/// Makes a snapshot. Returns its id.
fn back_up(fixture: &Fixture, tags: &[&str]) -> String {
    let tags = tags.iter().flat_map(|tag| ["--tag", tag]);
    let arguments = ["backup", "source", "--host", "h", "--json"].into_iter().chain(tags);
    fixture.run(arguments).code(0).messages().pop().unwrap()["snapshot_id"].as_str().unwrap().to_owned()
}

fn snapshots(fixture: &Fixture) -> Vec<Value> {
    fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().clone()
}

fn ids(fixture: &Fixture) -> Vec<String> {
    snapshots(fixture).iter().map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
}

/// Name, mode, time, number of links and bytes of a restored entry.
type Restored = (String, u32, i64, u64, Option<Vec<u8>>);

/// Restores a snapshot, and returns what it holds with modes, times and numbers of links.
fn restored(fixture: &Fixture, id: &str, target: &str) -> Vec<Restored> {
    fixture.run(["restore", id, "--target", target, "-q"]).code(0);
    let root = fixture.path(target);
    let all = contents(&root).into_iter().filter(|(path, _)| path.to_string_lossy().contains("source"));
    let described = all.map(|(path, bytes)| {
        let metadata = fs::symlink_metadata(root.join(&path)).unwrap();
        let name = path.to_string_lossy().split_once("source").unwrap().1.to_owned();
        (name, metadata.mode(), metadata.mtime(), metadata.nlink(), bytes)
    });
    described.collect()
}

#[test]
fn a_forgotten_snapshot_is_recovered_once() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"1234");
    fixture.write("directory/other", &noise(1, 200_000));
    let first = back_up(&fixture, &["a"]);
    fs::remove_file(fixture.path("source/file")).unwrap();
    let second = back_up(&fixture, &[]);
    let before = snapshots(&fixture);
    fixture.run(["recover", &first]).code(1).says("is not forgotten");
    fixture.run(["recover", "nonsense"]).code(1).says("not found");
    assert_eq!(fixture.run(["recover", "--json"]).code(0).json(), json!([]));
    let held = restored(&fixture, &first, "held");
    fixture.run(["forget", &first, "-q"]).code(0);
    assert_eq!(fixture.run(["recover", "--json"]).code(0).json()[0]["id"], Value::from(first.clone()));
    assert!(fixture.run(["recover"]).code(0).stdout().contains(&first[..8]));
    let text = fixture.run(["recover", &first[..10]]).code(0).stdout();
    assert!(text.contains(&format!("it is snapshot {} again", &first[..8])), "{text}");
    let after = snapshots(&fixture);
    let recovered = after.iter().find(|snapshot| snapshot["original"] == first).unwrap();
    for field in ["time", "tree", "hostname", "paths", "tags"] {
        assert_eq!(recovered[field], before[0][field], "{field}");
    }
    assert_eq!(after.len(), 2);
    let id = recovered["id"].as_str().unwrap();
    assert_eq!(restored(&fixture, id, "recovered"), held);
    fixture.run(["recover", id]).code(1).says("is not forgotten");
    let again = fixture.run(["recover", &first, &first, "--json"]).code(0).messages();
    let expected = json!({
        "message_type": "recovered", "forgotten_snapshot_id": first, "snapshot_id": id, "existed": true
    });
    assert_eq!(again[..again.len() - 1], [expected]);
    assert_eq!(again[1]["recovered_snapshots"], 0);
    assert_eq!(ids(&fixture).len(), 2);
    fixture.run(["check", "--read-data"]).code(0);
    // A policy treats it as any other: the newest is kept.
    fixture.run(["forget", "--keep-last", "1", "-q"]).code(0);
    assert_eq!(ids(&fixture), [second]);
    fixture.run(["recover", &first, "-q"]).code(0);
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0);
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn lost_chunks_are_named_and_nothing_is_recovered() {
    let fixture = Fixture::new();
    fixture.write("large", &noise(2, 300_000));
    fixture.write("small", b"1234");
    let id = back_up(&fixture, &[]);
    fixture.run(["forget", &id, "-q"]).code(0);
    let data = contents(&fixture.path("repository/containers"));
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with('d');
    let (data, _) = data.iter().find(|(path, bytes)| bytes.is_some() && name(path)).unwrap();
    fs::remove_file(fixture.path("repository/containers").join(data)).unwrap();
    let ran = fixture.run(["recover", &id]).code(3).says("/source/large: chunk").says("is not recovered");
    assert!(ran.stderr().contains("not every snapshot was recovered"), "{}", ran.stderr());
    assert_eq!(ids(&fixture), Vec::<String>::new());
    let ran = fixture.run(["recover", &id, "--json"]).code(3);
    assert!(
        ran.stderr().contains("\"during\":\"recover\"") && ran.messages()[0]["lost_snapshots"] == 1,
        "{}",
        ran.stderr()
    );
    assert_eq!(ran.last_error()["code"], 3);
}

#[test]
fn tags_are_added_removed_and_set() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let first = back_up(&fixture, &["a"]);
    let second = back_up(&fixture, &[]);
    fixture.run(["tag"]).code(1).says("nothing to do");
    fixture.run(["tag", "--set", "x", "--add", "y"]).code(1).says("cannot be used with");
    let dry = fixture.run(["tag", "--add", "b", "--dry-run"]).code(0).stdout();
    assert!(dry.contains("get the tags [a, b]") && dry.contains("would modify 2 snapshots"), "{dry}");
    assert_eq!(ids(&fixture), [first.clone(), second.clone()]);
    let messages = fixture.run(["tag", "--add", "b", "--tag", "a", "--json"]).code(0).messages();
    let [changed, summary] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((&changed["message_type"], &changed["old_snapshot_id"]), (&"changed".into(), &first.clone().into()));
    assert_eq!((&summary["message_type"], &summary["changed_snapshots"]), (&"summary".into(), &1.into()));
    let listed = snapshots(&fixture);
    assert_eq!(listed[0]["id"], changed["new_snapshot_id"]);
    assert_eq!((&listed[0]["tags"], &listed[0]["original"]), (&json!(["a", "b"]), &first.clone().into()));
    assert_eq!(listed[1]["id"], second);
    let none = fixture.run(["tag", "--add", "a,b", "--tag", "a"]).code(0).stdout();
    assert!(none.contains("no snapshots were modified"), "{none}");
    let all = fixture.run(["tag", "--set", "z"]).code(0).stdout();
    assert!(all.contains("modified 2 snapshots"), "{all}");
    assert!(snapshots(&fixture).iter().all(|snapshot| snapshot["tags"] == json!(["z"])));
    fixture.run(["tag", "--set", "", "latest", "-q"]).code(0);
    assert_eq!(snapshots(&fixture)[1]["tags"], Value::Null);
    fixture.run(["tag", "--remove", "z", "nonsense"]).code(1).says("not found");
    fixture.run(["check", "--read-data"]).code(0);
    // A parent with other tags is a parent all the same.
    let summary = fixture.run(["backup", "source", "--host", "h", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!(summary["files_unmodified"], 1);
}

#[test]
fn paths_are_left_out_and_the_rest_is_kept_exactly() {
    let fixture = Fixture::new();
    fixture.write("first", &noise(3, 100_000));
    fs::hard_link(fixture.path("source/first"), fixture.path("source/second")).unwrap();
    fs::hard_link(fixture.path("source/first"), fixture.path("source/third")).unwrap();
    fixture.write("directory/kept", b"kept");
    fixture.write("directory/left.tmp", b"left");
    fixture.write("whole/a", b"a");
    fixture.write("whole/deep/b", b"b");
    fs::set_permissions(fixture.path("source/directory/kept"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("kept", fixture.path("source/directory/link")).unwrap();
    let sparse = fs::File::create(fixture.path("source/sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    let original = back_up(&fixture, &["t"]);
    fixture.run(["rewrite"]).code(1).says("nothing to do");
    let patterns = ["--exclude", "first", "--iexclude", "*.TMP", "--exclude", "/**/whole"];
    let dry = ["rewrite", "--dry-run", "--verbose"].into_iter().chain(patterns);
    let ran = fixture.run(dry).code(0).says("/source/directory/left.tmp").says("/source/whole");
    assert!(ran.stdout().contains("without 4 files") && ran.stdout().contains("would modify 1 snapshot"));
    assert_eq!(ids(&fixture), [original.as_str()]);
    let ran = fixture.run(["rewrite", "--json"].into_iter().chain(patterns)).code(0);
    let messages = ran.messages();
    let new = messages[0]["new_snapshot_id"].as_str().unwrap();
    assert_eq!(messages[0]["old_snapshot_id"], Value::from(original.clone()));
    let listed = snapshots(&fixture);
    assert_eq!(listed.len(), 2);
    let find = |id: &str| listed.iter().find(|snapshot| snapshot["id"] == id).unwrap();
    let (before, after) = (find(&original), find(new));
    for field in ["time", "hostname", "paths", "tags"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(after["excludes"], json!(["first", "/**/whole", "*.TMP"]));
    let count = |snapshot: &Value, field: &str| snapshot["summary"][field].as_u64().unwrap();
    assert_eq!(count(before, "total_files_processed") - count(after, "total_files_processed"), 4);
    let bytes = count(before, "total_bytes_processed") - count(after, "total_bytes_processed");
    assert_eq!(bytes, 100_000 + 4 + 1 + 1);
    let left_out = ["/first", "/directory/left.tmp", "/whole", "/whole/a", "/whole/deep", "/whole/deep/b"];
    let mut expected = restored(&fixture, &original, "before");
    expected.retain(|(name, ..)| !left_out.contains(&name.as_str()));
    for (name, _, _, links, bytes) in &mut expected {
        if bytes.is_none() {
            // Directories have fewer entries.
            *links = 0;
        } else if name == "/second" || name == "/third" {
            *links = 2;
        }
    }
    let mut found = restored(&fixture, new, "after");
    found.iter_mut().filter(|(.., bytes)| bytes.is_none()).for_each(|(.., links, _)| *links = 0);
    assert_eq!(found, expected);
    fixture.run(["check", "--read-data"]).code(0);
    // Again: the one that is there is found, and the original goes with --forget.
    let again = ["rewrite", "--forget", &original].into_iter().chain(patterns);
    fixture.run(again).code(0).says("is there already");
    assert_eq!(ids(&fixture), [new]);
    let none = fixture.run(["rewrite", "--forget"].into_iter().chain(patterns)).code(0).stdout();
    assert!(none.contains("unmodified") && none.contains("no snapshots were modified"), "{none}");
    fixture.run(["backup", "source", "--host", "h", "-q"]).code(0);
    fixture.run(["check", "--read-data"]).code(0);
}
