//! Filling the lanes from many chunks.

use std::marker::PhantomData;

use super::lanes::{LANES_MAX, Vector, Words};
use super::leaf::{BLOCK_BYTES, LEAF_BYTES, Leaf};

/// Number of leaves that complete a group. Their bytes are still in the second-level cache when the last leaves are
/// hashed.
const GROUP_LEAVES: usize = 512;
/// Maximum length of a chunk in a group. Longer chunks fill the lanes on their own, and would need memory in
/// proportion.
const CHUNK_BYTES_MAX: usize = 128 << 10;

/// The kernels of a vector, compiled with its instructions.
///
/// # Safety
///
/// The processor must have the instructions of the vector.
pub(super) trait Kernels: Vector {
    unsafe fn whole_leaves(
        key: &Words,
        leaves: &[&[u8; LEAF_BYTES]; LANES_MAX],
        counters: &[u32; LANES_MAX],
        next: &[&[u8; LEAF_BYTES]; LANES_MAX],
        out: &mut [[u8; 32]; LANES_MAX],
    );
    unsafe fn mixed_leaves(key: &Words, leaves: &[Leaf<'_>], out: &mut [[u8; 32]; LANES_MAX]);
    unsafe fn parents(
        key: &Words,
        pairs: &[&[u8; BLOCK_BYTES]; LANES_MAX],
        is_root: &[bool; LANES_MAX],
        out: &mut [[u8; 32]; LANES_MAX],
    );
}

/// Compiles the kernels of a vector with its instructions.
macro_rules! kernels {
    ($vector:ty, $feature:literal) => {
        use $crate::fingerprint::group::Kernels;
        use $crate::fingerprint::lanes::{self, Words};
        use $crate::fingerprint::leaf::{LEAF_BYTES, Leaf};

        impl Kernels for $vector {
            #[target_feature(enable = $feature)]
            unsafe fn whole_leaves(
                key: &Words,
                leaves: &[&[u8; LEAF_BYTES]; LANES_MAX],
                counters: &[u32; LANES_MAX],
                next: &[&[u8; LEAF_BYTES]; LANES_MAX],
                out: &mut [[u8; 32]; LANES_MAX],
            ) {
                // SAFETY: the feature is enabled in this function.
                unsafe { lanes::whole_leaves::<Self>(key, leaves, counters, next, out) }
            }

            #[target_feature(enable = $feature)]
            unsafe fn mixed_leaves(key: &Words, leaves: &[Leaf<'_>], out: &mut [[u8; 32]; LANES_MAX]) {
                // SAFETY: the feature is enabled in this function.
                unsafe { lanes::mixed_leaves::<Self>(key, leaves, out) }
            }

            #[target_feature(enable = $feature)]
            unsafe fn parents(
                key: &Words,
                pairs: &[&[u8; BLOCK_BYTES]; LANES_MAX],
                is_root: &[bool; LANES_MAX],
                out: &mut [[u8; 32]; LANES_MAX],
            ) {
                // SAFETY: the feature is enabled in this function.
                unsafe { lanes::parents::<Self>(key, pairs, is_root, out) }
            }
        }
    };
}
pub(super) use kernels;

/// A function of two vectors that is one instruction.
macro_rules! of_two {
    ($name:ident, $instruction:path) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: a vector exists, so the processor has the feature.
            Self(unsafe { $instruction(self.0, other.0) })
        }
    };
}
pub(super) use of_two;

/// Appends the keyed BLAKE3 of every chunk.
///
/// # Safety
/// The processor must have the instructions of the vector.
pub(super) unsafe fn keyed_hashes<K: Kernels>(key: &[u8; 32], chunks: &[&[u8]], out: &mut Vec<[u8; 32]>) {
    let mut key_words = [0; 8];
    for (word, bytes) in key_words.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut group = Group::<K> {
        key: key_words,
        runs: Vec::new(),
        results: Vec::new(),
        whole: Vec::new(),
        mixed: Vec::new(),
        kernels: PhantomData,
    };
    for chunk in chunks {
        let is_long = CHUNK_BYTES_MAX < chunk.len();
        if is_long || GROUP_LEAVES <= group.results.len() {
            group.finish(out);
        }
        if is_long {
            out.push(*blake3::keyed_hash(key, chunk).as_bytes());
        } else {
            group.add(chunk);
        }
    }
    group.finish(out);
}

/// The results of one chunk on the current level.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    len: usize,
}

/// Chunks that are hashed together. Exists only on a processor that has the instructions of the vector.
struct Group<'a, K> {
    key: Words,
    runs: Vec<Run>,
    /// Results of the leaves, then of the pairs of each level.
    results: Vec<[u8; 32]>,
    /// Whole leaves, fewer than two per lane.
    whole: Vec<(&'a [u8; LEAF_BYTES], Leaf<'a>)>,
    mixed: Vec<Leaf<'a>>,
    kernels: PhantomData<K>,
}

impl<'a, K: Kernels> Group<'a, K> {
    fn add(&mut self, chunk: &'a [u8]) {
        let start = self.results.len();
        let len = chunk.len().div_ceil(LEAF_BYTES).max(1);
        self.runs.push(Run { start, len });
        self.results.resize(start + len, [0; 32]);
        let (whole, rest) = chunk.as_chunks::<LEAF_BYTES>();
        let leaf = |number: usize, bytes| {
            let counter = u32::try_from(number).expect("the caller hashes longer chunks with the crate");
            Leaf { bytes, counter, is_root: len == 1, slot: start + number }
        };
        if len == 1 {
            self.mixed.push(leaf(0, chunk));
            return;
        }
        for (counter, bytes) in whole.iter().enumerate() {
            self.whole.push((bytes, leaf(counter, bytes)));
            if self.whole.len() == 2 * K::LANES {
                self.hash_whole();
            }
        }
        if !rest.is_empty() {
            self.mixed.push(leaf(whole.len(), rest));
        }
    }

    /// Hashes one whole leaf in each lane, and prefetches the leaves that follow.
    fn hash_whole(&mut self) {
        let (mut leaves, mut counters) = ([&[0; LEAF_BYTES]; LANES_MAX], [0; LANES_MAX]);
        for (lane, (bytes, leaf)) in self.whole.iter().take(K::LANES).enumerate() {
            (leaves[lane], counters[lane]) = (bytes, leaf.counter);
        }
        let mut next = leaves;
        for (lane, (bytes, _)) in self.whole.iter().skip(K::LANES).enumerate() {
            next[lane] = bytes;
        }
        let mut out = [[0; 32]; LANES_MAX];
        // SAFETY: a group exists, so the processor has the instructions.
        unsafe { K::whole_leaves(&self.key, &leaves, &counters, &next, &mut out) };
        for ((_, leaf), result) in self.whole.drain(..K::LANES).zip(out) {
            self.results[leaf.slot] = result;
        }
    }

    fn finish(&mut self, out: &mut Vec<[u8; 32]>) {
        while K::LANES <= self.whole.len() {
            self.hash_whole();
        }
        self.mixed.extend(self.whole.drain(..).map(|(_, leaf)| leaf));
        // Leaves of equal length are adjacent, so that few lanes are idle.
        self.mixed.sort_unstable_by_key(Leaf::blocks);
        for leaves in self.mixed.chunks(K::LANES) {
            let mut out = [[0; 32]; LANES_MAX];
            // SAFETY: a group exists, so the processor has the instructions.
            unsafe { K::mixed_leaves(&self.key, leaves, &mut out) };
            for (leaf, result) in leaves.iter().zip(out) {
                self.results[leaf.slot] = result;
            }
        }
        self.mixed.clear();
        self.hash_pairs();
        out.extend(self.runs.drain(..).map(|run| self.results[run.start]));
        self.results.clear();
    }

    /// Hashes the pairs of every chunk's results, level by level, until one result is left at the start of its run.
    fn hash_pairs(&mut self) {
        // Pairs of a level: index of the first result, index of the new result, and whether it is the root.
        let mut pairs = Vec::new();
        loop {
            let mut next = Vec::with_capacity(self.results.len() / 2 + self.runs.len());
            pairs.clear();
            for run in &mut self.runs {
                let start = next.len();
                let len = run.len.div_ceil(2);
                if run.len == 1 {
                    next.push(self.results[run.start]);
                } else {
                    for pair in 0..run.len / 2 {
                        pairs.push((run.start + 2 * pair, start + pair, run.len == 2));
                    }
                    next.resize(start + len, self.results[run.start + run.len - 1]);
                }
                *run = Run { start, len };
            }
            if pairs.is_empty() {
                return;
            }
            for pairs in pairs.chunks(K::LANES) {
                let (mut blocks, mut is_root) = ([&[0; BLOCK_BYTES]; LANES_MAX], [false; LANES_MAX]);
                for (lane, (from, _, last)) in pairs.iter().enumerate() {
                    blocks[lane] = &self.results[*from..from + 2].as_flattened().as_chunks().0[0];
                    is_root[lane] = *last;
                }
                let mut out = [[0; 32]; LANES_MAX];
                // SAFETY: a group exists, so the processor has the instructions.
                unsafe { K::parents(&self.key, &blocks, &is_root, &mut out) };
                for ((_, to, _), result) in pairs.iter().zip(out) {
                    next[*to] = result;
                }
            }
            self.results = next;
        }
    }
}
