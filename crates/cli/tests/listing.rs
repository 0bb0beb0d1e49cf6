//! `snapshots`, `ls`, `version`, and the JSON that they write.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use onefold_engine::io::tree::{EntryKind, TargetTree};
use onefold_engine::testing::mem_tree::MemTree;

use crate::fixture::Fixture;

#[test]
fn snapshots_are_listed_for_people_and_programs() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "--host", "a", "--tag", "x", "--time", "2012-11-01 22:08:41", "-q"]).code(0);
    fixture.run(["backup", "source/file", "source", "--host", "b", "-q", "--exclude", "*.o"]).code(0);
    let table = fixture.run(["snapshots"]).code(0).stdout();
    assert!(table.contains("2012-11-01 22:08:41  a     x     "), "{table}");
    assert!(table.contains("2 snapshots"), "{table}");
    let all = fixture.run(["snapshots", "--json"]).code(0).json();
    let [first, second] = all.as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!(first["hostname"], "a");
    assert_eq!(first["tags"], serde_json::json!(["x"]));
    assert_eq!(first["paths"], serde_json::json!([fixture.path("source")]));
    assert!(first["time"].as_str().unwrap().starts_with("2012-11-01T22:08:41"), "{first}");
    assert_eq!(first["id"].as_str().unwrap().len(), 64);
    assert!(first["id"].as_str().unwrap().starts_with(first["short_id"].as_str().unwrap()));
    assert_eq!(first["tree"].as_str().unwrap().len(), 64);
    assert!(first["program_version"].as_str().unwrap().starts_with("onefold "));
    assert_eq!(first["summary"]["total_bytes_processed"], 4);
    assert!(first["uid"].is_u64() && first["gid"].is_u64() && first["username"].is_string());
    assert_eq!(second["excludes"], serde_json::json!(["*.o"]));
    assert!(second.get("tags").is_none() && second.get("parent").is_none());

    let count = |options: &[&str]| {
        let options = ["snapshots", "--json"].iter().chain(options);
        fixture.run(options).code(0).json().as_array().unwrap().len()
    };
    assert_eq!(count(&["--host", "a"]), 1);
    assert_eq!(count(&["--tag", "x"]), 1);
    assert_eq!(count(&["--tag", "x,y"]), 0);
    assert_eq!(count(&["--path", "source/file"]), 1);
    assert_eq!(count(&["--latest", "1"]), 2);
    assert_eq!(count(&["latest"]), 1);
    assert_eq!(count(&["latest~1"]), 1);
    fixture.run(["snapshots", "latest~2"]).code(1).says("not that many");
}

#[test]
fn a_snapshot_is_found_by_every_prefix_of_its_64_digits() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let id = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap()["snapshot_id"].clone();
    let id = id.as_str().unwrap();
    assert_eq!(id.len(), 64);
    for digits in [8, 32, 33, 63, 64] {
        let found = fixture.run(["snapshots", "--json", &id[..digits]]).code(0).json();
        assert_eq!(found[0]["id"], id, "{digits}");
    }
    fixture.run(["ls", &format!("{id}:source")]).code(0);
    let wrong = id[..63].to_owned() + if id.ends_with('0') { "1" } else { "0" };
    fixture.run(["snapshots", &wrong]).code(1).says("not found");
    let second = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap();
    let objects = fixture.run(["snapshots", "--json", second["snapshot_id"].as_str().unwrap()]).code(0).json();
    assert_eq!(objects[0]["parent"], id);
}

#[test]
fn entries_are_listed_with_any_name() {
    let fixture = Fixture::new();
    fixture.write("dir/below/deep", b"12345");
    std::os::unix::fs::symlink("deep", fixture.path("source/dir/below/link")).unwrap();
    let odd = OsStr::from_bytes(b"source/dir/odd\xff");
    std::fs::write(fixture.path("").join(odd), b"").unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let lines = |arguments: &[&str]| {
        let ran = fixture.run(["ls", "latest"].iter().chain(arguments)).code(0);
        ran.0
            .stdout
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let everything: &[&[u8]] = &[
        b"/source",
        b"/source/dir",
        b"/source/dir/below",
        b"/source/dir/below/deep",
        b"/source/dir/below/link",
        b"/source/dir/odd\xff",
    ];
    assert_eq!(lines(&[]), everything);
    assert_eq!(lines(&["/source/dir"]), [everything[1], everything[2], everything[5]]);
    assert_eq!(lines(&["/source/dir/below/", "--recursive"]), &everything[2..5]);
    assert_eq!(
        fixture.run(["ls", "latest:source/dir/below", "-q"]).code(0).stdout(),
        "/source/dir/below/deep\n/source/dir/below/link\n"
    );
    let long = fixture.run(["ls", "latest", "--long", "/source/dir/below", "-q"]).code(0).stdout();
    assert!(long.lines().any(|line| line.starts_with("-rw") && line.contains("     5 ")), "{long}");
    assert!(long.contains("/source/dir/below/link -> deep"), "{long}");
    fixture.run(["ls", "latest:source/nope"]).code(1).says("not in the snapshot");
    fixture.run(["ls", "latest", "/source/nope"]).code(1).says("/source/nope: not in the snapshot");
    fixture.run(["ls", "latest", "relative"]).code(1).says("begin with /");

    let messages = fixture.run(["ls", "latest", "--json"]).code(0).messages();
    assert_eq!((&messages[0]["message_type"], &messages[0]["struct_type"]), (&"snapshot".into(), &"snapshot".into()));
    let node = messages.iter().find(|message| message["name"] == "deep").unwrap();
    assert_eq!(
        (&node["message_type"], &node["struct_type"], &node["type"]),
        (&"node".into(), &"node".into(), &"file".into())
    );
    assert_eq!((&node["size"], &node["path"]), (&5.into(), &"/source/dir/below/deep".into()));
    assert_eq!((&node["user"], node["group"].is_string()), (&messages[0]["username"], true));
    assert!(node["permissions"].as_str().unwrap().starts_with("-rw"));
    assert!(node["mtime"].is_string() && node["ctime"].is_string() && node["inode"].is_u64() && node["mode"].is_u64());
    let directory = messages.iter().find(|message| message["name"] == "below").unwrap();
    assert_eq!(directory["type"], "dir");
    assert!(directory.get("size").is_none());
}

#[test]
fn the_version_is_reported() {
    let fixture = Fixture::without_repository(None);
    assert!(fixture.run(["version"]).code(0).stdout().starts_with("onefold "));
    let version = fixture.run(["version", "--json"]).code(0).json();
    assert_eq!(version["message_type"], "version");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(fixture.run(["--version"]).code(0).stdout().starts_with("onefold "));
    assert!(fixture.run(["backup", "--help"]).code(0).stdout().contains("--exclude-caches"));
}

#[test]
fn a_directory_is_written_as_an_archive_that_others_unpack() {
    let fixture = Fixture::new();
    let long = format!("dir/{}/{}", "n".repeat(120), "m".repeat(120));
    fixture.write("dir/file", &vec![3; 70_001]);
    fixture.write(&long, b"long");
    fixture.write("dir/empty", b"");
    std::fs::hard_link(fixture.path("source/dir/file"), fixture.path("source/dir/second")).unwrap();
    let far = "../".repeat(60) + "far";
    for (name, target) in [("plain", ".//file"), ("far", &far)] {
        std::os::unix::fs::symlink(target, fixture.path("source/dir").join(name)).unwrap();
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    let ran = fixture.run(["dump", "latest", "/source/dir", "--archive", "tar"]).code(0);
    let mut found = std::collections::BTreeMap::new();
    for entry in tar::Archive::new(&ran.0.stdout[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let link = entry.link_name_bytes().map(|link| String::from_utf8(link.into_owned()).unwrap());
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        found.insert(path, (entry.header().entry_type(), bytes, link));
    }
    let of = |name: &str| &found[&format!("source/dir/{name}")];
    assert_eq!(of("file"), &(tar::EntryType::Regular, vec![3; 70_001], None));
    assert_eq!(of("second"), &(tar::EntryType::Link, vec![], Some("source/dir/file".into())));
    assert_eq!(of("plain"), &(tar::EntryType::Symlink, vec![], Some(".//file".into())));
    assert_eq!(of("far"), &(tar::EntryType::Symlink, vec![], Some(far.clone())));
    assert_eq!(of(long.strip_prefix("dir/").unwrap()).1, b"long");
    assert_eq!(of(&format!("{}/", "n".repeat(120))).0, tar::EntryType::Directory);
    assert_eq!(found.len(), 7);
    let whole = fixture.run(["dump", "latest", "/", "--archive", "tar"]).code(0);
    assert!(tar::Archive::new(&whole.0.stdout[..]).entries().unwrap().count() == 9);
    assert_eq!(fixture.run(["dump", "latest", "/source/dir"]).code(0).0.stdout, ran.0.stdout);
    assert_eq!(fixture.run(["dump", "latest", "/source/dir/file", "-a", "tar"]).code(0).0.stdout, vec![3; 70_001]);
    fixture.run(["dump", "latest", "/nope", "-a", "tar"]).code(1).says("not in the snapshot");
}

/// A file was removed while a backup ran, its number went to another one, and the archive made the names of the second hard
/// links to the first. A socket, which no archive holds, was linked to as well.
#[test]
fn an_archive_links_only_names_that_are_equal_and_to_names_that_it_holds() {
    let fixture = Fixture::new();
    let tree = MemTree::new();
    let path = Path::new;
    for (name, bytes) in [("a", b"first"), ("b", b"other")] {
        tree.put_file(&path("/d").join(name), bytes);
        let again = format!("d/{name}-again");
        tree.hard_link(&path("d").join(name), path(&again)).unwrap();
        tree.edit(&path("/d").join(name), |metadata| (metadata.inode, metadata.mtime.seconds) = (77, 5));
    }
    tree.create_special(path("d/socket"), EntryKind::Socket, 0).unwrap();
    tree.hard_link(path("d/socket"), path("d/socket-again")).unwrap();
    fixture.back_up(&tree);
    let ran = fixture.run(["dump", "latest", "/d", "--archive", "tar"]).code(0).says("the format knows no sockets");
    let mut found = Vec::new();
    for entry in tar::Archive::new(&ran.0.stdout[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let link = entry.link_name_bytes().map(|link| String::from_utf8(link.into_owned()).unwrap());
        let mut bytes = String::new();
        std::io::Read::read_to_string(&mut entry, &mut bytes).unwrap();
        found.push((String::from_utf8(entry.path_bytes().into_owned()).unwrap(), bytes, link));
    }
    let file =
        |name: &str, bytes: &str, link: Option<&str>| (name.to_owned(), bytes.to_owned(), link.map(str::to_owned));
    let expected = [
        file("d/a", "first", None),
        file("d/a-again", "", Some("d/a")),
        file("d/b", "other", None),
        file("d/b-again", "", Some("d/b")),
    ];
    assert_eq!(found, expected);
}
