// The host's side of the dialect: a thread of the device is a fiber or a thread of this process.
//
// The CTAs of a launch run one after another, so static memory serves as their shared memory.
#ifndef ONEFOLD_HOST_H
#define ONEFOLD_HOST_H

#include <bit>
#include <cstddef>
#include <utility>

#define KERNEL static void
#define DEVICE static inline
#define CONSTANT static constexpr
#define BOUNDS(threads, ctas)
// In races.cpp the threads of a CTA are threads of the process. In launch.cpp each thread of the process has its own device.
#ifdef ONEFOLD_THREADS
#define SHARED static
#else
#define SHARED static thread_local
#endif

// Position of a thread in its launch.
struct Where {
    unsigned tid, cta, ctas, threads;
};
inline thread_local Where where;

// Wait for the threads of the CTA, or of the warp. Barriers of the source are numbered from 0.
void wait_for_cta(unsigned number);
void wait_for_warp(unsigned number);

#define BARRIER() wait_for_cta(__COUNTER__ - FIRST_BARRIER)
#define WARP_BARRIER() wait_for_warp(__COUNTER__ - FIRST_BARRIER)
#define TID where.tid
#define CTA where.cta
#define CTAS where.ctas
#define THREADS where.threads

DEVICE u32 rotate_right(u32 x, u32 n) { return std::rotr(x, (int)n); }
DEVICE u32 rotate_left(u32 x, u32 n) { return std::rotl(x, (int)n); }
DEVICE u32 funnel(u32 low, u32 high, u32 n) { return (u32)(((u64)high << 32 | low) >> n); }
DEVICE u32 swap_bytes(u32 x) { return __builtin_bswap32(x); }
DEVICE u32 count_ones(u64 x) { return (u32)std::popcount(x); }
DEVICE u32 lowest_bit(u64 x) { return (u32)std::countr_zero(x); }

// A kernel by its name, as the driver has it: arguments by address.
struct Entry {
    const char* name;
    unsigned threads;
    void (*call)(void* const* arguments);
    unsigned arguments;
};

template <typename... A, size_t... I>
void call_with(void (*kernel)(A...), void* const* arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

template <typename... A>
void unpack(void (*kernel)(A...), void* const* arguments) {
    call_with(kernel, arguments, std::index_sequence_for<A...>());
}

template <typename... A>
constexpr unsigned number_of(void (*)(A...)) {
    return sizeof...(A);
}

enum { FIRST_BARRIER = __COUNTER__ + 1 };

#endif
