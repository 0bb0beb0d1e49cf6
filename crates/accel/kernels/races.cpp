// Runs every kernel with a thread of the process for each thread of a CTA. Built twice: with ThreadSanitizer, which finds
// accesses that no barrier orders, and with AddressSanitizer and UndefinedBehaviorSanitizer.
//
//     races [--without NUMBER] [--behind BYTES]
//
// `--without` leaves out the barrier of that number: ThreadSanitizer must complain. `--behind` changes the 128 bytes that follow
// the last chunk: with fewer, AddressSanitizer must complain. Prints the number of barriers and what it compared. Exits with
// 1 if results differ.
#define ONEFOLD_THREADS
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels.cu"
#include "entries.h"

namespace {

constexpr unsigned THREADS_MAX = 256;
constexpr unsigned NO_BARRIER = ~0u;
unsigned without = NO_BARRIER;

// ThreadSanitizer orders a thread that leaves a barrier behind all that have come to the same object by then, also those that
// are on their way to its next use. So two objects take turns: nobody comes to one again before all have left it.
struct Barrier {
    pthread_barrier_t turns[2];
    explicit Barrier(unsigned threads) {
        for (auto& turn : turns) pthread_barrier_init(&turn, nullptr, threads);
    }
    ~Barrier() {
        for (auto& turn : turns) pthread_barrier_destroy(&turn);
    }
    // `turn` is the number of times that this thread has waited.
    void wait(unsigned& turn) { pthread_barrier_wait(&turns[turn++ % 2]); }
};
thread_local unsigned step_turn, cta_turn, warp_turn;

// Barriers of the CTA that runs: they have the number of threads of its kernel.
std::unique_ptr<Barrier> cta_barrier;
std::unique_ptr<Barrier> warp_barriers[THREADS_MAX / WARP];

// A launch, with its arguments by value and by address.
struct Launch {
    const Entry* kernel;
    unsigned ctas;
    std::vector<std::shared_ptr<void>> values;
    std::vector<void*> arguments;
};

std::vector<Launch> launches;

template <typename... A>
void add(const char* name, unsigned ctas, A... arguments) {
    Launch launch{entry(name), ctas, {std::make_shared<A>(arguments)...}, {}};
    if (launch.kernel == nullptr) {
        std::fprintf(stderr, "races: no kernel %s\n", name);
        std::exit(2);
    }
    for (auto& value : launch.values) launch.arguments.push_back(value.get());
    launches.push_back(std::move(launch));
}

// Makes barriers for a launch, between two launches.
void prepare(size_t number) {
    if (number == launches.size()) return;
    unsigned threads = launches[number].kernel->threads;
    cta_barrier = std::make_unique<Barrier>(threads);
    for (auto& warp : warp_barriers) warp = std::make_unique<Barrier>(WARP);
}

void run(unsigned tid, Barrier& step) {
    for (size_t number = 0; number < launches.size(); number++) {
        if (tid == 0) prepare(number);
        step.wait(step_turn);
        const Launch& launch = launches[number];
        for (unsigned cta = 0; cta < launch.ctas; cta++) {
            cta_turn = warp_turn = 0;
            where = {tid, cta, launch.ctas, launch.kernel->threads};
            if (tid < launch.kernel->threads) launch.kernel->call(launch.arguments.data());
            step.wait(step_turn);
        }
    }
}

void run_all() {
    Barrier step(THREADS_MAX);
    std::vector<std::thread> threads;
    for (unsigned tid = 0; tid < THREADS_MAX; tid++) threads.emplace_back(run, tid, std::ref(step));
    for (auto& thread : threads) thread.join();
    launches.clear();
}

struct Random {
    u64 state;
    u32 word() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return (u32)(state * 0x2545f4914f6cdd1dull >> 32);
    }
    u32 below(u32 bound) { return word() % bound; }
};

using Words = std::vector<u32>;
using Nodes = std::vector<Node>;

// A batch, in memory of exactly its size, and its chunks: those of few leaves first.
struct Batch {
    std::unique_ptr<Quad[]> words;
    u32 len;
    std::vector<Chunk> chunks;
    u32 narrow = 0, leaves = 0;

    Batch(Random& random, u32 behind) {
        const u32 lens[] = {0, 1, 63, 64, 65, 1000, 1024, 1025, 4096, 5000, 8191, 20000, 70001, 9216};
        u32 at = 32;
        for (u32 l : lens) {
            chunks.push_back({at, l, leaves});
            leaves += leaves_of(l);
            narrow += l < 10000 && narrow + 1 == chunks.size();
            at += l;
        }
        len = at - 32;
        u32 quads = (at + behind + 15) / 16;
        words = std::make_unique<Quad[]>(quads);
        for (u32 q = 0; q < quads; q++)
            for (u32& word : words[q].w) word = random.word();
    }
};

constexpr u32 NAMES = SORT_TILE + 200;

const char* const LOADS[] = {"blake3_leaves", "blake3_leaves_quads", "blake3_leaves_staged"};

// Names the chunks of a batch. Returns BLAKE3 by each way of loading, SHA-1 and SHA-256.
std::vector<Words> name_chunks(const Batch& batch, unsigned ctas, const Node* key) {
    const u32* words = batch.words[0].w;
    u32 count = (u32)batch.chunks.size();
    const Chunk* chunks = batch.chunks.data();
    std::vector<Leaf> leaves(batch.leaves);
    std::vector<Nodes> results(3, Nodes(batch.leaves)), others = results, names(3, Nodes(count));
    Words by_sha1(count * 5), by_sha256(count * 8);
    add("expand", ctas, chunks, count, leaves.data());
    for (u32 way = 0; way < 3; way++) {
        const Leaf* listed = leaves.data();
        Node *result = results[way].data(), *other = others[way].data(), *out = names[way].data();
        add(LOADS[way], ctas, words, listed, batch.leaves, key, result);
        add("blake3_trees", ctas, chunks, batch.narrow, key, result, out);
        add("blake3_trees_wide", ctas, chunks + batch.narrow, count - batch.narrow, key, result, other, out + batch.narrow);
    }
    add("sha1", ctas, words, chunks, count, by_sha1.data());
    add("sha256", ctas, words, chunks, count, by_sha256.data());
    run_all();
    std::vector<Words> all;
    for (const Nodes& way : names) {
        Words& flat = all.emplace_back();
        for (const Node& node : way) flat.insert(flat.end(), node.w, node.w + 8);
    }
    all.push_back(by_sha1);
    all.push_back(by_sha256);
    return all;
}

// Finds candidates of a batch: counts, then offsets.
std::vector<Words> find(const Batch& batch, unsigned ctas, const Words& table) {
    const u32 slots = 64;
    u32 tiles = (batch.len + TILE - 1) / TILE;
    Words counts(tiles);
    std::vector<u16> found(tiles * slots);
    add("gear", ctas, (const u32*)batch.words[0].w, (u64)32, (u64)batch.len, table.data(), 0xFFFFFFFFu / 1024, slots,
        counts.data(), found.data());
    run_all();
    return {counts, Words(found.begin(), found.end())};
}

// Finds duplicates in both ways: among the first names by comparing all pairs, among all by sorting. Only some bits of their
// keys are set, see `main`: a pass over others would move nothing.
std::vector<Words> refer(const Words& names, u32 n, unsigned ctas) {
    const u32 few = 600;
    u32 tiles = (n + SORT_TILE - 1) / SORT_TILE;
    Words first(few), joined(n), order(n), order_out(n), counts(DIGITS * tiles);
    std::vector<u64> keys(n), keys_out(n);
    add("backward", ctas, names.data(), few, n, first.data());
    add("sort_begin", ctas, names.data(), n, n, keys.data(), order.data());
    bool even = true;
    for (u32 shift : {0u, 4u, 32u, 36u}) {
        const u64* from = even ? keys.data() : keys_out.data();
        u64* to = even ? keys_out.data() : keys.data();
        const u32* order_from = even ? order.data() : order_out.data();
        u32* order_to = even ? order_out.data() : order.data();
        add("sort_count", ctas, from, n, shift, counts.data());
        add("sort_sum", 1u, counts.data(), DIGITS * tiles);
        add("sort_move", ctas, from, order_from, n, shift, (const u32*)counts.data(), to, order_to);
        even = !even;
    }
    const u64* sorted = keys.data();
    const u32* positions = order.data();
    add("join", ctas, names.data(), n, positions, n, names.data(), n, sorted, positions, n, joined.data());
    run_all();
    return {first, joined};
}

}  // namespace

void wait_for_cta(unsigned number) {
    if (number != without) cta_barrier->wait(cta_turn);
}

void wait_for_warp(unsigned number) {
    if (number != without) warp_barriers[where.tid / WARP]->wait(warp_turn);
}

int main(int count, char** arguments) {
    u32 behind = 128;
    for (int i = 1; i + 1 < count; i += 2) {
        std::string option = arguments[i];
        if (option == "--without") without = (unsigned)std::atoi(arguments[i + 1]);
        if (option == "--behind") behind = (u32)std::atoi(arguments[i + 1]);
    }
    std::printf("barriers: %u\n", (unsigned)BARRIERS);
    Random random{7};
    Batch batch(random, behind);
    Node key;
    Words table(256), names(4 * NAMES);
    for (u32& word : key.w) word = random.word();
    for (u32& word : table) word = random.word();
    u32 n = NAMES;
    for (u32 j = 0; j < n; j++) {
        // A third of the names occurred before; some have equal keys and different ends.
        u32 from = j != 0 && random.below(3) == 0 ? random.below(j) : j;
        for (u32 w = 0; w < 4; w++) names[w * n + j] = from == j ? random.below(w < 2 ? 40 : 3) : names[w * n + from];
    }
    std::vector<Words> one, several;
    for (unsigned ctas : {2u, 1u}) {
        std::vector<Words>& all = ctas == 1 ? one : several;
        for (auto part : {name_chunks(batch, ctas, &key), find(batch, ctas, table), refer(names, n, ctas)})
            for (auto& words : part) all.push_back(words);
    }
    bool ways = one[0] == one[1] && one[0] == one[2], references = std::equal(one[7].begin(), one[7].end(), one[8].begin());
    u32 found = 0, duplicates = 0;
    for (u32 candidates : one[5]) found += candidates;
    for (u32 j = 0; j < n; j++) duplicates += one[8][j] != j;
    std::printf("compared: %zu chunks, %u candidates, %u names with %u duplicates\n", batch.chunks.size(), found, n, duplicates);
    if (one != several || !ways || !references || found == 0 || duplicates == 0) {
        std::printf("results differ\n");
        return 1;
    }
    return 0;
}
