//! `find`, `diff`, `stats`, `cat`: what people and programs read.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::fixture::{Fixture, Ran};

/// Makes a fixture with two snapshots: of host `a`, then, changed, of host `b`.
fn two_snapshots() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("dir/below/Note.txt", b"one");
    fixture.write("dir/other", &vec![7; 50_000]);
    fixture.write("gone", b"gone");
    fixture.write("kind", b"a file");
    symlink("here", fixture.path("source/link")).unwrap();
    fixture.run(["backup", "source", "-q", "--host", "a"]).code(0);
    fixture.write("dir/other", b"shorter");
    fixture.write("new/file", b"new");
    fs::remove_file(fixture.path("source/gone")).unwrap();
    fs::remove_file(fixture.path("source/kind")).unwrap();
    fs::create_dir(fixture.path("source/kind")).unwrap();
    fs::remove_file(fixture.path("source/link")).unwrap();
    symlink("there", fixture.path("source/link")).unwrap();
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(fixture.path("source/dir/below/Note.txt"), mode).unwrap();
    fixture.run(["backup", "source", "-q", "--host", "b"]).code(0);
    fixture
}

fn ids(fixture: &Fixture) -> Vec<String> {
    let all = fixture.run(["snapshots", "--json"]).code(0).json();
    all.as_array().unwrap().iter().map(|object| object["short_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn names_are_found_in_every_snapshot_the_newest_first() {
    let fixture = two_snapshots();
    let ids = ids(&fixture);
    let ran = fixture.run(["find", "note*", "-i"]).code(0);
    let lines: Vec<String> = ran.stdout().lines().map(str::to_owned).collect();
    let [first, hit, empty, second, same] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(first.starts_with(&format!("Found matching entries in snapshot {} from ", ids[1])), "{first}");
    assert!(second.contains(&ids[0]) && empty.is_empty() && hit == "/source/dir/below/Note.txt" && hit == same);
    assert_eq!(fixture.run(["find", "note*"]).code(0).stdout(), "");
    assert_eq!(fixture.run(["find", "gone", "-q"]).code(0).stdout(), "/source/gone\n");
    // A directory is found with what is in it; a pattern with a slash matches from the root.
    let below = "/source/dir/below\n/source/dir/below/Note.txt\n";
    assert_eq!(fixture.run(["find", "/source/dir/below", "-q", "-H", "a"]).code(0).stdout(), below);
    assert_eq!(fixture.run(["find", "/dir/below", "-q"]).code(0).stdout(), "");
    let several = fixture.run(["find", "gone", "new", "-q", "-s", &ids[0], "-s", "latest"]).code(0).stdout();
    assert_eq!(several, "/source/new\n/source/new/file\n/source/gone\n");
    let long = fixture.run(["find", "-l", "link", "-q", "-s", "latest"]).code(0).stdout();
    assert!(long.starts_with("Lrwxrwxrwx ") && long.contains("/source/link -> there"), "{long}");
    assert_eq!(fixture.run(["find", "gone", "--newest", "2001-01-01", "-q"]).code(0).stdout(), "");
    assert_eq!(
        fixture.run(["find", "gone", "--oldest", "2001-01-01 10:00:00", "-q"]).code(0).stdout(),
        "/source/gone\n"
    );
}

#[test]
fn programs_read_what_was_found_as_restic_writes_it() {
    let fixture = two_snapshots();
    let found = fixture.run(["find", "*.txt", "new", "--json"]).code(0).json();
    let [newest, oldest] = found.as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&newest["hits"], &oldest["hits"]), (&3.into(), &1.into()));
    assert_eq!(newest["snapshot"].as_str().unwrap().len(), 64);
    let note = &oldest["matches"][0];
    assert_eq!((&note["path"], &note["type"]), (&"/source/dir/below/Note.txt".into(), &"file".into()));
    assert_eq!((&note["size"], &note["links"]), (&3.into(), &1.into()));
    for field in ["permissions", "mtime", "atime", "ctime", "user", "group"] {
        assert!(note[field].is_string(), "{field}: {note}");
    }
    for field in ["mode", "uid", "gid", "inode"] {
        assert!(note[field].is_u64(), "{field}: {note}");
    }
    assert_eq!(newest["matches"].as_array().unwrap().len(), 3);
    assert_eq!(fixture.run(["find", "nowhere", "--json"]).code(0).json(), json!([]));
}

#[test]
fn a_search_that_makes_no_sense_is_refused() {
    let fixture = two_snapshots();
    fixture.run(["find"]).code(1).says("PATTERN");
    fixture.run(["find", "a["]).code(1).says("pattern `a[`: unclosed bracket");
    fixture.run(["find", ""]).code(1).says("not a pattern");
    fixture.run(["find", "a", "--newest", "soon"]).code(1).says("--newest: \"soon\": not a time");
    fixture.run(["find", "a", "-s", "nope"]).code(1).says("`nope` not found");
}

#[test]
fn differences_are_reported_with_restics_letters() {
    let fixture = two_snapshots();
    let ids = ids(&fixture);
    let diff = |options: &[&str]| {
        let all = ["diff", "latest~1", "latest"].iter().chain(options);
        fixture.run(all).code(0)
    };
    let text = diff(&[]).stdout();
    let expected = "M    /source/dir/other\n-    /source/gone\nT    /source/kind/\nM    /source/link\n\
                    +    /source/new/\n+    /source/new/file\n";
    assert!(text.starts_with(&format!("comparing snapshot {} to {}:\n\n{expected}\n", ids[0], ids[1])), "{text}");
    assert!(text.contains("Files:           1 new,     1 removed,     2 changed\n"), "{text}");
    assert!(text.contains("Dirs:            1 new,     0 removed\n"), "{text}");
    assert_eq!(diff(&["-q"]).stdout(), expected);

    let messages = diff(&["--metadata", "--json"]).messages();
    let change = |path: &str| {
        let found = messages.iter().find(|message| message["path"] == path);
        found.map(|message| (message["message_type"].clone(), message["modifier"].clone()))
    };
    let is = |modifier: &str| Some((Value::from("change"), Value::from(modifier)));
    assert_eq!(change("/source/dir/below/Note.txt"), is("U"));
    assert_eq!(change("/source/dir/other"), is("MU"));
    assert_eq!(change("/source/kind/"), is("T"));
    let statistics = messages.last().unwrap();
    assert_eq!(statistics["message_type"], "statistics");
    for (name, id) in [("source_snapshot", &ids[0]), ("target_snapshot", &ids[1])] {
        assert!(statistics[name].as_str().unwrap().starts_with(id), "{statistics}");
    }
    assert_eq!(statistics["changed_files"], 2);
    assert_eq!((&statistics["added"]["files"], &statistics["removed"]["files"]), (&1.into(), &1.into()));
    for side in ["added", "removed"] {
        for field in ["files", "dirs", "others", "data_blobs", "tree_blobs", "bytes"] {
            assert!(statistics[side][field].is_u64(), "{side} {field}: {statistics}");
        }
    }
}

#[test]
fn parts_of_snapshots_are_compared_by_their_paths() {
    let fixture = two_snapshots();
    let same = fixture.run(["diff", "latest:/source/dir/below", "latest~1:source/dir/below", "-q"]).code(0);
    assert_eq!(same.stdout(), "");
    let other = fixture.run(["diff", "latest~1:/source/dir", "latest:/source/new", "-q"]).code(0);
    assert_eq!(other.stdout(), "-    /below/\n-    /below/Note.txt\n+    /file\n-    /other\n");
    fixture.run(["diff", "latest"]).code(1).says("SNAPSHOT");
    fixture.run(["diff", "latest", "nope"]).code(1).says("`nope` not found");
    fixture.run(["diff", "latest:/nope", "latest"]).code(1).says("/nope: not in the snapshot");
    fixture.run(["diff", "latest:/source/link", "latest"]).code(1).says("not a directory");
}

#[test]
fn sizes_are_counted_in_restics_modes() {
    let fixture = two_snapshots();
    let stats = |options: &[&str]| fixture.run(["stats", "--json"].iter().chain(options)).code(0).json();
    let restore = stats(&[]);
    assert_eq!((&restore["snapshots_count"], &restore["total_file_count"]), (&2.into(), &17.into()));
    assert_eq!(restore["total_size"], 3 + 50_000 + 4 + 6 + 3 + 7 + 3);
    assert_eq!(stats(&["latest"])["total_size"], 3 + 7 + 3);
    assert_eq!(stats(&["--host", "a"])["total_size"], 3 + 50_000 + 4 + 6);
    let contents = stats(&["--mode", "files-by-contents"]);
    assert_eq!((&contents["total_file_count"], &contents["total_size"]), (&6.into(), &50_023.into()));
    let raw = stats(&["--mode", "raw-data"]);
    assert_eq!((&raw["logical_size"], &raw["missing_chunks"]), (&50_026.into(), &0.into()));
    assert!(raw["total_size"].as_u64().unwrap() < raw["total_uncompressed_size"].as_u64().unwrap(), "{raw}");
    assert!(raw["total_blob_count"].as_u64().unwrap() >= 6, "{raw}");
    assert!(1.0 < raw["deduplication_ratio"].as_f64().unwrap() && 1.0 < raw["compression_ratio"].as_f64().unwrap());
    assert!(0.0 < raw["compression_space_saving"].as_f64().unwrap(), "{raw}");
    assert!(raw["containers"].as_u64().unwrap() >= 2 && raw.get("total_file_count").is_none(), "{raw}");
    let text = fixture.run(["stats", "--mode", "raw-data"]).code(0).stdout();
    for title in ["Stats in raw-data mode:", "Snapshots processed:  2", "Deduplication ratio:", "Containers:"] {
        assert!(text.contains(title), "{title}: {text}");
    }
    assert!(fixture.run(["stats"]).code(0).stdout().contains("Total size:  48.854 KiB"));
    fixture.run(["stats", "--mode", "guess"]).code(1).says("restore-size");
    fixture.run(["stats", "nope"]).code(1).says("`nope` not found");
}

#[test]
fn objects_are_written_for_programs() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"some bytes");
    fixture.write("large", &vec![1; 200_000]);
    fixture.run(["backup", "source", "-q"]).code(0);
    let cat = |arguments: &[&str]| fixture.run(["cat"].iter().chain(arguments));
    let config = cat(&["config"]).code(0).json();
    assert_eq!((&config["version"], &config["encrypted"]), (&2.into(), &true.into()));
    assert!(config["id"].as_str().unwrap().starts_with(&fixture.repository_id()));
    assert_eq!((&config["chunking"]["method"], &config["chunking"]["average"]), (&"gear".into(), &8192.into()));
    let key_id = fixture.run(["key", "list", "--json"]).code(0).json()[0]["id"].as_str().unwrap().to_owned();
    let key = cat(&["key", &key_id[..6]]).code(0).json();
    assert_eq!((&key["id"], &key["kdf"]), (&json!(key_id), &"argon2id".into()));
    let snapshot = cat(&["snapshot", "latest"]).code(0).json();
    assert_eq!(snapshot["paths"], json!([fixture.path("source")]));
    let tree = cat(&["tree", "latest:/source"]).code(0).json();
    assert_eq!(tree["id"].as_str().unwrap().len(), 64);
    let [file, large] = tree["nodes"].as_array().unwrap().as_slice() else { panic!("{tree}") };
    assert_eq!((&file["name"], &file["size"], &large["size"]), (&"file".into(), &10.into(), &200_000.into()));
    assert_eq!(file["content"][0]["type"], "chunk");
    let chunk = file["content"][0]["id"].as_str().unwrap();
    assert_eq!(cat(&["chunk", chunk]).code(0).0.stdout, b"some bytes");
    assert_eq!(cat(&["chunk", tree["id"].as_str().unwrap(), "-q"]).code(0).0.stdout[0], 0);

    cat(&["key", "x"]).code(1).says("key slot `x` not found");
    cat(&["snapshot", "latest:/source"]).code(1).says("onefold cat tree");
    cat(&["tree", "latest:/source/file"]).code(1).says("not a directory");
    cat(&["chunk", "abc"]).code(1).says("64 digits");
    cat(&["chunk", &"0".repeat(64)]).code(1).says("in no readable container");
    cat(&["everything"]).code(1).says("everything");
    Fixture::new().run(["cat", "key", "x"]).code(1).says("not encrypted");
}

#[test]
fn shells_complete_and_manuals_describe_every_command() {
    let fixture = Fixture::without_repository(None);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = fixture.run(["completions", shell]).code(0).stdout();
        assert!(script.contains("exclude-caches") && script.contains("files-from-verbatim"), "{shell}");
    }
    fixture.run(["completions", "cmd"]).code(1).says("bash");
    let bash = std::process::Command::new("bash")
        .args([
            "-c",
            "source /dev/stdin; COMP_WORDS=(onefold sna); COMP_CWORD=1; _onefold onefold sna onefold; echo $COMPREPLY",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    // Where there is a bash, it is asked what the script completes.
    if let Ok(mut bash) = bash {
        let script = fixture.run(["completions", "bash"]).code(0).0.stdout;
        std::io::Write::write_all(&mut bash.stdin.take().unwrap(), &script).unwrap();
        assert_eq!(Ran(bash.wait_with_output().unwrap()).code(0).stdout(), "snapshots\n");
    }
    fixture.run(["man", "out/man"]).code(0);
    for page in ["onefold", "onefold-backup", "onefold-restore", "onefold-key", "onefold-key-add", "onefold-man"] {
        let text = fs::read_to_string(fixture.path("out/man").join(format!("{page}.1"))).unwrap();
        assert!(text.contains("EXIT STATUS") && text.contains("ONEFOLD_PASSWORD"), "{page}");
        assert!(text.contains(".TH") && text.contains(".SH OPTIONS"), "{page}: {text}");
    }
    assert!(!fixture.path("out/man/onefold-help.1").exists());
    fs::write(fixture.path("occupied"), b"").unwrap();
    fixture.run(["man", "occupied"]).code(1).says("create occupied");
}
