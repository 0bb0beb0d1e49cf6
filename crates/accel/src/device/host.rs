//! Launches of the kernels on the processor.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Bytes of a batch before the first chunk.
pub(super) const BEFORE_BYTES: usize = 32;
/// Bytes of a batch behind the last chunk.
const BEHIND_BYTES: usize = 128;
/// Positions of a tile of candidates.
pub(super) const TILE: usize = 16 << 10;
/// Leaves of a chunk from which on a whole CTA merges them.
const WIDE_LEAVES: usize = 64;
/// Keys that a CTA sorts at a time, and the values of a digit.
const SORT_TILE: usize = 4096;
const DIGITS: usize = 16;

unsafe extern "C" {
    fn onefold_host_launch(
        name: *const c_char,
        ctas: c_uint,
        threads: c_uint,
        backwards: c_int,
        arguments: *const *mut c_void,
    ) -> c_int;
    fn onefold_host_kernels() -> c_uint;
    fn onefold_host_kernel(number: c_uint) -> *const c_char;
}

/// Returns the names of the kernels.
pub(super) fn kernels() -> Vec<String> {
    // SAFETY: the function has no arguments and no state.
    let count = unsafe { onefold_host_kernels() };
    let name = |number| {
        // SAFETY: the number is below that of kernels, and names are constants.
        let name = unsafe { CStr::from_ptr(onefold_host_kernel(number)) };
        name.to_str().unwrap().to_owned()
    };
    (0..count).map(name).collect()
}

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Quad([u32; 4]);

/// The buffer of a batch: noise around the bytes.
pub(super) struct Batch {
    quads: Vec<Quad>,
    /// Number of bytes of chunks.
    len: usize,
}

impl Batch {
    /// Puts bytes into a batch. `before` are the bytes that precede them.
    pub(super) fn new(before: [u8; BEFORE_BYTES], bytes: &[u8]) -> Self {
        let mut all = before.to_vec();
        all.extend_from_slice(bytes);
        all.resize((all.len() + BEHIND_BYTES).next_multiple_of(16), 0xA5);
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let quads = all.chunks_exact(16).map(|quad| Quad(std::array::from_fn(|w| word(&quad[w * 4..w * 4 + 4]))));
        Self { quads: quads.collect(), len: bytes.len() }
    }

    fn words(&self) -> *const u32 {
        self.quads.as_ptr().cast()
    }
}

/// A chunk of a batch, as the kernels have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Chunk {
    start: u32,
    len: u32,
    leaf: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Leaf {
    _start: u32,
    _shape: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Node([u32; 8]);

impl Node {
    fn bytes(self) -> [u8; 32] {
        bytes_of(&self.0).try_into().unwrap()
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Names of 16 bytes in four planes, as the kernels have them.
pub(super) struct Planes {
    words: Vec<u32>,
    stride: usize,
}

impl Planes {
    pub(super) fn new(names: &[[u32; 4]]) -> Self {
        // A stride that is not the number of names.
        let stride = names.len() + 3;
        let mut words = vec![0x5A5A_5A5A; 4 * stride];
        for (j, name) in names.iter().enumerate() {
            (0..4).for_each(|w| words[w * stride + j] = name[w]);
        }
        Self { words, stride }
    }

    fn len(&self) -> usize {
        self.stride - 3
    }
}

/// Names of a list, sorted.
pub(super) struct Sorted {
    keys: Vec<u64>,
    order: Vec<u32>,
}

/// Candidates of tiles: the number in each, and the slots of each.
pub(super) struct Found {
    pub(super) counts: Vec<u32>,
    pub(super) slots: Vec<u16>,
}

/// The kernels that load bytes of leaves in different ways.
pub(super) const LOADS: [&CStr; 3] = [c"blake3_leaves", c"blake3_leaves_quads", c"blake3_leaves_staged"];

/// How launches run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Number of CTAs of a launch.
    pub(super) ctas: u32,
    /// The last CTA runs first.
    pub(super) backwards: bool,
}

/// Addresses of arguments.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        [$((&raw const $argument).cast_mut().cast::<c_void>()),*]
    };
}

fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap()
}

impl Grid {
    /// Launches a kernel. The arguments must be what the kernel takes, and the memory must be as large as it uses.
    unsafe fn launch(self, name: &CStr, threads: u32, arguments: &[*mut c_void]) {
        // SAFETY: the caller vouches for the arguments.
        let outcome = unsafe {
            onefold_host_launch(name.as_ptr(), self.ctas, threads, i32::from(self.backwards), arguments.as_ptr())
        };
        assert_eq!(outcome, 0, "{name:?}: 1 is no such kernel, 2 a barrier that some threads do not reach");
    }

    /// Searches all bytes of a batch.
    pub(super) fn gear(self, batch: &Batch, table: &[u32; 256], threshold: u32, slots: u32) -> Found {
        let tiles = batch.len.div_ceil(TILE);
        let mut counts = vec![u32::MAX; tiles];
        let mut found = vec![u16::MAX; tiles * slots as usize];
        let (words, table) = (batch.words(), table.as_ptr());
        let (first, len) = (BEFORE_BYTES as u64, batch.len as u64);
        let (counts_out, found_out) = (counts.as_mut_ptr(), found.as_mut_ptr());
        let arguments = arguments![words, first, len, table, threshold, slots, counts_out, found_out];
        // SAFETY: there is a count for each tile, and slots for each; the batch has what surrounds the bytes.
        unsafe { self.launch(c"gear", 256, &arguments) };
        Found { counts, slots: found }
    }

    /// Lists chunks, those of few leaves first, and returns them with the number of these.
    fn list(batch: &Batch, chunks: &[(usize, usize)]) -> (Vec<Chunk>, Vec<usize>, usize, usize) {
        let leaves = |len: usize| len.div_ceil(1024).max(1);
        let mut order: Vec<_> = (0..chunks.len()).collect();
        order.sort_by_key(|i| WIDE_LEAVES < leaves(chunks[*i].1));
        let mut total = 0;
        let mut listed = Vec::new();
        for (start, len) in order.iter().map(|i| chunks[*i]) {
            assert!(start + len <= batch.len);
            listed.push(Chunk { start: number(BEFORE_BYTES + start), len: number(len), leaf: number(total) });
            total += leaves(len);
        }
        let narrow = chunks.iter().filter(|(_, len)| leaves(*len) <= WIDE_LEAVES).count();
        (listed, order, narrow, total)
    }

    /// Returns the keyed BLAKE3 of chunks of a batch, each a start and a length.
    pub(super) fn blake3(self, load: &CStr, batch: &Batch, key: &[u8; 32], chunks: &[(usize, usize)]) -> Vec<[u8; 32]> {
        let (listed, order, narrow, total) = Self::list(batch, chunks);
        let word = |w: usize| u32::from_le_bytes(key[w * 4..w * 4 + 4].try_into().unwrap());
        let key = Node(std::array::from_fn(word));
        let mut leaves = vec![Leaf { _start: u32::MAX, _shape: u32::MAX }; total];
        let mut nodes = vec![Node([u32::MAX; 8]); total];
        let mut other = nodes.clone();
        let mut names = vec![Node([u32::MAX; 8]); chunks.len()];
        let (words, chunks_in, count, total) = (batch.words(), listed.as_ptr(), number(listed.len()), number(total));
        let (leaves_out, nodes_out, other_out, names_out) =
            (leaves.as_mut_ptr(), nodes.as_mut_ptr(), other.as_mut_ptr(), names.as_mut_ptr());
        let (key, few, many) = (&raw const key, number(narrow), number(listed.len() - narrow));
        let (wide_in, wide_out) = (chunks_in.wrapping_add(narrow), names_out.wrapping_add(narrow));
        // SAFETY: all chunks lie in the batch, each has its leaves and nodes, and each a name.
        unsafe {
            self.launch(c"expand", 128, &arguments![chunks_in, count, leaves_out]);
            self.launch(load, 128, &arguments![words, leaves_out, total, key, nodes_out]);
            self.launch(c"blake3_trees", 128, &arguments![chunks_in, few, key, nodes_out, names_out]);
            let wide = arguments![wide_in, many, key, nodes_out, other_out, wide_out];
            self.launch(c"blake3_trees_wide", 128, &wide);
        }
        let mut ordered = vec![[0; 32]; chunks.len()];
        order.into_iter().zip(names).for_each(|(i, name)| ordered[i] = name.bytes());
        ordered
    }

    /// Returns the SHA-1 or SHA-256 of chunks of a batch, which have `len` bytes.
    fn sha(self, kernel: &CStr, len: usize, batch: &Batch, chunks: &[(usize, usize)]) -> Vec<Vec<u8>> {
        let (listed, order, _, _) = Self::list(batch, chunks);
        let mut names = vec![u32::MAX; chunks.len() * len / 4];
        let (words, chunks_in, count, out) = (batch.words(), listed.as_ptr(), number(listed.len()), names.as_mut_ptr());
        // SAFETY: all chunks lie in the batch, and each has a name.
        unsafe { self.launch(kernel, 128, &arguments![words, chunks_in, count, out]) };
        let mut ordered = vec![Vec::new(); chunks.len()];
        order.into_iter().zip(names.chunks(len / 4)).for_each(|(i, name)| ordered[i] = bytes_of(name));
        ordered
    }

    /// Returns the SHA-1 of chunks.
    pub(super) fn sha1(self, batch: &Batch, chunks: &[(usize, usize)]) -> Vec<Vec<u8>> {
        self.sha(c"sha1", 20, batch, chunks)
    }

    /// Returns the SHA-256 of chunks.
    pub(super) fn sha256(self, batch: &Batch, chunks: &[(usize, usize)]) -> Vec<Vec<u8>> {
        self.sha(c"sha256", 32, batch, chunks)
    }

    /// Returns for each name the first position of an equal one, by comparing all pairs.
    pub(super) fn backward(self, names: &Planes) -> Vec<u32> {
        let mut first = vec![u32::MAX; names.len()];
        let (words, n, stride, out) =
            (names.words.as_ptr(), number(names.len()), number(names.stride), first.as_mut_ptr());
        // SAFETY: there is a result for each name.
        unsafe { self.launch(c"backward", 256, &arguments![words, n, stride, out]) };
        first
    }

    /// Sorts names.
    pub(super) fn sort(self, names: &Planes) -> Sorted {
        let len = names.len();
        let tiles = len.div_ceil(SORT_TILE);
        let mut from = Sorted { keys: vec![u64::MAX; len], order: vec![u32::MAX; len] };
        let mut to = Sorted { keys: vec![u64::MAX; len], order: vec![u32::MAX; len] };
        let mut counts = vec![u32::MAX; DIGITS * tiles];
        let (words, n, stride) = (names.words.as_ptr(), number(len), number(names.stride));
        let (keys, order) = (from.keys.as_mut_ptr(), from.order.as_mut_ptr());
        // SAFETY: there is a key and a position for each name.
        unsafe { self.launch(c"sort_begin", 256, &arguments![words, n, stride, keys, order]) };
        for shift in (0u32..64).step_by(4) {
            let (keys, order) = (from.keys.as_ptr(), from.order.as_ptr());
            let (keys_out, order_out) = (to.keys.as_mut_ptr(), to.order.as_mut_ptr());
            let (sums, len) = (counts.as_mut_ptr(), number(counts.len()));
            let single = Self { ctas: 1, ..self };
            // SAFETY: there is a count for each digit of each tile, and both lists have a key for each name.
            unsafe {
                self.launch(c"sort_count", 256, &arguments![keys, n, shift, sums]);
                single.launch(c"sort_sum", 256, &arguments![sums, len]);
                self.launch(c"sort_move", 256, &arguments![keys, order, n, shift, sums, keys_out, order_out]);
            }
            std::mem::swap(&mut from, &mut to);
        }
        from
    }

    /// Returns for each asked name the first position of an equal known one, or `u32::MAX`.
    pub(super) fn join(self, asked: &Planes, known: &Planes) -> Vec<u32> {
        let (order, sorted) = (self.sort(asked).order, self.sort(known));
        let mut found = vec![7; asked.len()];
        let (asked_in, asked_stride) = (asked.words.as_ptr(), number(asked.stride));
        let (asked_order, asked_count) = (order.as_ptr(), number(asked.len()));
        let (known_in, known_stride, known_count) = (known.words.as_ptr(), number(known.stride), number(known.len()));
        let (keys, positions, out) = (sorted.keys.as_ptr(), sorted.order.as_ptr(), found.as_mut_ptr());
        let asks = arguments![asked_in, asked_stride, asked_order, asked_count];
        let knows = arguments![known_in, known_stride, keys, positions, known_count, out];
        // SAFETY: there is a result for each asked name.
        unsafe { self.launch(c"join", 256, &[&asks[..], &knows[..]].concat()) };
        found
    }
}

impl Sorted {
    /// Returns the keys with their positions.
    pub(super) fn entries(&self) -> Vec<(u64, u32)> {
        self.keys.iter().copied().zip(self.order.iter().copied()).collect()
    }
}
