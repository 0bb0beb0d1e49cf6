// The dialect of the kernels: CUDA C++ for devices, and C++20 for the host, from one source.
//
// Rules of the dialect:
// - No recursion, no dynamic memory, and no arrays in shared memory but those of constant size.
// - `BARRIER` stands where every thread of a CTA comes, `WARP_BARRIER` where every thread of a warp comes.
// - No other function of a warp or a CTA, and no atomics: results do not depend on the order of threads.
// - No array in registers is indexed by a value that the compiler does not know, because that would need local memory.
//
// A CTA (cooperative thread array) is a block of threads that share memory and barriers. A warp is 32 threads of it.
#ifndef ONEFOLD_DIALECT_H
#define ONEFOLD_DIALECT_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define CONSTANT static __constant__ const
#define BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#define TID threadIdx.x
#define CTA blockIdx.x
#define CTAS gridDim.x
#define THREADS blockDim.x
// The number of threads of a CTA, and the number of CTAs for which a multiprocessor must have enough registers.
#define BOUNDS(threads, ctas) __launch_bounds__(threads, ctas)

DEVICE u32 rotate_right(u32 x, u32 n) { return __funnelshift_r(x, x, n); }
DEVICE u32 rotate_left(u32 x, u32 n) { return __funnelshift_l(x, x, n); }
// The lower word of `high:low` after a shift to the right by `n`, which is less than 32.
DEVICE u32 funnel(u32 low, u32 high, u32 n) { return __funnelshift_r(low, high, n); }
DEVICE u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }
DEVICE u32 count_ones(u64 x) { return (u32)__popcll(x); }
// The number of the lowest bit that is set. One is set.
DEVICE u32 lowest_bit(u64 x) { return (u32)__ffsll((long long)x) - 1; }

#else
#include "host.h"
#endif

// Sixteen bytes that one instruction loads.
struct alignas(16) Quad {
    u32 w[4];
};

#define WARP 32u

#endif
