//! What a host remembers of a repository, and what it says when that has changed.

use std::fs;

use crate::fixture::{Fixture, Ran};

const RESTORE: [&str; 7] = ["restore", "latest", "--target", "out", "--overwrite", "always", "-q"];

fn without_password(fixture: &Fixture, arguments: &[&str]) -> Ran {
    Ran(fixture.command(arguments).env_remove("ONEFOLD_PASSWORD").output().unwrap())
}

/// Puts an unencrypted repository where the encrypted one was, which becomes `was`.
fn replace(fixture: &Fixture) {
    fs::rename(fixture.path("repository"), fixture.path("was")).unwrap();
    let other = fixture.path("other-cache");
    let init = ["init", "--no-encryption", "-q", "--cache-dir", other.to_str().unwrap()];
    without_password(fixture, &init).code(0);
}

#[test]
fn an_unencrypted_repository_instead_of_an_encrypted_one_is_refused() {
    let fixture = Fixture::encrypted();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    replace(&fixture);
    for arguments in [&["snapshots"][..], &["backup", "source"], &["check"], &RESTORE, &["cat", "config"]] {
        for ran in [without_password(&fixture, arguments), fixture.run(arguments)] {
            ran.code(1).says("has seen the encrypted repository").says("now there is the unencrypted repository");
        }
    }
    without_password(&fixture, &["snapshots"]).code(1).says("--accept-new-repository");
    without_password(&fixture, &["snapshots", "--accept-new-repository"]).code(0);
    without_password(&fixture, &["backup", "source", "-q"]).code(0);
    // The other way round it is a change as well.
    fs::remove_dir_all(fixture.path("repository")).unwrap();
    fs::rename(fixture.path("was"), fixture.path("repository")).unwrap();
    fixture.run(["snapshots"]).code(1).says("has seen the unencrypted repository");
    fixture.run(["snapshots", "--accept-new-repository", "-q"]).code(0);
    fixture.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_config_that_was_exchanged_alone_is_refused_or_passed_over() {
    let fixture = Fixture::encrypted();
    let copies = ["config", "config.copy"].map(|name| (name, fs::read(fixture.path("repository").join(name)).unwrap()));
    replace(&fixture);
    fs::rename(fixture.path("repository"), fixture.path("forged")).unwrap();
    fs::rename(fixture.path("was"), fixture.path("repository")).unwrap();
    let forged = fs::read(fixture.path("forged/config")).unwrap();
    fs::write(fixture.path("repository/config"), &forged).unwrap();
    // The second copy is still that of the repository seen before.
    fixture.run(["snapshots", "-q"]).code(0);
    fs::write(fixture.path("repository/config.copy"), &forged).unwrap();
    without_password(&fixture, &["snapshots", "-q"]).code(1).says("now there is the unencrypted repository");
    for (name, bytes) in copies {
        fs::write(fixture.path("repository").join(name), bytes).unwrap();
    }
    fixture.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_repository_that_this_host_makes_again_is_accepted() {
    let fixture = Fixture::encrypted();
    fs::remove_dir_all(fixture.path("repository")).unwrap();
    fixture.run(["init", "-q"]).code(0);
    fixture.run(["snapshots", "-q"]).code(0);
}

#[test]
fn a_damaged_pin_is_reported_and_made_again() {
    let fixture = Fixture::encrypted();
    let pins: Vec<_> = fs::read_dir(fixture.path("cache/pins")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pins.len(), 1, "{pins:?}");
    fs::write(&pins[0], b"nonsense").unwrap();
    fixture.run(["snapshots", "-q"]).code(0).says("cannot read which repository").says(pins[0].to_str().unwrap());
    assert_eq!(fixture.run(["snapshots", "-q"]).code(0).stderr(), "");
}

#[test]
fn a_newest_snapshot_that_is_gone_is_reported_by_every_command_until_that_is_accepted() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let first = only_commit(&fixture);
    fixture.run(["backup", "source", "-q"]).code(0);
    let copied = fixture.path("copied");
    let newest = fs::read_dir(fixture.path("repository/commits"))
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
            fixture.run(arguments).code(0).says(&sentence).says("--accept-rollback");
        }
        fixture.run(["check", "-q"]).code(1).says("seen before from this host");
    }
    // One that comes back is no loss.
    fs::rename(&copied, &newest).unwrap();
    assert!(!fixture.run(["snapshots"]).code(0).stderr().contains("is gone"));
    fixture.run(["check", "-q"]).code(0);
    fs::rename(&newest, &copied).unwrap();
    // The next backups did not see it, so that it was still one of the newest.
    fixture.run(["snapshots", "-q"]).code(0).says(&sentence);
    fixture.run(["snapshots", "--accept-rollback"]).code(0).says("the loss is accepted");
    assert!(!fixture.run(["snapshots"]).code(0).stderr().contains("gone"));
    fixture.run(["check", "-q"]).code(0);
}

#[test]
fn what_was_seen_before_counts_where_nothing_is_written_into_the_cache() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    fs::remove_file(fixture.path("repository/commits").join(only_commit(&fixture))).unwrap();
    let heads = fixture.path("cache").join(fixture.repository_id()).join("heads");
    let before = fs::read(&heads).unwrap();
    fixture.run(["check", "-q", "--no-cache"]).code(1).says("seen before from this host");
    for arguments in [&["snapshots", "-q"][..], &["backup", "source", "-q"]] {
        fixture.run(arguments.iter().chain(&["--no-cache"])).code(0).says("is gone").says("--accept-rollback");
    }
    fixture.run(["snapshots", "--no-cache", "--accept-rollback"]).code(0).says("for this command only");
    assert!(fs::read(&heads).unwrap() == before, "the cache was written to");
}

#[test]
fn a_host_that_has_only_listed_a_snapshot_notices_that_it_is_gone() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fixture.run(["backup", "source", "-q"]).code(0);
    let other = fixture.path("other-cache");
    let on_other_host = ["snapshots", "-q", "--cache-dir", other.to_str().unwrap()];
    fixture.run(on_other_host).code(0);
    fs::remove_file(fixture.path("repository/commits").join(only_commit(&fixture))).unwrap();
    fixture.run(on_other_host).code(0).says("is gone");
}

fn only_commit(fixture: &Fixture) -> String {
    let mut commits = fs::read_dir(fixture.path("repository/commits")).unwrap();
    let name = commits.next().unwrap().unwrap().file_name().into_string().unwrap();
    assert!(commits.next().is_none());
    name
}
