//! Options and commands that scripts made for restic use.

use std::ffi::OsStr;
use std::fs::{self, FileTimes};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::fixture::{Fixture, Ran, noise};

#[test]
fn a_file_names_the_repository() {
    let fixture = Fixture::new();
    let list = fixture.path("which");
    fs::write(&list, format!("  {} \nmore\n", fixture.path("repository").display())).unwrap();
    let without = |arguments: &[&str]| {
        let mut command = fixture.command(arguments);
        command.env_remove("ONEFOLD_REPOSITORY");
        command
    };
    let path = list.to_str().unwrap();
    Ran(without(&["snapshots", "--repository-file", path]).output().unwrap()).code(0);
    Ran(without(&["snapshots"]).env("ONEFOLD_REPOSITORY_FILE", path).output().unwrap()).code(0);
    let both = ["snapshots", "--repository-file", path, "--repo", "x"];
    Ran(without(&both).output().unwrap()).code(1).says("cannot be used with");
    fs::write(&list, "\nsecond line\n").unwrap();
    Ran(without(&["snapshots", "--repository-file", path]).output().unwrap()).code(1).says("names no repository");
}

#[test]
fn without_a_cache_nothing_stays_behind() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["init", "--no-encryption", "--no-cache", "-q"]).code(0);
    fixture.write("file", &noise(1, 100_000));
    fixture.run(["backup", "source", "--no-cache", "-q"]).code(0);
    fixture.run(["snapshots", "--no-cache"]).code(0);
    fixture.run(["check", "--no-cache"]).code(0);
    fixture.run(["restore", "latest", "--no-cache", "--discard"]).code(0);
    assert!(!fixture.path("cache").exists());
    assert_eq!(fs::read_dir(fixture.path("tmp")).unwrap().count(), 0);
}

#[test]
fn without_a_cache_the_repository_that_was_seen_still_counts() {
    let fixture = Fixture::encrypted();
    fs::remove_dir_all(fixture.path("repository")).unwrap();
    let mut command = fixture.command(["init", "--no-encryption", "--no-cache", "-q"]);
    Ran(command.env_remove("ONEFOLD_PASSWORD").output().unwrap()).code(0);
    let mut command = fixture.command(["snapshots", "--no-cache"]);
    Ran(command.env_remove("ONEFOLD_PASSWORD").output().unwrap()).code(1).says("--accept-new-repository");
}

#[test]
fn caches_that_were_not_used_for_30_days_are_removed_on_request() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "-q"]).code(0);
    let own = fixture.repository_id();
    let cache = fixture.path("cache");
    let day = Duration::from_hours(24);
    let make = |name: &str, days: u32| {
        let path = cache.join(name);
        fs::create_dir_all(path.join("index")).unwrap();
        fs::write(path.join("index/lock"), b"").unwrap();
        let time = FileTimes::new().set_modified(SystemTime::now() - day * days);
        fs::File::open(&path).unwrap().set_times(time).unwrap();
        path
    };
    let (old, recent, held) = (make(&"a".repeat(32), 31), make(&"b".repeat(32), 29), make(&"c".repeat(32), 90));
    let foreign = make("notes", 90);
    let lock = fs::File::open(held.join("index/lock")).unwrap();
    lock.lock().unwrap();
    let names = || fs::read_dir(&cache).unwrap().count();
    let before = names();
    fixture.run(["check"]).code(0);
    assert_eq!(names(), before);
    fixture.run(["check", "--cleanup-cache"]).code(0).says("not used for 30 days");
    assert!(!old.exists() && recent.exists() && held.exists() && foreign.exists() && cache.join(own).exists());
    fixture.run(["check", "--cleanup-cache"]).code(0).says("no old caches");
    // Also with a command that reads nothing from a cache; without a cache, none is looked for.
    let old = make(&"a".repeat(32), 31);
    let without = fixture.run(["list", "keys", "--cleanup-cache", "--no-cache"]).code(0);
    assert!(old.exists() && !without.stderr().contains("caches"), "{}", without.stderr());
    fixture.run(["list", "keys", "--cleanup-cache"]).code(0).says("not used for 30 days");
    assert!(!old.exists() && recent.exists());
}

#[test]
fn verbosity_is_counted_or_named() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let says_files = |options: &[&str]| {
        let arguments: Vec<&str> = ["backup", "source", "--force"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).stderr().contains("/file")
    };
    assert!(says_files(&["-vv"]) && says_files(&["--verbose=2"]) && says_files(&["-v", "--verbose"]));
    assert!(!says_files(&["-v"]) && !says_files(&["--verbose=1"]) && !says_files(&["-vv", "--verbose=0"]));
    fixture.run(["snapshots", "--verbose=x"]).code(1).says("--verbose");
    let around = fixture.run(["-v", "backup", "-v", "source", "--force=true", "--quiet=0", "--json=1", "--json=false"]);
    around.code(0).says("/file");
    // The error of a command line is JSON, too, unless it is switched off.
    assert!(fixture.run(["snapshots", "--json=t", "--nothing"]).code(1).stderr().starts_with('{'));
    assert!(!fixture.run(["snapshots", "--json", "--json=f", "--nothing"]).code(1).stderr().starts_with('{'));
}

#[test]
fn counters_of_the_index_are_reported_with_verbose_only() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let summary = |options: &[&str]| {
        let arguments: Vec<&str> = ["backup", "source", "--json"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).messages().pop().unwrap()
    };
    assert!(summary(&[]).get("index").is_none());
    assert!(summary(&["--verbose"])["index"]["state"].is_string());
}

#[test]
fn an_index_that_cannot_be_written_is_reported_to_programs() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    // Makes the directory in which the index is.
    fixture.run(["snapshots", "-q"]).code(0);
    fs::write(fixture.path("cache").join(fixture.repository_id()).join("index"), b"no directory").unwrap();
    let sentence = "the index will be rebuilt next time";
    for format in [&["--json"][..], &[]] {
        let arguments: Vec<&str> = ["backup", "source"].iter().chain(format).copied().collect();
        fixture.run(&arguments).code(0).says(sentence);
        let quiet: Vec<&str> = arguments.into_iter().chain(["--quiet"]).collect();
        assert_eq!(fixture.run(&quiet).code(0).stderr(), "");
    }
}

#[test]
fn locks_are_neither_taken_nor_found() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    fixture.run(["backup", "source", "--no-lock", "-q"]).code(0);
    fixture.run(["--no-lock", "snapshots"]).code(0);
    fixture.run(["unlock"]).code(0).says("nothing was removed");
    fixture.run(["unlock", "--remove-all"]).code(0).says("nothing was removed");
    assert_eq!(fixture.run(["list", "locks"]).code(0).stdout(), "");
    Fixture::without_repository(None).run(["unlock"]).code(10);
}

#[test]
fn objects_are_listed_by_kind() {
    let fixture = Fixture::encrypted();
    fixture.write("file", &noise(2, 100_000));
    let id = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap()["snapshot_id"].clone();
    let list = |kind: &str| -> Vec<String> {
        fixture.run(["list", kind]).code(0).stdout().lines().map(str::to_owned).collect()
    };
    assert_eq!(list("snapshots"), [id.as_str().unwrap()]);
    assert_eq!(list("keys").len(), 1);
    assert!(fixture.run(["cat", "key", &list("keys")[0]]).code(0).json()["kdf"].is_string());
    assert_eq!(list("index"), Vec::<String>::new());
    let packs = list("packs");
    assert_eq!(list("containers"), packs);
    assert!(!packs.is_empty());
    let bytes = fixture.run(["cat", "pack", &packs[0]]).code(0).0.stdout;
    assert_eq!(bytes, fs::read(find_container(&fixture, &packs[0])).unwrap());
    let blobs = list("blobs");
    assert!(blobs.iter().any(|line| line.starts_with("data ")) && blobs.iter().any(|line| line.starts_with("tree ")));
    let data = blobs.iter().find_map(|line| line.strip_prefix("data ")).unwrap();
    assert!(!fixture.run(["cat", "blob", data, "-q"]).code(0).0.stdout.is_empty());
    fixture.run(["cat", "masterkey"]).code(1).says("never shown");
    fixture.run(["list", "nothing"]).code(1).says("possible values");
}

/// Returns the file of a container, whose name has its number behind a letter.
fn find_container(fixture: &Fixture, id: &str) -> std::path::PathBuf {
    let (session, number) = id.split_once('/').unwrap();
    let directory = fixture.path("repository/containers").join(session);
    let mut entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.find(|entry| entry.file_name().to_str().unwrap()[1..].starts_with(number)).unwrap().path()
}

#[test]
fn help_explains_a_command() {
    let fixture = Fixture::without_repository(None);
    let help = fixture.run(["help", "backup"]).code(0).stdout();
    assert_eq!(help, fixture.run(["backup", "--help"]).code(0).stdout());
    assert!(!fixture.run(["help"]).code(0).stdout().contains("webdav"));
    fixture.run(["features"]).code(0);
    fixture.run(["options"]).code(0);
}

#[test]
fn snapshots_are_grouped_and_shortened() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    let backup = |host: &str, path: &str, tag: &str| {
        let id =
            fixture.run(["backup", path, "--host", host, "--tag", tag, "--json"]).code(0).messages().pop().unwrap();
        id["snapshot_id"].as_str().unwrap().to_owned()
    };
    let ids = [
        backup("a", "source", "x"),
        backup("a", "source/file", "x"),
        backup("b", "source", "y"),
        backup("a", "source", "y"),
    ];
    let groups = |options: &[&str]| {
        let arguments: Vec<&str> = ["snapshots", "--json"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).json()
    };
    let of = |group: &Value| -> Vec<String> {
        let snapshots = group["snapshots"].as_array().unwrap();
        snapshots.iter().map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    };
    let by_host = groups(&["--group-by", "host"]);
    assert_eq!(by_host[0]["group_key"], serde_json::json!({"hostname": "a", "paths": null, "tags": null}));
    assert_eq!(of(&by_host[0]), [&ids[0][..], &ids[1], &ids[3]]);
    assert_eq!(of(&by_host[1]), [&ids[2][..]]);
    let both = groups(&["-g", "host,paths,tags"]);
    assert_eq!(both.as_array().unwrap().len(), 4);
    assert_eq!(both[0]["group_key"]["paths"], serde_json::json!([fixture.path("source")]));
    assert_eq!(of(&groups(&["--group-by", "host", "--latest", "1"])[0]), [&ids[3][..]]);
    assert_eq!(groups(&["--group-by", ""]).as_array().unwrap().len(), 4);
    assert_eq!(groups(&["--latest", "1"]).as_array().unwrap().len(), 3);
    assert_eq!(groups(&["--last"]).as_array().unwrap().len(), 3);
    let table = fixture.run(["snapshots", "--group-by", "host,tags"]).code(0).stdout();
    assert!(table.contains("snapshots for (host [a], tags [x]):") && table.contains("1 snapshot\n"), "{table}");
    let compact = fixture.run(["snapshots", "--compact"]).code(0).stdout();
    assert!(!compact.contains("Paths") && compact.contains("Size") && !compact.contains("/source"), "{compact}");
    let long = fixture.run(["snapshots", "--long-ids"]).code(0).stdout();
    assert!(long.contains(&ids[0]) && !fixture.run(["snapshots"]).code(0).stdout().contains(&ids[0]));
    fixture.run(["snapshots", "--group-by", "moon"]).code(1).says("moon");
}

#[test]
fn listings_are_sorted_and_reversed() {
    let fixture = Fixture::new();
    let time = |seconds| FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    for (name, len, seconds) in [("b.txt", 3000, 1), ("a.zip", 10, 3), ("c.gz", 200, 2)] {
        fixture.write(name, &vec![1; len]);
        let file = fs::File::options().write(true).open(fixture.path("source").join(name)).unwrap();
        file.set_times(time(seconds)).unwrap();
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    let names = |options: &[&str]| -> Vec<String> {
        let arguments: Vec<&str> = ["ls", "latest:source", "-q"].iter().chain(options).copied().collect();
        let listed = fixture.run(&arguments).code(0).stdout();
        listed.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["a.zip", "b.txt", "c.gz"]);
    assert_eq!(names(&["--reverse"]), ["c.gz", "b.txt", "a.zip"]);
    assert_eq!(names(&["--sort", "size"]), ["a.zip", "c.gz", "b.txt"]);
    assert_eq!(names(&["-s", "time"]), ["b.txt", "c.gz", "a.zip"]);
    assert_eq!(names(&["--sort", "mtime", "--reverse"]), ["a.zip", "c.gz", "b.txt"]);
    assert_eq!(names(&["--sort", "extension"]), ["c.gz", "b.txt", "a.zip"]);
    assert_eq!(names(&["--sort", "atime"]), names(&["--sort", "time"]));
    assert_eq!(names(&["--sort", "ctime"]).len(), 3);
    for (name, seconds) in [("a.zip", 1), ("b.txt", 3), ("c.gz", 2)] {
        let accessed = FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        fs::File::open(fixture.path("source").join(name)).unwrap().set_times(accessed).unwrap();
    }
    fixture.run(["backup", "source", "-q", "--with-atime"]).code(0);
    assert_eq!(names(&["--sort", "atime"]), ["a.zip", "c.gz", "b.txt"]);
    let long = fixture.run(["ls", "latest", "-l", "--human-readable"]).code(0).stdout();
    assert!(long.contains("2.930 KiB"), "{long}");
    let json = fixture.run(["ls", "latest:source", "--json", "--sort", "size"]).code(0).messages();
    assert_eq!((json[0]["message_type"].as_str(), json[1]["name"].as_str()), (Some("snapshot"), Some("a.zip")));
    assert!(fixture.run(["find", "b.txt", "--long", "--human-readable"]).code(0).stdout().contains("2.930 KiB"));
}

#[test]
fn a_listing_for_ncdu_is_one_nested_list() {
    let fixture = Fixture::new();
    fixture.write("dir/below/deep", &[1; 513]);
    fixture.write("dir/\"quoted\"", b"");
    fixture.write("last", b"12");
    symlink("last", fixture.path("source/link")).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let root = fixture.run(["ls", "latest", "--ncdu"]).code(0).json();
    assert_eq!((&root[0], &root[1], &root[3][0]["name"]), (&1.into(), &2.into(), &"/".into()));
    let source = &root[3][1];
    assert_eq!((&source[0]["name"], &source[1][0]["name"]), (&"source".into(), &"dir".into()));
    assert_eq!(source[1][1]["name"], "\"quoted\"");
    let deep = &source[1][2][1];
    assert_eq!((&deep["name"], &deep["asize"], &deep["dsize"]), (&"deep".into(), &513.into(), &1024.into()));
    assert_eq!((&source[2]["name"], &source[3]["name"]), (&"last".into(), &"link".into()));
    assert_eq!((&source[2]["notreg"], &source[3]["notreg"]), (&false.into(), &true.into()));
    let part = fixture.run(["ls", "latest", "--ncdu", "/source/dir/below"]).code(0).json();
    assert_eq!(part[3][1][1][1][1]["name"], "deep", "{part}");
    fixture.run(["ls", "latest", "--ncdu", "--json"]).code(1).says("cannot be used with");
    fixture.run(["ls", "latest", "--ncdu", "--reverse"]).code(1).says("cannot be used with");
}

#[test]
fn check_follows_the_chosen_snapshots_only() {
    let fixture = Fixture::new();
    fixture.write("file", &noise(3, 50_000));
    fixture.run(["backup", "source", "--host", "a", "--tag", "good", "-q"]).code(0);
    let first = fixture.run(["list", "packs"]).code(0).stdout();
    fixture.write("file", &noise(4, 50_000));
    fixture.run(["backup", "source", "--host", "b", "--tag", "bad", "-q"]).code(0);
    let summary = |options: &[&str]| {
        let arguments: Vec<&str> = ["check", "--json"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).json()
    };
    assert_eq!(summary(&[])["snapshots"], 2);
    assert_eq!(summary(&["--host", "a"])["snapshots"], 1);
    assert_eq!(summary(&["--tag", "good"])["snapshots"], 1);
    assert_eq!(summary(&["--path", "source"])["snapshots"], 2);
    assert_eq!(summary(&["latest"])["snapshots"], 1);
    assert_eq!(summary(&["latest"])["snapshots_total"], 2);
    let said = |options: &[&str]| {
        let arguments: Vec<&str> = ["check"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).stdout()
    };
    assert!(said(&["--host", "a"]).starts_with("checked 1 of 2 snapshots,"), "{}", said(&["--host", "a"]));
    assert!(said(&[]).starts_with("checked 2 snapshots,"), "{}", said(&[]));
    fixture.run(["check", "--host", "c"]).code(1).says("no snapshot matches");
    fixture.run(["check", "0000"]).code(1).says("not found");
    // A container of the first snapshot is lost: only who looks at that snapshot learns which file it hits.
    let id = first.lines().next().unwrap();
    fs::remove_file(find_container(&fixture, id)).unwrap();
    let affected = |options: &[&str]| {
        let arguments: Vec<&str> = ["check", "--json"].iter().chain(options).copied().collect();
        let ran = fixture.run(&arguments).code(1);
        let errors = ran.stderr().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        errors.iter().filter_map(|error| error["affected_count"].as_u64()).sum::<u64>()
    };
    assert!(0 < affected(&["--host", "a"]));
    assert_eq!(affected(&["--host", "b"]), 0);
}

#[test]
fn a_host_in_the_environment_narrows_what_is_shown_and_not_what_is_checked() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    for (host, tag) in [("a", "good"), ("b", "")] {
        fixture.run(["backup", "source", "--host", host, "--tag", tag, "-q"]).code(0);
    }
    let count = |arguments: &[&str]| {
        let ran = fixture.command(arguments).env("ONEFOLD_HOST", "a").output().unwrap();
        // On a slow machine messages of progress come first.
        Ran(ran).code(0).messages().pop().unwrap()
    };
    let listed = |options: &[&str]| {
        let arguments: Vec<&str> = ["snapshots", "--json"].iter().chain(options).copied().collect();
        count(&arguments).as_array().unwrap().len()
    };
    assert_eq!(count(&["check", "--json"])["snapshots"], 2);
    assert_eq!(count(&["check", "--json", "--host", "a"])["snapshots"], 1);
    assert_eq!(count(&["check", "--json", "--host", ""])["snapshots"], 2);
    // An empty host is any host, and an empty tag is none.
    assert_eq!((listed(&[]), listed(&["--host", ""])), (1, 2));
    assert_eq!((listed(&["--host", "", "--tag", ""]), listed(&["--tag", ""])), (1, 0));
    assert_eq!((listed(&["--tag", "good"]), listed(&["--host", "", "--tag", "good", "--tag", ""])), (1, 2));
    count(&["backup", "source", "--json", "--host", ""]);
    assert_eq!(listed(&[]), 1, "an empty host names no host of a backup");
}

#[test]
fn a_file_that_names_the_repository_is_read_by_those_who_need_it() {
    let fixture = Fixture::new();
    let with_file = |arguments: &[&str]| {
        let mut command = fixture.command(arguments);
        command.env_remove("ONEFOLD_REPOSITORY").env("ONEFOLD_REPOSITORY_FILE", "/nowhere/file");
        Ran(command.output().unwrap())
    };
    with_file(&["version"]).code(0);
    with_file(&["snapshots"]).code(1).says("/nowhere/file");
}

#[test]
fn patterns_of_a_restore_are_read_from_files() {
    let fixture = Fixture::new();
    for name in ["keep.txt", "drop.txt", "KEEP.TXT", "other"] {
        fixture.write(name, name.as_bytes());
    }
    fixture.run(["backup", "source", "-q"]).code(0);
    fs::write(fixture.path("list"), "# a comment\n\nkeep.*\n").unwrap();
    let restored = |option: &str, target: &str| -> Vec<String> {
        fixture.run(["restore", "latest:source", "-t", target, option, "list", "-q"]).code(0);
        let mut names: Vec<String> = fs::read_dir(fixture.path(target))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(restored("--include-file", "a"), ["keep.txt"]);
    assert_eq!(restored("--iinclude-file", "b"), ["KEEP.TXT", "keep.txt"]);
    assert_eq!(restored("--exclude-file", "c"), ["KEEP.TXT", "drop.txt", "other"]);
    assert_eq!(restored("--iexclude-file", "d"), ["drop.txt", "other"]);
    let both = ["restore", "latest", "-t", "e", "--include-file", "list", "--exclude-file", "list"];
    fixture.run(both).code(1).says("cannot be used with");
    fs::write(fixture.path("list"), "# nothing\n").unwrap();
    fixture.run(["restore", "latest", "-t", "e", "--include-file", "list"]).code(1).says("hold none");
}

#[test]
fn a_directory_is_written_as_zip_that_others_unpack() {
    let fixture = Fixture::new();
    let bytes = noise(5, 70_001);
    fixture.write("dir/noise", &bytes);
    fixture.write("dir/text", "line\n".repeat(10_000).as_bytes());
    fixture.write("dir/empty", b"");
    fs::hard_link(fixture.path("source/dir/noise"), fixture.path("source/dir/second")).unwrap();
    symlink("noise", fixture.path("source/dir/link")).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_001);
    let file = fs::File::options().write(true).open(fixture.path("source/dir/text")).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let ran = fixture.run(["dump", "latest", "/source/dir", "--archive", "zip"]).code(0);
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(ran.0.stdout)).unwrap();
    let mut of = |name: &str| {
        let mut file = archive.by_name(&format!("source/dir/{name}")).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        (bytes, file.unix_mode().unwrap(), file.compressed_size())
    };
    assert_eq!(of("noise").0, bytes);
    assert_eq!(of("second").0, bytes);
    let text = of("text");
    assert_eq!(text.0, "line\n".repeat(10_000).as_bytes());
    assert!(text.2 < 1000, "not compressed: {}", text.2);
    assert_eq!((of("empty").0.len(), of("link").0), (0, b"noise".to_vec()));
    assert_eq!(of("link").1 & 0o170_000, 0o120_000);
    let moved = archive.by_name("source/dir/text").unwrap().last_modified().unwrap();
    assert_eq!((moved.year(), moved.month(), moved.day(), moved.hour()), (2017, 7, 14, 2));
    assert_eq!(archive.len(), 5);
}

#[test]
fn what_a_zip_archive_cannot_spell_is_reported() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    symlink(OsStr::from_bytes(b"to-\xff"), fixture.path("source/link")).unwrap();
    fixture.run(["backup", "source", "-q"]).code(0);
    let ran = fixture.run(["dump", "latest", "/source", "--archive", "zip"]).code(0);
    let ran = ran.says("source/link: its target is not UTF-8");
    assert_eq!(zip::ZipArchive::new(std::io::Cursor::new(ran.0.stdout)).unwrap().len(), 2);
}

#[test]
fn a_dump_goes_to_a_file_whole_or_not_at_all() {
    let fixture = Fixture::new();
    let bytes = noise(6, 100_000);
    fixture.write("dir/file", &bytes);
    fixture.run(["backup", "source", "-q"]).code(0);
    fs::write(fixture.path("out"), b"before").unwrap();
    fixture.run(["dump", "latest", "/source/dir/file", "--target", "out"]).code(0);
    assert_eq!(fs::read(fixture.path("out")).unwrap(), bytes);
    fixture.run(["dump", "latest", "/source/dir", "--target", "out.tar"]).code(0);
    let archive = fs::read(fixture.path("out.tar")).unwrap();
    assert_eq!(tar::Archive::new(&archive[..]).entries().unwrap().count(), 1);
    // Every container is gone: what stood there stays, and nothing else is left behind.
    fs::remove_dir_all(fixture.path("cache")).unwrap();
    for pack in fixture.run(["list", "packs"]).code(0).stdout().lines() {
        let path = find_container(&fixture, pack);
        let len = fs::metadata(&path).unwrap().len();
        if 100_000 < len {
            fs::write(&path, vec![0; usize::try_from(len).unwrap()]).unwrap();
        }
    }
    fixture.run(["dump", "latest", "/source/dir/file", "--target", "out"]).code(1);
    assert_eq!(fs::read(fixture.path("out")).unwrap(), bytes);
    let names = fs::read_dir(fixture.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("partial")).count(), 0);
    fixture.run(["dump", "latest", "/source/dir/file", "--target", "/nowhere/out"]).code(1).says("/nowhere/out");
}

#[test]
fn completions_and_manuals_are_written_into_files() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["generate", "--bash-completion", "bash", "--zsh-completion", "zsh", "--man", "man", "-q"]).code(0);
    assert!(fs::read_to_string(fixture.path("bash")).unwrap().contains("onefold"));
    assert!(fixture.path("zsh").exists() && fixture.path("man/onefold-backup.1").exists());
    assert!(!fixture.path("man/onefold-webdav.1").exists() && !fixture.path("man/onefold-help.1").exists());
    assert!(fixture.run(["generate", "--bash-completion", "-"]).code(0).stdout().contains("onefold"));
    fixture.run(["generate"]).code(1);
    // A command's own options come first, and its rules have a heading of their own.
    let page = fs::read_to_string(fixture.path("man/onefold-forget.1")).unwrap();
    let help = fixture.run(["forget", "--help"]).code(0).stdout();
    let at = |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    let synopsis = page.lines().find(|line| line.starts_with("\\fBonefold forget")).unwrap();
    assert!(at(synopsis, "\\-\\-keep\\-tag") < at(synopsis, "\\-\\-repo\\"), "{synopsis}");
    let order = ["--dry-run", "Rules;", "--keep-last", "Options of every command", "--repo"];
    assert!(order.is_sorted_by_key(|part| at(&help, part)), "{help}");
}

#[test]
fn chunks_and_directories_are_found_by_their_ids() {
    let fixture = Fixture::new();
    fixture.write("dir/one", &noise(7, 100_000));
    fixture.write("dir/two", &noise(7, 100_000));
    let made = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap();
    let tree = fixture.run(["cat", "tree", "latest:source/dir"]).code(0).json()["id"].as_str().unwrap().to_owned();
    let blobs = fixture.run(["list", "blobs"]).code(0).stdout();
    let blob = blobs.lines().find_map(|line| line.strip_prefix("data ")).unwrap();
    let found = |option: &str, id: &str| fixture.run(["find", option, id, "--json"]).code(0).json();
    let by_blob = found("--blob", &blob[..12]);
    let paths: Vec<&str> = by_blob.as_array().unwrap().iter().map(|hit| hit["path"].as_str().unwrap()).collect();
    assert!(paths[0].ends_with("/source/dir/one") && paths[1].ends_with("/source/dir/two") && paths.len() == 2);
    let hit = &by_blob[0];
    assert_eq!(
        (&hit["object_type"], &hit["id"], &hit["parent_tree"]),
        (&"blob".into(), &blob.into(), &tree.clone().into())
    );
    assert_eq!(hit["snapshot"], made["snapshot_id"]);
    let by_tree = found("--tree", &tree);
    assert_eq!((&by_tree[0]["object_type"], by_tree.as_array().unwrap().len()), (&"tree".into(), 1));
    assert_eq!(found("--tree", blob), serde_json::json!([]));
    let shown = fixture.run(["find", "--blob", blob, "--show-pack-id"]).code(0).stdout();
    assert!(shown.starts_with(&format!("Found blob {blob}\n ... in file ")), "{shown}");
    let pack = shown.lines().find_map(|line| line.strip_prefix("Object belongs to pack ")).unwrap();
    let in_pack = found("--pack", pack);
    assert!(in_pack.as_array().unwrap().iter().any(|hit| hit["id"] == blob), "{in_pack}");
    fixture.run(["find", "--blob", "xyz"]).code(1).says("xyz: not the beginning of a fingerprint");
    let counted = fixture.run(["stats", "--mode", "blobs-per-file", "--json"]).code(0).json();
    assert_eq!((&counted["total_file_count"], &counted["total_size"]), (&2.into(), &200_000.into()));
    assert_eq!(counted["total_blob_count"].as_u64().unwrap() % 2, 0);
}

#[test]
fn snapshots_are_rewritten_to_a_part_another_host_and_another_time() {
    let fixture = Fixture::new();
    for name in ["keep/deep/a.txt", "keep/b.bin", "other/c.txt", "empty/d.bin"] {
        fixture.write(name, name.as_bytes());
    }
    fixture.run(["backup", "source", "-q", "--host", "old"]).code(0);
    let listed = || fixture.run(["ls", "latest:source", "-q"]).code(0).stdout();
    fixture.run(["rewrite", "--include", "*.txt", "--exclude", "x"]).code(1).says("cannot be used with");
    fixture.run(["rewrite", "--include", "nothing"]).code(0);
    fixture.run(["rewrite", "-s"]).code(0);
    let hosts = || {
        let snapshots = fixture.run(["snapshots", "--json"]).code(0).json();
        let fields =
            |snapshot: &Value| (snapshot["hostname"].clone(), snapshot["time"].as_str().unwrap()[..4].to_owned());
        snapshots.as_array().unwrap().iter().map(fields).collect::<Vec<_>>()
    };
    assert_eq!(hosts().len(), 1);
    let change = ["rewrite", "--forget", "--new-host", "new", "--new-time", "2020-03-01 12:00:00"];
    fixture.run(change.iter().chain(&["--dry-run"])).code(0);
    fixture.run(change).code(0);
    assert_eq!(hosts(), [("new".into(), "2020".to_owned())]);
    fixture.run(change).code(0);
    assert_eq!(hosts().len(), 1, "nothing is left to change");
    fixture.run(["rewrite", "--forget", "--include", "keep/**/*.txt", "--new-host", "part"]).code(0);
    assert_eq!(listed(), "/source/keep\n/source/keep/deep\n/source/keep/deep/a.txt\n");
    assert_eq!(hosts()[0].0, "part");
    fixture.run(["check", "--read-data"]).code(0);
}

#[test]
fn a_search_may_begin_with_the_oldest_snapshot() {
    let fixture = Fixture::new();
    fixture.write("file", b"1234");
    symlink("file", fixture.path("source/link")).unwrap();
    let ids: Vec<Value> = (0..2)
        .map(|_| fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap()["snapshot_id"].clone())
        .collect();
    let found = |options: &[&str]| {
        let arguments: Vec<&str> = ["find", "link", "--json"].iter().chain(options).copied().collect();
        fixture.run(&arguments).code(0).json()
    };
    assert_eq!((&found(&[])[0]["snapshot"], &found(&["--reverse"])[0]["snapshot"]), (&ids[1], &ids[0]));
    assert_eq!(found(&[])[0]["matches"][0]["linktarget"], "file");
}
