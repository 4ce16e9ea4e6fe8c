#include "memory.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include "report.h"

constexpr size_t ALIGNMENT = 512;

static void* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("simulated CUDA: device memory");
        abort();
    }
    return memory;
}

Memory::Memory()
    : arena((char*)reserve(ARENA)), shadow((Byte*)reserve(ARENA * sizeof(Byte))), limit(variable("SIM_MEMORY_MB", 4096) << 20) {}

uintptr_t Memory::allocate(size_t bytes) {
    std::lock_guard lock(mutex);
    size_t room = (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes == 0 || bytes > limit - used || room > ARENA - top) return 0;
    uintptr_t address = (uintptr_t)arena + top;
    top += room;
    used += bytes;
    allocations[address] = bytes;
    return address;
}

size_t Memory::bytes_of(uintptr_t address) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(address);
    return found == allocations.end() ? 0 : found->second;
}

void Memory::forget(uintptr_t address) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(address);
    used -= found->second;
    allocations.erase(found);
}

void Memory::begin(uintptr_t address, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) shadow_of(address + i) = {{UNWRITTEN}, {}};
    // What nobody has written shows where it is used all the same.
    for (size_t i = 0; i < bytes; i++) ((unsigned char*)address)[i] = 0xCB;
}

void Memory::end(const Accessor& accessor, uintptr_t address, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        Byte& byte = shadow_of(address + i);
        if (byte.written.bits != UNWRITTEN) write(accessor, (void*)(address + i), 1);
        byte = {{FREED}, {}};
    }
    other_reads.erase(other_reads.lower_bound(address), other_reads.lower_bound(address + bytes));
    // Whole pages go back to the system.
    uintptr_t first = (address + 4095) & ~uintptr_t(4095), last = (address + bytes) & ~uintptr_t(4095);
    if (first < last) madvise((void*)first, last - first, MADV_DONTNEED);
}

/// Two accesses that nothing orders.
static void unordered(const Accessor& accessor, const char* access, const char* earlier, Epoch other) {
    complain(std::string(access) + " by " + accessor.name(accessor.epoch) + " is not ordered after the " + earlier + " by " + accessor.name(other));
}

/// An access to what is not there.
static void forbidden(const Accessor& accessor, const char* access, const char* why) {
    complain(std::string(access) + " by " + accessor.name(accessor.epoch) + ": " + why);
}

bool Memory::can_use(const Accessor& accessor, const char* access, const Byte& byte) {
    switch (byte.written.bits) {
    case NEVER_ALLOCATED: forbidden(accessor, access, "out of bounds"); return false;
    case FREED: forbidden(accessor, access, "the memory has been freed"); return false;
    default: return true;
    }
}

void Memory::read(const Accessor& accessor, const void* start, size_t bytes) {
    for (uintptr_t address = (uintptr_t)start; address < (uintptr_t)start + bytes; address++) {
        Byte& byte = shadow_of(address);
        if (!can_use(accessor, "read", byte)) return;
        if (byte.written.bits == UNWRITTEN) {
            forbidden(accessor, "read", "nothing has been written there");
            return;
        }
        if (!accessor.before->has(byte.written)) {
            unordered(accessor, "read", "write", byte.written);
            return;
        }
        if (byte.read.bits && !accessor.before->has(byte.read) && byte.read.bits != accessor.epoch.bits) {
            auto& others = other_reads[address];
            if (others.empty() || others.back().bits != byte.read.bits) others.push_back(byte.read);
        }
        byte.read = accessor.epoch;
    }
}

void Memory::write(const Accessor& accessor, const void* start, size_t bytes) {
    for (uintptr_t address = (uintptr_t)start; address < (uintptr_t)start + bytes; address++) {
        Byte& byte = shadow_of(address);
        if (!can_use(accessor, "write", byte)) return;
        if (byte.written.bits != UNWRITTEN && !accessor.before->has(byte.written)) {
            unordered(accessor, "write", "write", byte.written);
        } else if (byte.read.bits && !accessor.before->has(byte.read)) {
            unordered(accessor, "write", "read", byte.read);
        } else if (!other_reads.empty()) {
            auto found = other_reads.find(address);
            if (found != other_reads.end()) {
                for (Epoch other : found->second) {
                    if (!accessor.before->has(other)) unordered(accessor, "write", "read", other);
                }
                other_reads.erase(found);
            }
        }
        byte = {accessor.epoch, {}};
    }
}
