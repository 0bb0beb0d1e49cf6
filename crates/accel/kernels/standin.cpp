// A library in place of `libcuda.so.1`, for tests: its one device is the processor. It has the functions that the program uses,
// checks their order, and fails or lies on demand.
#include "launch.cpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace {

typedef unsigned Code;
constexpr Code OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500;

// What goes wrong, and when: a number counts from 1, and 0 is never.
struct Faults {
    unsigned fail_call, code, lie_launch, skip_launch;
};

Faults faults;
unsigned calls, launches, contexts, modules, architecture = 90;
bool is_initialized, is_current;
std::map<u64, size_t> memory;

// Counts a call. Every call from the chosen one on fails, as with a device that is lost.
bool fails() { return faults.fail_call != 0 && faults.fail_call <= ++calls; }

Code enter(bool is_ready) {
    if (fails()) return faults.code;
    return is_ready ? OK : is_initialized ? INVALID_CONTEXT : NOT_INITIALIZED;
}

bool has(u64 address, size_t len) {
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return false;
    auto [start, all] = *std::prev(after);
    return address - start <= all && len <= all - (address - start);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))
#define ENTER(is_ready) \
    if (Code code = enter(is_ready)) return code

API void onefold_standin_begin(unsigned fail_call, unsigned code, unsigned lie_launch, unsigned skip_launch, unsigned arch) {
    faults = {fail_call, code, lie_launch, skip_launch};
    calls = launches = 0;
    architecture = arch;
    is_initialized = is_current = false;
}
// Number of launches, and of things that were not freed.
API unsigned onefold_standin_launches() { return launches; }
API unsigned onefold_standin_held() { return contexts + modules + (unsigned)memory.size(); }

API Code cuInit(unsigned flags) {
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
    *value = (int)(attribute == 75 ? architecture / 10 : architecture % 10);
    return attribute == 75 || attribute == 76 ? OK : INVALID_VALUE;
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
    if (memory.erase(address) == 0) return INVALID_VALUE;
    std::free(reinterpret_cast<void*>(address));
    ENTER(is_current);
    return OK;
}
API Code cuMemcpyHtoD_v2(u64 to, const void* from, size_t len) {
    ENTER(is_current);
    if (!has(to, len)) return INVALID_VALUE;
    std::memcpy(reinterpret_cast<void*>(to), from, len);
    return OK;
}
API Code cuMemcpyDtoH_v2(void* to, u64 from, size_t len) {
    ENTER(is_current);
    if (!has(from, len)) return INVALID_VALUE;
    std::memcpy(to, reinterpret_cast<const void*>(from), len);
    return OK;
}
API Code cuMemsetD8_v2(u64 to, unsigned char byte, size_t len) {
    ENTER(is_current);
    if (!has(to, len)) return INVALID_VALUE;
    std::memset(reinterpret_cast<void*>(to), byte, len);
    return OK;
}
API Code cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, void*, void** arguments, void** extra) {
    ENTER(is_current);
    if (y != 1 || z != 1 || threads_y != 1 || threads_z != 1 || shared != 0 || extra != nullptr) return INVALID_VALUE;
    const Entry* kernel = static_cast<const Entry*>(function);
    launches++;
    if (launches == faults.skip_launch) return OK;
    if (onefold_host_launch(kernel->name, x, threads, 0, arguments) != 0) return INVALID_VALUE;
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
API Code cuCtxSynchronize() {
    ENTER(is_current);
    return OK;
}
API Code cuGetErrorName(Code code, const char** name) {
    *name = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : nullptr;
    return *name == nullptr ? INVALID_VALUE : OK;
}
