//! What a host remembers of a repository, and what it says when that has changed.

use std::fs;

use crate::place::{Place, Ran};

const RESTORE: [&str; 7] = ["restore", "latest", "--target", "out", "--overwrite", "always", "-q"];

fn without_password(place: &Place, arguments: &[&str]) -> Ran {
    Ran(place.command(arguments).env_remove("ONEFOLD_PASSWORD").output().unwrap())
}

/// Puts an unencrypted repository where the encrypted one was, which becomes `was`.
fn replace(place: &Place) {
    fs::rename(place.path("repository"), place.path("was")).unwrap();
    let other = place.path("other-cache");
    let init = ["init", "--no-encryption", "-q", "--cache-dir", other.to_str().unwrap()];
    without_password(place, &init).code(0);
}

#[test]
fn an_unencrypted_repository_in_the_place_of_an_encrypted_one_is_refused() {
    let place = Place::encrypted();
    place.write("file", b"x");
    place.run(["backup", "source", "-q"]).code(0);
    replace(&place);
    for arguments in [&["snapshots"][..], &["backup", "source"], &["check"], &RESTORE, &["cat", "config"]] {
        for ran in [without_password(&place, arguments), place.run(arguments)] {
            ran.code(1).says("has seen the encrypted repository").says("now there is the unencrypted repository");
        }
    }
    without_password(&place, &["snapshots"]).code(1).says("--accept-new-repository");
    without_password(&place, &["snapshots", "--accept-new-repository"]).code(0);
    without_password(&place, &["backup", "source", "-q"]).code(0);
    // The other way round it is a change as well.
    fs::remove_dir_all(place.path("repository")).unwrap();
    fs::rename(place.path("was"), place.path("repository")).unwrap();
    place.run(["snapshots"]).code(1).says("has seen the unencrypted repository");
    place.run(["snapshots", "--accept-new-repository", "-q"]).code(0);
    place.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_config_that_was_exchanged_alone_is_refused_or_passed_over() {
    let place = Place::encrypted();
    let copies = ["config", "config.copy"].map(|name| (name, fs::read(place.path("repository").join(name)).unwrap()));
    replace(&place);
    fs::rename(place.path("repository"), place.path("forged")).unwrap();
    fs::rename(place.path("was"), place.path("repository")).unwrap();
    let forged = fs::read(place.path("forged/config")).unwrap();
    fs::write(place.path("repository/config"), &forged).unwrap();
    // The second copy is still that of the repository seen before.
    place.run(["snapshots", "-q"]).code(0);
    fs::write(place.path("repository/config.copy"), &forged).unwrap();
    without_password(&place, &["snapshots", "-q"]).code(1).says("now there is the unencrypted repository");
    for (name, bytes) in copies {
        fs::write(place.path("repository").join(name), bytes).unwrap();
    }
    place.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_repository_that_this_host_makes_again_is_accepted() {
    let place = Place::encrypted();
    fs::remove_dir_all(place.path("repository")).unwrap();
    place.run(["init", "-q"]).code(0);
    place.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_damaged_pin_is_reported_and_made_again() {
    let place = Place::encrypted();
    let pins: Vec<_> = fs::read_dir(place.path("cache/pins")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pins.len(), 1, "{pins:?}");
    fs::write(&pins[0], b"nonsense").unwrap();
    place.run(["snapshots", "-q"]).code(0).says("is not known").says(pins[0].to_str().unwrap());
    assert_eq!(place.run(["snapshots", "-q"]).code(0).stderr(), "");
}

#[test]
fn a_newest_snapshot_that_is_gone_is_reported_by_every_command_until_that_is_accepted() {
    let place = Place::new();
    place.write("file", b"x");
    place.run(["backup", "source", "-q"]).code(0);
    let first = only_commit(&place);
    place.run(["backup", "source", "-q"]).code(0);
    let copied = place.path("copied");
    let newest = fs::read_dir(place.path("repository/commits"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| !path.ends_with(&first))
        .unwrap();
    fs::rename(&newest, &copied).unwrap();
    let id = &newest.file_name().unwrap().to_str().unwrap()[..8];
    let sentence = format!("snapshot {id}, one of the newest that this host has seen, is gone");
    let commands: [&[&str]; 5] = [
        &["snapshots", "-q"],
        &["list", "snapshots", "-q"],
        &RESTORE,
        &["ls", "latest", "-q"],
        &["backup", "source", "-q"],
    ];
    for _ in 0..2 {
        for arguments in commands {
            place.run(arguments).code(0).says(&sentence).says("--accept-rollback");
        }
        place.run(["check", "-q"]).code(1).says("seen before from this host");
    }
    // One that comes back is no loss.
    fs::rename(&copied, &newest).unwrap();
    assert!(!place.run(["snapshots"]).code(0).stderr().contains("is gone"));
    place.run(["check", "-q"]).code(0);
    fs::rename(&newest, &copied).unwrap();
    // The next backups did not see it, so that it was still one of the newest.
    place.run(["snapshots", "-q"]).code(0).says(&sentence);
    place.run(["snapshots", "--accept-rollback"]).code(0).says("the loss is accepted");
    assert!(!place.run(["snapshots"]).code(0).stderr().contains("gone"));
    place.run(["check", "-q"]).code(0);
}

#[test]
fn what_was_seen_before_counts_where_nothing_is_written_into_the_cache() {
    let place = Place::new();
    place.write("file", b"x");
    place.run(["backup", "source", "-q"]).code(0);
    fs::remove_file(place.path("repository/commits").join(only_commit(&place))).unwrap();
    let heads = place.path("cache").join(place.repository_id()).join("heads");
    let before = fs::read(&heads).unwrap();
    place.run(["check", "-q", "--no-cache"]).code(1).says("seen before from this host");
    for arguments in [&["snapshots", "-q"][..], &["backup", "source", "-q"]] {
        place.run(arguments.iter().chain(&["--no-cache"])).code(0).says("is gone").says("--accept-rollback");
    }
    place.run(["snapshots", "--no-cache", "--accept-rollback"]).code(0).says("for this command only");
    assert!(fs::read(&heads).unwrap() == before, "the cache was written to");
}

#[test]
fn a_host_that_has_only_listed_a_snapshot_notices_that_it_is_gone() {
    let place = Place::new();
    place.write("file", b"x");
    place.run(["backup", "source", "-q"]).code(0);
    let other = place.path("other-cache");
    let on_other_host = ["snapshots", "-q", "--cache-dir", other.to_str().unwrap()];
    place.run(on_other_host).code(0);
    fs::remove_file(place.path("repository/commits").join(only_commit(&place))).unwrap();
    place.run(on_other_host).code(0).says("is gone");
}

fn only_commit(place: &Place) -> String {
    let mut commits = fs::read_dir(place.path("repository/commits")).unwrap();
    let name = commits.next().unwrap().unwrap().file_name().into_string().unwrap();
    assert!(commits.next().is_none());
    name
}
