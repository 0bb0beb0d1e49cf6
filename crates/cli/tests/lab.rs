//! `lab`: traces that are made up, imported, described, damaged.

use std::fs;

use serde_json::{Value, json};

use crate::fixture::{Fixture, noise};

/// Describes a trace of the fixture.
fn described(fixture: &Fixture, trace: &str) -> Value {
    fixture.run(["lab", "describe", trace, "--json"]).code(0).json()
}

#[test]
fn a_trace_is_made_up_and_described() {
    let fixture = Fixture::without_repository(None);
    let synth = ["lab", "synth", "trace", "--objects", "20", "--object-chunks", "50", "--versions", "3"];
    let options = ["--fixed-chunk-size", "4k", "--added", "0", "--removed", "0", "--pooled", "0"];
    let made = fixture.run(synth.into_iter().chain(options).chain(["--json"])).code(0).json();
    let described = described(&fixture, "trace");
    for field in ["streams", "chunks", "bytes"] {
        assert_eq!(made[field], described[field], "{field}");
    }
    assert_eq!((&made["streams"], &described["versions"][2]["streams"]), (&json!(60), &json!(20)));
    // Nothing is twice in the first version, and the others have what it had but for 0.2%.
    let versions = described["versions"].as_array().unwrap();
    let counts: Vec<[u64; 2]> = versions
        .iter()
        .map(|version| ["chunks", "duplicate_chunks"].map(|field| version[field].as_u64().unwrap()))
        .collect();
    assert_eq!(counts[0][1], 0);
    assert!(counts[1..].iter().all(|[chunks, duplicate]| duplicate <= chunks && chunks - duplicate < 40), "{counts:?}");
    assert_eq!(made["bytes"].as_u64().unwrap(), 4096 * made["chunks"].as_u64().unwrap());
    let text = fixture.run(["lab", "describe", "trace"]).code(0);
    assert!(text.stdout().starts_with("lab synth SynthSpec"), "{}", text.stdout());
    assert!(text.stdout().contains("Deduplication ratio: 2.9"), "{}", text.stdout());
    // What is there is not written over.
    let before = fs::read(fixture.path("trace")).unwrap();
    let refused = fixture.run(synth).code(1);
    assert!(refused.stderr().contains("write trace: File exists"), "{}", refused.stderr());
    assert_eq!(fs::read(fixture.path("trace")).unwrap(), before);
}

#[test]
fn foreign_traces_become_versions_in_their_order() {
    let fixture = Fixture::without_repository(None);
    fs::write(fixture.path("one"), "aa,100\nbb,200\ncc,300\n").unwrap();
    fs::write(fixture.path("two"), "bb,200\ncc,300\ndd,400\n").unwrap();
    fixture.run(["lab", "import", "--format", "csv", "trace", "one", "two"]).code(0);
    let described = described(&fixture, "trace");
    let version = |version: u32, bytes: u32, duplicate_chunks: u32, duplicate_bytes: u32| {
        json!({"version": version, "streams": 1, "chunks": 3, "bytes": bytes, "duplicate_chunks": duplicate_chunks,
            "duplicate_bytes": duplicate_bytes})
    };
    assert_eq!(described["versions"], json!([version(0, 600, 0, 0), version(1, 900, 2, 500)]));
    // One run of two, the same two places further back.
    let expected = (json!(1), json!([[1, 0], [2, 1]]), json!([[1, 0], [2, 2]]));
    let found = (&described["duplicate_runs"], &described["run_lengths"], &described["lags"]);
    assert_eq!(found, (&expected.0, &expected.1, &expected.2));
    // Of a raw file all chunks are as long as is said.
    fs::write(fixture.path("raw"), [7; 40]).unwrap();
    let raw = fixture.run(["lab", "import", "--format", "raw", "--chunk-size", "1k", "raw.trace", "raw", "--json"]);
    let raw = raw.code(0).json();
    assert_eq!((&raw["chunks"], &raw["bytes"]), (&json!(2), &json!(2048)));
}

#[test]
fn an_exported_trace_is_the_same_when_it_is_imported() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["lab", "synth", "trace", "--objects", "20", "--versions", "3", "--modified", "0.5"]).code(0);
    let whole = described(&fixture, "trace");
    for (format, has_streams) in [("destor", true), ("records", false), ("csv", false)] {
        let said = fixture.run(["lab", "export", "--format", format, "trace", format, "--json"]).code(0).json();
        assert_eq!((&said["message_type"], &said["files"]), (&json!("trace_exported"), &json!(3)));
        assert_eq!((&said["chunks"], &said["bytes"]), (&whole["chunks"], &whole["bytes"]), "{format}");
        let files: Vec<_> = (0..3).map(|version| format!("{format}/{version:010}.{format}")).collect();
        let back = format!("{format}.trace");
        let import = ["lab", "import", "--format", format, &back].into_iter().chain(files.iter().map(String::as_str));
        fixture.run(import).code(0);
        let found = described(&fixture, &back);
        for field in ["chunks", "bytes", "duplicate_chunks", "duplicate_bytes", "lags", "run_lengths"] {
            assert_eq!(found[field], whole[field], "{format}: {field}");
        }
        assert_eq!(found["streams"] == whole["streams"], has_streams, "{format}");
    }
    let refused = fixture.run(["lab", "export", "--format", "csv", "trace", "csv"]).code(1);
    assert!(refused.stderr().contains("create csv: File exists"), "{}", refused.stderr());
    let text = fixture.run(["lab", "export", "--format", "raw", "trace", "raw"]).code(0);
    assert!(text.stdout().contains("3 files in raw"), "{}", text.stdout());
    // A trace that is damaged at its end leaves no directory.
    let mut bytes = fs::read(fixture.path("trace")).unwrap();
    bytes.pop();
    fs::write(fixture.path("cut"), bytes).unwrap();
    fixture.run(["lab", "export", "--format", "csv", "cut", "cut.csv"]).code(1).says("cut: byte");
    assert!(!fixture.path("cut.csv").exists());
}

#[test]
fn damage_is_named_with_its_position_and_leaves_nothing() {
    let fixture = Fixture::without_repository(None);
    let said = |arguments: &[&str]| fixture.run(arguments).code(1).stderr();
    fs::write(fixture.path("bad.csv"), "aa,100\nbb;200\n").unwrap();
    let import = said(&["lab", "import", "--format", "csv", "trace", "bad.csv"]);
    assert!(import.contains("bad.csv: byte 7: a line that is not"), "{import}");
    assert!(!fixture.path("trace").exists());
    let missing = said(&["lab", "import", "--format", "fsl", "trace", "nothing"]);
    assert!(missing.contains("nothing: No such file"), "{missing}");
    assert!(!fixture.path("trace").exists());
    fixture.run(["lab", "synth", "trace", "--objects", "3"]).code(0);
    let whole = fs::read(fixture.path("trace")).unwrap();
    for (bytes, wanted) in [
        (&whole[..whole.len() - 1], format!("trace: byte {}: the trace ends too early", whole.len() - 1)),
        (&whole[..0], "trace: byte 0: the trace ends too early".to_owned()),
        (&b"no trace at all"[..], "trace: byte 0: not a trace of Onefold".to_owned()),
    ] {
        fs::write(fixture.path("trace"), bytes).unwrap();
        let described = said(&["lab", "describe", "trace"]);
        assert!(described.contains(&wanted), "{described}");
    }
    for (option, value, wanted) in [
        ("--changed", "2", "changed is a share, 0 to 1, not 2"),
        ("--versions", "0", "a trace has at least one version"),
        ("--chunk-size", "0", "\"0\": no length of a chunk"),
        ("--chunk-size", "5G", "\"5G\": no length of a chunk"),
    ] {
        let refused = said(&["lab", "synth", "other", option, value]);
        assert!(refused.contains(wanted), "{refused}");
        assert!(!fixture.path("other").exists());
    }
}

/// Writes a source whose files share much, and change.
fn shared_source(fixture: &Fixture) {
    let shared = noise(1, 300_000);
    fixture.write("a", &shared);
    fixture.write("b/c", &[&noise(2, 5_000)[..], &shared[1000..200_000], &noise(3, 70_000)].concat());
    fixture.write("b/zeros", &vec![0; 2_000_000]);
    fixture.write("empty", b"");
    for number in 0..50 {
        fixture.write(&format!("small/{number}"), &shared[..number * 37]);
    }
}

#[test]
fn recorded_chunks_are_those_that_a_backup_stores() {
    for options in [&[][..], &["--fixed-chunk-size", "4k"]] {
        let fixture = Fixture::without_repository(Some("correct horse"));
        fixture.run(["init", "-q"].iter().chain(options)).code(0);
        shared_source(&fixture);
        let repository = fixture.path("repository");
        let repository = repository.to_str().unwrap();
        fixture.run(["lab", "record", "trace", "source", "--repo", repository]).code(0);
        let recorded = described(&fixture, "trace");
        let number = |value: &Value| value.as_u64().unwrap();
        let backup = fixture.run(["backup", "source", "--json", "-q"]).code(0).json();
        let unique = number(&recorded["chunks"]) - number(&recorded["duplicate_chunks"]);
        assert_eq!(unique, number(&backup["data_blobs"]), "{options:?}");
        assert!(0 < number(&recorded["duplicate_chunks"]));
        // Holes are no chunks; all else that the files hold is.
        assert!(number(&recorded["bytes"]) <= number(&backup["total_bytes_processed"]));
        // Another repository has other keys, and so other names and, by content, other cuts.
        let other = Fixture::without_repository(Some("correct horse"));
        other.run(["init", "-q"].iter().chain(options)).code(0);
        let repository = other.path("repository");
        fixture.run(["lab", "record", "other", "source", "--repo", repository.to_str().unwrap()]).code(0);
        assert_ne!(fs::read(fixture.path("trace")).unwrap(), fs::read(fixture.path("other")).unwrap());
    }
}

#[test]
fn paths_are_versions_and_every_hash_finds_the_same_duplicates() {
    let fixture = Fixture::without_repository(None);
    shared_source(&fixture);
    let mut counts = Vec::new();
    for hash in ["blake3", "sha1", "sha256"] {
        let options = ["--hash", hash, "--chunk-size", "2k", "--exclude", "small"];
        fixture.run(["lab", "record", hash, "source", "source/a", "source"].iter().chain(&options)).code(0);
        let described = described(&fixture, hash);
        let versions = described["versions"].as_array().unwrap().clone();
        assert_eq!([0, 1, 2].map(|version| versions[version]["streams"].as_u64().unwrap()), [4, 1, 4]);
        assert_eq!(versions[1]["chunks"], versions[1]["duplicate_chunks"]);
        assert_eq!(versions[2]["bytes"], versions[2]["duplicate_bytes"]);
        counts.push(versions);
    }
    assert!(counts.iter().all(|versions| *versions == counts[0]));
    let refused = fixture.run(["lab", "record", "t", "source", "--chunk-size", "100"]).code(1);
    refused.says("--chunk-size: from 512 to 1048576 bytes, not 100");
    let refused = fixture.run(["lab", "record", "t", "source", "--fixed-chunk-size", "1G"]).code(1);
    refused.says("--fixed-chunk-size: from 64 to 8388608 bytes, not 1073741824");
    fixture.run(["lab", "record", "t", "source", "--repo", "r", "--hash", "sha1"]).code(1);
    fixture.run(["lab", "record", "t", "source", "--repo", "r"]).code(10);
    fixture.run(["lab", "record", "t", "source", "nowhere"]).code(1).says("nowhere: No such file");
    assert!(!fixture.path("t").exists());
}
