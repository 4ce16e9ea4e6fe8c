// Device memory: host memory in which each byte knows which operations wrote and read it last.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"

/// Who accesses memory: an operation of a stream, and what has happened before it.
struct Accessor {
    Epoch epoch;
    const Clock* before;
    /// The device that it runs on.
    int device;
    /// A name for complaints.
    std::function<std::string(Epoch)> name;
    /// Whether it is let off where it reads what nothing has written.
    bool may_read_anything = false;
    /// Whether it reads words, of which only a part may have been written: the last one of an odd number of bf16 values.
    bool reads_words = false;
};

class Memory {
public:
    static constexpr int DEVICES = 4;

    Memory();

    /// A new allocation on a device, 512-byte aligned with a gap behind it; 0 where there is no room. Its bytes can be used once `begin` has run.
    uintptr_t allocate(int device, size_t bytes);
    /// The bytes of an allocation; 0 if there is none at this address.
    size_t bytes_of(uintptr_t address);
    /// Ends an allocation: its memory can be allocated again, at other addresses.
    void forget(uintptr_t address);

    // What follows is only called by the thread that runs operations.

    /// From here on the bytes are there, and nothing has been written to them. What is not ordered afterwards must not use them.
    void begin(const Accessor& accessor, uintptr_t address, size_t bytes);
    /// From here on they are not: every access that is not ordered before is a complaint, and so is every later one.
    void end(const Accessor& accessor, uintptr_t address, size_t bytes);
    void read(const Accessor& accessor, const void* address, size_t bytes);
    void write(const Accessor& accessor, const void* address, size_t bytes);
    bool holds(const void* address) const {
        return (uintptr_t)address - (uintptr_t)arena < ARENA;
    }

private:
    /// Addresses, of all devices and of one.
    static constexpr size_t ARENA = size_t(1) << 38, PART = ARENA / DEVICES;

    /// States of a byte that no operation has written: epochs of the stream 0, which is none.
    enum State : uint32_t { NEVER_ALLOCATED, UNWRITTEN, FREED };
    struct Byte {
        Epoch written, read;
    };

    std::string neighbour(const Accessor& accessor, uintptr_t address);
    bool is_written_in_part(uintptr_t address);
    static size_t alike(const Byte* first, size_t most);
    bool can_use(const Accessor& accessor, const char* access, uintptr_t address);
    Byte& shadow_of(uintptr_t address) { return shadow[address - (uintptr_t)arena]; }
    int device_of(uintptr_t address) const { return (address - (uintptr_t)arena) / PART; }

    char* arena;
    Byte* shadow;
    std::mutex mutex;
    size_t limit;
    /// Of each device: where the next allocation lies, and how many bytes are allocated.
    size_t tops[DEVICES] = {}, used[DEVICES] = {};
    std::map<uintptr_t, size_t> allocations;
    /// Of bytes that several streams have read without an order: all but the last read.
    std::map<uintptr_t, std::vector<Epoch>> other_reads;
};
