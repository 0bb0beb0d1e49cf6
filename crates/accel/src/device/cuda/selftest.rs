//! Every kernel on seeded input, compared with the processor. Memory for results holds other bytes before each launch, so a kernel that
//! did not run is found, too.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

use super::context::Argument::{From, Long, Memory, Word};
use super::context::{self, Context};
use crate::boundary::{Finder, Kernel, WINDOW};
use crate::device::{Fault, FaultKind};

/// Bytes around the chunks of a batch.
const BEFORE_BYTES: usize = 32;
const BEHIND_BYTES: usize = 128;

/// Bytes to search and to name: some tiles, of which the last one is short.
const BATCH_BYTES: usize = 150_000;
const TILE: usize = 16 << 10;
const SLOTS: usize = 64;

/// Names among which duplicates are found: more than a CTA sorts at a time.
const NAMES: usize = 5000;
/// The first ones, of which all pairs are compared.
const PAIRED: usize = 1000;
const SORT_TILE: usize = 4096;
const DIGITS: usize = 16;

/// CTAs of a launch: fewer than there are tiles, so that loops over the grid go on.
const CTAS: u32 = 8;

/// Fills the memory of results before a launch.
const POISON: u8 = 0xA5;

const LOADS: [&CStr; 3] = [c"blake3_leaves", c"blake3_leaves_quads", c"blake3_leaves_staged"];

/// Published hashes of `VECTOR`.
const VECTOR: &[u8] = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
const VECTOR_SHA1: [u32; 5] = [0x8498_3e44, 0x1c3b_d26e, 0xbaae_4aa1, 0xf951_29e5, 0xe546_70f1];
const VECTOR_SHA256: [u32; 8] =
    [0x248d_6a61, 0xd206_38b8, 0xe5c0_2693, 0x0c3e_6039, 0xa33c_e459, 0x64ff_2167, 0xf6ec_edd4, 0x19db_06c1];

/// Runs all tests.
pub(super) fn run(session: &Arc<Context>) -> Result<(), Fault> {
    let bytes = input();
    let words = batch(&bytes);
    candidates(session, &bytes, &words)?;
    names(session, &bytes, &words)?;
    vectors(session)?;
    number(session)?;
    references(session)
}

/// Returns numbers that look random.
fn numbers(mut state: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        // Knuth's multiplier; the upper bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    })
}

fn word(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Returns noise with zeros in it.
fn input() -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers(1).flat_map(|number| word(number).to_le_bytes()).take(BATCH_BYTES).collect();
    bytes[40_000..60_000].fill(0);
    bytes
}

/// Returns a batch of the bytes, as words.
fn batch(bytes: &[u8]) -> Vec<u32> {
    let mut all = vec![0; BEFORE_BYTES];
    all.extend_from_slice(bytes);
    all.resize((all.len() + BEHIND_BYTES).next_multiple_of(16), POISON);
    let words = all.chunks_exact(4).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    words.collect()
}

fn compare<T: PartialEq>(kernel: &str, found: &[T], expected: &[T]) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let difference = at.map_or_else(|| "another number of results".to_owned(), |at| format!("result {at} is wrong"));
    Err(Fault::new(FaultKind::Wrong, format!("the device's kernel {kernel}: {difference}")))
}

fn candidates(session: &Arc<Context>, bytes: &[u8], words: &[u32]) -> Result<(), Fault> {
    let mut table = [0; 256];
    table.iter_mut().zip(numbers(2)).for_each(|(entry, number)| *entry = word(number));
    let threshold = u32::MAX / 1024;
    let tiles = bytes.len().div_ceil(TILE);
    let (words, entries) = (session.upload(words)?, session.upload(&table)?);
    let counts = session.memory(4 * tiles, POISON)?;
    let found = session.memory(2 * tiles * SLOTS, POISON)?;
    let (first, len) = (Long(BEFORE_BYTES as u64), Long(bytes.len() as u64));
    let rule = [Memory(&entries), Word(threshold), Word(count(SLOTS)), Memory(&counts), Memory(&found)];
    let arguments = [Memory(&words), first, len].into_iter().chain(rule).collect::<Vec<_>>();
    // SAFETY: there is a count for each tile, and slots for each; the batch has what surrounds the bytes.
    unsafe { session.launch(c"gear", CTAS, 256, &arguments)? };
    let counts = counts.download::<u32>(tiles)?;
    let found = found.download::<u16>(tiles * SLOTS)?;
    let mut expected = Vec::new();
    // 32 zeros precede the bytes in the batch.
    let halo = [&[0; WINDOW][..], bytes].concat();
    Finder::with_kernel(&table, threshold, Kernel::Serial).candidates(&halo, WINDOW, &mut expected);
    let mut listed = Vec::new();
    let mut full = 0;
    for (tile, number) in counts.iter().enumerate() {
        let number = usize::try_from(*number).unwrap_or(usize::MAX);
        full += usize::from(SLOTS < number);
        let slots = &found[tile * SLOTS..(tile + 1) * SLOTS];
        listed.extend(slots[..number.min(SLOTS)].iter().map(|at| count(tile * TILE + usize::from(*at) + 1)));
    }
    if full != 0 {
        return Err(Fault::new(FaultKind::Wrong, "the device's kernel gear: more candidates than slots"));
    }
    compare("gear", &listed, &expected)
}

/// Starts and lengths of chunks, those of few leaves first, and the number of these.
fn chunks() -> (Vec<(usize, usize)>, usize) {
    let few: Vec<_> =
        (0..2100).step_by(13).chain([1023, 1024, 1025, 2048, 8191, 30_000]).map(|len| (len % 29, len)).collect();
    let many = [(1, 66_000), (3, BATCH_BYTES - 3), (70_000, 70_000)];
    let narrow = few.len();
    ([few, many.to_vec()].concat(), narrow)
}

/// The leaves of chunks, as `expand` lists them.
fn leaves_of(chunks: &[(usize, usize)]) -> Vec<u32> {
    let mut leaves = Vec::new();
    for (start, len) in chunks {
        let number_of = len.div_ceil(1024).max(1);
        for number in 0..number_of {
            let at = number * 1024;
            let shape = (len - at).min(1024) | number << 11 | usize::from(number_of == 1) << 31;
            leaves.extend([count(BEFORE_BYTES + start + at), count(shape)]);
        }
    }
    leaves
}

fn names(session: &Arc<Context>, bytes: &[u8], words: &[u32]) -> Result<(), Fault> {
    let (chunks, narrow) = chunks();
    let key: [u8; 32] = std::array::from_fn(|i| POISON ^ u8::try_from(i).unwrap_or(0));
    let key_words: Vec<u32> =
        key.chunks_exact(4).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).collect();
    let (mut listed, mut leaves) = (Vec::new(), 0);
    for (start, len) in &chunks {
        listed.extend([count(BEFORE_BYTES + start), count(*len), count(leaves)]);
        leaves += len.div_ceil(1024).max(1);
    }
    let (words, key_words, listed) = (session.upload(words)?, session.upload(&key_words)?, session.upload(&listed)?);
    let list = session.memory(8 * leaves, POISON)?;
    // SAFETY: each leaf of each chunk has 8 bytes.
    unsafe { session.launch(c"expand", CTAS, 128, &[Memory(&listed), Word(count(chunks.len())), Memory(&list)])? };
    // Later kernels use them as addresses.
    compare("expand", &list.download::<u32>(2 * leaves)?, &leaves_of(&chunks))?;
    let expected: Vec<u8> =
        chunks.iter().flat_map(|(start, len)| *blake3::keyed_hash(&key, &bytes[*start..][..*len]).as_bytes()).collect();
    for load in LOADS {
        let (nodes, other) = (session.memory(32 * leaves, POISON)?, session.memory(32 * leaves, POISON)?);
        let names = session.memory(32 * chunks.len(), POISON)?;
        let hash = [Memory(&words), Memory(&list), Word(count(leaves)), Memory(&key_words), Memory(&nodes)];
        let few = [Memory(&listed), Word(count(narrow)), Memory(&key_words), Memory(&nodes), Memory(&names)];
        let many = Word(count(chunks.len() - narrow));
        let wide = [
            From(&listed, 12 * narrow),
            many,
            Memory(&key_words),
            Memory(&nodes),
            Memory(&other),
            From(&names, 32 * narrow),
        ];
        // SAFETY: all chunks lie in the batch, each has its leaves and nodes, and each a name.
        unsafe {
            session.launch(load, CTAS, 128, &hash)?;
            session.launch(c"blake3_trees", CTAS, 128, &few)?;
            session.launch(c"blake3_trees_wide", CTAS, 128, &wide)?;
        }
        compare(&load.to_string_lossy(), &names.download::<u8>(expected.len())?, &expected)?;
    }
    Ok(())
}

/// Hashes a published text at every alignment.
fn vectors(session: &Arc<Context>) -> Result<(), Fault> {
    for at in 0..4 {
        let bytes = [&VECTOR[..at], VECTOR].concat();
        let words = session.upload(&batch(&bytes))?;
        let chunk = session.upload(&[count(BEFORE_BYTES + at), count(VECTOR.len()), 0])?;
        for (kernel, expected) in [(c"sha1", &VECTOR_SHA1[..]), (c"sha256", &VECTOR_SHA256)] {
            let name = session.memory(4 * expected.len(), POISON)?;
            // SAFETY: the chunk lies in the batch, and has a name.
            unsafe { session.launch(kernel, CTAS, 128, &[Memory(&words), Memory(&chunk), Word(1), Memory(&name)])? };
            let found: Vec<u32> = name.download::<u32>(expected.len())?.into_iter().map(u32::swap_bytes).collect();
            compare(&kernel.to_string_lossy(), &found, expected)?;
        }
    }
    Ok(())
}

/// Writes the number of a batch, and nothing else.
fn number(session: &Arc<Context>) -> Result<(), Fault> {
    let words = session.memory(12, POISON)?;
    // SAFETY: there is memory for the number.
    unsafe { session.launch(c"stamp", CTAS, 32, &[From(&words, 4), Word(7)])? };
    let other = u32::from_le_bytes([POISON; 4]);
    compare("stamp", &words.download::<u32>(3)?, &[other, 7, other])
}

/// Finds duplicates among names in both ways.
fn references(session: &Arc<Context>) -> Result<(), Fault> {
    // Few values, so that names repeat, and equal keys have different ends; all digits of the keys differ.
    let value = |number| (word(number) % 7).wrapping_mul(0x9e37_79b1);
    let values: Vec<u32> = numbers(3).map(value).take(4 * NAMES).collect();
    let mut first = HashMap::new();
    let name = |j: usize| -> [u32; 4] { std::array::from_fn(|w| values[w * NAMES + j]) };
    let expected: Vec<u32> = (0..NAMES).map(|j| *first.entry(name(j)).or_insert(count(j))).collect();
    let names = session.upload(&values)?;
    let n = count(NAMES);
    let backward = session.memory(4 * PAIRED, POISON)?;
    let arguments = [Memory(&names), Word(count(PAIRED)), Word(n), Memory(&backward)];
    // SAFETY: there is a result for each name.
    unsafe { session.launch(c"backward", CTAS, 256, &arguments)? };
    compare("backward", &backward.download::<u32>(PAIRED)?, &expected[..PAIRED])?;
    let (keys, order) = sort(session, &names, &values)?;
    let joined = session.memory(4 * NAMES, POISON)?;
    let asks = [Memory(&names), Word(n), Memory(&order), Word(n), Memory(&names), Word(n)];
    let knows = [Memory(&keys), Memory(&order), Word(n), Memory(&joined)];
    let arguments: Vec<_> = asks.into_iter().chain(knows).collect();
    // SAFETY: there is a result for each name.
    unsafe { session.launch(c"join", CTAS, 256, &arguments)? };
    compare("join", &joined.download::<u32>(NAMES)?, &expected)
}

/// Sorts names by their keys, and compares each step: a later one would use wrong positions as addresses. Returns the keys and
/// the order.
fn sort(
    session: &Arc<Context>,
    names: &context::Memory,
    values: &[u32],
) -> Result<(context::Memory, context::Memory), Fault> {
    let n = count(NAMES);
    let tiles = NAMES.div_ceil(SORT_TILE);
    let mut from = (session.memory(8 * NAMES, POISON)?, session.memory(4 * NAMES, POISON)?);
    let begin = [Memory(names), Word(n), Word(n), Memory(&from.0), Memory(&from.1)];
    // SAFETY: there is a key and a position for each name.
    unsafe { session.launch(c"sort_begin", CTAS, 256, &begin)? };
    let key = |j: usize| u64::from(values[j]) << 32 | u64::from(values[NAMES + j]);
    let mut expected: Vec<(u64, u32)> = (0..NAMES).map(|j| (key(j), count(j))).collect();
    compare_entries("sort_begin", &from, &expected)?;
    for shift in (0..64).step_by(4) {
        let digit = |key: u64| usize::try_from(key >> shift & 15).unwrap_or(0);
        // New memory for each step: that of an earlier one may have the same results.
        let to = (session.memory(8 * NAMES, POISON)?, session.memory(4 * NAMES, POISON)?);
        let counts = session.memory(4 * DIGITS * tiles, POISON)?;
        let mut numbers = vec![0; DIGITS * tiles];
        for (tile, entries) in expected.chunks(SORT_TILE).enumerate() {
            for (key, _) in entries {
                numbers[digit(*key) * tiles + tile] += 1;
            }
        }
        let counted = [Memory(&from.0), Word(n), Word(shift), Memory(&counts)];
        // SAFETY: there is a count for each digit of each tile.
        unsafe { session.launch(c"sort_count", CTAS, 256, &counted)? };
        compare("sort_count", &counts.download::<u32>(numbers.len())?, &numbers)?;
        // SAFETY: as above.
        unsafe { session.launch(c"sort_sum", 1, 256, &[Memory(&counts), Word(count(numbers.len()))])? };
        let mut sum = 0;
        for number in &mut numbers {
            sum += std::mem::replace(number, sum);
        }
        compare("sort_sum", &counts.download::<u32>(numbers.len())?, &numbers)?;
        let moved =
            [Memory(&from.0), Memory(&from.1), Word(n), Word(shift), Memory(&counts), Memory(&to.0), Memory(&to.1)];
        // SAFETY: the counts are right, so each key has its own new position.
        unsafe { session.launch(c"sort_move", CTAS, 256, &moved)? };
        expected.sort_by_key(|(key, _)| digit(*key));
        compare_entries("sort_move", &to, &expected)?;
        from = to;
    }
    Ok(from)
}

fn compare_entries(
    kernel: &str,
    (keys, order): &(context::Memory, context::Memory),
    expected: &[(u64, u32)],
) -> Result<(), Fault> {
    let (keys, order) = (keys.download::<u64>(expected.len())?, order.download::<u32>(expected.len())?);
    compare(kernel, &keys.into_iter().zip(order).collect::<Vec<_>>(), expected)
}
