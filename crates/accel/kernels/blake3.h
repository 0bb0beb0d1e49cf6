// Keyed BLAKE3 of many chunks at a time.
//
// A chunk is hashed in leaves of 1 KiB, then pairs of results, level by level, up to a root. `expand` lists the leaves of
// all chunks. One of three kernels hashes the leaves; they differ in how they load bytes. `blake3_trees` merges the leaves of
// chunks that have few, a thread for each chunk; `blake3_trees_wide` those of chunks that have many, a CTA for each.
//
// Results of leaves lie side by side, so that a pair is 64 bytes in a row.

#define LEAF_BYTES 1024u
#define BLOCK_BYTES 64u
#define BLOCK_WORDS 16u

// Flags of the compression function.
#define LEAF_START 1u
#define LEAF_END 2u
#define PARENT 4u
#define ROOT 8u
#define KEYED 16u

// A chunk: its first byte, its length, and the number of its first leaf among the leaves of all chunks.
struct Chunk {
    u32 start, len, leaf;
};

// A leaf: its first byte; its length in bits 0 to 10, its number in the chunk in bits 11 to 30, and bit 31 if it is the
// chunk's only leaf. So a chunk has less than 1 GiB.
struct Leaf {
    u32 start, shape;
};

// The result of a leaf or of a pair: a chaining value.
struct alignas(16) Node {
    u32 w[8];
};

DEVICE u32 leaves_of(u32 len) { return len <= LEAF_BYTES ? 1 : (len + LEAF_BYTES - 1) / LEAF_BYTES; }

#define MIX(a, b, c, d, x, y)      \
    a = a + b + x;                 \
    d = rotate_right(d ^ a, 16);   \
    c = c + d;                     \
    b = rotate_right(b ^ c, 12);   \
    a = a + b + y;                 \
    d = rotate_right(d ^ a, 8);    \
    c = c + d;                     \
    b = rotate_right(b ^ c, 7);
#define ROUND(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15) \
    MIX(v0, v4, v8, v12, m[m0], m[m1])                                              \
    MIX(v1, v5, v9, v13, m[m2], m[m3])                                              \
    MIX(v2, v6, v10, v14, m[m4], m[m5])                                             \
    MIX(v3, v7, v11, v15, m[m6], m[m7])                                             \
    MIX(v0, v5, v10, v15, m[m8], m[m9])                                             \
    MIX(v1, v6, v11, v12, m[m10], m[m11])                                           \
    MIX(v2, v7, v8, v13, m[m12], m[m13])                                            \
    MIX(v3, v4, v9, v14, m[m14], m[m15])

// The compression function: changes the chaining value by a block of 16 words.
DEVICE void compress(Node& cv, const u32* m, u32 counter, u32 len, u32 flags) {
    u32 v0 = cv.w[0], v1 = cv.w[1], v2 = cv.w[2], v3 = cv.w[3], v4 = cv.w[4], v5 = cv.w[5], v6 = cv.w[6], v7 = cv.w[7];
    u32 v8 = 0x6A09E667u, v9 = 0xBB67AE85u, v10 = 0x3C6EF372u, v11 = 0xA54FF53Au;
    u32 v12 = counter, v13 = 0, v14 = len, v15 = flags;
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
    ROUND(3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1)
    ROUND(10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6)
    ROUND(12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4)
    ROUND(9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7)
    ROUND(11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13)
    cv.w[0] = v0 ^ v8;
    cv.w[1] = v1 ^ v9;
    cv.w[2] = v2 ^ v10;
    cv.w[3] = v3 ^ v11;
    cv.w[4] = v4 ^ v12;
    cv.w[5] = v5 ^ v13;
    cv.w[6] = v6 ^ v14;
    cv.w[7] = v7 ^ v15;
}

// Lists the leaves of all chunks, a thread for each chunk.
KERNEL BOUNDS(128, 8) expand(const Chunk* __restrict__ chunks, u32 count, Leaf* __restrict__ leaves) {
    for (u32 i = CTA * THREADS + TID; i < count; i += CTAS * THREADS) {
        Chunk chunk = chunks[i];
        u32 n = leaves_of(chunk.len);
        for (u32 number = 0; number < n; number++) {
            u32 left = chunk.len - number * LEAF_BYTES;
            u32 len = left < LEAF_BYTES ? left : LEAF_BYTES;
            leaves[chunk.leaf + number] = {chunk.start + number * LEAF_BYTES, len | number << 11 | (n == 1 ? 1u << 31 : 0)};
        }
    }
}

// Loads a block by words: two neighbors and a funnel shift for each.
struct ByWords {
    DEVICE void load(const u32* __restrict__ words, u32 start, u32* m) {
        u32 at = start / 4, shift = (start & 3) * 8;
        u32 low = words[at];
#pragma unroll
        for (u32 w = 0; w < BLOCK_WORDS; w++) {
            u32 high = words[at + w + 1];
            m[w] = funnel(low, high, shift);
            low = high;
        }
    }
};

// Loads the aligned 80 bytes around a block, 16 at a time, and moves them to where the block begins.
struct ByQuads {
    DEVICE void load(const u32* __restrict__ words, u32 start, u32* m) {
        const Quad* quads = (const Quad*)words + start / 16;
        u32 x[20];
#pragma unroll
        for (u32 q = 0; q < 5; q++) {
            Quad quad = quads[q];
#pragma unroll
            for (u32 w = 0; w < 4; w++) x[q * 4 + w] = quad.w[w];
        }
        if (start & 4) {
#pragma unroll
            for (u32 w = 0; w < 19; w++) x[w] = x[w + 1];
        }
        if (start & 8) {
#pragma unroll
            for (u32 w = 0; w < 18; w++) x[w] = x[w + 2];
        }
        u32 shift = (start & 3) * 8;
#pragma unroll
        for (u32 w = 0; w < BLOCK_WORDS; w++) m[w] = funnel(x[w], x[w + 1], shift);
    }
};

// Sets the bytes from `left` on to zero. `left` is less than 64.
DEVICE void clear_from(u32* m, u32 left) {
#pragma unroll
    for (u32 w = 0; w < BLOCK_WORDS; w++) {
        if (left <= w * 4)
            m[w] = 0;
        else if (left < w * 4 + 4)
            m[w] &= (1u << (left - w * 4) * 8) - 1;
    }
}

DEVICE u32 len_of(u32 shape) { return shape & 2047; }

DEVICE u32 blocks_of(u32 shape) {
    u32 len = len_of(shape);
    return len == 0 ? 1 : (len + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

// Hashes a block of a leaf. Bytes behind the end of the leaf are zeros.
DEVICE void hash_block(Node& cv, u32 shape, const u32* m, u32 block) {
    u32 left = len_of(shape) - block * BLOCK_BYTES;
    u32 root = shape >> 31 ? ROOT : 0;
    u32 flags = KEYED | (block == 0 ? LEAF_START : 0) | (block + 1 == blocks_of(shape) ? LEAF_END | root : 0);
    compress(cv, m, shape >> 11 & 0xFFFFF, left < BLOCK_BYTES ? left : BLOCK_BYTES, flags);
}

template <typename Load>
DEVICE void hash_leaves(const u32* __restrict__ words, const Leaf* __restrict__ leaves, u32 count,
                        const Node* __restrict__ key, Node* __restrict__ results) {
    for (u32 i = CTA * THREADS + TID; i < count; i += CTAS * THREADS) {
        Leaf leaf = leaves[i];
        Node cv = *key;
        for (u32 block = 0; block < blocks_of(leaf.shape); block++) {
            u32 m[BLOCK_WORDS];
            Load::load(words, leaf.start + block * BLOCK_BYTES, m);
            u32 left = len_of(leaf.shape) - block * BLOCK_BYTES;
            if (left < BLOCK_BYTES) clear_from(m, left);
            hash_block(cv, leaf.shape, m, block);
        }
        results[i] = cv;
    }
}

KERNEL BOUNDS(128, 8)
blake3_leaves(const u32* __restrict__ words, const Leaf* __restrict__ leaves, u32 count, const Node* __restrict__ key,
              Node* __restrict__ results) {
    hash_leaves<ByWords>(words, leaves, count, key, results);
}

KERNEL BOUNDS(128, 8)
blake3_leaves_quads(const u32* __restrict__ words, const Leaf* __restrict__ leaves, u32 count,
                    const Node* __restrict__ key, Node* __restrict__ results) {
    hash_leaves<ByQuads>(words, leaves, count, key, results);
}

// Loads a word of a block. Bytes behind the end of the leaf are zeros.
DEVICE void load_word(u32* row, const u32* __restrict__ words, Leaf leaf, u32 block, u32 word) {
    u32 at = block * BLOCK_WORDS + word, end = (leaf.start & 3) + len_of(leaf.shape);
    u32 value = at * 4 < end ? words[leaf.start / 4 + at] : 0;
    if (end - at * 4 < 4) value &= (1u << (end - at * 4) * 8) - 1;
    row[word] = value;
}

// A warp brings a block of each of its 32 leaves to shared memory: half of its threads read neighboring words of one leaf.
// Then each thread hashes the block of its own leaf. A row has one word more than a block, because leaves begin at any byte; so
// the threads also read their rows from different banks of the memory.
KERNEL BOUNDS(128, 8)
blake3_leaves_staged(const u32* __restrict__ words, const Leaf* __restrict__ leaves, u32 count,
                     const Node* __restrict__ key, Node* __restrict__ results) {
    SHARED u32 rows[4][WARP][BLOCK_WORDS + 1];
    SHARED Leaf own[4][WARP];
    u32 warp = TID / WARP, lane = TID % WARP;
    // Threads of a warp leave the loop together: a leaf of none has no bytes.
    for (u32 i = CTA * THREADS + TID; i - lane < count; i += CTAS * THREADS) {
        own[warp][lane] = i < count ? leaves[i] : Leaf{0, 0};
        Node cv = *key;
#pragma unroll 1
        for (u32 block = 0; block < LEAF_BYTES / BLOCK_BYTES; block++) {
            WARP_BARRIER();
            for (u32 other = lane / BLOCK_WORDS; other < WARP; other += WARP / BLOCK_WORDS)
                load_word(rows[warp][other], words, own[warp][other], block, lane % BLOCK_WORDS);
            load_word(rows[warp][lane], words, own[warp][lane], block, BLOCK_WORDS);
            WARP_BARRIER();
            Leaf leaf = own[warp][lane];
            if (block < blocks_of(leaf.shape)) {
                const u32* row = rows[warp][lane];
                u32 m[BLOCK_WORDS];
#pragma unroll
                for (u32 w = 0; w < BLOCK_WORDS; w++) m[w] = funnel(row[w], row[w + 1], (leaf.start & 3) * 8);
                hash_block(cv, leaf.shape, m, block);
            }
        }
        if (i < count) results[i] = cv;
    }
}

// The node above a pair, which lies side by side.
DEVICE Node merge(const Node* __restrict__ key, const Node* pair, u32 root) {
    Node left = pair[0], right = pair[1], cv = *key;
    u32 m[BLOCK_WORDS];
#pragma unroll
    for (u32 w = 0; w < 8; w++) {
        m[w] = left.w[w];
        m[w + 8] = right.w[w];
    }
    compress(cv, m, 0, BLOCK_BYTES, KEYED | PARENT | root);
    return cv;
}

// Merges the results of each chunk's leaves, in place, a thread for each chunk; `names` gets 32 bytes for each.
//
// In BLAKE3's tree, a left subtree has the greatest power of two of leaves that leaves one for the right subtree. Merging
// pairs level by level, with the odd one going up unchanged, makes the same tree.
KERNEL BOUNDS(128, 8)
blake3_trees(const Chunk* __restrict__ chunks, u32 count, const Node* __restrict__ key, Node* results,
             Node* __restrict__ names) {
    for (u32 i = CTA * THREADS + TID; i < count; i += CTAS * THREADS) {
        Chunk chunk = chunks[i];
        Node* nodes = results + chunk.leaf;
        for (u32 n = leaves_of(chunk.len); 1 < n; n = (n + 1) / 2) {
            for (u32 pair = 0; pair < n / 2; pair++) nodes[pair] = merge(key, nodes + 2 * pair, n == 2 ? ROOT : 0);
            if (n & 1) nodes[n / 2] = nodes[n - 1];
        }
        names[i] = *nodes;
    }
}

// The same, a CTA for each chunk. Levels alternate between `results` and `other`, which has the same shape.
KERNEL BOUNDS(128, 8)
blake3_trees_wide(const Chunk* __restrict__ chunks, u32 count, const Node* __restrict__ key, Node* results, Node* other,
                  Node* __restrict__ names) {
    for (u32 i = CTA; i < count; i += CTAS) {
        Chunk chunk = chunks[i];
        Node* from = results + chunk.leaf;
        Node* to = other + chunk.leaf;
        for (u32 n = leaves_of(chunk.len); 1 < n; n = (n + 1) / 2) {
            for (u32 pair = TID; pair < n / 2; pair += THREADS) to[pair] = merge(key, from + 2 * pair, n == 2 ? ROOT : 0);
            if ((n & 1) && TID == 0) to[n / 2] = from[n - 1];
            BARRIER();
            Node* swapped = from;
            from = to;
            to = swapped;
        }
        if (TID == 0) names[i] = *from;
    }
}
