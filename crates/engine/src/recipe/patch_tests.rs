use std::collections::BTreeSet;

use super::*;
use crate::random::SplitMix64;
use crate::recipe::builder::tests::MemorySink;
use crate::recipe::{decode_hints, decode_segment};
use crate::types::SessionId;

/// A part of a stream that no edit divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Chunk(Chunk),
    /// One byte of a hole.
    Zero,
}

impl Unit {
    fn len(self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.len.into(),
            Self::Zero => 1,
        }
    }
}

/// The hint of a chunk, so that a hint that goes to another chunk is noticed.
fn hint_of(chunk: &Chunk) -> Option<ContainerId> {
    let prefix = chunk.fingerprint.prefix();
    let session = SessionId([u8::try_from(prefix % 3).unwrap(); 16]);
    (!prefix.is_multiple_of(5)).then_some(ContainerId { session, ordinal: prefix % 40 })
}

fn chunk(random: &mut SplitMix64) -> Chunk {
    // Some chunks come several times.
    let number = if random.below(4) == 0 { random.below(30) } else { random.next_u64() };
    let fingerprint = Fingerprint(*blake3::hash(&number.to_le_bytes()).as_bytes());
    Chunk { fingerprint, len: 1 + u32::try_from(number % 9).unwrap() }
}

/// Draws a stream that consists of holes by `holes` in 8.
fn units(random: &mut SplitMix64, count: u64, holes: u64) -> Vec<Unit> {
    let mut units = Vec::new();
    for _ in 0..count {
        if random.below(8) < holes {
            let len = 1 + random.below(6);
            units.extend((0..len).map(|_| Unit::Zero));
        } else {
            units.push(Unit::Chunk(chunk(random)));
        }
    }
    units
}

/// Builds the recipe of a stream as a whole.
fn rebuild(units: &[Unit], (rule, inline_max): (CutRule, u32), sink: &mut MemorySink) -> BuiltRecipe {
    let mut builder = RecipeBuilder::new(rule, inline_max);
    for run in units.chunk_by(|a, b| *a == Unit::Zero && *b == Unit::Zero) {
        match run {
            [Unit::Chunk(chunk)] => builder.chunk(*chunk, hint_of(chunk), sink).unwrap(),
            zeros => builder.hole(zeros.len() as u64, sink).unwrap(),
        }
    }
    builder.finish(sink).unwrap()
}

/// Draws edits; returns them with the stream that they make.
fn edits(random: &mut SplitMix64, units: &[Unit], count: usize) -> (Vec<Edit>, Vec<Unit>) {
    let mut offsets = vec![0];
    for unit in units {
        offsets.push(offsets.last().unwrap() + unit.len());
    }
    let mut ends: Vec<usize> = (0..2 * count).map(|_| random.index(units.len() + 1)).collect();
    // Some edits touch each other, are at the ends of the stream, or insert.
    for at in 1..ends.len() {
        match random.below(8) {
            0 => ends[at] = ends[at - 1],
            1 => ends[at] = (ends[at - 1] + 1).min(units.len()),
            2 if random.below(8) == 0 => ends[at] = units.len(),
            3 if random.below(8) == 0 => ends[at] = 0,
            _ => {}
        }
    }
    ends.sort_unstable();
    let (mut edits, mut edited, mut done) = (Vec::new(), Vec::new(), 0);
    for range in ends.chunks_exact(2) {
        let (start, mut end) = (range[0], range[1]);
        if random.below(8) != 0 {
            end = end.min(start + random.index(4));
        }
        let item = match random.below(3) {
            0 => EditItem::Nothing,
            1 => EditItem::Hole { len: random.below(5) },
            _ => {
                let chunk = chunk(random);
                EditItem::Chunk(chunk, hint_of(&chunk))
            }
        };
        edits.push(Edit { start: offsets[start], end: offsets[end], item });
        edited.extend_from_slice(&units[done..start]);
        match item {
            EditItem::Nothing => {}
            EditItem::Chunk(chunk, _) => edited.push(Unit::Chunk(chunk)),
            EditItem::Hole { len } => edited.extend((0..len).map(|_| Unit::Zero)),
        }
        done = end;
    }
    edited.extend_from_slice(&units[done..]);
    (edits, edited)
}

/// Reads segments from memory and counts them.
struct Segments<'a> {
    sink: &'a MemorySink,
    read: usize,
}

impl SegmentReader for Segments<'_> {
    fn read_segment(&mut self, fingerprint: Fingerprint) -> Result<(Recipe, Vec<Option<ContainerId>>)> {
        self.read += 1;
        let missing = || Error::MissingChunk { fingerprint: fingerprint.to_string() };
        let (contents, hints) = self.sink.0.get(&fingerprint).ok_or_else(missing)?;
        let recipe = decode_segment(contents).map_err(|error| error.of("segment"))?;
        let hints = decode_hints(hints, recipe.chunk_count()).unwrap();
        Ok((recipe, hints))
    }
}

fn apply(
    old: &BuiltRecipe,
    edits: &[Edit],
    rule: (CutRule, u32),
    sink: &MemorySink,
) -> (Result<BuiltRecipe>, MemorySink, usize) {
    let mut reader = Segments { sink, read: 0 };
    let mut new = MemorySink::default();
    let patched = patch(old, &mut edits.iter().copied().map(Ok), rule, &mut reader, &mut new);
    (patched, new, reader.read)
}

/// Compares two recipes with all of their segments and hints. Returns the number of segments.
fn assert_same(case: &str, patched: (&BuiltRecipe, &[&MemorySink]), rebuilt: (&BuiltRecipe, &MemorySink)) -> usize {
    assert_eq!(patched.0, rebuilt.0, "{case}: the root");
    let segments = |items: &[RecipeItem]| -> Vec<Fingerprint> {
        let segment = |item: &RecipeItem| match item {
            RecipeItem::Segment { fingerprint, .. } => Some(*fingerprint),
            RecipeItem::Chunk(_) | RecipeItem::Hole { .. } => None,
        };
        items.iter().filter_map(segment).collect()
    };
    let mut pending = segments(&patched.0.recipe.items);
    let mut seen = BTreeSet::new();
    while let Some(next) = pending.pop() {
        if seen.insert(next) {
            let found = patched.1.iter().find_map(|sink| sink.0.get(&next)).expect("every segment is stored");
            assert_eq!(found, &rebuilt.1.0[&next], "{case}: contents and hints");
            pending.extend(segments(&decode_segment(&found.0).unwrap().items));
        }
    }
    seen.len()
}

const RULES: [(CutRule, u32); 6] = [
    (CutRule { min: 4, target: 4, max: 16 }, 3),
    (CutRule { min: 16, target: 48, max: 256 }, 24),
    (CutRule { min: 2, target: 1, max: 2 }, 1),
    (CutRule { min: 2, target: 3, max: 5 }, 1),
    (CutRule { min: 2, target: 40, max: 40 }, 7),
    (CutRule { min: 3, target: 1000, max: 4 }, 2),
];

#[test]
fn a_patched_recipe_is_the_one_that_is_built_from_the_edited_stream() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = SplitMix64::new(seed);
    let (mut segments, mut levels) = (0, BTreeSet::new());
    for round in 0..3000 {
        let case = format!("SEED={seed}, round {round}");
        let rule = RULES[random.index(RULES.len())];
        let count = [0, 1, 3, 10, 60, 300, 1500][random.index(7)];
        let holes = random.below(8);
        let mut stream = units(&mut random, random_below(count, round), holes);
        let mut kept = MemorySink::default();
        let mut recipe = rebuild(&stream, rule, &mut kept);
        // Each patch is patched again.
        for _ in 0..4 {
            let edits_max = [0, 1, 1, 2, 5, 40][random.index(6)];
            let (edits, edited) = edits(&mut random, &stream, edits_max);
            let (patched, new, _) = apply(&recipe, &edits, rule, &kept);
            let patched = patched.unwrap_or_else(|error| panic!("{case}: {error}"));
            let mut fresh = MemorySink::default();
            let rebuilt = rebuild(&edited, rule, &mut fresh);
            segments += assert_same(&case, (&patched, &[&new, &kept]), (&rebuilt, &fresh));
            levels.insert(patched.recipe.level);
            kept.0.extend(new.0);
            (stream, recipe) = (edited, patched);
        }
    }
    assert!(100_000 < segments, "{segments} segments are few");
    assert!((0..=8).all(|level| levels.contains(&level)), "levels {levels:?}");
}

/// A number below or equal to `count`; mostly near it.
fn random_below(count: u64, round: u64) -> u64 {
    count - count * (round % 4) / 8
}

/// A volume of `blocks` blocks, each third of them a hole.
fn volume(blocks: u64) -> impl Iterator<Item = (u64, Option<Chunk>)> {
    (0..blocks).map(|block| {
        let fingerprint = Fingerprint(*blake3::hash(&block.to_le_bytes()).as_bytes());
        (block, (block % 3 != 0).then_some(Chunk { fingerprint, len: BLOCK }))
    })
}

const BLOCK: u32 = 4096;
const VOLUMES: (CutRule, u32) = (CutRule { min: 16, target: 48, max: 256 }, 24);

fn built_volume(blocks: u64) -> (BuiltRecipe, MemorySink) {
    let (mut builder, mut sink) = (RecipeBuilder::new(VOLUMES.0, VOLUMES.1), MemorySink::default());
    for (_, chunk) in volume(blocks) {
        match chunk {
            Some(chunk) => builder.chunk(chunk, hint_of(&chunk), &mut sink).unwrap(),
            None => builder.hole(BLOCK.into(), &mut sink).unwrap(),
        }
    }
    (builder.finish(&mut sink).unwrap(), sink)
}

#[test]
fn what_is_read_and_stored_grows_with_the_edits_and_not_with_the_stream() {
    let (recipe, sink) = built_volume(400_000);
    let depth = usize::from(recipe.recipe.level);
    assert!(3 <= depth && 4000 < sink.0.len(), "{depth} levels, {} segments", sink.0.len());
    let mut random = SplitMix64::new(3);
    for (count, most) in [(1, 5 * depth), (100, 100 * 2 * depth)] {
        for _ in 0..10 {
            let blocks: BTreeSet<u64> = (0..count).map(|_| random.below(400_000)).collect();
            let edits: Vec<Edit> = blocks
                .iter()
                .map(|block| {
                    let start = block * u64::from(BLOCK);
                    let item = EditItem::Chunk(Chunk { len: BLOCK, ..chunk(&mut random) }, None);
                    Edit { start, end: start + u64::from(BLOCK), item }
                })
                .collect();
            let (patched, new, read) = apply(&recipe, &edits, VOLUMES, &sink);
            assert_eq!(patched.unwrap().recipe.len(), recipe.recipe.len());
            assert!(read <= most && new.0.len() <= most, "{count} edits: {read} read, {} stored", new.0.len());
        }
    }
    // What is cut off is not read.
    let len = recipe.recipe.len();
    let cut = Edit { start: u64::from(BLOCK), end: len, item: EditItem::Nothing };
    let (patched, _, read) = apply(&recipe, &[cut], VOLUMES, &sink);
    assert_eq!(patched.unwrap().recipe.items, [RecipeItem::Hole { len: BLOCK.into() }]);
    assert!(read <= 2 * depth, "{read} segments read");
}

#[test]
fn a_hole_joins_one_that_ends_the_segment_before() {
    let rule = (CutRule { min: 2, target: 1 << 30, max: 4 }, 1);
    let mut random = SplitMix64::new(9);
    let mut one = || Unit::Chunk(Chunk { len: 1, ..chunk(&mut random) });
    let stream = [one(), one(), one(), Unit::Zero, one(), one(), one(), one(), one()];
    let mut kept = MemorySink::default();
    let recipe = rebuild(&stream, rule, &mut kept);
    assert_eq!(recipe.recipe.level, 2, "the hole ends a segment");
    for (start, end, item) in [(4, 5, EditItem::Hole { len: 1 }), (4, 4, EditItem::Hole { len: 7 })] {
        let mut edited = stream.to_vec();
        let zeros = if let EditItem::Hole { len } = item { len } else { 0 };
        edited.splice(start..end, (0..zeros).map(|_| Unit::Zero));
        let edit = Edit { start: start as u64, end: end as u64, item };
        let (patched, new, _) = apply(&recipe, &[edit], rule, &kept);
        let mut fresh = MemorySink::default();
        let rebuilt = rebuild(&edited, rule, &mut fresh);
        assert_same("holes", (&patched.unwrap(), &[&new, &kept]), (&rebuilt, &fresh));
    }
}

#[test]
fn streams_are_as_long_as_a_recipe_can_be_and_no_longer() {
    let (rule, sink) = (RULES[0], MemorySink::default());
    let half = EditItem::Hole { len: HOLE_BYTES_MAX / 2 };
    let insert = |at, item| Edit { start: at, end: at, item };
    let (built, ..) = apply(&BuiltRecipe::default(), &[insert(0, half), insert(0, half)], rule, &sink);
    let built = built.unwrap();
    assert_eq!(built.recipe.items, [RecipeItem::Hole { len: HOLE_BYTES_MAX }]);
    let one = EditItem::Hole { len: 1 };
    let (longer, ..) = apply(&built, &[insert(HOLE_BYTES_MAX / 2, one)], rule, &sink);
    assert!(matches!(longer, Err(Error::Invalid { .. })));
    let replaced = Edit { start: 5, end: 6, item: one };
    assert_eq!(apply(&built, &[replaced], rule, &sink).0.unwrap(), built);
    let endless = EditItem::Hole { len: u64::MAX };
    assert!(apply(&built, &[insert(0, endless)], rule, &sink).0.is_err());
}

#[test]
fn edits_that_contradict_the_stream_are_refused() {
    let (recipe, sink) = built_volume(1000);
    let len = recipe.recipe.len();
    let block = u64::from(BLOCK);
    let edit = |start, end, item| Edit { start, end, item };
    let nothing = EditItem::Nothing;
    let empty = EditItem::Chunk(Chunk { fingerprint: Fingerprint([1; 32]), len: 0 }, None);
    for edits in [
        vec![edit(block + 1, 2 * block, nothing)],
        vec![edit(block, block + 1, nothing)],
        vec![edit(block + 1, block + 1, nothing)],
        vec![edit(0, block + 1, nothing)],
        vec![edit(2 * block, block, nothing)],
        vec![edit(block, 3 * block, nothing), edit(2 * block, 4 * block, nothing)],
        vec![edit(block, 2 * block, nothing), edit(0, 0, nothing)],
        vec![edit(len + 1, len + 1, nothing)],
        vec![edit(len, len + block, nothing)],
        vec![edit(0, u64::MAX, nothing)],
        vec![edit(u64::MAX, u64::MAX, nothing)],
        vec![edit(0, 0, empty)],
    ] {
        let (patched, ..) = apply(&recipe, &edits, VOLUMES, &sink);
        assert!(matches!(patched, Err(Error::Invalid { .. })), "{edits:?}: {patched:?}");
    }
    let mut failing = [Ok(edit(0, 0, nothing)), Err(Error::Interrupted)].into_iter();
    let mut reader = Segments { sink: &sink, read: 0 };
    let patched = patch(&recipe, &mut failing, VOLUMES, &mut reader, &mut MemorySink::default());
    assert!(matches!(patched, Err(Error::Interrupted)));
}

#[test]
fn segments_that_lie_or_are_missing_are_errors() {
    let (recipe, sink) = built_volume(20_000);
    assert!(2 <= recipe.recipe.level);
    let edit = Edit { start: 0, end: u64::from(BLOCK), item: EditItem::Nothing };
    let whole = apply(&recipe, &[edit], VOLUMES, &sink).0.unwrap();
    let mut refused = 0;
    let names: Vec<Fingerprint> = sink.0.keys().copied().collect();
    for (number, name) in names.iter().enumerate() {
        let contents = &sink.0[name];
        let segment = decode_segment(&contents.0).unwrap();
        let other = names[(number + 1) % names.len()];
        let mut deeper = Vec::new();
        let items = vec![RecipeItem::Segment { fingerprint: *name, len: segment.len() }];
        Recipe { level: segment.level, items: items.clone() }.encode(&mut deeper);
        let mut cycle = Vec::new();
        Recipe { level: segment.level + 1, items }.encode(&mut cycle);
        for lie in [None, Some(sink.0[&other].clone()), Some((deeper, Vec::new())), Some((cycle, Vec::new()))] {
            let mut damaged = MemorySink(sink.0.clone());
            match lie {
                None => damaged.0.remove(name),
                Some(lie) => damaged.0.insert(*name, lie),
            };
            // A segment that is not read may be anything.
            match apply(&recipe, &[edit], VOLUMES, &damaged).0 {
                Ok(patched) => assert_eq!(patched, whole),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(12 <= refused, "{refused}");
    // A root that no decoder would return.
    let segment = RecipeItem::Segment { fingerprint: names[0], len: 1 };
    let hole = RecipeItem::Hole { len: 1 };
    for (level, items) in [(0, vec![segment]), (1, vec![hole]), (0, vec![hole; 0]), (41, vec![segment])] {
        let is_empty = items.is_empty();
        let root = BuiltRecipe { recipe: Recipe { level, items }, hints: Vec::new() };
        assert_eq!(apply(&root, &[], VOLUMES, &sink).0.is_ok(), is_empty);
    }
}

#[test]
fn every_segment_that_a_patch_reads_is_checked() {
    let (recipe, sink) = built_volume(3000);
    let edits: Vec<Edit> = (0..3000)
        .map(|block| {
            let start = block * u64::from(BLOCK);
            Edit { start, end: start, item: EditItem::Hole { len: 1 } }
        })
        .collect();
    assert!(apply(&recipe, &edits, VOLUMES, &sink).0.is_ok());
    for (name, stored) in &sink.0 {
        let mut segment = decode_segment(&stored.0).unwrap();
        segment.items.pop();
        let mut shorter = Vec::new();
        segment.encode(&mut shorter);
        let mut damaged = MemorySink(sink.0.clone());
        damaged.0.insert(*name, (shorter, Vec::new()));
        let (patched, ..) = apply(&recipe, &edits, VOLUMES, &damaged);
        assert!(matches!(patched, Err(Error::Damaged { .. })), "{patched:?}");
    }
}
