//! `lab advise`: exact where everything is read, within bounds where not, and what it foretells comes true.

use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader, Read};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fixture::{Fixture, Ran, noise};

/// Returns text that compresses, and does not repeat.
fn prose(seed: u64, len: usize) -> Vec<u8> {
    let words = ["chunk ", "region ", "container ", "of ", "the ", "index ", "and\n", "restores "];
    noise(seed, len).iter().flat_map(|byte| words[usize::from(byte & 7)].bytes()).take(len).collect()
}

/// Files with duplicates: copies, an insertion, text.
fn write_source(fixture: &Fixture) {
    let large = noise(1, 3 << 20);
    fixture.write("large", &large);
    fixture.write("copies/large", &large);
    fixture.write("copies/shifted", &[&large[..70_001], b"inserted", &large[70_001..]].concat());
    for number in 0..200 {
        fixture.write(&format!("text/{number}"), &prose(number / 2, 20_000));
    }
    fixture.write("empty", b"");
}

fn advice(fixture: &Fixture, arguments: &[&str]) -> Value {
    let ran = fixture.run(["lab", "advise", "--json"].iter().chain(arguments)).code(0);
    let advice = ran.messages().pop().unwrap();
    assert_eq!(advice["message_type"], "advice");
    advice
}

fn rule<'a>(advice: &'a Value, name: &str) -> &'a Value {
    advice["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == name).unwrap()
}

#[test]
fn what_is_read_in_full_is_counted_as_a_trace_counts_it() {
    let fixture = Fixture::without_repository(None);
    write_source(&fixture);
    let advice = advice(&fixture, &["source", "--exclude", "empty"]);
    assert_eq!((&advice["is_everything"], &advice["sample_files"]), (&true.into(), &203.into()));
    for (name, option, size) in
        [("4k", "--chunk-size", "4k"), ("128k", "--chunk-size", "128k"), ("fixed 16k", "--fixed-chunk-size", "16k")]
    {
        let trace = format!("trace of {name}");
        fixture.run(["lab", "record", &trace, "source", option, size, "-q"]).code(0);
        let described = fixture.run(["lab", "describe", &trace, "--json"]).code(0).json();
        let [chunks, duplicate_chunks, bytes, duplicate_bytes] =
            ["chunks", "duplicate_chunks", "bytes", "duplicate_bytes"].map(|field| described[field].as_u64().unwrap());
        let rule = rule(&advice, name);
        assert_eq!(advice["sample_bytes"], bytes);
        assert_eq!(rule["sample_chunks"], chunks, "{name}");
        assert_eq!(rule["sample_unique_chunks"], chunks - duplicate_chunks, "{name}");
        assert_eq!(rule["sample_unique_bytes"], bytes - duplicate_bytes, "{name}");
        assert_eq!(rule["sample_unique_error"], 0.0, "{name}");
    }
}

#[test]
fn a_repository_is_as_large_as_predicted() {
    for (name, options) in
        [("8k", &[][..]), ("64k", &["--chunk-size", "64k"]), ("fixed 4k", &["--fixed-chunk-size", "4k"])]
    {
        let fixture = Fixture::without_repository(None);
        fixture.run(["init", "--no-encryption", "-q"].iter().chain(options)).code(0);
        write_source(&fixture);
        // How long the chunk is that holds an insertion follows from the key, which is another one in each repository, and in so
        // little data one chunk is a few percent: the file with the insertion is left out.
        let advice = advice(&fixture, &["source", "--exclude", "shifted"]);
        let predicted = rule(&advice, name)["stored_bytes"].as_f64().unwrap();
        let summary =
            fixture.run(["backup", "source", "--json", "--exclude", "shifted"]).code(0).messages().pop().unwrap();
        let stored = summary["data_added_packed"].as_f64().unwrap();
        assert!((predicted / stored - 1.0).abs() < 0.03, "{name}: {predicted} predicted, {stored} stored");
    }
}

/// Writes a tree of 3 to 8 MiB: versions of small and large files with edits and insertions, copies under other names, and files of
/// one name. All of it follows from the seed.
fn write_tree(fixture: &Fixture, seed: u64) {
    let mut random = noise(seed, 1 << 16).into_iter().map(usize::from);
    let mut draw = |below: usize| random.next().unwrap() * below / 256;
    let versions = 1 + draw(4);
    let (small, large, copied, edited) = (60 + draw(120), draw(6), draw(4), 1 + draw(9));
    let is_text = draw(3) != 0;
    let contents = |number: u64, len| if is_text { prose(number, len) } else { noise(number, len) };
    for number in 0..small + large {
        let size = if number < small { 200 + draw(64) * draw(256) } else { (200 + draw(256)) << 10 };
        let mut bytes = contents(seed << 32 | number as u64, size);
        for version in 1..=versions {
            let name = if number % 5 == 0 { "index.html".to_owned() } else { format!("file-{}", word(number)) };
            fixture.write(&format!("release-{version}/{}/{name}", word(number / 3)), &bytes);
            if draw(8) < copied {
                fixture.write(&format!("release-{version}/copies/{}", word(number + 5000)), &bytes);
            }
            if draw(10) < edited {
                let offset = draw(256) * bytes.len() / 256;
                bytes.splice(offset..offset, noise(number as u64 + version as u64, 1 + draw(200)));
            }
        }
    }
}

fn word(number: usize) -> String {
    [number, number / 26, number / 676]
        .map(|digit| char::from(b'a' + u8::try_from(digit % 26).unwrap()))
        .iter()
        .collect()
}

/// `bench/advise` does the same with larger trees.
#[test]
fn a_sample_bounds_the_repository_of_17_of_20_trees() {
    let mut held = Vec::new();
    for seed in 1..=20 {
        let fixture = Fixture::without_repository(None);
        fixture.run(["init", "--no-encryption", "-q"]).code(0);
        write_tree(&fixture, seed);
        let summary = fixture.run(["backup", "source", "--json"]).code(0).messages().pop().unwrap();
        let stored = summary["data_added_packed"].as_f64().unwrap();
        let sample = summary["total_bytes_processed"].as_u64().unwrap() / 5;
        let advice = advice(&fixture, &["source", "--sample", &sample.to_string(), "--seed", &seed.to_string()]);
        assert!(!advice["is_everything"].as_bool().unwrap());
        let rule = rule(&advice, "8k");
        let [value, low, high] =
            ["", "_low", "_high"].map(|bound| rule[format!("stored_bytes{bound}")].as_f64().unwrap());
        assert!(low < value && value < high, "seed {seed}: {low} to {high}");
        held.push((low / stored, value / stored, high / stored));
    }
    let count = |is: fn(&&(f64, f64, f64)) -> bool| held.iter().filter(is).count();
    let counts = [
        count(|(low, _, high)| *low <= 1.0 && 1.0 <= *high),
        // Bounds that hold everything would tell nothing.
        count(|(low, _, high)| high / low < 6.0),
        count(|(_, value, _)| (0.7..1.4).contains(value)),
    ];
    assert!(17 <= counts[0] && 10 <= counts[1] && 12 <= counts[2], "{counts:?} of 20: {held:.2?}");
}

/// A dump of lines of which one in 80 is another in each version: nearly every chunk of a version is new, and similar to the one before.
fn dump(version: u64, lines: u64) -> Vec<u8> {
    let mut text = String::new();
    let mut state = 1u64;
    for line in 0..lines {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let edited = if line % 80 < version { 1 + version } else { 0 };
        writeln!(text, "{:012x} {:04} {edited}", (state >> 16) ^ (edited << 20), state >> 55).unwrap();
    }
    text.into_bytes()
}

/// Memory with which a backup looks for similar data.
const ENOUGH: &str = "256M";

/// Bytes that backups of these paths, one after the other, store in a new repository.
fn stored_by_backups(fixture: &Fixture, paths: &[&str]) -> f64 {
    let _gone = fs::remove_dir_all(fixture.path("repository"));
    fixture.run(["init", "--no-encryption", "-q"]).code(0);
    let stored = |path: &&str| {
        let summary = fixture.run(["backup", path, "--json", "--memory", ENOUGH]).code(0).messages().pop().unwrap();
        summary["data_added_packed"].as_f64().unwrap()
    };
    paths.iter().map(stored).sum()
}

#[test]
fn with_similar_data_a_repository_is_as_large_as_predicted() {
    let fixture = Fixture::without_repository(None);
    for version in 0..2 {
        fixture.write(&format!("{version}/dump"), &dump(version, 500_000));
        fixture.write(&format!("{version}/noise"), &noise(version, 1 << 20));
    }
    let of = |paths: &[&str]| {
        let advice = advice(&fixture, &[&["--similarity", "--memory", ENOUGH], paths].concat());
        let of_others = advice["rules"].as_array().unwrap().iter().filter(|rule| rule["similar_bytes"].is_u64());
        assert_eq!(of_others.count(), 1);
        let rule = rule(&advice, "8k");
        let [alone, value, low, high] = ["stored_bytes", "similar_bytes", "similar_bytes_low", "similar_bytes_high"]
            .map(|field| rule[field].as_f64().unwrap());
        assert!(low < value && value < high, "{low} to {high}");
        (alone, value, low, high)
    };
    // Two backups: the second one finds what is similar in the first.
    let versions = ["source/0", "source/1"];
    let (alone, predicted, low, high) = of(&versions);
    let stored = stored_by_backups(&fixture, &versions);
    assert!(predicted < 0.7 * alone, "{predicted} predicted, {alone} without");
    assert!((predicted / stored - 1.0).abs() < 0.15, "{predicted} predicted, {stored} stored");
    assert!(low < stored && stored < high, "{low} to {high}, {stored} stored");
    // One backup of both: what is similar is not durable yet when the other version comes.
    let (alone, predicted, ..) = of(&["source"]);
    let stored = stored_by_backups(&fixture, &["source"]);
    assert!(0.9 * alone < predicted, "{predicted} predicted, {alone} without");
    assert!((predicted / stored - 1.0).abs() < 0.05, "{predicted} predicted, {stored} stored");
    let similar = |options: &[&str]| fixture.run([&["lab", "advise", "--similarity"], options].concat());
    let text = similar(&["source/0", "source/1", "--memory", ENOUGH]).code(0).stdout();
    assert!(text.contains("With similar data, 8k: ") && text.contains("% less; each path is"), "{text}");
    // Without a search there is nothing to foretell.
    for options in [&["--memory", "64M"][..], &["--memory", ENOUGH, "--compression", "lz4"]] {
        let text = similar(&[&["source/0"], options].concat()).code(0).stdout();
        assert!(text.contains("looks for none"), "{options:?}: {text}");
    }
    let text = similar(&["source", "--sample", "4M", "--memory", ENOUGH]).code(0).stdout();
    assert!(text.contains("not enough data"), "{text}");
    let nowhere = fixture.path("nowhere");
    similar(&["source", "--scratch", nowhere.to_str().unwrap(), "--memory", ENOUGH]).code(1).says("create a file in");
}

#[test]
fn a_table_and_a_choice_are_printed() {
    let fixture = Fixture::without_repository(None);
    write_source(&fixture);
    let ran = fixture.run(["lab", "advise", "source"]).code(0);
    let text = ran.stdout();
    for wanted in ["All was read", "fixed 64k", "Recommended: --", "64 MiB"] {
        assert!(text.contains(wanted), "{wanted:?} is not in: {text}");
    }
    assert_eq!(text.lines().filter(|line| line.contains('x') && line.contains("counted")).count(), 13, "{text}");
    // A sample of a mebibyte and a half, of nearly fourteen.
    let ran = fixture.run(["lab", "advise", "source/text", "--sample", "1500k"]).code(0);
    for wanted in ["A sample was read", "19 of 20 lie"] {
        assert!(ran.stdout().contains(wanted), "{wanted:?} is not in: {}", ran.stdout());
    }
    for unwanted in ["exact", "counted"] {
        assert!(!ran.stdout().contains(unwanted), "{unwanted:?} is in: {}", ran.stdout());
    }
}

#[test]
fn findings_are_what_a_report_draws() {
    let fixture = Fixture::without_repository(None);
    write_source(&fixture);
    fixture.run(["lab", "advise", "source", "--findings", "found.json"]).code(0);
    let found: Value = serde_json::from_slice(&fs::read(fixture.path("found.json")).unwrap()).unwrap();
    let columns = found["tables"][0]["columns"].as_array().unwrap().len();
    let rows = found["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 13);
    assert!(rows.iter().all(|row| row.as_array().unwrap().len() == columns));
    let points =
        |plot: &Value| plot["series"].as_array().unwrap().iter().map(|it| it["points"].as_array().unwrap().len()).sum();
    let plots: Vec<usize> = found["plots"].as_array().unwrap().iter().map(points).collect();
    assert_eq!(plots, [13, 13]);
    assert!(
        found["origin"]["time"].as_str().unwrap().ends_with('Z') && found["origin"]["memory"].as_u64() > Some(1 << 20)
    );
    fixture.run(["lab", "advise", "source", "--findings", "found.json"]).code(1).says("write found.json: it exists");
}

#[test]
fn what_cannot_be_advised_on_is_said() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["lab", "advise", "source", "nowhere"]).code(1).says("nowhere: No such file");
    fixture.run(["lab", "advise", "source", "--sample", "much"]).code(1).says("--sample");
    let ran = fixture.run(["lab", "advise", "source"]).code(0);
    assert!(ran.stdout().contains("There are no bytes to advise on"), "{}", ran.stdout());
    fixture.write("holes", b"");
    fs::File::options().write(true).open(fixture.path("source/holes")).unwrap().set_len(1 << 20).unwrap();
    let ran = fixture.run(["lab", "advise", "source"]).code(0);
    assert!(ran.stdout().contains("only holes"), "{}", ran.stdout());
    // The memory of a process cannot be read from its beginning, whoever asks.
    fixture.write("file", b"contents");
    let ran = fixture.run(["lab", "advise", "source", "/proc/self/mem", "--json"]).code(3);
    assert_eq!(ran.messages().pop().unwrap()["unreadable"], 1);
    assert!(ran.stderr().contains("/proc/self/mem") && ran.stderr().contains("the advice is on what could be read"));
}

#[test]
fn the_process_stays_within_its_budget() {
    let fixture = Fixture::without_repository(None);
    fixture.write("noise", &noise(3, 40 << 20));
    fixture.write("text", &prose(4, 20 << 20));
    let peak = advice(&fixture, &["source", "--memory", "64M"])["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < 128 << 20, "{} MiB", peak >> 20);
    let peak = advice(&fixture, &["source", "--memory", "256M", "--similarity"])["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < 320 << 20, "{} MiB", peak >> 20);
}

#[test]
fn a_signal_ends_it_with_130() {
    let fixture = Fixture::without_repository(None);
    fixture.write("text", &prose(5, 64 << 20));
    let mut child = fixture.command(["lab", "advise", "source", "--json"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut status = String::new();
    stdout.read_line(&mut status).unwrap();
    assert!(status.contains("\"status\""), "{status}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    Ran(child.wait_with_output().unwrap()).code(130);
    assert!(!rest.contains("\"advice\""), "{rest}");
}
