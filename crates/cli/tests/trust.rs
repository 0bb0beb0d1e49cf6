//! What a host remembers of a repository, and what it says when that has changed.

use std::fs;
use std::process::Command;

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
    // The encrypted one was seen before, and asks for a password. After it, the unencrypted one is refused again.
    fs::rename(fixture.path("repository"), fixture.path("unencrypted")).unwrap();
    fs::rename(fixture.path("was"), fixture.path("repository")).unwrap();
    fixture.run(["snapshots", "-q"]).code(0);
    fs::rename(fixture.path("repository"), fixture.path("was")).unwrap();
    fs::rename(fixture.path("unencrypted"), fixture.path("repository")).unwrap();
    without_password(&fixture, &["snapshots"]).code(1).says("has seen the encrypted repository");
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

/// Lets the directory `from` stand at the repository's path; what stood there becomes `to`.
fn swap(fixture: &Fixture, to: &str, from: &str) {
    fs::rename(fixture.path("repository"), fixture.path(to)).unwrap();
    fs::rename(fixture.path(from), fixture.path("repository")).unwrap();
}

fn copy(fixture: &Fixture, from: &str, to: &str) {
    let copied = Command::new("cp").arg("-a").args([fixture.path(from), fixture.path(to)]).status().unwrap();
    assert!(copied.success());
}

fn back_up(fixture: &Fixture, text: &str) -> Ran {
    fixture.write("file", text.repeat(5000).as_bytes());
    fixture.run(["backup", "source", "-q"]).code(0)
}

#[test]
fn repositories_used_in_turn_at_one_place_are_accepted_once_each() {
    let fixture = Fixture::encrypted();
    back_up(&fixture, "first");
    for disk in ["second", "third"] {
        fs::rename(fixture.path("repository"), fixture.path("before")).unwrap();
        fixture.run(["init", "-q"]).code(0);
        back_up(&fixture, disk);
        swap(&fixture, disk, "before");
    }
    for round in 0..2 {
        for disk in ["second", "third"] {
            swap(&fixture, "first", disk);
            back_up(&fixture, &format!("{disk} {round}"));
            assert_eq!(fixture.run(["check", "--read-data", "-q"]).code(0).stderr(), "");
            fixture.run(["prune", "-q"]).code(0);
            swap(&fixture, disk, "first");
            assert_eq!(back_up(&fixture, &format!("first {round}")).stderr(), "");
        }
    }
}

#[test]
fn copies_of_a_repository_are_used_in_turn_at_two_places_and_each_holds_what_it_was_given() {
    let fixture = Fixture::new();
    back_up(&fixture, "a");
    copy(&fixture, "repository", "copy");
    let link = fixture.path("link");
    std::os::unix::fs::symlink(fixture.path("copy"), &link).unwrap();
    back_up(&fixture, "b");
    let on_copy = |arguments: &[&str]| fixture.run(arguments.iter().chain(&["--repo", "copy"]));
    // The index knows of containers that this copy does not have.
    on_copy(&["backup", "source", "-q"])
        .code(0)
        .says("lacks snapshot")
        .says(fixture.path("repository").to_str().unwrap());
    back_up(&fixture, "c");
    on_copy(&["backup", "source", "-q"]).code(0);
    on_copy(&["forget", "--keep-last", "1", "-q", "--force"]).code(0);
    for _ in 0..2 {
        for command in
            [&["check", "--read-data", "-q"][..], &["prune", "-q", "--max-unused", "0"], &["backup", "source", "-q"]]
        {
            assert_eq!(on_copy(command).code(0).stderr(), "");
            assert_eq!(fixture.run(command).code(0).stderr(), "");
        }
        fixture.run(["snapshots", "-q", "--repo", link.to_str().unwrap()]).code(0);
    }
    // An older state of a copy is noticed, by any path to it.
    copy(&fixture, "copy", "older");
    on_copy(&["backup", "source", "-q"]).code(0);
    fs::rename(fixture.path("copy"), fixture.path("newer")).unwrap();
    fs::rename(fixture.path("older"), fixture.path("copy")).unwrap();
    for path in ["copy", "./copy", link.to_str().unwrap()] {
        fixture.run(["snapshots", "-q", "--repo", path]).code(0).says("is gone").says("--accept-rollback");
        fixture.run(["check", "-q", "--repo", path]).code(1).says("seen before from this host");
        fixture.run(["prune", "-q", "--repo", path]).code(1).says("nothing is deleted");
    }
    // Elsewhere, too, as long as no copy has what is gone.
    fs::rename(fixture.path("copy"), fixture.path("moved")).unwrap();
    fs::remove_dir_all(fixture.path("newer")).unwrap();
    fs::remove_dir_all(fixture.path("repository")).unwrap();
    fixture.run(["check", "-q", "--repo", "moved"]).code(1).says("seen before from this host");
}

#[test]
fn copies_used_in_turn_at_one_place_are_accepted_once_each_and_an_older_state_is_still_noticed() {
    let fixture = Fixture::new();
    back_up(&fixture, "a");
    copy(&fixture, "repository", "copy");
    back_up(&fixture, "b");
    swap(&fixture, "first", "copy");
    fixture.run(["check", "-q"]).code(1).says("seen before from this host");
    fixture.run(["snapshots", "-q", "--accept-rollback"]).code(0);
    back_up(&fixture, "c");
    copy(&fixture, "repository", "older");
    back_up(&fixture, "d");
    for _ in 0..2 {
        swap(&fixture, "second", "first");
        fixture.run(["snapshots", "-q"]).code(0).says("lacks snapshot");
        assert_eq!(fixture.run(["check", "-q", "--read-data"]).code(0).stderr(), "");
        fixture.run(["prune", "-q"]).code(0);
        swap(&fixture, "first", "second");
        fixture.run(["backup", "source", "-q"]).code(0).says("lacks snapshot");
        fixture.run(["check", "-q", "--read-data"]).code(0);
    }
    swap(&fixture, "second", "older");
    fixture.run(["check", "-q"]).code(1).says("seen before from this host");
    fixture.run(["prune", "-q"]).code(1);
    // A cache that is lost takes the memory with it, and nothing else.
    fs::remove_dir_all(fixture.path("cache")).unwrap();
    fixture.run(["check", "-q"]).code(0);
}

fn only_commit(fixture: &Fixture) -> String {
    let mut commits = fs::read_dir(fixture.path("repository/commits")).unwrap();
    let name = commits.next().unwrap().unwrap().file_name().into_string().unwrap();
    assert!(commits.next().is_none());
    name
}
