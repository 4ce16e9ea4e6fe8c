// The sums of tensor cores over K: by the rules of crates/burn-fp8-core/src/sums, written a second time.
#pragma once
#include <cstdint>
#include <vector>

/// A row of codes, taken apart, and padded with zeros to whole blocks.
struct Row {
    /// Three bits of fraction, and the sign.
    const int16_t* significands;
    const int16_t* exponents;
    /// What the codes stand for, to tell infinities and NaN.
    const float* values;
    bool finite;
};

/// Rows of codes of K elements.
class Rows {
public:
    Rows(int type, uint64_t rows, uint64_t k);
    void set(uint64_t row, const uint8_t* codes);
    /// Scales a block of 32 by 2^(byte - 127); 255 is NaN. The unit moves exponents, and never multiplies.
    void move(uint64_t row, uint64_t block, uint8_t byte);
    Row at(uint64_t row) const;

private:
    uint64_t k, length;
    std::vector<int16_t> significands, exponents;
    std::vector<float> values;
    std::vector<char> finite;
    /// By code.
    int16_t significand_of[256], exponent_of[256];
    float value_of[256];
};

/// Adds the products of a range of K, which begins with a block of 32, to +0 in one chain.
using Chain = float (*)(const Row& a, const Row& b, uint64_t begin, uint64_t end);

/// That of a device: 89, 90 or 100.
Chain chain_of(long device);
