//! `repair`.

use std::fs;
use std::path::{Path, PathBuf};

use onefold_engine::io::os::OsDisk;
use onefold_engine::io::{Access, Disk};

use crate::fixture::{Fixture, contents};

/// A repository of one snapshot, and the directory of its index.
fn backed_up() -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    for number in 0..20u8 {
        fixture.write(&format!("file{number}"), &vec![number; 40_000]);
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    let index = fixture.path("cache").join(fixture.repository_id()).join("index");
    (fixture, index)
}

/// Asserts that the index knows every chunk of the source.
fn assert_knows_all(fixture: &Fixture) {
    let summary = fixture.run(["backup", "source", "--force", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&summary["chunks_unique"], &summary["data_blobs"]), (&0.into(), &0.into()), "{summary}");
    assert_ne!(summary["chunks_duplicate"], 0);
}

fn overwrite_files(directory: &Path, bytes: &[u8]) {
    for entry in fs::read_dir(directory).unwrap() {
        fs::write(entry.unwrap().path(), bytes).unwrap();
    }
}

#[test]
fn the_index_is_rebuilt_whatever_stands_there() {
    let (fixture, index) = backed_up();
    let objects = contents(&fixture.path("repository"));
    let rebuilt = fixture.run(["repair", "index"]).code(0);
    assert!(rebuilt.stdout().contains("the index was rebuilt: 2 containers with "), "{}", rebuilt.stdout());
    overwrite_files(&index, b"not an index");
    fs::write(index.join("left-by-an-older-version"), b"?").unwrap();
    let summary = fixture.run(["repair", "index", "--read-all-packs", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&summary["message_type"], &summary["containers"]), (&"summary".into(), &2.into()));
    assert!(20 < summary["chunks"].as_u64().unwrap(), "{summary}");
    assert_eq!((&summary["containers_unreadable"], &summary["containers_in_doubt"]), (&0.into(), &0.into()));
    assert!(!index.join("left-by-an-older-version").exists());
    assert_eq!(contents(&fixture.path("repository")), objects, "the repository was written to");
    let (_other, another) = backed_up();
    fs::remove_dir_all(&index).unwrap();
    fs::create_dir(&index).unwrap();
    for entry in fs::read_dir(another).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, index.join(path.file_name().unwrap())).unwrap();
    }
    fixture.run(["repair", "index", "-q"]).code(0);
    assert_knows_all(&fixture);
    fs::remove_dir_all(&index).unwrap();
    fixture.run(["repair", "index", "-q"]).code(0);
    assert_knows_all(&fixture);
}

#[test]
fn an_index_that_another_process_holds_is_left_alone() {
    let (fixture, index) = backed_up();
    let before = contents(&index);
    let disk = OsDisk::new(index.clone());
    let lock = disk.open(Path::new("lock"), Access::ReadWrite).unwrap();
    assert!(lock.try_lock().unwrap());
    fixture.run(["repair", "index", "--retry-lock", "0"]).code(11).says("is held by another");
    let waited = fixture.run(["repair", "index", "--retry-lock", "1s"]).code(11);
    waited.says("another command on this host holds the index; waiting up to 1s");
    assert_eq!(contents(&index), before);
    drop(lock);
    fixture.run(["repair", "index"]).code(0);
    fixture.run(["repair", "index", "--no-cache"]).code(1).says("there is no index to rebuild");
}

#[test]
fn containers_that_cannot_be_read_are_reported_and_not_in_the_index() {
    let (fixture, _) = backed_up();
    let session = fs::read_dir(fixture.path("repository/containers")).unwrap().next().unwrap().unwrap().path();
    let data = fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path());
    let data = data.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with('d')).unwrap();
    fs::write(&data, b"damaged").unwrap();
    let name = data.file_name().unwrap().to_str().unwrap();
    fixture.run(["repair", "index"]).code(3).says(name).says("rebuilt without the containers");
    let error = fixture.run(["repair", "index", "--json"]).code(3);
    assert_eq!(error.messages().pop().unwrap()["containers_unreadable"], 1);
    let summary = fixture.run(["backup", "source", "--force", "--json"]).messages().pop().unwrap();
    assert_ne!(summary["chunks_unique"], 0, "{summary}");
    let target = fixture.path("target");
    fixture.run(["restore", "latest", "--target", target.to_str().unwrap()]).code(0);
}
