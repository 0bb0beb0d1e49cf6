//! `repair`.

use std::fs;
use std::path::{Path, PathBuf};

use onefold_engine::io::os::OsDisk;
use onefold_engine::io::{Access, Disk};

use crate::fixture::{Fixture, contents, noise};

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

/// Returns the paths of all files below the directory of containers.
fn container_files(fixture: &Fixture) -> Vec<PathBuf> {
    let sessions = fs::read_dir(fixture.path("repository/containers")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        sessions.flat_map(|session| fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path())).collect();
    files.sort();
    files
}

#[test]
fn damaged_containers_are_reported_set_aside_brought_back_and_removed() {
    let fixture = Fixture::new();
    for number in 0..10 {
        fixture.write(&format!("file{number}"), &noise(number, 200_000));
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    assert!(fixture.run(["repair", "containers"]).code(0).stdout().contains("no container is damaged"));
    let is_data = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('d');
    let data = container_files(&fixture).iter().find(is_data).unwrap().clone();
    let good = fs::read(&data).unwrap();
    let mut damaged = good.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&data, &damaged).unwrap();
    let name = data.to_str().unwrap().to_owned();
    let bad = PathBuf::from(format!("{name}.bad"));
    let objects = contents(&fixture.path("repository"));
    for arguments in [&["repair", "containers"][..], &["repair", "containers", "--quarantine", "--dry-run"]] {
        let found = fixture.run(arguments).code(1).says(&name).says("does not open").says("  hits ");
        assert!(found.stdout().contains("found 1 damaged container"), "{}", found.stdout());
        found.says("the repository has 1 damaged container");
    }
    let found = fixture.run(["repair", "containers", &name, "--json"]).code(1).messages().pop().unwrap();
    assert_eq!(found["damaged"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(contents(&fixture.path("repository")), objects, "a report writes nothing");
    fixture.run(["repair", "containers", "nothing"]).code(1).says("nothing: not a container");
    let nowhere = name.replace("d00000000", "d00000009");
    fixture.run(["repair", "containers", "--quarantine", &nowhere]).code(1).says("there is no container");

    let aside = fixture.run(["repair", "containers", "--quarantine"]).code(0);
    assert!(aside.stdout().contains("set 1 damaged container aside"), "{}", aside.stdout());
    assert!(!data.exists() && fs::read(&bad).unwrap() == damaged);
    assert!(fixture.run(["repair", "containers"]).code(0).stdout().contains("no container is damaged"));
    let id = fixture.run(["list", "quarantined"]).code(0).stdout();
    assert_eq!(id.trim_end(), found["damaged"][0], "{id}");
    fixture.run(["check", "--read-data"]).code(1).says(bad.to_str().unwrap()).says("  hits ");
    let stats = fixture.run(["stats", "--mode", "raw-data", "--json"]).code(0).json();
    assert_eq!((&stats["quarantined_containers"], &stats["quarantined_size"]), (&1.into(), &damaged.len().into()));
    assert!(fixture.run(["prune"]).code(0).stdout().contains(" in 1 container set aside as damaged"));

    // The disk gives the bytes back.
    fs::write(&bad, &good).unwrap();
    assert!(fixture.run(["repair", "containers", "--salvage"]).code(0).stdout().contains("brought "));
    fixture.run(["check", "--read-data"]).code(0);
    let target = fixture.path("target");
    fixture.run(["restore", "latest:/source", "--target", target.to_str().unwrap()]).code(0);
    for number in 0..10 {
        assert_eq!(fs::read(target.join(format!("file{number}"))).unwrap(), noise(number, 200_000));
    }
    let would = fixture.run(["repair", "containers", "--remove-quarantined", "-n"]).code(0).stdout();
    assert!(would.contains("would remove 1 container") && bad.exists(), "{would}");
    let removed = fixture.run(["repair", "containers", "--remove-quarantined", "--json"]).code(0).messages();
    assert_eq!((&removed[0]["removed_containers"], bad.exists()), (&1.into(), false), "{removed:?}");
    assert_eq!(fixture.run(["list", "quarantined"]).code(0).stdout(), "");
}

/// Removes the container of data, which a snapshot of 20 files needs.
fn lose_data(fixture: &Fixture) {
    let session = fs::read_dir(fixture.path("repository/containers")).unwrap().next().unwrap().unwrap().path();
    let names = fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path());
    let is_data = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('d');
    fs::remove_file(names.into_iter().find(is_data).unwrap()).unwrap();
    fixture.run(["check"]).code(1);
}

#[test]
fn snapshots_are_repaired_and_forgotten_on_request() {
    let (fixture, _) = backed_up();
    assert!(fixture.run(["repair", "snapshots"]).code(0).stdout().contains("no snapshots were modified"));
    fixture.run(["repair", "snapshots", "latest~1"]).code(1);
    lose_data(&fixture);
    let objects = contents(&fixture.path("repository"));
    let old = fixture.run(["snapshots", "--json"]).code(0).json()[0].clone();
    let dry = fixture.run(["repair", "snapshots", "--dry-run"]).code(0);
    let text = dry.stdout();
    assert!(text.contains("  lost: /source/file1: 40000 of 40000 bytes\n"), "{text}");
    assert!(text.contains(": without 781.250 KiB\nwould modify 1 snapshot\n"), "{text}");
    assert_eq!(contents(&fixture.path("repository")), objects, "a dry run writes nothing");
    let repaired = fixture.run(["repair", "snapshots", "--json", "--suffix", ".repaired"]).code(0).messages();
    let lost: Vec<_> = repaired.iter().filter(|message| message["message_type"] == "lost").collect();
    assert_eq!(lost.len(), 20);
    assert_eq!(
        (&lost[0]["loss"], &lost[0]["lost_bytes"], &lost[0]["size"]),
        (&"bytes".into(), &40_000.into(), &40_000.into())
    );
    let changed = &repaired[repaired.len() - 2];
    assert_eq!((&changed["message_type"], &changed["old_snapshot_id"]), (&"changed".into(), &old["id"]));
    assert_eq!(repaired[repaired.len() - 1]["changed_snapshots"], 1);
    let new = changed["new_snapshot_id"].as_str().unwrap();
    let listed = fixture.run(["snapshots", "--json"]).code(0).json();
    let of_id = |id: &str| listed.as_array().unwrap().iter().find(|snapshot| snapshot["id"] == id).cloned();
    assert!(of_id(old["id"].as_str().unwrap()).is_some(), "the old one stays");
    let snapshot = of_id(new).unwrap();
    assert_eq!((&snapshot["time"], &snapshot["original"]), (&old["time"], &old["id"]));
    let files = fixture.run(["ls", new]).code(0).stdout();
    assert_eq!(files.matches(".repaired").count(), 20, "{files}");
    // Again, with the names as they were: the first repaired snapshot is whole.
    let again = fixture.run(["repair", "snapshots", "--forget"]).code(0);
    assert!(again.stdout().contains("modified 1 snapshot"), "{}", again.stdout());
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), 2);
    fixture.run(["check", "--read-data"]).code(0);
    fixture.run(["restore", "latest", "--target", fixture.path("target").to_str().unwrap()]).code(0);
    fixture.run(["repair", "snapshots", "--suffix", "a/b"]).code(1).says("--suffix");
}

#[test]
fn a_snapshot_of_which_nothing_is_left_is_named() {
    let (fixture, _) = backed_up();
    for session in fs::read_dir(fixture.path("repository/containers")).unwrap() {
        for container in fs::read_dir(session.unwrap().path()).unwrap() {
            fs::remove_file(container.unwrap().path()).unwrap();
        }
    }
    for arguments in [&["repair", "snapshots", "--dry-run"][..], &["repair", "snapshots", "--forget"]] {
        let ran = fixture.run(arguments).code(1).says("nothing of it is left").says("nothing is left of 1 snapshot");
        assert!(ran.stdout().contains("  lost: /: with everything in it"), "{}", ran.stdout());
    }
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), 1, "it is not forgotten");
}

/// Snapshots of the fixture below, oldest first.
const SNAPSHOTS: usize = 6;

/// A repository with small objects of every kind, and the ids of its snapshots. The second one is forgotten.
fn with_small_objects() -> (Fixture, Vec<String>) {
    let fixture = Fixture::encrypted();
    let ids = (0..SNAPSHOTS).map(|number| {
        fixture.write("file", noise(number as u64, 30_000).as_slice());
        let summary = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap();
        summary["snapshot_id"].as_str().unwrap()[..32].to_owned()
    });
    let ids: Vec<String> = ids.collect();
    fixture.run(["forget", "-q", &ids[1]]).code(0);
    fixture.run(["prune", "-q", "--max-unused", "0"]).code(0);
    fixture.run(["forget", "-q", &ids[4]]).code(0);
    (fixture, ids)
}

fn damage(path: &Path, how: &str) {
    let bytes = fs::read(path).unwrap();
    match how {
        "emptied" => fs::write(path, b"").unwrap(),
        "truncated" => fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        "flipped" => {
            let mut bytes = bytes;
            // The version of the format, and the body.
            bytes[4] ^= 0x10;
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(path, bytes).unwrap();
        }
        "junk" => fs::write(path, b"junk").unwrap(),
        _ => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
    }
}

#[test]
fn damage_of_any_small_object_stops_nothing_else_and_one_command_ends_it() {
    for how in ["emptied", "truncated", "flipped", "junk", "directory"] {
        let (fixture, ids) = with_small_objects();
        let repository = fixture.path("repository");
        let slot = fs::read_dir(repository.join("keys")).unwrap().next().unwrap().unwrap().path();
        let objects = [
            format!("sessions/{}", ids[0]),
            format!("sessions/{}", ids[1]),
            format!("commits/{}", ids[1]),
            format!("commits/{}", ids[2]),
            format!("manifests/{}", ids[3]),
            format!("forget/{}", ids[4]),
            "gc/00000001/begin".to_owned(),
            "gc/00000001/condemn".to_owned(),
            "gc/00000001/done".to_owned(),
            "config.copy".to_owned(),
            slot.strip_prefix(&repository).unwrap().to_str().unwrap().to_owned(),
        ];
        for object in &objects {
            damage(&repository.join(object), how);
        }
        // Names that are no object's, names of sessions that never were, and numbers that no collection ever had.
        fs::create_dir_all(repository.join("gc/ffffffff")).unwrap();
        for junk in [
            "commits/junk",
            "commits/0123456789abcdef0123456789abcdef",
            "gc/junk",
            "gc/ffffffff/begin",
            "gc/ffffffff/condemn",
        ] {
            fs::write(repository.join(junk), b"junk").unwrap();
        }
        let before = contents(&repository);
        fixture.run(["check", "-q"]).code(1).says("`onefold repair objects`");
        fixture.run(["restore", "latest", "--target", "out", "-q"]).code(0);
        fixture.run(["repair", "objects", "--dry-run"]).code(1);
        assert_eq!(contents(&repository), before, "{how}");
        fixture.run(["backup", "source", "-q"]).code(0);
        let repaired = fixture.run(["repair", "objects"]).code(0).stdout();
        for object in objects.iter().filter(|object| !object.ends_with("condemn")) {
            assert!(repaired.contains(object), "{how}: {object}: {repaired}");
        }
        // Nothing is deleted.
        for (object, bytes) in before.iter().filter(|(_, bytes)| bytes.is_some()) {
            let aside = PathBuf::from(format!("{}.0.bad", object.display()));
            let stands = |path: &Path| fs::read(repository.join(path)).ok() == *bytes;
            assert!(stands(object) || stands(&aside), "{how}: {}", object.display());
        }
        assert_eq!(fixture.run(["repair", "objects"]).code(0).stdout(), "", "{how}");
        for command in [
            &["check", "--read-data", "-q"][..],
            &["prune", "-q", "--max-unused", "0"],
            &["check", "--read-data", "-q"],
        ] {
            fixture.run(command).code(0);
        }
        fixture.run(["prune", "-q"]).code(0);
        // The forgotten snapshot stays forgotten, the one that is lost does not come back, the one whose forget was damaged does.
        let listed = fixture.run(["snapshots", "--json"]).code(0).json();
        let is_listed = |id: &String| {
            listed.as_array().unwrap().iter().any(|snapshot| snapshot["id"].as_str().unwrap().starts_with(id.as_str()))
        };
        let kept: Vec<bool> = ids.iter().map(is_listed).collect();
        assert_eq!(kept, [true, false, false, true, true, true], "{how}");
        fixture.run(["restore", &ids[0][..8], "--target", "oldest", "-q"]).code(0);
        fixture.run(["forget", "-q", &ids[4]]).code(0);
    }
}

#[test]
fn a_damaged_forget_is_written_again_if_something_of_the_snapshot_is_gone() {
    let (fixture, ids) = with_small_objects();
    damage(&fixture.path(&format!("repository/forget/{}", ids[1])), "junk");
    fixture.run(["check", "-q"]).code(1);
    assert!(fixture.run(["repair", "snapshots"]).code(0).stdout().contains("the snapshot is forgotten"));
    fixture.run(["check", "-q"]).code(0);
    assert_eq!(fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len(), SNAPSHOTS - 2);
}
