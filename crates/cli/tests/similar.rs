//! Backups that compress new data against similar data, which format 2 allows.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::fixture::{Fixture, contents};

/// Lines of numbers, of which one in 80 is another in each version, the last one among them: every chunk of a version is new.
pub(crate) fn text(version: u64) -> Vec<u8> {
    let mut text = String::new();
    let mut state = 1u64;
    for line in 0..=130_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let edited = if line % 80 < version { 1 + version } else { 0 };
        writeln!(text, "{:012x} {:04} {edited}", (state >> 16) ^ (edited << 20), state >> 55).unwrap();
    }
    text.into_bytes()
}

/// The least memory with which similar regions are looked for.
const MEMORY: &str = "256M";

fn stored_bytes(fixture: &Fixture) -> u64 {
    contents(&fixture.path("repository/containers"))
        .iter()
        .map(|(_, bytes)| bytes.as_ref().map_or(0, |b| b.len() as u64))
        .sum()
}

/// Backs up two versions, and returns the bytes that the second one has stored.
fn second_version(init: &[&str], memory: &str, backup: &[&str]) -> (Fixture, u64) {
    let fixture = Fixture::without_repository(None);
    fixture.run([&["init", "--no-encryption", "-q"], init].concat()).code(0);
    fixture.write("dump", &text(0));
    fixture.run(["backup", "source", "-q", "--memory", memory]).code(0);
    let before = stored_bytes(&fixture);
    fixture.write("dump", &text(1));
    fixture.run([&["backup", "source", "-q", "--memory", memory], backup].concat()).code(0);
    let stored = stored_bytes(&fixture) - before;
    (fixture, stored)
}

/// Returns the version of the format in the config.
fn version_of(fixture: &Fixture) -> u16 {
    let config = fs::read(fixture.path("repository/config")).unwrap();
    u16::from_le_bytes([config[4], config[5]])
}

fn assert_restores(fixture: &Fixture) {
    fixture.run(["check", "--read-data", "-q"]).code(0);
    let target = fixture.path("target");
    fixture.run(["restore", "latest", "--target", target.to_str().unwrap(), "-q"]).code(0);
    assert!(fs::read(target.join("source/dump")).unwrap() == fs::read(fixture.path("source/dump")).unwrap());
    fs::remove_dir_all(&target).unwrap();
}

#[test]
fn an_edited_dump_takes_a_fraction_of_its_new_chunks_unless_an_option_says_otherwise() {
    let (fixture, alone) = second_version(&["--format", "1"], MEMORY, &[]);
    assert_eq!(version_of(&fixture), 1);
    assert_restores(&fixture);
    let (fixture, similar) = second_version(&[], MEMORY, &[]);
    assert_eq!(version_of(&fixture), 2);
    assert!(3 * similar < alone, "{similar} bytes, and {alone} without bases");
    assert!(Path::new(&fixture.path("cache")).join(fixture.repository_id()).join("similar").exists());
    assert_restores(&fixture);
    for (init, backup) in [(&[][..], &["--no-similarity"][..]), (&["--no-similarity"], &[])] {
        let (fixture, without) = second_version(init, MEMORY, backup);
        assert!(alone / 2 < without, "{init:?} {backup:?}: {without} bytes, and {alone} in format 1");
        assert_restores(&fixture);
    }
    let (fixture, tight) = second_version(&[], "64M", &[]);
    assert!(alone / 2 < tight, "{tight} bytes: there is no memory for it");
    assert_restores(&fixture);
}

#[test]
fn what_is_not_compressed_with_zstandard_has_no_bases() {
    for compression in ["lz4", "off"] {
        let (fixture, _) = second_version(&[], MEMORY, &["--compression", compression]);
        let listed = fixture.run(["list", "packs"]).code(0).stdout();
        assert!(1 < listed.lines().count());
        for id in listed.lines() {
            assert_eq!(fixture.run(["why", id, "--json"]).code(0).json()["bases_count"], 0, "{compression}: {id}");
        }
        assert_restores(&fixture);
    }
}

#[test]
fn a_program_that_meets_a_newer_format_says_so_and_ends_with_1() {
    let fixture = Fixture::new();
    fixture.write("file", b"contents");
    fixture.run(["backup", "source", "-q"]).code(0);
    let repository = fixture.path("repository");
    let copies = ["config", "config.copy"].map(|copy| repository.join(copy));
    let whole = fs::read(&copies[0]).unwrap();
    let write = |copy: &Path, bytes: &[u8]| {
        fs::remove_file(copy).unwrap();
        fs::write(copy, bytes).unwrap();
    };
    // Bytes 4 and 5 are the version. Neither checksum nor MAC is compared before it.
    let newer = [&whole[..4], &[3], &whole[5..]].concat();
    // A flipped bit can claim a newer version: the other copy is read.
    for (copy, other) in [(&copies[0], &copies[1]), (&copies[1], &copies[0])] {
        write(copy, &newer);
        fixture.run(["snapshots"]).code(0);
        write(other, &newer);
        let says = "config: format version 3 is newer than 2, the newest this program reads";
        fixture.run(["snapshots"]).code(1).says(says);
        fixture.run(["prune"]).code(1).says(says);
        write(copy, &whole);
        write(other, &whole);
    }
    fixture.run(["check", "-q"]).code(0);
}

#[test]
fn format_1_has_nothing_to_leave_out() {
    let fixture = Fixture::without_repository(None);
    fixture
        .run(["init", "--no-encryption", "--format", "1", "--no-similarity"])
        .code(1)
        .says("a repository of format 1 has no similar regions");
    assert!(!fixture.path("repository/config").exists());
}

#[test]
fn an_upgraded_repository_is_compressed_against_what_it_stores_from_then_on() {
    let fixture = Fixture::without_repository(None);
    fixture.run(["init", "--no-encryption", "-q", "--format", "1"]).code(0);
    let mut stored = Vec::new();
    for version in 0..4 {
        if version == 1 {
            assert_eq!(version_of(&fixture), 1);
            fixture.run(["upgrade", "--format", "2", "-q"]).code(0);
            assert_eq!(version_of(&fixture), 2);
        }
        fixture.write("dump", &text(version));
        let before = stored_bytes(&fixture);
        fixture.run(["backup", "source", "-q", "--memory", MEMORY]).code(0);
        stored.push(stored_bytes(&fixture) - before);
        assert_restores(&fixture);
    }
    assert!(3 * stored[2] < stored[1] && 3 * stored[3] < stored[1], "{stored:?}");
    assert!(stored[0] < 2 * stored[1], "nothing from before the upgrade is found as similar: {stored:?}");
}

#[test]
fn why_names_the_containers_that_one_depends_on_and_says_what_is_kept_as_a_base() {
    let (fixture, _) = second_version(&[], MEMORY, &[]);
    let data = || -> Vec<String> {
        let listed = fixture.run(["list", "packs"]).code(0).stdout();
        let of_data = |id: &&str| fixture.run(["why", id, "--json"]).code(0).json()["kind"] == "data";
        listed.lines().filter(of_data).map(str::to_owned).collect()
    };
    let why = |id: &str| fixture.run(["why", id, "--json"]).code(0).json();
    let of = |id: &str, list: &str| -> Vec<String> {
        why(id)[list].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = data();
    let holders: Vec<&String> = all.iter().filter(|id| !of(id, "dependents").is_empty()).collect();
    let dependent = all.iter().find(|id| !of(id, "bases").is_empty()).unwrap();
    // Each names the other, with the same regions.
    for holder in &holders {
        let (has, needs) = (&why(holder)["dependents"][0], &why(dependent)["bases"]);
        let row = needs.as_array().unwrap().iter().find(|row| row["id"] == ***holder).unwrap();
        assert_eq!((&has["id"], &has["regions"], &has["size"]), (&(**dependent).into(), &row["regions"], &row["size"]));
        assert!(0 < row["size"].as_u64().unwrap() && row["size"].as_u64() < row["uncompressed_size"].as_u64());
        assert_eq!(why(holder)["only_base"], false);
        assert!(row["size"].as_u64().unwrap() < has["container_size"].as_u64().unwrap());
    }
    let shown = fixture.run(["why", dependent]).code(0).stdout();
    assert!(shown.contains("Its regions have bases in") && shown.contains(holders[0].as_str()), "{shown}");
    let shown = fixture.run(["why", holders[0], "--if-forgotten", "latest~1"]).code(0).stdout();
    assert!(shown.contains("It has bases of regions in") && shown.contains(dependent.as_str()), "{shown}");
    fixture.run(["forget", "latest~1", "-q"]).code(0);
    // A quick prune takes nothing apart.
    let pruned = fixture.run(["prune", "--quick", "--json"]).code(0).messages().pop().unwrap();
    let bases: Vec<String> = data().into_iter().filter(|id| why(id)["only_base"] == true).collect();
    assert!(!bases.is_empty(), "{pruned}");
    assert_eq!((&why(&bases[0])["unused"], &why(&bases[0])["held"]["chunks"]), (&true.into(), &0.into()));
    let shown = fixture.run(["why", &bases[0]]).code(0).stdout();
    assert!(shown.contains("no snapshot holds a chunk of it, but 1 container has bases in it"), "{shown}");
    // Nothing depends on it any more when that one is unneeded.
    fixture.run(["forget", "latest", "-q"]).code(0);
    fixture.run(["prune", "-q"]).code(0);
    assert_eq!(data(), Vec::<String>::new());
}
