//! `backup`: what it takes, what it leaves out, what it tells.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::fixture::{Fixture, Ran, noise};

/// Returns the paths that a snapshot holds below the source.
fn listed(fixture: &Fixture) -> Vec<String> {
    let ran = fixture.run(["ls", "latest", "-q"]).code(0);
    let base = fixture.path("source").to_str().unwrap().to_owned() + "/";
    ran.stdout().lines().filter_map(|line| line.strip_prefix(&base)).map(str::to_owned).collect()
}

fn backup(fixture: &Fixture, arguments: &[&str]) -> Ran {
    let source = fixture.path("source");
    fixture.run(["backup", source.to_str().unwrap()].into_iter().chain(arguments.iter().copied()))
}

#[test]
fn a_second_backup_uses_the_first_as_its_parent_and_stores_nothing() {
    let fixture = Fixture::encrypted();
    fixture.write("a/file", &vec![7; 100_000]);
    fixture.write("b", b"second");
    let first = backup(&fixture, &["--tag", "one,two", "--host", "h", "--json", "--verbose"]).code(0);
    let summary = first.messages().pop().unwrap();
    assert_eq!(summary["message_type"], "summary");
    assert_eq!((&summary["files_new"], &summary["files_unmodified"]), (&2.into(), &0.into()));
    assert_eq!(summary["total_bytes_processed"], 100_006);
    assert!(summary["data_added_packed"].as_u64().unwrap() > 0);
    for field in ["dirs_new", "data_blobs", "tree_blobs", "chunks_unique", "chunks_duplicate", "peak_rss_bytes"] {
        assert!(summary[field].is_u64(), "{field}: {summary}");
    }
    for field in ["backup_start", "backup_end", "snapshot_id"] {
        assert!(summary[field].is_string(), "{field}: {summary}");
    }
    assert!(summary["total_duration"].is_f64());
    assert_eq!(summary["index"]["state"], "new");
    assert!(summary["index"]["filter_negatives"].as_u64().unwrap() > 0);

    fixture.write("b", b"changed!");
    let second = backup(&fixture, &["--host", "h"]).code(0).says("using parent snapshot");
    assert!(second.stdout().contains("Files:           0 new,     1 changed,     1 unmodified"), "{}", second.stdout());
    assert!(second.stdout().contains("processed 2 files, 97.664 KiB in 0:0"), "{}", second.stdout());
    assert!(second.stdout().contains(" saved"));
    // Another host has no parent, nor has one who does not want it.
    backup(&fixture, &["--host", "other"]).code(0).says("no parent snapshot");
    let forced = backup(&fixture, &["--host", "h", "--force", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&forced["files_new"], &forced["chunks_unique"]), (&2.into(), &0.into()));
    let named = summary["snapshot_id"].as_str().unwrap();
    backup(&fixture, &["--host", "other", "--parent", named]).code(0).says(&named[..8]);
}

#[test]
fn options_leave_out_what_they_say() {
    let fixture = Fixture::new();
    for name in ["keep", "skip.tmp", "UPPER.LOG", "cache/CACHEDIR.TAG", "cache/entry", "marked/.nobackup", "marked/x"] {
        fixture.write(name, b"Signature: 8a477f597d28d172789f06886806bc55");
    }
    fixture.write("large", &[1; 5000]);
    std::fs::write(fixture.path("patterns"), "# comment\nke*\n").unwrap();
    for (options, missing) in [
        (&["--exclude", "*.tmp"][..], &["skip.tmp"][..]),
        (&["--iexclude", "*.log"], &["UPPER.LOG"]),
        (&["--exclude-file", "patterns"], &["keep"]),
        (&["--iexclude-file", "patterns"], &["keep"]),
        (&["--exclude-caches"], &["cache/entry"]),
        (&["--exclude-if-present", ".nobackup"], &["marked/x"]),
        (&["--exclude-larger-than", "4k"], &["large"]),
    ] {
        let all: Vec<String> = {
            backup(&fixture, &[]).code(0);
            listed(&fixture)
        };
        backup(&fixture, options).code(0);
        let left = listed(&fixture);
        let gone: Vec<&String> = all.iter().filter(|path| !left.contains(path)).collect();
        assert_eq!(gone, missing, "{options:?}");
    }
}

#[test]
fn the_repository_and_the_cache_are_not_backed_up_into_themselves() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let root = fixture.path("").to_str().unwrap().to_owned();
    fixture.run(["backup", &root]).code(0);
    let listed = fixture.run(["ls", "latest", "-q"]).code(0).stdout();
    assert!(listed.contains("source/file"));
    assert!(!listed.contains("containers") && !listed.contains("index"), "{listed}");
}

#[test]
fn lists_of_files_are_read() {
    let fixture = Fixture::new();
    for name in ["a1", "a2", "b c", "d"] {
        fixture.write(name, b"x");
    }
    std::fs::write(fixture.path("patterns"), "source/a*\n").unwrap();
    std::fs::write(fixture.path("verbatim"), "source/b c\n").unwrap();
    std::fs::write(fixture.path("raw"), "source/d\0").unwrap();
    let options = ["--files-from", "patterns", "--files-from-verbatim", "verbatim", "--files-from-raw", "raw"];
    fixture.run(["backup"].into_iter().chain(options)).code(0);
    let listed = fixture.run(["ls", "latest", "-q"]).code(0).stdout();
    assert_eq!(listed, "/source\n/source/a1\n/source/a2\n/source/b c\n/source/d\n");
    std::fs::write(fixture.path("patterns"), "nothing*\n").unwrap();
    fixture.run(["backup", "--files-from", "patterns"]).code(1).says("matches nothing");
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let fixture = Fixture::new();
    fixture.write("a", &[1; 1000]);
    fixture.write("b", &[2; 500]);
    let before = crate::fixture::contents(&fixture.path("repository"));
    let summary = backup(&fixture, &["--dry-run", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!(
        (&summary["dry_run"], &summary["files_new"], &summary["bytes_to_read"], &summary["data_added"]),
        (&true.into(), &2.into(), &1500.into(), &1500.into())
    );
    assert!(summary.get("snapshot_id").is_none());
    assert_eq!(crate::fixture::contents(&fixture.path("repository")), before);
    backup(&fixture, &[]).code(0);
    fixture.write("b", &[3; 501]);
    let dry = backup(&fixture, &["-n"]).code(0);
    assert!(dry.stdout().contains("0 new,     1 changed"), "{}", dry.stdout());
    assert!(dry.stdout().contains("Would read 501 B\nWould add to the repository: 501 B"), "{}", dry.stdout());
    // A copy of what is stored adds nothing.
    fixture.write("b", &[1; 1000]);
    let summary = backup(&fixture, &["--dry-run", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!((&summary["bytes_to_read"], &summary["data_added"]), (&1000.into(), &0.into()));
}

#[test]
fn standard_input_becomes_a_file() {
    let fixture = Fixture::new();
    let bytes: Vec<u8> =
        (0..3_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut child =
        fixture.command(["backup", "--stdin", "--stdin-filename", "db/all.sql"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    Ran(child.wait_with_output().unwrap()).code(0);
    assert_eq!(fixture.run(["ls", "latest", "-q"]).code(0).stdout(), "/db\n/db/all.sql\n");
    let dumped = fixture.run(["dump", "latest", "db/all.sql"]).code(0);
    assert!(dumped.0.stdout == bytes, "{} bytes came back", dumped.0.stdout.len());
    assert_eq!(fixture.run(["dump", "latest:db", "all.sql"]).code(0).0.stdout.len(), bytes.len());
    let archive = fixture.run(["dump", "latest", "/db"]).code(0).0.stdout;
    assert_eq!(tar::Archive::new(&archive[..]).entries().unwrap().count(), 1);
    fixture.run(["dump", "latest", "/nope"]).code(1).says("not in the snapshot");
}

#[test]
fn a_stream_is_backed_up_although_a_container_is_damaged() {
    let fixture = Fixture::new();
    fixture.write("file", &noise(7, 100_000));
    fixture.run(["backup", "source", "-q"]).code(0);
    let session = fs::read_dir(fixture.path("repository/containers")).unwrap().next().unwrap().unwrap();
    let container = fs::read_dir(session.path()).unwrap().next().unwrap().unwrap().path();
    let file = fs::File::options().write(true).open(&container).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let name = container.file_name().unwrap().to_str().unwrap();
    let mut child = fixture.command(["backup", "--stdin", "-q"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"stream").unwrap();
    Ran(child.wait_with_output().unwrap()).code(3).says(name).says("the snapshot was made");
    assert_eq!(fixture.run(["dump", "latest", "/stdin"]).code(0).stdout(), "stream");
}

#[test]
fn status_messages_come_before_the_summary_and_every_file_is_named_on_request() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let messages = backup(&fixture, &["--json", "-vv"]).code(0).messages();
    let (last, others) = messages.split_last().unwrap();
    assert_eq!(last["message_type"], "summary");
    let item = fixture.path("source/file").to_str().unwrap().to_owned();
    let is_named = |message: &serde_json::Value| {
        message["message_type"] == "verbose_status" && message["action"] == "new" && message["item"] == item.as_str()
    };
    assert!(others.iter().any(is_named), "{others:?}");
    assert!(others.iter().all(|message| message["message_type"] != "summary"));
    assert_eq!(backup(&fixture, &["-q"]).code(0).stdout(), "");
}

#[test]
fn every_entry_is_reported_to_programs_on_request() {
    let fixture = Fixture::new();
    fixture.write("dir/file", &vec![1; 30_000]);
    backup(&fixture, &["-q"]).code(0);
    fixture.write("dir/new", &vec![2; 20_000]);
    let ran = backup(&fixture, &["--json", "-vv"]).code(0);
    let messages = ran.messages();
    let of = |end: &str| {
        let is = |message: &&serde_json::Value| {
            message["message_type"] == "verbose_status" && message["item"].as_str().unwrap().ends_with(end)
        };
        messages.iter().find(is).unwrap()
    };
    let (new, unchanged, directory) = (of("/dir/new"), of("/dir/file"), of("/dir"));
    assert_eq!((&new["action"], &new["data_size"]), (&"new".into(), &20_000.into()));
    assert!(new["duration"].is_f64(), "{new}");
    assert_eq!((&unchanged["action"], &unchanged["data_size"]), (&"unchanged".into(), &0.into()));
    assert_eq!(directory["action"], "modified");
    let scan = messages.iter().find(|message| message["action"] == "scan_finished");
    // The count runs beside the backup, which may be faster.
    if let Some(scan) = scan {
        assert_eq!((&scan["total_files"], &scan["data_size"]), (&2.into(), &50_000.into()));
    }
    let tried = backup(&fixture, &["--json", "--dry-run"]).code(0).messages().pop().unwrap();
    assert_eq!((&tried["dry_run"], &tried["files_unmodified"]), (&true.into(), &2.into()));
    assert!(tried["backup_start"].is_string() && tried["bytes_to_read"].is_u64(), "{tried}");
    assert_eq!((&tried["data_added"], &tried["data_blobs"]), (&0.into(), &0.into()));
    for unknown in ["data_added_packed", "tree_blobs", "snapshot_id"] {
        assert!(tried.get(unknown).is_none(), "{unknown}: {tried}");
    }
}

fn snapshot_count(fixture: &Fixture) -> usize {
    fixture.run(["snapshots", "--json"]).code(0).json().as_array().unwrap().len()
}

#[test]
fn an_empty_stream_is_no_snapshot_unless_that_is_allowed() {
    let fixture = Fixture::new();
    fixture.run(["backup", "--stdin"]).code(3).says("no snapshot was made: the stream is empty");
    fixture.run(["backup", "--stdin-from-command", "--", "true"]).code(3).says("--allow-empty");
    let told = fixture.run(["backup", "--stdin", "--json"]).code(3).last_error();
    assert_eq!((&told["message_type"], &told["code"]), (&"exit_error".into(), &3.into()));
    assert_eq!(snapshot_count(&fixture), 0);
    fixture.run(["backup", "--stdin", "--allow-empty"]).code(0);
    fixture.run(["backup", "--stdin-from-command", "--allow-empty", "--", "true"]).code(0);
    assert_eq!(snapshot_count(&fixture), 2);
    assert_eq!(fixture.run(["dump", "latest", "stdin"]).code(0).stdout(), "");
}

#[test]
fn the_output_of_a_command_becomes_a_file_if_the_command_succeeds() {
    let fixture = Fixture::new();
    let script = "printf 'to %s' you; echo on its way >&2";
    let arguments = ["backup", "--stdin-from-command", "--stdin-filename", "all.sql", "--", "sh", "-c", script];
    fixture.run(arguments).code(0).says("on its way");
    assert_eq!(fixture.run(["dump", "latest", "all.sql"]).code(0).stdout(), "to you");
    for (script, status) in
        [("echo some; exit 4", "exit status: 4"), ("echo some; kill -9 $$", "signal: 9"), ("exit 1", "1")]
    {
        let failed = fixture.run(["backup", "--stdin-from-command", "--", "sh", "-c", script]);
        failed.code(1).says("no snapshot was made").says("the command sh failed").says(status);
    }
    fixture
        .run(["backup", "--stdin-from-command", "--", "/no/such/command"])
        .code(1)
        .says("start the command /no/such/command");
    fixture.run(["backup", "--stdin-from-command"]).code(1);
    assert_eq!(snapshot_count(&fixture), 1);
    // Nothing is started to try it out.
    let mark = fixture.path("mark");
    let script = format!("touch {}", mark.display());
    fixture.run(["backup", "--dry-run", "--stdin-from-command", "--", "sh", "-c", &script]).code(0);
    assert!(!mark.exists());
}

#[test]
fn an_interrupted_backup_ends_the_command_that_it_reads() {
    let fixture = Fixture::new();
    let script = "trap 'echo ended >&2; exit 0' TERM; echo begun >&2; while :; do sleep 0.02; done";
    let mut child = fixture.command(["backup", "--stdin-from-command", "--", "sh", "-c", script]).spawn().unwrap();
    let mut told = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("begun") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut told, &mut line).unwrap(), 0);
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut told, &mut rest).unwrap();
    assert!(rest.contains("ended"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(snapshot_count(&fixture), 0);
}

#[test]
fn an_unchanged_source_makes_no_snapshot_on_request() {
    let fixture = Fixture::new();
    fixture.write("file", b"same");
    // By its relative path: the directories that lead to an absolute one are in the snapshot, and other tests change them.
    let backup = |fixture: &Fixture, options: &[&str]| fixture.run(["backup", "source"].iter().chain(options));
    backup(&fixture, &["--skip-if-unchanged"]).code(0);
    let skipped = backup(&fixture, &["--skip-if-unchanged"]).code(0);
    assert!(skipped.stdout().contains("no snapshot made"), "{}", skipped.stdout());
    let summary = backup(&fixture, &["--skip-if-unchanged", "--json"]).code(0).messages().pop().unwrap();
    assert!(summary.get("snapshot_id").is_none() && summary["files_unmodified"] == 1, "{summary}");
    assert_eq!(snapshot_count(&fixture), 1);
    backup(&fixture, &[]).code(0);
    fixture.write("file", b"else");
    let summary = backup(&fixture, &["--skip-if-unchanged", "--json"]).code(0).messages().pop().unwrap();
    assert!(summary["snapshot_id"].is_string(), "{summary}");
    assert_eq!(snapshot_count(&fixture), 3);
    fixture.run(["check"]).code(0);
}

#[test]
fn what_is_stored_again_for_faster_restores_is_reported() {
    let fixture = Fixture::new();
    fixture.write("file", &noise(1, 300_000));
    let backup = |options: &[&str]| fixture.run(["backup", "source", "--rewrite"].iter().chain(options));
    let first = backup(&["har", "-v"]).code(0);
    assert!(first.stdout().contains("nothing is stored again: there is no parent snapshot"), "{}", first.stdout());
    let summary = backup(&["har", "--json"]).code(0).messages().pop().unwrap();
    assert!(summary["chunks_rewritten"] == 0 && summary["files_unmodified"] == 1, "{summary}");
    let summary = backup(&["none", "--json"]).code(0).messages().pop().unwrap();
    assert!(summary.get("chunks_rewritten").is_none(), "{summary}");
    let refused = backup(&["capping"]).code(1);
    assert!(refused.stderr().contains("choose none or har"), "{}", refused.stderr());
    assert!(backup(&["all"]).code(1).stderr().contains("the policies are none and har"));
}

#[test]
fn the_parent_is_the_newest_snapshot_of_the_group() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    backup(&fixture, &["--host", "one", "--tag", "a"]).code(0);
    let (known, unknown) = ("using parent snapshot", "no parent snapshot");
    for (options, told) in [
        (&["--host", "two"][..], unknown),
        (&["--host", "two", "--group-by", "paths"], known),
        (&["--host", "one", "--group-by", "host,tags"], unknown),
        (&["--host", "one", "--tag", "a", "--group-by", "host,tags"], known),
        (&["--host", "three", "--group-by", ""], known),
    ] {
        backup(&fixture, &[options, &["--dry-run"]].concat()).code(0).says(told);
    }
    backup(&fixture, &["--group-by", "color"]).code(1).says("grouped by host, paths or tags");
}

#[test]
fn a_file_of_which_only_the_change_time_differs_is_not_read_on_request() {
    let fixture = Fixture::new();
    fixture.write("file", &[1; 3000]);
    let path = fixture.path("source/file");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    backup(&fixture, &[]).code(0);
    // Its scan is more than a tick after the file was written.
    backup(&fixture, &[]).code(0);
    // Sets the change time, and nothing else.
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    for (options, changed) in [(&[][..], 1), (&["--ignore-ctime"], 0), (&["--ignore-inode"], 0)] {
        let summary = backup(&fixture, &[options, &["--dry-run", "--json"]].concat()).code(0).messages().pop().unwrap();
        assert_eq!(summary["files_changed"], changed, "{options:?}");
    }
    let summary =
        backup(&fixture, &["--ignore-ctime", "--read-concurrency", "1", "--json"]).code(0).messages().pop().unwrap();
    assert_eq!(summary["files_unmodified"], 1);
    backup(&fixture, &["--read-concurrency", "0"]).code(1);
}

#[test]
fn the_preset_of_the_index_is_remembered_noted_and_changed_without_storing_anything_twice() {
    let fixture = Fixture::encrypted();
    let mut random = onefold_engine::random::SplitMix64::new(7);
    let mut contents = vec![0; 3_000_000];
    contents.as_chunks_mut::<8>().0.iter_mut().for_each(|part| *part = random.next_u64().to_le_bytes());
    fixture.write("file", &contents);
    let preset = |fixture: &Fixture| {
        let listed = fixture.run(["snapshots", "--json", "latest"]).code(0).json();
        listed[0]["index"].as_str().map(str::to_owned)
    };
    let unique = |ran: &Ran| ran.messages().pop().unwrap()["data_blobs"].as_u64().unwrap();
    let is_rebuilt = |ran: &Ran| ran.messages().pop().unwrap()["index"]["state"] == "rebuilt";
    let first = backup(&fixture, &["--force", "--json"]).code(0);
    assert!(0 < unique(&first));
    assert_eq!(preset(&fixture), None);
    for (arguments, noted, rebuilds) in [
        (&["--index", "ddfs"][..], Some("ddfs"), true),
        (&[], Some("ddfs"), false),
        // The same index serves both.
        (&["--index", "edpl"], Some("edpl"), false),
        (&["--index", "chunkstash"], Some("chunkstash"), true),
        (&[], Some("chunkstash"), false),
        (&["--index", "blc"], Some("blc"), true),
        // The same index serves both.
        (&["--index", "edll"], Some("edll"), false),
        (&[], Some("edll"), false),
        (&["--index", "adaptive"], None, true),
        (&[], None, false),
    ] {
        let ran = backup(&fixture, &[&["--force", "--json", "--verbose"], arguments].concat()).code(0);
        assert_eq!(unique(&ran), 0, "{arguments:?}");
        assert_eq!(is_rebuilt(&ran), rebuilds, "{arguments:?}: {}", ran.stdout());
        assert_eq!(preset(&fixture).as_deref(), noted, "{arguments:?}");
        fixture.run(["check", "--read-data"]).code(0);
    }
    // A dry run remembers nothing, and `repair index` keeps to what is remembered.
    backup(&fixture, &["--index", "ddfs", "--dry-run"]).code(0);
    let ran = backup(&fixture, &["--force", "--index", "edpl"]).code(0);
    assert!(ran.stderr().contains("the index is rebuilt: "), "{}", ran.stderr());
    fixture.run(["repair", "index"]).code(0);
    let ran = backup(&fixture, &["--force", "--json", "--verbose"]).code(0);
    assert!(!is_rebuilt(&ran), "{}", ran.stdout());
    assert_eq!((unique(&ran), preset(&fixture).as_deref()), (0, Some("edpl")));
    let refused = backup(&fixture, &["--index", "pm-auto"]).code(1);
    assert!(refused.stderr().contains("adaptive, ddfs, edpl, chunkstash, blc, edll"), "{}", refused.stderr());
}
