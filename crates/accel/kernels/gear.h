// Candidates for the ends of chunks: crates/accel/src/boundary has the definition.

// Positions of a tile, which a CTA searches, and of one thread in it.
#define TILE 16384u
#define STRIP 64u
#define GEAR_THREADS 256u
#define WINDOW 32u

// CTAs of a multiprocessor: 1,536 threads, where it has as many.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GEAR_CTAS 4
#else
#define GEAR_CTAS 6
#endif

// Adds up a number of each of the 256 threads of a CTA. Returns the sum of those before this thread, and the whole sum.
// `sums` has 256 words, `groups` 8. The caller may call it again at once.
DEVICE u32 sum_before(u32* sums, u32* groups, u32 mine, u32* whole) {
    u32 tid = TID;
    sums[tid] = mine;
    BARRIER();
    // Eight threads add up 32 numbers each.
    if (tid < 8) {
        u32 sum = 0;
        for (u32 i = 0; i < 32; i++) {
            u32 next = sums[tid * 32 + i];
            sums[tid * 32 + i] = sum;
            sum += next;
        }
        groups[tid] = sum;
    }
    BARRIER();
    u32 before = sums[tid], all = 0;
#pragma unroll
    for (u32 g = 0; g < 8; g++) {
        if (g < tid / 32) before += groups[g];
        all += groups[g];
    }
    *whole = all;
    return before;
}

// Sets a bit for each of the 64 positions from byte `start` on whose hash is less than the threshold.
DEVICE u64 search_strip(const u32* __restrict__ words, u64 start, const u32* table, u32 threshold) {
    u64 at = (start - WINDOW) / 4;
    u64 marks = 0;
    u32 hash = 0;
#pragma unroll
    for (u32 i = 0; i < WINDOW / 4; i++) {
        u32 word = words[at + i];
        hash = (hash << 1) + table[word & 255];
        hash = (hash << 1) + table[word >> 8 & 255];
        hash = (hash << 1) + table[word >> 16 & 255];
        hash = (hash << 1) + table[word >> 24];
    }
#pragma unroll
    for (u32 i = 0; i < STRIP / 4; i++) {
        u32 word = words[at + WINDOW / 4 + i];
        u32 four = 0;
        hash = (hash << 1) + table[word & 255];
        four |= hash < threshold ? 1u : 0u;
        hash = (hash << 1) + table[word >> 8 & 255];
        four |= hash < threshold ? 2u : 0u;
        hash = (hash << 1) + table[word >> 16 & 255];
        four |= hash < threshold ? 4u : 0u;
        hash = (hash << 1) + table[word >> 24];
        four |= hash < threshold ? 8u : 0u;
        marks |= (u64)four << (4 * i);
    }
    return marks;
}

// Searches `len` bytes from byte `first` on, a multiple of 4 and at least 32. The hash at a position takes the 32 bytes
// before it from the buffer, so the host searches the first 31 positions of a stream itself.
//
// For each tile: `counts` has the number of its candidates, and `found` the first `slots` of them in ascending order. A
// candidate is the offset in its tile of the last hashed byte: one less than the position after it.
KERNEL BOUNDS(256, GEAR_CTAS)
gear(const u32* __restrict__ words, u64 first, u64 len, const u32* __restrict__ table, u32 threshold, u32 slots,
     u32* __restrict__ counts, u16* __restrict__ found) {
    SHARED u32 shared_table[256];
    SHARED u32 sums[GEAR_THREADS];
    SHARED u32 groups[GEAR_THREADS / 32];
    u32 tid = TID;
    shared_table[tid] = table[tid];
    BARRIER();
    for (u64 tile = CTA; tile * TILE < len; tile += CTAS) {
        u64 start = tile * TILE + tid * STRIP;
        u64 marks = 0;
        if (start < len) {
            marks = search_strip(words, first + start, shared_table, threshold);
            if (len - start < STRIP) marks &= (1ull << (len - start)) - 1;
        }
        u32 all;
        u32 slot = sum_before(sums, groups, count_ones(marks), &all);
        if (tid == 0) counts[tile] = all;
        for (; marks != 0 && slot < slots; slot++) {
            found[tile * slots + slot] = (u16)(tid * STRIP + lowest_bit(marks));
            marks &= marks - 1;
        }
    }
}
