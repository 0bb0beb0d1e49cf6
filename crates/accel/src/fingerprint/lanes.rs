//! The compression function of BLAKE3 in the lanes of a vector (section 2.2 of its paper), for any width.
#![expect(clippy::inline_always, reason = "vector instructions are only compiled where their feature is on")]

use crate::memory::will_need;

use super::leaf::{BLOCK_BYTES, LEAF_BYTES, Leaf};

/// Widest vector, in lanes.
pub(super) const LANES_MAX: usize = 16;

const IV: [u32; 4] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a];

const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 1 << 1;
const PARENT: u32 = 1 << 2;
const ROOT: u32 = 1 << 3;
const KEYED_HASH: u32 = 1 << 4;

/// Order of the message's words in each round, those of the columns first (Table 2 of the paper, applied repeatedly).
const SCHEDULE: [[[usize; 8]; 2]; 7] = [
    [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]],
    [[2, 6, 3, 10, 7, 0, 4, 13], [1, 11, 12, 5, 9, 14, 15, 8]],
    [[3, 4, 10, 12, 13, 2, 7, 14], [6, 5, 9, 0, 11, 15, 8, 1]],
    [[10, 7, 12, 9, 14, 3, 13, 15], [4, 0, 11, 2, 5, 8, 1, 6]],
    [[12, 13, 9, 11, 15, 10, 14, 8], [7, 2, 5, 3, 0, 1, 6, 4]],
    [[9, 14, 11, 5, 8, 12, 15, 1], [13, 3, 0, 10, 2, 6, 4, 7]],
    [[11, 15, 5, 0, 1, 9, 8, 6], [14, 10, 2, 12, 3, 4, 7, 13]],
];

/// Eight words: a key, or the result of a leaf or a pair.
pub(super) type Words = [u32; 8];

/// A word of 32 bits in every lane.
pub(super) trait Vector: Copy {
    /// Number of lanes.
    const LANES: usize;
    /// Constants for rotations.
    type Rotations: Copy;

    /// Returns the constants for rotations.
    ///
    /// # Safety
    ///
    /// As for `new`.
    unsafe fn rotations() -> Self::Rotations;

    /// Loads the first words of `words`.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions of this vector. The safe functions rely on it: every vector stems from
    /// this function, `load` or `rotations`.
    unsafe fn new(words: &[u32; LANES_MAX]) -> Self;

    /// Returns the sixteen words of a block, a lane for each block.
    ///
    /// # Safety
    ///
    /// As for `new`.
    unsafe fn load(blocks: &[&[u8; BLOCK_BYTES]; LANES_MAX]) -> [Self; 16];

    fn store(self, words: &mut [u32; LANES_MAX]);
    fn add(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn rotate_right_16(self, rotations: Self::Rotations) -> Self;
    fn rotate_right_12(self) -> Self;
    fn rotate_right_8(self, rotations: Self::Rotations) -> Self;
    fn rotate_right_7(self) -> Self;
}

/// Computes half a round: the quarter round on four columns or diagonals. Their steps alternate, so that none waits for
/// the previous one.
#[inline(always)]
fn half<V: Vector>(state: &mut [V; 16], places: [[usize; 4]; 4], words: [V; 8], rotations: V::Rotations) {
    for second in [false, true] {
        for (quarter, [a, ..]) in places.iter().enumerate() {
            state[*a] = state[*a].add(words[2 * quarter + usize::from(second)]);
        }
        for [a, b, ..] in &places {
            state[*a] = state[*a].add(state[*b]);
        }
        for [a, .., d] in &places {
            state[*d] = state[*d].xor(state[*a]);
        }
        for [.., d] in &places {
            let word = state[*d];
            state[*d] = if second { word.rotate_right_8(rotations) } else { word.rotate_right_16(rotations) };
        }
        for [.., c, d] in &places {
            state[*c] = state[*c].add(state[*d]);
        }
        for [_, b, c, _] in &places {
            state[*b] = state[*b].xor(state[*c]);
        }
        for [_, b, ..] in &places {
            let word = state[*b];
            state[*b] = if second { word.rotate_right_7() } else { word.rotate_right_12() };
        }
    }
}

/// Computes a round. Its number is a const parameter, so that the compiler knows every index.
#[inline(always)]
fn round<const ROUND: usize, V: Vector>(state: &mut [V; 16], message: &[V; 16], rotations: V::Rotations) {
    let [columns, diagonals] = SCHEDULE[ROUND];
    half(state, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]], words(message, columns), rotations);
    half(state, [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]], words(message, diagonals), rotations);
}

#[inline(always)]
fn words<V: Vector>(message: &[V; 16], places: [usize; 8]) -> [V; 8] {
    let mut words = [message[0]; 8];
    for (word, place) in words.iter_mut().zip(places) {
        *word = message[place];
    }
    words
}

/// The inputs of the compression function other than key and message.
#[derive(Clone, Copy)]
struct Context<V: Vector> {
    rotations: V::Rotations,
    iv: [V; 4],
    counter: V,
    /// The upper half of the counter: inputs here have fewer than 2^32 leaves.
    zero: V,
    len: V,
    flags: V,
}

#[inline(always)]
fn compress<V: Vector>(key: &mut [V; 8], message: &[V; 16], context: &Context<V>) {
    let ([k0, k1, k2, k3, k4, k5, k6, k7], [i0, i1, i2, i3]) = (*key, context.iv);
    let Context { counter, zero, len, flags, .. } = *context;
    let mut state = [k0, k1, k2, k3, k4, k5, k6, k7, i0, i1, i2, i3, counter, zero, len, flags];
    round::<0, V>(&mut state, message, context.rotations);
    round::<1, V>(&mut state, message, context.rotations);
    round::<2, V>(&mut state, message, context.rotations);
    round::<3, V>(&mut state, message, context.rotations);
    round::<4, V>(&mut state, message, context.rotations);
    round::<5, V>(&mut state, message, context.rotations);
    round::<6, V>(&mut state, message, context.rotations);
    for (index, word) in key.iter_mut().enumerate() {
        *word = state[index].xor(state[index + 8]);
    }
}

#[inline(always)]
unsafe fn splat<V: Vector>(word: u32) -> V {
    // SAFETY: the caller guarantees it.
    unsafe { V::new(&[word; LANES_MAX]) }
}

#[inline(always)]
unsafe fn splat_key<V: Vector>(key: &Words) -> [V; 8] {
    // SAFETY: the caller guarantees it.
    let mut vectors = unsafe { [splat::<V>(0); 8] };
    for (vector, word) in vectors.iter_mut().zip(key) {
        // SAFETY: the caller guarantees it.
        *vector = unsafe { splat(*word) };
    }
    vectors
}

#[inline(always)]
unsafe fn context<V: Vector>(counters: &[u32; LANES_MAX], len: u32, flags: u32) -> Context<V> {
    let [i0, i1, i2, i3] = IV;
    // SAFETY: the caller guarantees it.
    unsafe {
        Context {
            rotations: V::rotations(),
            iv: [splat(i0), splat(i1), splat(i2), splat(i3)],
            counter: V::new(counters),
            zero: splat(0),
            len: splat(len),
            flags: splat(flags),
        }
    }
}

#[inline(always)]
fn store<V: Vector>(vectors: &[V; 8], out: &mut [[u8; 32]; LANES_MAX]) {
    for (index, vector) in vectors.iter().enumerate() {
        let mut words = [0; LANES_MAX];
        vector.store(&mut words);
        for (lane, word) in out.iter_mut().zip(words) {
            lane[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Hashes a whole leaf in every lane; none is a root. Prefetches the leaves that will be hashed next, because the
/// hardware prefetcher cannot follow a stream in every lane.
///
/// # Safety
///
/// The processor must have the instructions of the vector.
#[inline(always)]
pub(super) unsafe fn whole_leaves<V: Vector>(
    key: &Words,
    leaves: &[&[u8; LEAF_BYTES]; LANES_MAX],
    counters: &[u32; LANES_MAX],
    next: &[&[u8; LEAF_BYTES]; LANES_MAX],
    out: &mut [[u8; 32]; LANES_MAX],
) {
    // SAFETY: the caller guarantees it.
    let (mut state, mut context) = unsafe { (splat_key::<V>(key), context::<V>(counters, 64, 0)) };
    for block in 0..LEAF_BYTES / BLOCK_BYTES {
        let mut blocks = [&[0; BLOCK_BYTES]; LANES_MAX];
        for (part, leaf) in blocks.iter_mut().zip(leaves).take(V::LANES) {
            *part = &leaf.as_chunks().0[block];
        }
        for leaf in next.iter().take(V::LANES) {
            will_need::<[u8; BLOCK_BYTES]>(&leaf.as_chunks().0[block]);
        }
        let flags = match block {
            0 => KEYED_HASH | CHUNK_START,
            15 => KEYED_HASH | CHUNK_END,
            _ => KEYED_HASH,
        };
        // SAFETY: the caller guarantees it.
        let message = unsafe {
            context.flags = splat(flags);
            V::load(&blocks)
        };
        compress(&mut state, &message, &context);
    }
    store(&state, out);
}

/// Hashes leaves of any length, at most one for each lane.
///
/// # Safety
///
/// The processor must have the instructions of the vector.
#[inline(always)]
pub(super) unsafe fn mixed_leaves<V: Vector>(key: &Words, leaves: &[Leaf<'_>], out: &mut [[u8; 32]; LANES_MAX]) {
    let leaves = &leaves[..leaves.len().min(V::LANES)];
    let mut counters = [0; LANES_MAX];
    for (counter, leaf) in counters.iter_mut().zip(leaves) {
        *counter = leaf.counter;
    }
    // SAFETY: the caller guarantees it.
    let (mut state, mut context) = unsafe { (splat_key::<V>(key), context::<V>(&counters, 0, 0)) };
    let blocks_max = leaves.iter().map(Leaf::blocks).max().unwrap_or(0);
    // The partial block of every leaf.
    let mut ends = [[0; BLOCK_BYTES]; LANES_MAX];
    for (end, leaf) in ends.iter_mut().zip(leaves) {
        let bytes = leaf.bytes.as_chunks::<BLOCK_BYTES>().1;
        end[..bytes.len()].copy_from_slice(bytes);
    }
    for block in 0..blocks_max {
        let mut blocks = [&[0; BLOCK_BYTES]; LANES_MAX];
        let (mut len, mut flags, mut active) = ([0; LANES_MAX], [0; LANES_MAX], [0; LANES_MAX]);
        for (lane, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| block < leaf.blocks()) {
            blocks[lane] = leaf.bytes.as_chunks().0.get(block).unwrap_or(&ends[lane]);
            let rest = leaf.bytes.len() - block * BLOCK_BYTES;
            len[lane] = u32::try_from(rest.min(BLOCK_BYTES)).expect("at most a block");
            let is_last = block + 1 == leaf.blocks();
            flags[lane] = KEYED_HASH
                | if block == 0 { CHUNK_START } else { 0 }
                | if is_last { CHUNK_END } else { 0 }
                | if is_last && leaf.is_root { ROOT } else { 0 };
            active[lane] = u32::MAX;
        }
        // SAFETY: the caller guarantees it.
        let (message, active) = unsafe {
            (context.len, context.flags) = (V::new(&len), V::new(&flags));
            (V::load(&blocks), V::new(&active))
        };
        let before = state;
        compress(&mut state, &message, &context);
        // Leaves with fewer blocks keep their result.
        for (now, before) in state.iter_mut().zip(before) {
            *now = now.xor(before).and(active).xor(before);
        }
    }
    store(&state, out);
}

/// Hashes a pair of results in every lane; `is_root` is true for the last pair of a chunk.
///
/// # Safety
///
/// The processor must have the instructions of the vector.
#[inline(always)]
pub(super) unsafe fn parents<V: Vector>(
    key: &Words,
    pairs: &[&[u8; BLOCK_BYTES]; LANES_MAX],
    is_root: &[bool; LANES_MAX],
    out: &mut [[u8; 32]; LANES_MAX],
) {
    let mut flags = [KEYED_HASH | PARENT; LANES_MAX];
    for (flags, is_root) in flags.iter_mut().zip(is_root) {
        *flags |= if *is_root { ROOT } else { 0 };
    }
    // SAFETY: the caller guarantees it.
    let (mut state, message, context) = unsafe {
        let mut context = context::<V>(&[0; LANES_MAX], 64, 0);
        context.flags = V::new(&flags);
        (splat_key::<V>(key), V::load(pairs), context)
    };
    compress(&mut state, &message, &context);
    store(&state, out);
}
