#include "execute.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

#include "report.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

/// Saves the registers that a call keeps, and goes on where another fiber has saved its own.
extern "C" void sim_switch(void** from, void* to);
asm(R"(
.text
.globl sim_switch
.hidden sim_switch
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

constexpr unsigned WARP = 32;
constexpr unsigned THREADS = 1024;
constexpr size_t STACK = 256 << 10;

namespace {

struct Fiber {
    void* stack;
    bool ended, at_barrier;
};

struct Warp {
    uint64_t values[WARP];
    /// Lanes that wait, lanes whose threads have not ended, and how many exchanges there were.
    unsigned arrived, left, rounds;
};

/// The block that runs.
struct Block {
    Fiber fibers[THREADS];
    Warp warps[THREADS / WARP];
    unsigned threads, current, left, at_barrier, barriers;
    /// Grows whenever a thread ends, arrives at a barrier or an exchange, or leaves it.
    unsigned progress;
    void* scheduler;
    const Kernel* kernel;
    void** arguments;
};

/// What accesses of a kernel are checked with.
struct Checks {
    Memory* memory;
    const Accessor* accessor;
};

} // namespace

static Block block;
static Checks checks;

static void yield() { sim_switch(&block.fibers[block.current].stack, block.scheduler); }

static void wait_for_block() {
    unsigned round = block.barriers;
    block.at_barrier++;
    block.progress++;
    block.fibers[block.current].at_barrier = true;
    while (block.barriers == round) yield();
}

/// Waits for the lanes of the mask that are left.
static void meet(Warp& warp, unsigned mask) {
    unsigned round = warp.rounds;
    if ((mask & warp.left) != warp.left) {
        fprintf(stderr, "simulated CUDA: an exchange of a part of a warp: not there\n");
        abort();
    }
    warp.arrived |= 1u << block.current % WARP;
    block.progress++;
    while (warp.rounds == round) {
        if ((warp.arrived & mask & warp.left) == (mask & warp.left)) {
            warp.arrived = 0;
            warp.rounds++;
            block.progress++;
            return;
        }
        yield();
    }
}

static void exchange(unsigned mask, uint64_t value, uint64_t* all) {
    Warp& warp = block.warps[block.current / WARP];
    if (!all) return meet(warp, mask);
    warp.values[block.current % WARP] = value;
    meet(warp, mask);
    memcpy(all, warp.values, sizeof warp.values);
    // Nobody gives the next value before all have read these.
    meet(warp, mask);
}

static const uint64_t* gather(uint64_t value) {
    Warp& warp = block.warps[block.current / WARP];
    warp.values[block.current % WARP] = value;
    meet(warp, ~0u);
    return warp.values;
}

static unsigned lanes_left() { return block.warps[block.current / WARP].left; }

static const Services services = {wait_for_block, exchange, gather, lanes_left};

/// Where a fiber begins.
static void begin() {
    block.kernel->run(block.arguments);
    block.fibers[block.current].ended = true;
    block.left--;
    block.progress++;
    block.warps[block.current / WARP].left &= ~(1u << block.current % WARP);
    yield();
    abort();
}

static char* stacks() {
    static char* stacks = (char*)mmap(nullptr, STACK * THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return stacks;
}

static void run_block(Place& place, Index size, const char* name) {
    block.left = block.threads = size.x * size.y * size.z;
    block.at_barrier = block.barriers = 0;
    memset(block.warps, 0, sizeof block.warps);
    for (unsigned i = 0; i < block.threads; i++) {
        block.warps[i / WARP].left |= 1u << i % WARP;
        // As `sim_switch` leaves it: six registers, the place to go on, and one that is aligned as after a call.
        void** stack = (void**)(stacks() + STACK * (i + 1)) - 8;
        memset(stack, 0, 8 * sizeof *stack);
        stack[6] = (void*)begin;
        block.fibers[i] = {stack, false, false};
    }
    unsigned stuck = 0;
    while (block.left) {
        // A fiber that waits polls: two passes without any progress are enough to know that there will be none.
        unsigned before = block.progress;
        for (unsigned i = 0; i < block.threads; i++) {
            Fiber& fiber = block.fibers[i];
            if (fiber.ended || fiber.at_barrier) continue;
            block.current = i;
            place.thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
            place.lane = i % WARP;
            sim_switch(&block.scheduler, fiber.stack);
        }
        if (block.at_barrier && block.at_barrier == block.left) {
            block.at_barrier = 0;
            block.barriers++;
            block.progress++;
            for (unsigned i = 0; i < block.threads; i++) block.fibers[i].at_barrier = false;
        }
        stuck = block.progress == before ? stuck + 1 : 0;
        if (stuck == 3) {
            fprintf(stderr, "simulated CUDA: the threads of a block of %s wait for each other for ever\n", name);
            abort();
        }
    }
}

/// The kernels of burn-fp8-kernels, and that of the self test, read nothing that has not been written. Burn's read rows to the end of their padding, and leave out what they have
/// read there.
static bool reads_padding(const std::string& kernel) {
    for (const char* ours : {"amax_", "decode_words", "quantize_", "rescale_", "scale_from_", "mirror"}) {
        if (kernel.starts_with(ours)) return false;
    }
    return true;
}

void run(const Launch& launch, Memory& memory, const Accessor& given) {
    Accessor accessor = given;
    accessor.reads_words = true;
    accessor.may_read_anything |= reads_padding(launch.function->name);
    std::vector<void*> arguments;
    for (auto& argument : *launch.arguments) arguments.push_back(argument.data());
    const Module& module = *launch.function->module->module;
    Place& place = *module.place();
    place.grid = launch.grid;
    place.block_size = launch.block;
    checks = {&memory, &accessor};
    block.kernel = launch.function->kernel;
    block.arguments = arguments.data();
    for (unsigned z = 0; z < launch.grid.z; z++) {
        for (unsigned y = 0; y < launch.grid.y; y++) {
            for (unsigned x = 0; x < launch.grid.x; x++) {
                place.block = {x, y, z};
                // What no thread has written shows where it is used.
                memset(module.shared_memory(), 0xFF, launch.shared);
                run_block(place, launch.block, launch.function->name.c_str());
            }
        }
    }
    checks = {};
}

/// What the simulated compiler gives in place of PTX: this, and the path of a library.
static const char PREFIX[] = "// simulated module ";

LoadedModule* load_module(const char* image) {
    if (strncmp(image, PREFIX, sizeof PREFIX - 1)) return nullptr;
    void* library = dlopen(image + sizeof PREFIX - 1, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "simulated CUDA: %s\n", dlerror());
        return nullptr;
    }
    auto module = ((const Module* (*)())dlsym(library, "sim_module"))();
    module->set_services(&services);
    return new LoadedModule{library, module};
}

Function* find_function(const LoadedModule* module, const char* name) {
    auto kernel = (const Kernel*)dlsym(module->library, ("sim_kernel_" + std::string(name)).c_str());
    return kernel ? new Function{name, module, kernel} : nullptr;
}

// Modules are compiled with -fsanitize=thread, and these are what that calls, in place of its own library: each load and store of a kernel.

static void load(const void* address, size_t bytes) {
    if (checks.memory && checks.memory->holds(address)) checks.memory->read(*checks.accessor, address, bytes);
}

static void store(const void* address, size_t bytes) {
    if (checks.memory && checks.memory->holds(address)) checks.memory->write(*checks.accessor, address, bytes);
}

#define ACCESSES(BYTES)                                                               \
    EXPORT void __tsan_read##BYTES(void* p) { load(p, BYTES); }                       \
    EXPORT void __tsan_write##BYTES(void* p) { store(p, BYTES); }                     \
    EXPORT void __tsan_unaligned_read##BYTES(void* p) { load(p, BYTES); }             \
    EXPORT void __tsan_unaligned_write##BYTES(void* p) { store(p, BYTES); }           \
    EXPORT void __tsan_volatile_read##BYTES(void* p) { load(p, BYTES); }              \
    EXPORT void __tsan_volatile_write##BYTES(void* p) { store(p, BYTES); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
EXPORT void __tsan_read_range(void* p, size_t bytes) { load(p, bytes); }
EXPORT void __tsan_write_range(void* p, size_t bytes) { store(p, bytes); }
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_update(void*, void*) {}
EXPORT void __tsan_vptr_read(void*) {}
