// Launches of kernels on the host, for the tests: the threads of a CTA are fibers of the calling thread.
#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels.cu"
#include "entries.h"

namespace {

constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned THREADS_MAX = 256;

enum class State { Ready, AtCtaBarrier, AtWarpBarrier, Ended };

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Where position;
    State state;
};

// What a thread of the process runs at the moment.
struct Device {
    ucontext_t scheduler;
    std::vector<Fiber> fibers;
    const Entry* kernel = nullptr;
    void* const* arguments = nullptr;
    unsigned current = 0;
};
thread_local Device device;

void leave(State state) {
    Device& on = device;
    Fiber& fiber = on.fibers[on.current];
    fiber.state = state;
    swapcontext(&fiber.context, &on.scheduler);
}

// A fiber runs the kernel again each time it is resumed after its end.
void run() {
    for (;;) {
        device.kernel->call(device.arguments);
        leave(State::Ended);
    }
}

void begin(Fiber& fiber) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(STACK_BYTES);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run, 0);
}

void resume(unsigned tid) {
    Device& on = device;
    on.current = tid;
    where = on.fibers[tid].position;
    swapcontext(&on.scheduler, &on.fibers[tid].context);
}

// Makes fibers ready that wait in `state` if all from `begin` to `end` do. Returns true if there are any.
bool release(unsigned begin, unsigned end, State state) {
    for (unsigned tid = begin; tid < end; tid++)
        if (device.fibers[tid].state != state) return false;
    for (unsigned tid = begin; tid < end; tid++) device.fibers[tid].state = State::Ready;
    return true;
}

// Runs a CTA. Returns false if some threads wait at a barrier to which others never come.
bool run_cta(unsigned threads, unsigned cta, unsigned ctas) {
    Device& on = device;
    for (unsigned tid = 0; tid < threads; tid++) {
        on.fibers[tid].position = {tid, cta, ctas, threads};
        on.fibers[tid].state = State::Ready;
    }
    for (;;) {
        unsigned ended = 0;
        for (unsigned tid = 0; tid < threads; tid++) {
            if (on.fibers[tid].state == State::Ready) resume(tid);
            ended += on.fibers[tid].state == State::Ended;
        }
        if (ended == threads) return true;
        bool released = release(0, threads, State::AtCtaBarrier);
        for (unsigned tid = 0; tid < threads; tid += WARP) released |= release(tid, tid + WARP, State::AtWarpBarrier);
        if (!released) return false;
    }
}

}  // namespace

void wait_for_cta(unsigned) { leave(State::AtCtaBarrier); }
void wait_for_warp(unsigned) { leave(State::AtWarpBarrier); }

// Runs a kernel by its name. `backwards` runs the last CTA first. Returns 0; 1 if there is no such kernel or it has another
// number of threads; 2 if a barrier is not reached by all threads.
extern "C" int onefold_host_launch(const char* name, unsigned ctas, unsigned threads, int backwards, void* const* arguments) {
    const Entry* kernel = entry(name);
    if (kernel == nullptr || kernel->threads != threads || THREADS_MAX < threads || threads % WARP != 0) return 1;
    device.kernel = kernel;
    device.arguments = arguments;
    if (device.fibers.empty()) device.fibers.resize(THREADS_MAX);
    for (unsigned tid = 0; tid < threads; tid++)
        if (!device.fibers[tid].stack) begin(device.fibers[tid]);
    for (unsigned step = 0; step < ctas; step++)
        if (!run_cta(threads, backwards ? ctas - 1 - step : step, ctas)) {
            device.fibers.clear();
            return 2;
        }
    return 0;
}

// Number of kernels, and the name of each.
extern "C" unsigned onefold_host_kernels() { return sizeof ENTRIES / sizeof *ENTRIES; }
extern "C" const char* onefold_host_kernel(unsigned number) { return ENTRIES[number].name; }
