// The list of kernels, behind their source.
enum { BARRIERS = __COUNTER__ - FIRST_BARRIER };

#define ENTRY(name, threads) {#name, threads, [](void* const* arguments) { unpack(name, arguments); }, number_of(name)}
static const Entry ENTRIES[] = {
    ENTRY(gear, GEAR_THREADS),
    ENTRY(expand, 128),
    ENTRY(blake3_leaves, 128),
    ENTRY(blake3_leaves_quads, 128),
    ENTRY(blake3_leaves_staged, 128),
    ENTRY(blake3_trees, 128),
    ENTRY(blake3_trees_wide, 128),
    ENTRY(sha1, 128),
    ENTRY(sha256, 128),
    ENTRY(backward, 256),
    ENTRY(sort_begin, 256),
    ENTRY(sort_count, 256),
    ENTRY(sort_sum, 256),
    ENTRY(sort_move, 256),
    ENTRY(join, 256),
    ENTRY(stamp, 32),
};

static const Entry* entry(const char* name) {
    for (const Entry& found : ENTRIES)
        if (std::strcmp(found.name, name) == 0) return &found;
    return nullptr;
}
