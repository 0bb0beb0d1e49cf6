// A library in place of `libcuda.so.1`, for tests: its one device is the processor. It has the functions that the program uses,
// checks their order, and fails or lies on demand. Work on streams is done as late as the driver may do it: when somebody waits for it.
#include "launch.cpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

typedef unsigned Code;
constexpr Code OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500,
               NOT_READY = 600;

// What goes wrong, and when: a number counts from 1, and 0 is never.
struct Faults {
    unsigned fail_call, code, lie_launch, skip_launch, skip_fetch, spoil_fetch, spoil_byte, hang_query;
};

struct Stream {
    std::deque<std::function<Code()>> work;
};

struct Event {
    bool is_behind = true;
    Stream* stream = nullptr;
};

Faults faults;
unsigned calls, launches, fetches, queries, asked, contexts, modules, architecture = 90;
bool is_initialized;
thread_local bool is_current;
std::map<u64, size_t> memory, locked;
Stream default_stream;
std::set<Stream*> streams;
std::set<Event*> events;
std::recursive_mutex mutex;

// Counts a call. Every call from the chosen one on fails, as with a device that is lost.
bool fails() {
    calls++;
    return faults.fail_call != 0 && faults.fail_call <= calls;
}

Code enter(bool is_ready) {
    if (fails()) return faults.code;
    return is_ready ? OK : is_initialized ? INVALID_CONTEXT : NOT_INITIALIZED;
}

// From the chosen question on, the device does nothing more.
bool hangs() { return faults.hang_query != 0 && faults.hang_query <= queries; }

// Such a call waits for the default stream, and forever for a device that hangs.
void wait_for_default() {
    if (hangs()) {
        std::fprintf(stderr, "a call waits for a device that hangs\n");
        std::abort();
    }
    while (!default_stream.work.empty()) {
        std::function<Code()> next = std::move(default_stream.work.front());
        default_stream.work.pop_front();
        next();
    }
}

// Memory is freed only when no stream has work: with work, the real driver waits for all of it, as long as that takes. A device that is
// lost has none.
void free_when_idle() {
    wait_for_default();
    if (faults.fail_call != 0) return;
    for (const Stream* stream : streams) {
        if (!stream->work.empty()) {
            std::fprintf(stderr, "memory is freed while a stream has work\n");
            std::abort();
        }
    }
}

bool holds(const std::map<u64, size_t>& memory, u64 address, size_t len) {
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return false;
    auto [start, all] = *std::prev(after);
    return address - start <= all && len <= all - (address - start);
}
bool has(u64 address, size_t len) { return holds(memory, address, len); }
bool has_locked(const void* address, size_t len) { return holds(locked, reinterpret_cast<u64>(address), len); }

// Each question lets the device do one more step of a stream.
Code step(Stream* stream) {
    queries++;
    asked = calls;
    if (hangs()) return NOT_READY;
    if (stream->work.empty()) return OK;
    std::function<Code()> next = std::move(stream->work.front());
    stream->work.pop_front();
    if (Code code = next()) return code;
    return stream->work.empty() ? OK : NOT_READY;
}

// Runs a kernel, unless it is the one that does not run, and lies if it is the one that does.
Code run_kernel(const Entry* kernel, unsigned ctas, unsigned threads, void** arguments) {
    launches++;
    if (launches == faults.skip_launch) return OK;
    if (onefold_host_launch(kernel->name, ctas, threads, 0, arguments) != 0) return INVALID_VALUE;
    if (launches == faults.lie_launch) {
        // One bit of what the kernel wrote last: its last argument that is memory.
        for (unsigned i = kernel->arguments; i-- > 0;) {
            u64 address = *static_cast<u64*>(arguments[i]);
            if (!has(address, 1)) continue;
            *reinterpret_cast<u8*>(address) ^= 1;
            break;
        }
    }
    return OK;
}

Code run_fetch(void* to, u64 from, size_t len) {
    fetches++;
    if (fetches == faults.skip_fetch) return OK;
    std::memcpy(to, reinterpret_cast<const void*>(from), len);
    if (fetches == faults.spoil_fetch) static_cast<u8*>(to)[faults.spoil_byte % len] ^= 4;
    return OK;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))
#define ENTER(is_ready)                                \
    std::lock_guard<std::recursive_mutex> lock(mutex); \
    if (Code code = enter(is_ready)) return code

API void onefold_standin_begin(const Faults* chosen, unsigned arch) {
    bool has_hung = hangs();
    faults = *chosen;
    calls = launches = fetches = queries = asked = 0;
    if (has_hung) {
        // Everything is still there.
        contexts = modules = 0;
        memory.clear(), locked.clear(), streams.clear(), events.clear(), default_stream.work.clear();
    }
    architecture = arch;
    is_initialized = is_current = false;
}
// Chooses faults, and counts from here on.
API void onefold_standin_count(const Faults* chosen) {
    faults = *chosen;
    calls = launches = fetches = queries = asked = 0;
}
// Number of calls, of launches, of copies of results, and of things that were not freed.
API unsigned onefold_standin_calls() { return calls; }
API unsigned onefold_standin_launches() { return launches; }
API unsigned onefold_standin_fetches() { return fetches; }
// Number of questions whether work is done, and of calls since the last one.
API unsigned onefold_standin_questions() { return queries; }
API unsigned onefold_standin_calls_since() { return calls - asked; }
API unsigned onefold_standin_held() {
    return contexts + modules + (unsigned)(memory.size() + locked.size() + streams.size() + events.size());
}

API Code cuInit(unsigned flags) {
    // Tests of the whole program choose faults so.
    if (const char* text = std::getenv("ONEFOLD_STANDIN_FAULTS"); text != nullptr && calls == 0)
        std::sscanf(text, "%u %u %u %u %u %u %u %u", &faults.fail_call, &faults.code, &faults.lie_launch, &faults.skip_launch,
                    &faults.skip_fetch, &faults.spoil_fetch, &faults.spoil_byte, &faults.hang_query);
    ENTER(true);
    is_initialized = true;
    return flags == 0 ? OK : INVALID_VALUE;
}
API Code cuDriverGetVersion(int* version) {
    ENTER(true);
    *version = 12090;
    return OK;
}
API Code cuDeviceGetCount(int* count) {
    ENTER(is_initialized);
    *count = 1;
    return OK;
}
API Code cuDeviceGet(int* device, int number) {
    ENTER(is_initialized);
    *device = 7;
    return number == 0 ? OK : 101;
}
API Code cuDeviceGetName(char* name, int len, int device) {
    ENTER(is_initialized && device == 7);
    std::snprintf(name, (size_t)len, "the processor");
    return OK;
}
API Code cuDeviceGetAttribute(int* value, int attribute, int device) {
    ENTER(is_initialized && device == 7);
    *value = (int)(attribute == 75 ? architecture / 10 : attribute == 76 ? architecture % 10 : 8);
    return attribute == 75 || attribute == 76 || attribute == 16 ? OK : INVALID_VALUE;
}
API Code cuDeviceTotalMem_v2(size_t* bytes, int device) {
    ENTER(is_initialized && device == 7);
    *bytes = 1ull << 30;
    return OK;
}
API Code cuDevicePrimaryCtxRetain(void** context, int device) {
    ENTER(is_initialized && device == 7);
    contexts++;
    *context = &contexts;
    return OK;
}
API Code cuDevicePrimaryCtxRelease_v2(int device) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    wait_for_default();
    contexts--;
    ENTER(device == 7);
    return OK;
}
API Code cuCtxSetCurrent(void* context) {
    ENTER(contexts != 0 && (context == &contexts || context == nullptr));
    is_current = context != nullptr;
    return OK;
}
API Code cuModuleLoadData(void** module, const void* image) {
    ENTER(is_current);
    const char* text = static_cast<const char*>(image);
    bool is_known = std::memcmp(text, "\x7f" "ELF", 4) == 0 || std::strstr(text, ".version") != nullptr;
    if (!is_known) return INVALID_IMAGE;
    modules++;
    *module = &modules;
    return OK;
}
API Code cuModuleUnload(void* module) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    wait_for_default();
    modules--;
    ENTER(is_current && module == &modules);
    return OK;
}
API Code cuModuleGetFunction(void** function, void* module, const char* name) {
    ENTER(is_current && module == &modules);
    *function = const_cast<Entry*>(entry(name));
    return *function == nullptr ? NOT_FOUND : OK;
}
API Code cuMemAlloc_v2(u64* address, size_t len) {
    ENTER(is_current);
    if (len == 0) return INVALID_VALUE;
    void* found = std::aligned_alloc(256, (len + 255) / 256 * 256);
    *address = reinterpret_cast<u64>(found);
    memory[*address] = len;
    return OK;
}
API Code cuMemFree_v2(u64 address) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    free_when_idle();
    if (memory.erase(address) == 0) return INVALID_VALUE;
    std::free(reinterpret_cast<void*>(address));
    ENTER(is_current);
    return OK;
}
API Code cuMemcpyHtoD_v2(u64 to, const void* from, size_t len) {
    ENTER(is_current);
    if (!has(to, len)) return INVALID_VALUE;
    wait_for_default();
    std::memcpy(reinterpret_cast<void*>(to), from, len);
    return OK;
}
API Code cuMemcpyDtoH_v2(void* to, u64 from, size_t len) {
    ENTER(is_current);
    if (!has(from, len)) return INVALID_VALUE;
    wait_for_default();
    std::memcpy(to, reinterpret_cast<const void*>(from), len);
    return OK;
}
API Code cuMemsetD8_v2(u64 to, unsigned char byte, size_t len) {
    ENTER(is_current);
    if (!has(to, len)) return INVALID_VALUE;
    default_stream.work.push_back([=] {
        if (!has(to, len)) return INVALID_VALUE;
        std::memset(reinterpret_cast<void*>(to), byte, len);
        return OK;
    });
    return OK;
}
API Code cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, void* handle, void** arguments, void** extra) {
    ENTER(is_current);
    if (y != 1 || z != 1 || threads_y != 1 || threads_z != 1 || shared != 0 || extra != nullptr) return INVALID_VALUE;
    const Entry* kernel = static_cast<const Entry*>(function);
    Stream* stream = handle == nullptr ? &default_stream : static_cast<Stream*>(handle);
    if (handle != nullptr && streams.count(stream) == 0) return INVALID_VALUE;
    // The driver takes the values now.
    std::vector<u64> values;
    for (unsigned i = 0; i < kernel->arguments; i++) values.push_back(*static_cast<u64*>(arguments[i]));
    stream->work.push_back([kernel, x, threads, values]() mutable {
        std::vector<void*> pointers;
        for (u64& value : values) pointers.push_back(&value);
        return run_kernel(kernel, x, threads, pointers.data());
    });
    return OK;
}
API Code cuMemHostAlloc(void** start, size_t len, unsigned flags) {
    ENTER(is_current);
    // Portable and nothing else: memory that is written combined would be slow to read.
    if (len == 0 || flags != 1) return INVALID_VALUE;
    *start = std::aligned_alloc(4096, (len + 4095) / 4096 * 4096);
    locked[reinterpret_cast<u64>(*start)] = len;
    return OK;
}
API Code cuMemFreeHost(void* start) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    free_when_idle();
    if (locked.erase(reinterpret_cast<u64>(start)) == 0) return INVALID_VALUE;
    std::free(start);
    ENTER(is_current);
    return OK;
}
API Code cuStreamCreate(void** handle, unsigned flags) {
    ENTER(is_current);
    if (flags != 1) return INVALID_VALUE;
    Stream* stream = new Stream;
    streams.insert(stream);
    *handle = stream;
    return OK;
}
API Code cuStreamDestroy_v2(void* handle) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    wait_for_default();
    Stream* stream = static_cast<Stream*>(handle);
    if (streams.erase(stream) == 0) return INVALID_VALUE;
    delete stream;
    ENTER(is_current);
    return OK;
}
API Code cuStreamQuery(void* handle) {
    ENTER(is_current);
    Stream* stream = handle == nullptr ? &default_stream : static_cast<Stream*>(handle);
    return handle != nullptr && streams.count(stream) == 0 ? INVALID_VALUE : step(stream);
}
API Code cuEventCreate(void** handle, unsigned flags) {
    ENTER(is_current);
    if (flags != 2) return INVALID_VALUE;
    Event* event = new Event;
    events.insert(event);
    *handle = event;
    return OK;
}
API Code cuEventDestroy_v2(void* handle) {
    std::lock_guard<std::recursive_mutex> guard(mutex);
    wait_for_default();
    Event* event = static_cast<Event*>(handle);
    if (events.erase(event) == 0) return INVALID_VALUE;
    delete event;
    ENTER(is_current);
    return OK;
}
API Code cuEventRecord(void* handle, void* on) {
    ENTER(is_current);
    Event* event = static_cast<Event*>(handle);
    Stream* stream = static_cast<Stream*>(on);
    if (events.count(event) == 0 || streams.count(stream) == 0) return INVALID_VALUE;
    event->is_behind = false;
    event->stream = stream;
    stream->work.push_back([event] {
        if (events.count(event) != 0) event->is_behind = true;
        return OK;
    });
    return OK;
}
API Code cuEventQuery(void* handle) {
    ENTER(is_current);
    Event* event = static_cast<Event*>(handle);
    if (events.count(event) == 0) return INVALID_VALUE;
    if (event->is_behind || streams.count(event->stream) == 0) return OK;
    Code code = step(event->stream);
    return event->is_behind ? OK : code == OK ? NOT_READY : code;
}
API Code cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t len, void* handle) {
    ENTER(is_current);
    Stream* stream = static_cast<Stream*>(handle);
    if (!has(to, len) || !has_locked(from, len) || streams.count(stream) == 0) return INVALID_VALUE;
    stream->work.push_back([=] {
        if (!has(to, len) || !has_locked(from, len)) return INVALID_VALUE;
        std::memcpy(reinterpret_cast<void*>(to), from, len);
        return OK;
    });
    return OK;
}
API Code cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t len, void* handle) {
    ENTER(is_current);
    Stream* stream = static_cast<Stream*>(handle);
    if (!has(from, len) || !has_locked(to, len) || streams.count(stream) == 0) return INVALID_VALUE;
    stream->work.push_back([=] { return has(from, len) && has_locked(to, len) ? run_fetch(to, from, len) : INVALID_VALUE; });
    return OK;
}
API Code cuMemsetD8Async(u64 to, unsigned char byte, size_t len, void* handle) {
    ENTER(is_current);
    Stream* stream = static_cast<Stream*>(handle);
    if (!has(to, len) || streams.count(stream) == 0) return INVALID_VALUE;
    stream->work.push_back([=] {
        std::memset(reinterpret_cast<void*>(to), byte, len);
        return OK;
    });
    return OK;
}
API Code cuGetErrorName(Code code, const char** name) {
    *name = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : nullptr;
    return *name == nullptr ? INVALID_VALUE : OK;
}
