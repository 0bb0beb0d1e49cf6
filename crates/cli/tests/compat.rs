//! Programs that are made for restic: its variables, its defaults, and the words that they look for.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::place::{Place, Ran, contents};

/// Prepares a run under restic's name and with nothing but restic's variables.
fn restic(place: &Place, arguments: &[&str]) -> Command {
    let link = place.path("restic");
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_onefold"), &link).unwrap();
    }
    let mut command = place.command(arguments);
    let mut renamed = Command::new(link);
    renamed.args(command.get_args()).current_dir(command.get_current_dir().unwrap()).env_clear();
    for (name, value) in command.get_envs() {
        let name = name.to_str().unwrap().to_owned();
        let is_known = ["REPOSITORY", "PASSWORD", "CACHE_DIR"].iter().any(|end| name == format!("ONEFOLD_{end}"));
        let name = if is_known { name.replace("ONEFOLD", "RESTIC") } else { name };
        renamed.env(name, value.unwrap());
    }
    command.env_clear();
    renamed.stdin(std::process::Stdio::null());
    renamed
}

fn run(place: &Place, arguments: &[&str]) -> Ran {
    Ran(restic(place, arguments).output().unwrap())
}

#[test]
fn a_program_called_restic_reads_restics_variables() {
    let place = Place::without_repository(Some("correct horse"));
    place.write("file", b"1234");
    let made = run(&place, &["init", "--json", "--repository-version", "2"]).code(0).json();
    assert_eq!((&made["message_type"], made["id"].as_str().unwrap().len()), (&"initialized".into(), 64));
    assert!(place.path("repository/config").exists());
    let config = run(&place, &["cat", "config"]).code(0).json();
    assert_eq!(config["id"], made["id"]);
    let mut backup = restic(&place, &["backup", "source", "-q"]);
    Ran(backup.env("RESTIC_HOST", "elsewhere").output().unwrap()).code(0);
    run(&place, &["backup", "source", "-q", "--host", "here"]).code(0);
    let mut listed = restic(&place, &["snapshots", "--json"]);
    let listed = Ran(listed.env("RESTIC_HOST", "elsewhere").output().unwrap()).code(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["hostname"], "elsewhere");
    assert!(place.path("cache").exists());
    // This program's own variables come first, and restic's count only where restic is meant.
    let mut own = restic(&place, &["snapshots"]);
    Ran(own.env("ONEFOLD_REPOSITORY", "/nowhere").output().unwrap()).code(10);
    let mut native = place.command(["snapshots"]);
    native.env_remove("ONEFOLD_REPOSITORY").env("RESTIC_REPOSITORY", place.path("repository"));
    Ran(native.output().unwrap()).code(1).says("no repository named");
}

#[test]
fn the_variable_switches_too_and_knows_one_value() {
    let place = Place::without_repository(None);
    let version = |value: &str| Ran(place.command(["version"]).env("ONEFOLD_COMPAT", value).output().unwrap());
    assert!(version("restic").code(0).stdout().starts_with("restic 0.19.1 compiled with onefold "));
    assert!(version("").code(0).stdout().starts_with("onefold "));
    version("borg").code(1).says("the only value is restic");
    assert!(run(&place, &["--version"]).code(0).stdout().starts_with("restic 0.19.1 "));
    let json = run(&place, &["version", "--json"]).code(0).json();
    assert_eq!((&json["version"], &json["go_os"]), (&"0.19.1".into(), &"linux".into()));
    assert!(json["go_version"].as_str().unwrap().starts_with("onefold "), "{json}");
}

#[test]
fn endings_have_the_words_and_codes_that_programs_look_for() {
    let place = Place::without_repository(Some("correct horse"));
    run(&place, &["snapshots"]).code(10).says("Fatal: repository does not exist: unable to open config file");
    let missing = run(&place, &["snapshots", "--json"]).code(10).last_error();
    assert!(missing["message"].as_str().unwrap().starts_with("Fatal: repository does not exist"), "{missing}");
    run(&place, &["init"]).code(0);
    run(&place, &["init"]).code(1).says("config file already exists");
    let mut wrong = restic(&place, &["snapshots"]);
    Ran(wrong.env("RESTIC_PASSWORD", "wrong").output().unwrap()).code(12).says("Fatal: wrong password");
    place.write("file", b"1234");
    run(&place, &["backup", "source", "/nowhere"]).code(3);
}

#[test]
fn options_that_mean_nothing_are_noted_and_elsewhere_refused() {
    let place = Place::without_repository(None);
    let ran = run(&place, &["init", "--insecure-no-password"]).code(0).says("not encrypted");
    assert!(!ran.stderr().contains("insecure"), "{}", ran.stderr());
    place.write("file", b"1234");
    let options = [
        "backup",
        "source",
        "-o",
        "s3.region=x",
        "--limit-upload",
        "100",
        "--pack-size=64",
        "--no-extra-verify",
        "--stuck-request-timeout",
        "5m",
        "--cacert",
        "x",
        "--insecure-no-password",
    ];
    run(&place, &options).code(0).says("--option means nothing here").says("--limit-upload").says("--pack-size");
    run(&place, &["check", "--with-cache", "--check-unused", "--insecure-no-password"]).code(0);
    place.run(["snapshots", "--pack-size", "64"]).code(1).says("ONEFOLD_COMPAT=restic accepts it");
    assert!(!place.run(["backup", "--help"]).code(0).stdout().contains("pack-size"));
}

#[test]
fn restore_overwrites_as_restic_does_unless_another_way_is_typed() {
    let place = Place::new();
    place.write("file", b"new bytes");
    place.run(["backup", "source", "-q"]).code(0);
    let target = place.path("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("file"), b"old").unwrap();
    std::fs::write(target.join("other"), b"mine").unwrap();
    let arguments = ["restore", "latest:source", "-t", "target", "--insecure-no-password"];
    place.run(&arguments[..4]).code(1).says("not empty");
    run(&place, &arguments).code(0);
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"new bytes");
    assert_eq!(std::fs::read(target.join("other")).unwrap(), b"mine");
    std::fs::write(target.join("file"), b"old").unwrap();
    run(&place, &[&arguments[..], &["--overwrite", "never"]].concat()).code(0);
    assert_eq!(std::fs::read(target.join("file")).unwrap(), b"old");
    assert_eq!(contents(Path::new(&target)).len(), 2);
}

#[test]
fn commands_that_are_to_come_say_so() {
    let place = Place::new();
    for (command, sentence) in [
        (&["forget", "--keep-last", "3", "--prune"][..], "forget: not in this version"),
        (&["prune"], "space is not given back yet"),
        (&["mount", "/mnt"], "mount: not in this version"),
        (&["copy", "--from-repo", "x"], "copy: not in this version"),
        (&["tag", "--add", "x", "latest"], "tag: not in this version"),
        (&["rewrite"], "rewrite: not in this version"),
        (&["repair", "index"], "repair: not in this version"),
        (&["rebuild-index"], "rebuild-index: not needed"),
        (&["recover"], "recover: not in this version"),
        (&["migrate"], "migrate: not in this version"),
        (&["self-update"], "self-update: not in this version"),
        (&["cache"], "cache: not in this version"),
    ] {
        place.run(command).code(1).says(sentence);
    }
    let error = place.run(["--json", "forget", "--keep-daily", "7"]).code(1).last_error();
    assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &1.into()));
    place.run(["frobnicate"]).code(1).says("unrecognized subcommand");
}
