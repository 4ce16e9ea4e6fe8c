// Descriptors, layouts and preferences: numbers by attribute.
#pragma once
#include <cstddef>
#include <cstring>
#include <map>
#include <vector>

class Attributes {
public:
    void set(int attribute, const void* value, size_t bytes) {
        values[attribute].assign((const char*)value, (const char*)value + bytes);
    }
    template <class T> void put(int attribute, T value) { set(attribute, &value, sizeof value); }
    template <class T> T get(int attribute, T otherwise) const {
        auto found = values.find(attribute);
        if (found == values.end() || found->second.size() != sizeof(T)) return otherwise;
        T value;
        memcpy(&value, found->second.data(), sizeof value);
        return value;
    }
    bool has(int attribute) const { return values.count(attribute) != 0; }
    /// Copies the value; false where there is none or no room.
    bool copy(int attribute, void* value, size_t bytes, size_t* written) const {
        auto found = values.find(attribute);
        size_t size = found == values.end() ? bytes : found->second.size();
        if (size > bytes) return false;
        memset(value, 0, bytes);
        if (found != values.end()) memcpy(value, found->second.data(), size);
        if (written) *written = size;
        return true;
    }

private:
    std::map<int, std::vector<char>> values;
};
