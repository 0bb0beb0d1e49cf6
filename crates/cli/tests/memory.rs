//! `--memory`: what the process takes beside what it was given.

use std::io::{BufWriter, Write};
use std::process::{ChildStdin, Stdio};
use std::thread;

use onefold_engine::random::SplitMix64;

use crate::fixture::{Fixture, Ran, noise};

/// Bytes of a chunk: as small as chunks are, so that there are many.
const CHUNK_BYTES: usize = 512;
const CHUNKS: usize = 300_000;
/// Bytes of a chunk that no compressor makes fewer: the fewer they are, the more chunks a container takes.
const DIFFERING_BYTES: usize = 16;
/// What a process may hold above its budget: code, stacks, what the allocator keeps.
const ALLOWANCE_BYTES: u64 = 64 << 20;

/// Writes chunks that all differ in their first bytes and are zero in the rest.
fn write_chunks(input: ChildStdin) {
    let mut input = BufWriter::with_capacity(1 << 20, input);
    let mut chunk = [0; CHUNK_BYTES];
    let mut random = SplitMix64::new(1);
    for _ in 0..CHUNKS {
        for word in chunk[..DIFFERING_BYTES].chunks_exact_mut(8) {
            // Its numbers repeat after 2^64 of them, no earlier.
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        input.write_all(&chunk).unwrap();
    }
    input.flush().unwrap();
}

#[test]
fn the_process_stays_within_its_budget() {
    let fixture = Fixture::without_repository(Some("correct horse"));
    fixture.run(["init", "-q", "--fixed-chunk-size", "512"]).code(0);
    for (budget, megabytes) in [("64M", 64_u64), ("128M", 128)] {
        let within = |command: &str, ran: &Ran| {
            let summary = ran.messages().pop().unwrap();
            let peak = summary["peak_rss_bytes"].as_u64().unwrap();
            assert!(peak <= (megabytes << 20) + ALLOWANCE_BYTES, "{command} at {budget}: {peak} bytes; {summary}");
            summary
        };
        let arguments = ["backup", "--stdin", "--json", "--no-scan", "--memory", budget];
        let mut child = fixture.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        // Aside, since the process may wait until what it tells is read.
        let ran = thread::scope(|scope| {
            scope.spawn(|| write_chunks(input));
            Ran(child.wait_with_output().unwrap()).code(0)
        });
        let summary = within("backup", &ran);
        let seen = ["chunks_unique", "chunks_duplicate"].map(|field| summary[field].as_u64().unwrap());
        // The second backup knows all of them.
        assert!(seen.iter().sum::<u64>() >= CHUNKS as u64 && seen.iter().max() >= Some(&(CHUNKS as u64)), "{summary}");

        let target = format!("out-{budget}");
        let restore = ["restore", "latest", "--target", &target, "--json", "--memory", budget];
        let summary = within("restore", &fixture.run(restore).code(0));
        assert_eq!(summary["bytes_restored"], CHUNKS * CHUNK_BYTES);
        within("check --read-data", &fixture.run(["check", "--read-data", "--json", "--memory", budget]).code(0));
    }
}

/// The smallest budget, which [`Fixture`] runs every command with.
const BUDGET_BYTES: u64 = 64 << 20;

/// Returns text that compresses to about a quarter and does not repeat.
fn text(seed: u64, words: usize) -> Vec<u8> {
    noise(seed, 8 * words)
        .chunks(2)
        .flat_map(|pair| format!("value = {};\n", u16::from_le_bytes([pair[0], pair[1]])).into_bytes())
        .collect()
}

#[track_caller]
fn assert_within_budget(ran: &Ran) {
    let peak = ran.messages().pop().unwrap()["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < BUDGET_BYTES + ALLOWANCE_BYTES, "{} MiB of memory", peak >> 20);
}

#[test]
fn no_command_takes_more_than_its_budget_and_64_mib() {
    let fixture = Fixture::encrypted();
    fixture.write("noise", &noise(1, 48 << 20));
    fixture.write("text", &text(2, 1 << 20));
    for number in 0..2000 {
        fixture.write(&format!("small/{number}"), &text(1000 + number, 200));
    }
    let source = fixture.path("source");
    let target = fixture.path("target");
    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
    assert_within_budget(&fixture.run(["backup", source, "--json"]).code(0));
    assert_within_budget(&fixture.run(["backup", source, "--force", "--json"]).code(0));
    assert_within_budget(&fixture.run(["restore", "latest", "--target", target, "--json"]).code(0));
    assert_within_budget(&fixture.run(["check", "--read-data", "--json"]).code(0));
    assert_within_budget(&fixture.run(["tag", "--add", "x", "--json"]).code(0));
    assert_within_budget(&fixture.run(["rewrite", "--exclude", "small/1*", "--forget", "--json"]).code(0));
    let container = fixture.run(["list", "packs"]).code(0).stdout().lines().next().unwrap().to_owned();
    let chunk = fixture.run(["list", "blobs"]).code(0).stdout().lines().next().unwrap()["data ".len()..].to_owned();
    for thing in [source, &container, &chunk] {
        assert_within_budget(&fixture.run(["why", thing, "--if-forgotten", "latest", "--json"]).code(0));
    }
    let listed = fixture.run(["recover", "--json"]).code(0).json();
    let forgotten = listed.as_array().unwrap().iter().map(|snapshot| snapshot["id"].as_str().unwrap());
    let recover = ["recover", "--json"].into_iter().chain(forgotten);
    assert_within_budget(&fixture.run(recover).code(0));
}

const FILES: u64 = 6_000;

/// Of many small files few change from version to version, so that directories depend on those of the version before.
#[test]
fn no_command_takes_more_than_its_budget_and_64_mib_to_read_directories_that_depend_on_others() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["init", "--no-encryption", "-q"]).code(0);
    for version in 0..4 {
        for number in (0..FILES).filter(|number| version == 0 || number % 31 == version) {
            fixture.write(&format!("small/{number:05}"), &noise(version << 32 | number, 60));
        }
        fixture.run(["backup", "source", "-q", "--memory", "256M"]).code(0);
    }
    let depends = |id: &&str| {
        let why = fixture.run(["why", id, "--json"]).code(0).json();
        why["kind"] == "metadata" && !why["bases"].as_array().unwrap().is_empty()
    };
    let listed = fixture.run(["list", "packs"]).code(0).stdout();
    assert!(2 < listed.lines().filter(depends).count(), "{listed}");
    fixture.write("small/00007", &noise(1, 60));
    assert_within_budget(&fixture.run(["backup", "source", "--json"]).code(0));
    let target = fixture.path("target");
    assert_within_budget(&fixture.run(["restore", "latest", "--target", target.to_str().unwrap(), "--json"]).code(0));
    assert_within_budget(&fixture.run(["check", "--read-data", "--json"]).code(0));
    assert_within_budget(&fixture.run(["tag", "--add", "x", "--json"]).code(0));
    assert_within_budget(&fixture.run(["rewrite", "--exclude", "small/01*", "--forget", "--json"]).code(0));
    assert_within_budget(&fixture.run(["prune", "--max-unused", "0", "--json"]).code(0));
}
