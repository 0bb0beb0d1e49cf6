//! `lab run` with versions that are restored, deleted and rewritten.

use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Returns a column of the table of versions of the first run.
fn column(found: &Value, title: &str) -> Vec<f64> {
    let table = &found["tables"][1];
    let at = table["columns"].as_array().unwrap().iter().position(|column| column == title);
    let at = at.unwrap_or_else(|| panic!("{title}: {table}"));
    table["rows"].as_array().unwrap().iter().map(|row| row[at].as_f64().unwrap_or_default()).collect()
}

fn fixture() -> Fixture {
    let fixture = Fixture::without_repository(None);
    let synth =
        ["lab", "synth", "trace", "--objects", "100", "--versions", "5", "--modified", "0.5", "--pooled", "0.2"];
    fixture.run(synth).code(0);
    fixture
}

const RUN: [&str; 9] = ["lab", "run", "trace", "--preset", "edpl", "--device", "ssd", "--set", "container-size=256k"];

#[test]
fn each_version_is_restored_and_rewriting_makes_that_cheaper() {
    let fixture = fixture();
    let run = |options: &[&str]| {
        let restore = ["--restore", "lru:4,asm:4,opt:4", "--json"];
        fixture.run(RUN.iter().chain(options).chain(&restore)).code(0).json()
    };
    let (plain, rewritten) = (run(&[]), run(&["--rewrite", "har-paper+capping"]));
    let described = fixture.run(["lab", "describe", "trace", "--json"]).code(0).json();
    for (found, is_rewritten) in [(&plain, false), (&rewritten, true)] {
        let [lru, asm, opt] = ["lru:4", "asm:4", "opt:4"].map(|it| column(found, &format!("{it}: containers read")));
        let used = column(found, "of which the version uses");
        for (((lru, asm), opt), used) in lru.iter().zip(&asm).zip(&opt).zip(&used) {
            assert!(used <= opt && opt <= lru && used <= asm, "{lru} {asm} {opt} {used}");
        }
        for (version, (speed, reads)) in column(found, "lru:4: MiB per container read").iter().zip(&lru).enumerate() {
            let bytes = described["versions"][version]["bytes"].as_f64().unwrap();
            assert!((speed * reads * 1_048_576.0 - bytes).abs() < 1.0, "{speed} {reads} {bytes}");
        }
        let columns = found["tables"][1]["columns"].as_array().unwrap();
        assert_eq!(columns.contains(&json!("bytes rewritten")), is_rewritten);
    }
    let last = |found: &Value, title: &str| *column(found, title).last().unwrap();
    assert!(last(&rewritten, "opt:4: containers read") < last(&plain, "opt:4: containers read"));
    assert!(last(&rewritten, "ratio of the versions kept") < last(&plain, "ratio of the versions kept"));
    // CSV has the same columns.
    let restore = ["--restore", "opt:4", "--csv"];
    let csv = fixture.run(RUN.iter().chain(&restore)).code(0).stdout();
    assert!(csv.contains("opt:4: MiB per container read"), "{csv}");
    // Nothing is left of the references.
    let left: Vec<_> = std::fs::read_dir(fixture.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("version-")), "{left:?}");
}

#[test]
fn old_versions_are_deleted() {
    let fixture = fixture();
    let found = fixture.run(RUN.iter().chain(&["--keep-last", "2", "--rewrite", "har-paper", "--json"])).code(0).json();
    let reclaimed = column(&found, "containers reclaimed");
    assert!(reclaimed[..2] == [0.0, 0.0] && 0.0 < reclaimed.iter().sum(), "{reclaimed:?}");
}

#[test]
fn what_contradicts_itself_is_refused() {
    let fixture = fixture();
    for (options, code, said) in [
        (&["--restore", "lru:0"][..], 1, "a restore cache has at least one container"),
        (&["--restore", "fifo:3"], 1, "take lru:N, asm:N or opt:N"),
        (&["--rewrite", "har+har-paper"], 1, "one of har and har-paper"),
        (&["--rewrite", "rewrite"], 1, "is no way of rewriting"),
        (&["--rewrite", "har", "--one-session"], 1, "leave out --one-session"),
        (&["--keep-last", "0"], 1, "0 is not in 1.."),
        (&["--destor-containers", "--set", "container-size=32k"], 1, "no room for chunks"),
        (&["--preset", "pm-buffer-l", "--rewrite", "har"], 1, "store=cuckoo does not support rewriting"),
    ] {
        fixture.run(RUN.iter().chain(options)).code(code).says(said);
    }
}
