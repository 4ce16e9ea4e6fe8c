#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    : arena((char*)reserve(ARENA)), shadow((Byte*)reserve(ARENA * sizeof(Byte))), limit(variable("SIM_MEMORY_MB", 4096) << 20) {
    // Before the first allocation there is a gap, too.
    for (size_t& top : tops) top = ALIGNMENT;
}

uintptr_t Memory::allocate(int device, size_t bytes) {
    std::lock_guard lock(mutex);
    size_t room = (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &top = tops[device];
    if (bytes == 0 || bytes > limit - used[device] || room > PART - top) return 0;
    uintptr_t address = (uintptr_t)arena + device * PART + top;
    top += room;
    used[device] += bytes;
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
    used[device_of(address)] -= found->second;
    allocations.erase(found);
}

/// How many bytes, at most `most`, are in the state of the first.
size_t Memory::alike(const Byte* first, size_t most) {
    size_t count = 1;
    while (count < most && !memcmp(first, first + count, sizeof *first)) count++;
    return count;
}

void Memory::begin(const Accessor& accessor, uintptr_t address, size_t bytes) {
    // Like a read of the operation that allocates: whoever writes has to come later.
    std::fill_n(&shadow_of(address), bytes, Byte{{UNWRITTEN}, accessor.epoch});
    // What nobody has written shows where it is used all the same: NaN in every floating-point format.
    memset((void*)address, 0xFF, bytes);
}

void Memory::end(const Accessor& accessor, uintptr_t address, size_t bytes) {
    for (size_t i = 0, count; i < bytes; i += count) {
        count = alike(&shadow_of(address + i), bytes - i);
        write(accessor, (void*)(address + i), count);
    }
    std::fill_n(&shadow_of(address), bytes, Byte{{FREED}, {}});
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
static void forbidden(const Accessor& accessor, const char* access, const std::string& why) {
    complain(std::string(access) + " by " + accessor.name(accessor.epoch) + ": " + why);
}

/// What has written before this address, where that is not far away: perhaps the access goes beyond it.
std::string Memory::neighbour(const Accessor& accessor, uintptr_t address) {
    for (size_t distance = 1; distance <= 65536; distance++) {
        Epoch written = shadow_of(address - distance).written;
        if (written.stream()) return ", " + std::to_string(distance) + " bytes behind what " + accessor.name(written) + " has written";
        if (written.bits == NEVER_ALLOCATED) break;
    }
    return "";
}

bool Memory::can_use(const Accessor& accessor, const char* access, uintptr_t address) {
    if (device_of(address) != accessor.device) {
        forbidden(accessor, access, "the memory is another device's");
        return false;
    }
    switch (shadow_of(address).written.bits) {
    case NEVER_ALLOCATED: forbidden(accessor, access, "out of bounds"); return false;
    case FREED: forbidden(accessor, access, "the memory has been freed"); return false;
    default: return true;
    }
}

bool Memory::is_written_in_part(uintptr_t address) {
    uintptr_t word = address & ~uintptr_t(3);
    for (uintptr_t byte = word; byte < word + 4; byte++) {
        if (shadow_of(byte).written.stream()) return true;
    }
    return false;
}

void Memory::read(const Accessor& accessor, const void* start, size_t bytes) {
    uintptr_t address = (uintptr_t)start, end = address + bytes;
    for (size_t count; address < end; address += count) {
        Byte* first = &shadow_of(address);
        Byte byte = *first;
        count = alike(first, end - address);
        // This operation has read them before, and that was looked at.
        if (byte.read.bits == accessor.epoch.bits && byte.written.bits != UNWRITTEN) continue;
        if (!can_use(accessor, "read", address)) return;
        // Word by word: a run may begin in one of which a part has been written, and end in another.
        if (byte.written.bits == UNWRITTEN) count = std::min<size_t>(count, 4 - address % 4);
        if (byte.written.bits == UNWRITTEN && (accessor.may_read_anything || (accessor.reads_words && is_written_in_part(address)))) continue;
        if (byte.written.bits == UNWRITTEN) {
            forbidden(accessor, "read", "nothing has been written there" + neighbour(accessor, address));
            return;
        }
        if (!accessor.before->has(byte.written)) {
            unordered(accessor, "read", "write", byte.written);
            return;
        }
        if (byte.read.bits && !accessor.before->has(byte.read)) {
            for (size_t i = 0; i < count; i++) {
                auto& others = other_reads[address + i];
                std::erase_if(others, [&](Epoch other) { return accessor.before->has(other); });
                if (others.empty() || others.back().bits != byte.read.bits) others.push_back(byte.read);
            }
        }
        std::fill_n(first, count, Byte{byte.written, accessor.epoch});
    }
}

void Memory::write(const Accessor& accessor, const void* start, size_t bytes) {
    uintptr_t address = (uintptr_t)start, end = address + bytes;
    for (size_t count; address < end; address += count) {
        Byte* first = &shadow_of(address);
        Byte byte = *first;
        count = alike(first, end - address);
        if (byte.written.bits == accessor.epoch.bits && !byte.read.bits) continue;
        if (!can_use(accessor, "write", address)) return;
        if (byte.written.bits != UNWRITTEN && !accessor.before->has(byte.written)) {
            unordered(accessor, "write", "write", byte.written);
        } else if (byte.read.bits && !accessor.before->has(byte.read)) {
            unordered(accessor, "write", byte.written.bits == UNWRITTEN ? "beginning" : "read", byte.read);
        } else if (!other_reads.empty()) {
            auto last = other_reads.lower_bound(address + count);
            for (auto found = other_reads.lower_bound(address); found != last; found = other_reads.erase(found)) {
                for (Epoch other : found->second) {
                    if (!accessor.before->has(other)) unordered(accessor, "write", "read", other);
                }
            }
        }
        std::fill_n(first, count, Byte{accessor.epoch, {}});
    }
}
