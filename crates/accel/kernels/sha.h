// SHA-1 and SHA-256 of many chunks at a time, a thread for each chunk. The host sorts chunks by length, so that the threads
// of a warp end together.

struct Sha1 {
    static constexpr u32 WORDS = 5;

    DEVICE void begin(u32* s) {
        s[0] = 0x67452301u;
        s[1] = 0xEFCDAB89u;
        s[2] = 0x98BADCFEu;
        s[3] = 0x10325476u;
        s[4] = 0xC3D2E1F0u;
    }

    // Changes the state by a block of 16 words in big-endian order, which it overwrites.
    DEVICE void block(u32* s, u32* m) {
        u32 a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
#pragma unroll
        for (u32 i = 0; i < 80; i++) {
            if (16 <= i) m[i & 15] = rotate_left(m[(i + 13) & 15] ^ m[(i + 8) & 15] ^ m[(i + 2) & 15] ^ m[i & 15], 1);
            u32 f = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999u
                    : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1u
                    : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDCu
                             : (b ^ c ^ d) + 0xCA62C1D6u;
            u32 t = rotate_left(a, 5) + f + e + m[i & 15];
            e = d;
            d = c;
            c = rotate_left(b, 30);
            b = a;
            a = t;
        }
        s[0] += a;
        s[1] += b;
        s[2] += c;
        s[3] += d;
        s[4] += e;
    }
};

CONSTANT u32 SHA256_ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct Sha256 {
    static constexpr u32 WORDS = 8;

    DEVICE void begin(u32* s) {
        s[0] = 0x6a09e667u;
        s[1] = 0xbb67ae85u;
        s[2] = 0x3c6ef372u;
        s[3] = 0xa54ff53au;
        s[4] = 0x510e527fu;
        s[5] = 0x9b05688cu;
        s[6] = 0x1f83d9abu;
        s[7] = 0x5be0cd19u;
    }

    // As above.
    DEVICE void block(u32* s, u32* m) {
        u32 a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
#pragma unroll
        for (u32 i = 0; i < 64; i++) {
            if (16 <= i) {
                u32 p = m[(i + 1) & 15], q = m[(i + 14) & 15];
                m[i & 15] += (rotate_right(p, 7) ^ rotate_right(p, 18) ^ p >> 3) + m[(i + 9) & 15] +
                             (rotate_right(q, 17) ^ rotate_right(q, 19) ^ q >> 10);
            }
            u32 t1 = h + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) + ((e & f) ^ (~e & g)) +
                     SHA256_ROUNDS[i] + m[i & 15];
            u32 t2 = (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        s[0] += a;
        s[1] += b;
        s[2] += c;
        s[3] += d;
        s[4] += e;
        s[5] += f;
        s[6] += g;
        s[7] += h;
    }
};

// Ends the message: a bit after the first `left` bytes of the block, zeros, and in the last block the length in bits. A block
// `is_after` the one with that bit.
DEVICE void pad(u32* m, u32 left, bool is_after, bool is_last, u32 len) {
#pragma unroll
    for (u32 w = 0; w < BLOCK_WORDS; w++) {
        if (is_after || left < w * 4)
            m[w] = 0;
        else if (left < w * 4 + 4) {
            u32 bit = 0x80000000u >> (left - w * 4) * 8;
            m[w] = (m[w] & ~(bit - 1) & ~bit) | bit;
        }
    }
    if (is_last) {
        m[14] = len >> 29;
        m[15] = len << 3;
    }
}

// `names` gets the words of each chunk's hash, in the byte order of the hash.
template <typename Hash>
DEVICE void hash_chunks(const u32* __restrict__ words, const Chunk* __restrict__ chunks, u32 count,
                        u32* __restrict__ names) {
    for (u32 i = CTA * THREADS + TID; i < count; i += CTAS * THREADS) {
        Chunk chunk = chunks[i];
        u32 s[Hash::WORDS];
        Hash::begin(s);
        // A bit and eight bytes of length follow the chunk.
        u32 blocks = (chunk.len + 9 + BLOCK_BYTES - 1) / BLOCK_BYTES;
        for (u32 block = 0; block < blocks; block++) {
            u32 done = block * BLOCK_BYTES;
            bool is_after = chunk.len < done;
            u32 m[BLOCK_WORDS];
            // A block without bytes of the chunk is not loaded: it may lie behind the buffer.
            ByWords::load(words, is_after ? 0 : chunk.start + done, m);
#pragma unroll
            for (u32 w = 0; w < BLOCK_WORDS; w++) m[w] = swap_bytes(m[w]);
            if (chunk.len < done + BLOCK_BYTES) pad(m, chunk.len - done, is_after, block + 1 == blocks, chunk.len);
            Hash::block(s, m);
        }
#pragma unroll
        for (u32 w = 0; w < Hash::WORDS; w++) names[i * Hash::WORDS + w] = swap_bytes(s[w]);
    }
}

KERNEL BOUNDS(128, 4)
sha1(const u32* __restrict__ words, const Chunk* __restrict__ chunks, u32 count, u32* __restrict__ names) {
    hash_chunks<Sha1>(words, chunks, count, names);
}

KERNEL BOUNDS(128, 4)
sha256(const u32* __restrict__ words, const Chunk* __restrict__ chunks, u32 count, u32* __restrict__ names) {
    hash_chunks<Sha256>(words, chunks, count, names);
}
