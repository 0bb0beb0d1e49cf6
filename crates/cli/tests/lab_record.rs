//! `lab record`: every chunker, what cannot be read, memory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::fixture::{Fixture, noise};

const CHUNKERS: [&str; 9] = ["gear", "fixed", "rabin", "fastcdc", "ae", "ram", "tttd", "seqcdc", "destor-rabin"];
/// The smallest budget, which [`Fixture`] runs every command with, and what a process may hold above it.
const PEAK_BYTES_MAX: u64 = 128 << 20;

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// Writes a source without holes: files that share much, at other places; returns its bytes.
fn source(fixture: &Fixture) -> u64 {
    let shared = noise(1, 1_500_000);
    let mut bytes = 0;
    let mut write = |name: &str, contents: &[u8]| {
        fixture.write(name, contents);
        bytes += contents.len() as u64;
    };
    write("a", &shared);
    write("b/shifted", &[&noise(2, 1001)[..], &shared].concat());
    write("b/text", &b"all work and no play ".repeat(20_000));
    write("b/ones", &vec![0xff; 300_000]);
    write("empty", b"");
    for number in 0..100 {
        write(&format!("small/{number}"), &shared[number * 1000..][..number * 97]);
    }
    bytes
}

#[test]
fn every_chunker_accounts_for_all_bytes_and_finds_what_is_shared() {
    let fixture = Fixture::without_repository(None);
    let bytes = source(&fixture);
    for chunker in CHUNKERS {
        let options = ["--chunker", chunker, "--chunk-size", "4k", "--hash", "sha1"];
        let written = fixture.run(["lab", "record", chunker, "source", "--json"].iter().chain(&options)).code(0).json();
        let described = fixture.run(["lab", "describe", chunker, "--json"]).code(0).json();
        for field in ["streams", "chunks", "bytes"] {
            assert_eq!(written[field], described[field], "{chunker}: {field}");
        }
        assert_eq!((number(&described, "bytes"), number(&described, "streams")), (bytes, 105), "{chunker}");
        let description = described["description"].as_str().unwrap();
        assert!(description.starts_with(&format!("lab record, 1 paths, {chunker}, 4096 bytes")), "{description}");
        // The shifted file is found again where content says what is cut, but for the chunk at its front; what repeats within
        // the text is found by all.
        let duplicate = number(&described, "duplicate_bytes");
        let shifted = 1_400_000;
        assert_eq!(shifted < duplicate, chunker != "fixed", "{chunker}: {duplicate} duplicate bytes");
        // With more memory, so longer queues, it is the same trace.
        let again = format!("{chunker}-again");
        fixture.run(["lab", "record", &again, "source", "--memory", "512M"].iter().chain(&options)).code(0);
        assert_eq!(fs::read(fixture.path(chunker)).unwrap(), fs::read(fixture.path(&again)).unwrap(), "{chunker}");
    }
    // The short form of `fixed`.
    fixture.run(["lab", "record", "short", "source", "--fixed-chunk-size", "4k", "--hash", "sha1"]).code(0);
    assert_eq!(fs::read(fixture.path("short")).unwrap(), fs::read(fixture.path("fixed")).unwrap());
}

#[test]
fn sizes_are_kept_and_those_that_cannot_be_are_refused_with_what_can() {
    let fixture = Fixture::without_repository(None);
    fixture.write("noise", &noise(3, 2_000_000));
    let mean = |options: &[&str]| {
        let arguments = ["lab", "record", "trace", "source", "--json"].iter().chain(options);
        let written = fixture.run(arguments).code(0).json();
        fs::remove_file(fixture.path("trace")).unwrap();
        number(&written, "bytes") / number(&written, "chunks")
    };
    // Of Lazy Exact Deduplication; a maximum that cuts much off; a minimum that is nearly all.
    let lazy = ["--chunker", "rabin", "--chunk-size", "4k", "--min-chunk-size", "512", "--max-chunk-size", "16k"];
    assert!((4096..5000).contains(&mean(&lazy)), "{}", mean(&lazy));
    let short = ["--chunker", "rabin", "--chunk-size", "4k", "--max-chunk-size", "4k"];
    assert!((2000..3300).contains(&mean(&short)), "{}", mean(&short));
    let even = ["--chunk-size", "8k", "--min-chunk-size", "7k"];
    assert!((7700..8700).contains(&mean(&even)), "{}", mean(&even));
    // Few chunks of less than the maximum, once a sequence is long.
    let long = ["--chunker", "seqcdc", "--chunk-size", "4k", "--chunker-set", "sequence-length=9"];
    assert!((7900..=8192).contains(&mean(&long)), "{}", mean(&long));
    for (options, says) in [
        (&["--chunker", "rabin", "--chunk-size", "5000"][..], "--chunk-size: a power of two for rabin, not 5000"),
        (&["--chunker", "rabin", "--chunk-size", "2M"], "--chunk-size: from 512 to 1048576 bytes, not 2097152"),
        (&["--chunker", "rabin", "--min-chunk-size", "32"], "--min-chunk-size: from 64 to 8192 bytes, not 32"),
        (&["--chunker", "rabin", "--max-chunk-size", "4k"], "--max-chunk-size: from 8192 to 8388608 bytes, not 4096"),
        (&["--chunker", "fastcdc", "--chunk-size", "4097"], "--chunk-size: an even number for fastcdc, not 4097"),
        (&["--chunker", "fastcdc", "--min-chunk-size", "99"], "--min-chunk-size: an even number for fastcdc, not 99"),
        (&["--chunker", "ae", "--min-chunk-size", "1k"], "--min-chunk-size: with ae it follows from the average"),
        (
            &["--chunker", "ram", "--max-chunk-size", "16M"],
            "--max-chunk-size: from 8192 to 8388608 bytes, not 16777216",
        ),
        (&["--chunker", "fixed", "--max-chunk-size", "8k"], "--max-chunk-size: with fixed it follows from the average"),
        (&["--chunker", "fixed", "--chunk-size", "32"], "--chunk-size: from 64 to 8388608 bytes, not 32"),
        (&["--min-chunk-size", "8k"], "--min-chunk-size: from 64 to 7168 bytes, not 8192"),
        (&["--chunker", "rabin", "--fixed-chunk-size", "4k"], "cannot be used with"),
        (&["--chunker", "rabin", "--repo", "repository"], "cannot be used with"),
        (&["--max-chunk-size", "64k", "--repo", "repository"], "cannot be used with"),
        (&["--chunker", "tttd", "--min-chunk-size", "8k"], "--min-chunk-size: from 64 to 7168 bytes, not 8192"),
        (&["--chunker", "ram", "--chunker-set", "skip-size=1"], "--chunker-set: ram has sizes only"),
        (
            &["--chunker", "tttd", "--chunker-set", "divisor=1"],
            "there is no parameter of tttd \"divisor\"; did you mean \"backup-divisor\"?",
        ),
        (&["--chunker-set", "skip-size=1", "--repo", "repository"], "cannot be used with"),
        (&["--chunker", "gears"], "gear, fixed, rabin, fastcdc, ae, ram, tttd, seqcdc, destor-rabin"),
    ] {
        fixture.run(["lab", "record", "trace", "source"].iter().chain(options)).code(1).says(says);
        assert!(!fixture.path("trace").exists(), "{options:?}");
    }
}

#[test]
fn what_cannot_be_read_is_named_and_left_out_and_the_exit_code_is_3() {
    let fixture = Fixture::without_repository(None);
    fixture.write("file", &noise(4, 100_000));
    // The memory of a process cannot be read from its beginning, whoever asks.
    for chunker in CHUNKERS {
        let ran = fixture.run(["lab", "record", chunker, "source", "/proc/self/mem", "--json", "--chunker", chunker]);
        let ran = ran.code(3).says("/proc/self/mem");
        assert_eq!(number(&ran.json(), "bytes"), 100_000);
        let error = ran.last_error();
        assert_eq!((&error["message_type"], &error["code"]), (&"exit_error".into(), &3.into()));
        assert!(error["message"].as_str().unwrap().contains("the trace was made, but not everything could be read"));
        // The trace is whole: only the file that cannot be read has no chunks.
        let described = fixture.run(["lab", "describe", chunker, "--json"]).code(0).json();
        assert_eq!(number(&described, "bytes"), 100_000);
    }
    // A link that leads nowhere is a link, and no failure.
    symlink("nowhere", fixture.path("source/link")).unwrap();
    fixture.run(["lab", "record", "link", "source"]).code(0);
}

#[test]
fn recording_stays_within_the_budget_and_64_mib_with_every_chunker() {
    let fixture = Fixture::without_repository(None);
    let mut file = File::create(fixture.path("source/large")).unwrap();
    let megabytes = noise(5, 32 << 20);
    // In other orders each time, so that chunks differ; zeros, so that the longest chunks come too.
    for at in 0..8 {
        let (head, tail) = megabytes.split_at(at * 3_333_333);
        file.write_all(tail).unwrap();
        file.write_all(head).unwrap();
        file.write_all(&vec![0; 4 << 20]).unwrap();
    }
    let bytes = file.metadata().unwrap().len();
    drop(file);
    for number in 0..2000 {
        fixture.write(&format!("small/{number}"), &megabytes[number * 1000..][..4000]);
    }
    for chunker in CHUNKERS {
        for (size, longest) in [("512", "4k"), ("1M", "8M")] {
            let longest = ["--max-chunk-size", longest];
            let options = ["--chunker", chunker, "--chunk-size", size, "--memory", "64M", "--json"];
            let options = options.iter().chain(if chunker == "fixed" { &[][..] } else { &longest });
            let written = fixture.run(["lab", "record", "trace", "source"].iter().chain(options)).code(0);
            let written = written.messages().pop().unwrap();
            fs::remove_file(fixture.path("trace")).unwrap();
            assert_eq!(number(&written, "bytes"), bytes + 2000 * 4000);
            let peak = number(&written, "peak_rss_bytes");
            assert!(peak < PEAK_BYTES_MAX, "{chunker} of {size}: {} MiB of memory", peak >> 20);
        }
    }
}
