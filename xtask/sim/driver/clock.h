// Vector clocks: what of each stream has happened before.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

/// One operation: a stream and the number of the operation in it. 0 is none.
struct Epoch {
    uint32_t bits = 0;

    /// Streams and operations of each that it can tell from each other.
    static constexpr uint32_t STREAMS = 1 << 10, OPERATIONS = 1 << 22;

    static Epoch of(unsigned stream, uint32_t clock) { return {stream * OPERATIONS | clock}; }
    unsigned stream() const { return bits / OPERATIONS; }
    uint32_t clock() const { return bits % OPERATIONS; }
};

/// For each stream the last operation that has happened before.
class Clock {
public:
    void join(const Clock& other) {
        grow(other.last.size());
        for (size_t i = 0; i < other.last.size(); i++) last[i] = std::max(last[i], other.last[i]);
    }
    void set(unsigned stream, uint32_t clock) {
        grow(stream + 1);
        last[stream] = clock;
    }
    bool has(Epoch epoch) const { return epoch.stream() < last.size() && epoch.clock() <= last[epoch.stream()]; }

private:
    void grow(size_t size) {
        if (last.size() < size) last.resize(size);
    }
    std::vector<uint32_t> last;
};
