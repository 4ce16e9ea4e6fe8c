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
    /// A name for complaints.
    std::function<std::string(Epoch)> name;
};

class Memory {
public:
    Memory();

    /// A new allocation, 512-byte aligned with a gap behind it; 0 where there is no room. Its bytes can be used once `begin` has run.
    uintptr_t allocate(size_t bytes);
    /// The bytes of an allocation; 0 if there is none at this address.
    size_t bytes_of(uintptr_t address);
    /// Ends an allocation: its memory can be allocated again, at other addresses.
    void forget(uintptr_t address);

    // What follows is only called by the thread that runs operations.

    /// From here on the bytes are there, and nothing has been written to them.
    void begin(uintptr_t address, size_t bytes);
    /// From here on they are not: every access that is not ordered before is a complaint, and so is every later one.
    void end(const Accessor& accessor, uintptr_t address, size_t bytes);
    void read(const Accessor& accessor, const void* address, size_t bytes);
    void write(const Accessor& accessor, const void* address, size_t bytes);
    bool holds(const void* address) const {
        return (uintptr_t)address - (uintptr_t)arena < ARENA;
    }

private:
    static constexpr size_t ARENA = size_t(1) << 36;

    /// States of a byte that no operation has written: epochs of the stream 0, which is none.
    enum State : uint32_t { NEVER_ALLOCATED, UNWRITTEN, FREED };
    struct Byte {
        Epoch written, read;
    };

    bool can_use(const Accessor& accessor, const char* access, const Byte& byte);
    Byte& shadow_of(uintptr_t address) { return shadow[address - (uintptr_t)arena]; }

    char* arena;
    Byte* shadow;
    std::mutex mutex;
    size_t top = 0, used = 0, limit;
    std::map<uintptr_t, size_t> allocations;
    /// Of bytes that several streams have read without an order: all but the last read.
    std::map<uintptr_t, std::vector<Epoch>> other_reads;
};
