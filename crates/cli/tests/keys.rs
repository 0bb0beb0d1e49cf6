//! `init` and `key`.

use crate::fixture::{Fixture, Ran};

fn with_password(fixture: &Fixture, password: &str, arguments: &[&str]) -> Ran {
    Ran(fixture.command(arguments).env("ONEFOLD_PASSWORD", password).output().unwrap())
}

#[test]
fn init_says_what_it_made_and_never_makes_it_twice() {
    let fixture = Fixture::without_repository(Some("secret"));
    let ran = fixture.run(["init", "--json", "--chunk-size", "16k"]).code(0);
    let made = ran.json();
    assert_eq!(made["message_type"], "initialized");
    assert_eq!(made["id"].as_str().unwrap().len(), 64);
    assert_eq!(made["repository"], serde_json::json!(fixture.path("repository")));
    fixture.run(["init"]).code(1).says("exists already");

    let open = Fixture::without_repository(None);
    open.run(["init", "--no-encryption"]).code(0).says("not encrypted");
    open.run(["snapshots"]).code(0).says("not encrypted");
    with_password(&open, "some", &["snapshots"]).code(1).says("not encrypted although a password was given");
    open.run(["key", "list"]).code(1).says("not encrypted");
}

#[test]
fn a_repository_for_volumes_has_other_defaults() {
    let fixture = Fixture::without_repository(Some("secret"));
    fixture.run(["init", "--for", "pictures"]).code(1).says("invalid value 'pictures'");
    fixture.run(["init", "--for", "volumes", "--container-size", "8M"]).code(0);
    let config = fixture.run(["cat", "config"]).code(0).json();
    assert_eq!(config["chunking"], serde_json::json!({ "method": "fixed", "size": 4096 }));
    assert_eq!((&config["region_size"], &config["container_size"]), (&(128 << 10).into(), &(8 << 20).into()));
    std::fs::write(fixture.path("image"), vec![7; 100_000]).unwrap();
    fixture.run(["backup", "image"]).code(0);
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn an_empty_password_opens_only_where_it_was_asked_for() {
    let fixture = Fixture::encrypted();
    fixture.run(["key", "add", "--new-insecure-no-password"]).code(0);
    let mut without = fixture.command(["snapshots", "--insecure-no-password"]);
    Ran(without.env_remove("ONEFOLD_PASSWORD").output().unwrap()).code(0);
    let mut without = fixture.command(["snapshots"]);
    Ran(without.env_remove("ONEFOLD_PASSWORD").stdin(std::process::Stdio::null()).output().unwrap()).code(1);
}

#[test]
fn parameters_that_make_no_repository_are_refused() {
    let fixture = Fixture::without_repository(Some("secret"));
    fixture.run(["init", "--container-size", "1k"]).code(1).says("containers of 1024 bytes: possible are 65536 to");
    fixture.run(["init", "--chunk-size", "100"]).code(1).says("chunks on average of 100 bytes: possible are 512 to");
    fixture.run(["init", "--chunk-size", "1M"]).code(1).says("do not fit containers of 4194304");
    fixture.run(["init", "--container-size", "64k", "--region-size", "64k"]).code(1).says("regions of 65536");
    fixture.run(["init", "--key-memory", "8G"]).code(1).says("--key-memory 8G: the most are 4096M");
    assert!(!fixture.path("repository").exists(), "nothing is left of what was refused");
    fixture.run(["init", "--chunk-size", "much"]).code(1).says("not a size");
    fixture.run(["init", "--key-memory", "1M"]).code(1).says("64M");
    fixture.run(["snapshots"]).code(10);
}

#[test]
fn passwords_come_and_go() {
    let fixture = Fixture::encrypted();
    std::fs::write(fixture.path("new"), "second\n").unwrap();
    fixture.run(["key", "add", "--new-password-file", "new", "--user", "ann", "--host", "attic"]).code(0);
    let keys = fixture.run(["key", "list", "--json"]).code(0).json();
    let keys = keys.as_array().unwrap();
    assert_eq!(keys.len(), 2);
    let id = |current: bool| keys.iter().find(|key| key["current"] == current).unwrap()["id"].as_str().unwrap();
    let labels = |keys: &[serde_json::Value]| -> Vec<_> {
        keys.iter().map(|key| ["userName", "hostName", "created"].map(|name| key[name].clone())).collect()
    };
    assert!(labels(keys).iter().flatten().all(|text| !text.as_str().unwrap().is_empty()), "{keys:?}");
    assert!(labels(keys).iter().any(|label| label[..2] == ["ann", "attic"]), "{keys:?}");
    let other = with_password(&fixture, "second", &["key", "list", "--json"]).code(0).json();
    assert_eq!(labels(other.as_array().unwrap()), labels(keys));
    fixture.run(["key", "remove", id(true)]).code(1).says("in use");
    fixture.run(["key", "remove", "zz"]).code(1).says("not found");
    fixture.run(["key", "remove", &id(false)[..8]]).code(0).says("has not changed");
    with_password(&fixture, "second", &["snapshots"]).code(12);
    fixture.run(["key", "passwd", "--new-password-file", "new"]).code(0);
    fixture.run(["snapshots"]).code(12);
    with_password(&fixture, "second", &["snapshots", "--json"]).code(0);
    fixture.run(["-p", "new", "snapshots"]).code(0);
    fixture.run(["--password-command", "cat new", "snapshots"]).code(0);
    fixture.run(["--password-command", "exit 1", "snapshots"]).code(1).says("password command failed");
}

#[test]
fn a_key_slot_that_cannot_be_read_makes_its_listing_fail() {
    let fixture = Fixture::encrypted();
    std::fs::write(fixture.path("new"), "second\n").unwrap();
    let own: Vec<_> = slots(&fixture);
    fixture.run(["key", "add", "--new-password-file", "new"]).code(0);
    for copy in slots(&fixture).into_iter().filter(|path| !own.contains(path)) {
        std::fs::write(copy, b"nonsense").unwrap();
    }
    for arguments in [&["key", "list"][..], &["key", "list", "--json"], &["list", "keys"]] {
        let ran = fixture.run(arguments).code(1).says("keys/").says("not all key slots can be read");
        assert_ne!(ran.stdout(), "");
    }
}

/// The first version of the format sealed labels with passwords.
#[test]
fn a_key_slot_whose_label_does_not_open_is_listed_as_of_unknown_origin() {
    let fixture = Fixture::encrypted();
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/formats/v1");
    let copied = std::process::Command::new("cp").args(["-r", old, "old"]).current_dir(fixture.path("")).status();
    assert!(copied.unwrap().success());
    let list = ["-r", "old/repo", "-p", "old/password", "key", "list"];
    let listed = fixture.run(list).code(0).says("its label does not open");
    assert!(listed.stdout().contains("unknown"), "{}", listed.stdout());
}

fn slots(fixture: &Fixture) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(fixture.path("repository/keys")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_password_that_needs_more_memory_than_a_command_may_use_is_tried_on_request() {
    let fixture = Fixture::without_repository(Some("secret"));
    fixture.run(["init", "--key-memory", "80M"]).code(0).says("--key-memory-max 80M");
    fixture.run(["snapshots"]).code(12).says("the least of them 80 MiB").says("--key-memory-max SIZE");
    fixture.run(["snapshots", "--key-memory-max", "80M"]).code(0);
    fixture.run(["snapshots", "--memory", "80M"]).code(0);
    let keys = fixture.run(["key", "list", "--json", "--memory", "80M"]).code(0).json();
    let id = keys[0]["id"].as_str().unwrap();
    fixture.run(["snapshots", "--memory", "80M", "--key-hint", &id[..8]]).code(0);
}
