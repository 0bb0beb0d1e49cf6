// Duplicates among names of 16 bytes: for each name, the first position of an equal one.
//
// `backward` compares each name with all before it. `sort_*` and `join` need much less work: they sort the names, and look
// each up among the sorted ones; so they also join names with those of another list. Names stand in four planes of words:
// word w of name j is `names[w * stride + j]`. A list has less than 2^28 names.

// `first[j]` is the least i with a name equal to name j. Names before j come through shared memory in ascending order, 256 at
// a time, so that the first equal one is the least. A CTA takes 256 names at a time, the last ones first: their lists are
// the longest.
KERNEL BOUNDS(256, 4) backward(const u32* __restrict__ names, u32 n, u32 stride, u32* __restrict__ first) {
    SHARED u32 before[4][256];
    u32 groups = (n + 255) / 256;
    for (u32 step = CTA; step < groups; step += CTAS) {
        u32 group = groups - 1 - step;
        u32 j = group * 256 + TID;
        u32 mine[4], found = j;
#pragma unroll
        for (u32 w = 0; w < 4; w++) mine[w] = j < n ? names[w * stride + j] : 0;
        for (u32 base = 0; base <= group * 256; base += 256) {
#pragma unroll
            for (u32 w = 0; w < 4; w++) before[w][TID] = base + TID < n ? names[w * stride + base + TID] : 0;
            BARRIER();
            u32 end = base + 256 <= j ? 256 : j - base;
            for (u32 i = 0; i < end && found == j; i++)
                if (before[0][i] == mine[0] && before[1][i] == mine[1] && before[2][i] == mine[2] && before[3][i] == mine[3])
                    found = base + i;
            BARRIER();
        }
        if (j < n) first[j] = found;
    }
}

// Sorting takes the first 64 bits of each name as its key, and 16 passes of four bits, from the lowest to the highest. A pass
// is stable: equal keys stay in the order of their positions. A CTA takes 4,096 keys, 16 for each thread.
#define SORT_ITEMS 16u
#define SORT_TILE 4096u
#define DIGITS 16u

DEVICE u32 digit_of(u64 key, u32 shift) { return (u32)(key >> shift) & (DIGITS - 1); }

// Makes the keys of names, and their order before the sort.
KERNEL BOUNDS(256, 4)
sort_begin(const u32* __restrict__ names, u32 n, u32 stride, u64* __restrict__ keys, u32* __restrict__ order) {
    for (u32 i = CTA * THREADS + TID; i < n; i += CTAS * THREADS) {
        keys[i] = (u64)names[i] << 32 | names[stride + i];
        order[i] = i;
    }
}

// Counts the digits of a thread's keys in its own column of `columns`, which has 16 x 256 words.
DEVICE void count_digits(const u64* __restrict__ keys, u32 begin, u32 n, u32 shift, u32* columns) {
    u32 tid = TID;
#pragma unroll
    for (u32 d = 0; d < DIGITS; d++) columns[d * 256 + tid] = 0;
    for (u32 k = begin; k < begin + SORT_ITEMS && k < n; k++) columns[digit_of(keys[k], shift) * 256 + tid]++;
}

// Counts the digits at bit `shift` of each tile: `counts[d * tiles + tile]`.
KERNEL BOUNDS(256, 3) sort_count(const u64* __restrict__ keys, u32 n, u32 shift, u32* __restrict__ counts) {
    SHARED u32 columns[DIGITS * 256];
    SHARED u32 sums[256];
    u32 tid = TID, tiles = (n + SORT_TILE - 1) / SORT_TILE;
    for (u32 tile = CTA; tile < tiles; tile += CTAS) {
        count_digits(keys, tile * SORT_TILE + tid * SORT_ITEMS, n, shift, columns);
        BARRIER();
        u32 sum = 0;
#pragma unroll
        for (u32 k = 0; k < 16; k++) sum += columns[tid * 16 + k];
        sums[tid] = sum;
        BARRIER();
        if (tid < DIGITS) {
            u32 count = 0;
            for (u32 k = 0; k < 16; k++) count += sums[tid * 16 + k];
            counts[tid * tiles + tile] = count;
        }
    }
}

// Replaces each number by the sum of those before it. Runs as one CTA.
KERNEL BOUNDS(256, 3) sort_sum(u32* counts, u32 n) {
    SHARED u32 sums[256];
    SHARED u32 groups[8];
    u32 done = 0;
    for (u32 base = 0; base < n; base += SORT_TILE) {
        u32 begin = base + TID * SORT_ITEMS, mine = 0, all;
        for (u32 k = begin; k < begin + SORT_ITEMS && k < n; k++) mine += counts[k];
        u32 before = done + sum_before(sums, groups, mine, &all);
        for (u32 k = begin; k < begin + SORT_ITEMS && k < n; k++) {
            u32 next = counts[k];
            counts[k] = before;
            before += next;
        }
        done += all;
    }
}

// Moves keys and order to where the sums of `sort_sum` put them.
KERNEL BOUNDS(256, 3)
sort_move(const u64* __restrict__ keys, const u32* __restrict__ order, u32 n, u32 shift, const u32* __restrict__ offsets,
          u64* __restrict__ keys_out, u32* __restrict__ order_out) {
    SHARED u32 columns[DIGITS * 256];
    SHARED u32 starts[DIGITS];
    SHARED u32 sums[256];
    SHARED u32 groups[8];
    u32 tid = TID, tiles = (n + SORT_TILE - 1) / SORT_TILE;
    for (u32 tile = CTA; tile < tiles; tile += CTAS) {
        u32 begin = tile * SORT_TILE + tid * SORT_ITEMS;
        count_digits(keys, begin, n, shift, columns);
        BARRIER();
        // Sums in the order of digits, then threads.
        u32 mine = 0, all;
#pragma unroll
        for (u32 k = 0; k < 16; k++) mine += columns[tid * 16 + k];
        u32 before = sum_before(sums, groups, mine, &all);
        if (tid % 16 == 0) starts[tid / 16] = before;
        for (u32 k = 0; k < 16; k++) {
            u32 next = columns[tid * 16 + k];
            columns[tid * 16 + k] = before;
            before += next;
        }
        BARRIER();
        for (u32 k = begin; k < begin + SORT_ITEMS && k < n; k++) {
            u64 key = keys[k];
            u32 d = digit_of(key, shift);
            u32 to = offsets[d * tiles + tile] + columns[d * 256 + tid]++ - starts[d];
            keys_out[to] = key;
            order_out[to] = order[k];
        }
    }
}

// No position.
#define NONE 0xFFFFFFFFu

// `found[j]` is the least position of a known name equal to asked name j, or `NONE`. `keys` and `order` are those of the known
// names, sorted. Thread i asks for name `asked_order[i]`: names in sorted order read neighboring keys.
KERNEL BOUNDS(256, 4)
join(const u32* __restrict__ asked, u32 asked_stride, const u32* __restrict__ asked_order, u32 asked_count,
     const u32* __restrict__ known, u32 known_stride, const u64* __restrict__ keys, const u32* __restrict__ order,
     u32 known_count, u32* __restrict__ found) {
    for (u32 i = CTA * THREADS + TID; i < asked_count; i += CTAS * THREADS) {
        u32 j = asked_order[i];
        u32 mine[4];
#pragma unroll
        for (u32 w = 0; w < 4; w++) mine[w] = asked[w * asked_stride + j];
        u64 key = (u64)mine[0] << 32 | mine[1];
        u32 low = 0, high = known_count;
        while (low < high) {
            u32 middle = (low + high) / 2;
            if (keys[middle] < key)
                low = middle + 1;
            else
                high = middle;
        }
        u32 match = NONE;
        // Names of one key differ in their last words only if 64 bits of two hashes are equal.
        for (; low < known_count && keys[low] == key && match == NONE; low++) {
            u32 position = order[low];
            if (known[2 * known_stride + position] == mine[2] && known[3 * known_stride + position] == mine[3]) match = position;
        }
        found[j] = match;
    }
}
