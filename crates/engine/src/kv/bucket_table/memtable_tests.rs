use std::collections::HashMap;

use super::*;
use crate::kv::{Ordinal, Position};
use crate::random::SplitMix64;
use crate::testing::fingerprint;

#[expect(clippy::print_stderr, reason = "a random test names its seed")]
fn eprintln_seed(seed: u64) {
    eprintln!("seed {seed}");
}

fn bucket_of(key: &Key, boundaries: &[u64]) -> u32 {
    u32::try_from(boundaries.partition_point(|&boundary| boundary <= key.head())).unwrap()
}

fn listed(memtable: &Memtable, bucket: u32) -> Vec<Entry> {
    let mut out = Vec::new();
    memtable.list(bucket, &mut out);
    assert_eq!(out.len(), memtable.bucket_count(bucket) as usize);
    out.iter().map(decode_entry).collect()
}

#[test]
fn a_memtable_equals_a_map_while_buckets_are_frozen_dropped_and_thawed() {
    let seed = 11;
    eprintln_seed(seed);
    let mut random = SplitMix64::new(seed);
    let boundaries: Vec<u64> = (1..5).map(|number| number << 61).collect();
    let mut memtable = Memtable::new(300 * MEMTABLE_ENTRY_BYTES, 5);
    let mut model: HashMap<Key, Entry> = HashMap::new();
    let mut frozen: Option<(u32, Vec<Entry>, Frozen)> = None;
    let (mut dropped, mut thawed, mut replaced) = (0, 0, 0);
    for step in 0..60_000_u64 {
        let key = Key::from(&fingerprint(random.below(400)));
        assert_eq!(memtable.get(&key), model.get(&key).copied());
        if memtable.is_full() || random.below(200) == 0 {
            match frozen.take() {
                Some((_, entries, frozen)) if random.below(3) != 0 => {
                    for entry in entries {
                        if model.get(&entry.key) == Some(&entry) {
                            model.remove(&entry.key);
                        } else {
                            replaced += 1;
                        }
                    }
                    memtable.drop_frozen(frozen);
                    dropped += 1;
                }
                Some((bucket, _, frozen)) => {
                    memtable.thaw(bucket, frozen);
                    thawed += 1;
                }
                None => {
                    let bucket = u32::try_from(random.below(5)).unwrap();
                    let expected = listed(&memtable, bucket);
                    for entry in &expected {
                        assert_eq!(model.get(&entry.key), Some(entry), "no replaced entry is listed");
                    }
                    let mut out = Vec::new();
                    let slabs = memtable.freeze(bucket, &mut out);
                    assert_eq!(out.iter().map(decode_entry).collect::<Vec<_>>(), expected);
                    assert_eq!(memtable.bucket_count(bucket), 0);
                    frozen = Some((bucket, expected, slabs));
                }
            }
            continue;
        }
        let entry = Entry { key, ordinal: Ordinal(1), position: Position(step) };
        memtable.insert(bucket_of(&key, &boundaries), &entry);
        model.insert(key, entry);
    }
    assert!(100 < dropped.min(thawed).min(replaced), "{dropped} {thawed} {replaced}");
    if let Some((bucket, _, frozen)) = frozen {
        memtable.thaw(bucket, frozen);
    }
    assert_eq!(memtable.len, model.len());
}

#[test]
fn lists_split_and_join_without_losing_an_entry() {
    let mut memtable = Memtable::new(1_000 * MEMTABLE_ENTRY_BYTES, 1);
    let key = |number: u64| Key::from(&crate::testing::fingerprint(number));
    let entry = |number| Entry { key: key(number), ordinal: Ordinal(1), position: Position(number) };
    (0..400).for_each(|number| memtable.insert(0, &entry(number)));
    memtable.split(0, 1 << 63);
    let halves = [listed(&memtable, 0), listed(&memtable, 1)];
    assert_eq!(halves[0].len() + halves[1].len(), 400);
    assert!(halves[0].iter().all(|entry| entry.key.head() < 1 << 63));
    assert!(halves[1].iter().all(|entry| entry.key.head() >= 1 << 63));
    assert!((0..400).all(|number| memtable.get(&key(number)) == Some(entry(number))));
    memtable.join(0, 1);
    assert_eq!((listed(&memtable, 0).len(), memtable.len), (400, 400));
    let mut out = Vec::new();
    let frozen = memtable.freeze(0, &mut out);
    memtable.drop_frozen(frozen);
    assert_eq!(memtable.len, 0);
    let (free, all) = memtable.space();
    assert_eq!(free, all);
    assert!((0..400).all(|number| memtable.get(&key(number)).is_none()));
}

#[test]
fn keys_that_share_their_line_are_all_found() {
    let mut memtable = Memtable::new(200 * MEMTABLE_ENTRY_BYTES, 1);
    let crowded = |number: u8| {
        let mut key = Key([7; 20]);
        key.0[1] = number;
        key
    };
    for number in 0..150 {
        memtable.insert(0, &Entry { key: crowded(number), ordinal: Ordinal(1), position: Position(0) });
    }
    assert!((0..=255).all(|number| memtable.get(&crowded(number)).is_some() == (number < 150)));
    let mut out = Vec::new();
    let frozen = memtable.freeze(0, &mut out);
    assert_eq!(out.len(), 150);
    memtable.drop_frozen(frozen);
    assert!((0..=255).all(|number| memtable.get(&crowded(number)).is_none()));
}
