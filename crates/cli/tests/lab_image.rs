//! `lab image`: stores of images that are packed, read, written, damaged.

use std::fs;

use serde_json::json;

use crate::fixture::{Fixture, noise};

/// A fixture with an image of two equal halves with zeros, and its store.
fn packed() -> (Fixture, Vec<u8>) {
    let fixture = Fixture::without_repository(None);
    let half = [noise(1, 600_000), vec![0; 400_001]].concat();
    let image = half.repeat(2);
    fs::write(fixture.path("image"), &image).unwrap();
    let said = fixture.run(["lab", "image", "pack", "image", "store", "--json"]).code(0).json();
    assert_eq!((&said["message_type"], &said["image_bytes"]), (&json!("image_store"), &json!(image.len())));
    (fixture, image)
}

#[test]
fn an_image_comes_back_after_writes_and_trims() {
    let (fixture, mut image) = packed();
    let read = |fixture: &Fixture| {
        fixture.run(["lab", "image", "read", "store", "--output", "again"]).code(0);
        fs::read(fixture.path("again")).unwrap()
    };
    assert!(read(&fixture) == image);
    let patch = noise(2, 150_000);
    fs::write(fixture.path("patch"), &patch).unwrap();
    fixture.run(["lab", "image", "write", "store", "patch", "--offset", "100001"]).code(0).says("wrote 150000 bytes");
    image[100_001..250_001].copy_from_slice(&patch);
    let trimmed = ["lab", "image", "trim", "store", "--offset", "1M", "--length", "300k", "--json"];
    let said = fixture.run(trimmed).code(0).json();
    assert_eq!(said, json!({"message_type": "image_range", "offset": 1 << 20, "bytes": 300 << 10}));
    image[1 << 20..(1 << 20) + (300 << 10)].fill(0);
    assert!(read(&fixture) == image);
    let stats = fixture.run(["lab", "image", "stats", "store", "--json"]).code(0).json();
    let compacted = fixture.run(["lab", "image", "compact", "store", "--json"]).code(0).json();
    let joined = compacted["entries_joined"].as_u64().unwrap();
    assert_eq!(stats["entries"].as_u64().unwrap() - joined, compacted["entries"].as_u64().unwrap());
    assert!(0 < joined);
    assert!(read(&fixture) == image);
    let part =
        fixture.command(["lab", "image", "read", "store", "--offset", "100000", "--length", "10"]).output().unwrap();
    assert_eq!(part.stdout, image[100_000..100_010]);
    let checked = fixture.run(["lab", "image", "check", "store", "--json"]).code(0).json();
    assert_eq!((&checked["problems"], &checked["messages"]), (&json!(0), &json!([])));
    let text = fixture.run(["lab", "image", "stats", "store"]).code(0).stdout();
    assert!(text.contains("distinct blocks") && text.contains("entries"), "{text}");
}

#[test]
fn stores_of_one_image_are_the_same() {
    let (fixture, _) = packed();
    fixture.run(["lab", "image", "pack", "image", "other", "--memory", "64M"]).code(0);
    let stats = |store: &str| fixture.run(["lab", "image", "stats", store, "--json"]).code(0).json();
    let without_memory = |mut stats: serde_json::Value| {
        stats.as_object_mut().unwrap().remove("peak_rss_bytes");
        stats
    };
    assert_eq!(without_memory(stats("store")), without_memory(stats("other")));
    let stored = stats("store")["stored_bytes"].as_u64().unwrap();
    // The second half begins at an odd byte, so that only zeros repeat.
    assert!((1_200_000..1_300_000).contains(&stored), "{stored}");
    assert_eq!(fs::read(fixture.path("store/blocks")).unwrap(), fs::read(fixture.path("other/blocks")).unwrap());
}

#[test]
fn requests_that_cannot_be_met_are_errors_and_change_nothing() {
    let (fixture, image) = packed();
    let refused = |arguments: &[&str], reason: &str| drop(fixture.run(arguments).code(1).says(reason));
    refused(&["lab", "image", "pack", "image", "store"], "create store: File exists");
    refused(&["lab", "image", "pack", "/dev/zero", "new"], "not a regular file");
    refused(&["lab", "image", "pack", "image", "new", "--min-block", "3k"], "128k");
    refused(&["lab", "image", "stats", "new"], "no store of an image");
    refused(&["lab", "image", "read", "store", "--offset", "3M"], "the image has 2000002 bytes");
    refused(&["lab", "image", "trim", "store", "--length", "3M"], "the image has 2000002 bytes");
    fs::write(fixture.path("patch"), [1; 10]).unwrap();
    refused(&["lab", "image", "write", "store", "patch", "--offset", "1999993"], "the image has 2000002 bytes");
    let again = fixture.command(["lab", "image", "read", "store"]).output().unwrap();
    assert!(again.stdout == image);
}

#[test]
fn damage_is_named_and_ends_with_code_1() {
    let (fixture, _) = packed();
    let mut blocks = fs::read(fixture.path("store/blocks")).unwrap();
    blocks[5000] ^= 1;
    fs::write(fixture.path("store/blocks"), blocks).unwrap();
    let checked = fixture.run(["lab", "image", "check", "store"]).code(1);
    let said = checked.stderr();
    assert!(said.contains("store/blocks: damaged") && said.contains("1 problem"), "{said}");
    fixture.run(["lab", "image", "read", "store", "--output", "again"]).code(1).says("damaged");
    assert!(!fixture.path("again").exists());
    let path = fixture.path("store/checkpoint-1");
    let mut bytes = fs::read(&path).unwrap();
    bytes[120] ^= 1;
    fs::write(&path, bytes).unwrap();
    fixture.run(["lab", "image", "stats", "store"]).code(1).says("checkpoint-1: damaged");
}
