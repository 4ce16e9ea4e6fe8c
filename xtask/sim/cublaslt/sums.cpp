// Exact integers. What is fast about it: codes are taken apart once, and a block's products are vectors.
#include "sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <cublasLt.h>

/// Fraction bits of a product of significands.
constexpr int OF_PRODUCT = 6;
/// No exponent counts below this one.
constexpr int LOWEST = -132;
/// The exponent of a zero, however scales move it: far below the lowest.
constexpr int16_t OF_ZERO = -2000;
/// Blocks end here at the latest.
constexpr uint64_t PADDING = 32;

Rows::Rows(int type, uint64_t rows, uint64_t k) : k(k), length((k + PADDING - 1) / PADDING * PADDING) {
    significands.assign(rows * length, 0);
    exponents.assign(rows * length, OF_ZERO);
    values.assign(rows * length, 0);
    finite.assign(rows, true);
    bool e5m2 = type == CUDA_R_8F_E5M2;
    int bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    for (int code = 0; code < 256; code++) {
        int exponent = (code & 127) >> bits, fraction = code & ((1 << bits) - 1), sign = code & 128 ? -1 : 1;
        int significand = (fraction | (exponent ? 1 << bits : 0)) << (3 - bits);
        significand_of[code] = sign * significand;
        exponent_of[code] = significand ? std::max(exponent, 1) - bias : OF_ZERO;
        value_of[code] = sign * ldexpf(significand, std::max(exponent, 1) - bias - 3);
        if (e5m2 && exponent == 31) value_of[code] = fraction ? NAN : sign * INFINITY;
        if (!e5m2 && (code & 127) == 127) value_of[code] = NAN;
    }
}

void Rows::set(uint64_t row, const uint8_t* codes) {
    uint64_t start = row * length;
    bool all = true;
    for (uint64_t l = 0; l < k; l++) {
        significands[start + l] = significand_of[codes[l]];
        exponents[start + l] = exponent_of[codes[l]];
        values[start + l] = value_of[codes[l]];
        all &= std::isfinite(value_of[codes[l]]);
    }
    finite[row] = all;
}

void Rows::move(uint64_t row, uint64_t block, uint8_t byte) {
    uint64_t start = row * length + block * PADDING;
    for (uint64_t l = start; l < start + PADDING; l++) {
        exponents[l] += byte - 127;
        if (byte == 255) values[l] = NAN;
    }
    if (byte == 255) finite[row] = false;
}

Row Rows::at(uint64_t row) const {
    uint64_t start = row * length;
    return {&significands[start], &exponents[start], &values[start], (bool)finite[row]};
}

/// A power of two that is a normal number of f64.
static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// `significand` in units of `2^unit`, cut toward zero to `fraction` bits of its own.
template <class Sum> static float rounded(Sum significand, int unit, int fraction) {
    if (!significand) return 0;
    auto magnitude = (uint64_t)std::abs(significand);
    int exponent = std::max(unit + 63 - __builtin_clzll(magnitude), -126);
    if (exponent > 127) return significand < 0 ? -INFINITY : INFINITY;
    int cut = std::max(exponent - fraction - unit, 0);
    auto kept = (double)(int64_t)(magnitude >> cut << cut) * power_of_two(unit);
    return (float)(significand < 0 ? -kept : kept);
}

/// PRODUCTS products and the running sum at once: aligned to the largest exponent, each cut toward zero FRACTION bits below it, added exactly,
/// the sum cut to RESULT fraction bits.
template <int PRODUCTS, int FRACTION, int RESULT>
static float step(const int16_t* __restrict a, const int16_t* __restrict of_a, const int16_t* __restrict b, const int16_t* __restrict of_b, float running) {
    // 32 products of 27 bits do not fit.
    using Sum = std::conditional_t<(FRACTION > 20), int64_t, int32_t>;
    uint32_t bits;
    memcpy(&bits, &running, sizeof bits);
    int64_t significand = bits & 0x7FFFFF;
    int biased = bits >> 23 & 255, unit = std::max(biased, 1) - 150, largest = LOWEST;
    if (biased) significand |= 1 << 23;
    // A running sum has the exponent of its highest bit, also where it is subnormal.
    if (significand) largest = std::max(largest, unit + 63 - __builtin_clzll(significand));

    int16_t products[PRODUCTS], exponents[PRODUCTS], of_products = LOWEST;
    // Unrolled, 16 of them would not become vectors.
#pragma GCC unroll 1
    for (int l = 0; l < PRODUCTS; l++) {
        products[l] = a[l] * b[l];
        exponents[l] = of_a[l] + of_b[l];
        of_products = std::max(of_products, exponents[l]);
    }
    largest = std::max<int>(largest, of_products);
    Sum sum = 0;
#pragma GCC unroll 1
    for (int l = 0; l < PRODUCTS; l++) {
        int32_t magnitude = (std::abs(products[l]) << (FRACTION - OF_PRODUCT)) >> std::min(largest - exponents[l], 31);
        sum += products[l] < 0 ? -magnitude : magnitude;
    }
    int left = unit - (largest - FRACTION);
    significand = left >= 0 ? significand << left : significand >> std::min(-left, 63);
    sum += (Sum)(bits >> 31 ? -significand : significand);
    return rounded(sum, largest - FRACTION, RESULT);
}

template <int PRODUCTS, int FRACTION, int RESULT> static float chain(const Row& a, const Row& b, uint64_t begin, uint64_t end) {
    float sum = 0;
    for (uint64_t block = begin; block < end; block += PRODUCTS) {
        if (!a.finite || !b.finite || !std::isfinite(sum)) {
            // Products of finite codes are far below what f32 holds: only what is not finite makes this so.
            float exact = sum;
            for (uint64_t l = block; l < block + PRODUCTS; l++) exact += a.values[l] * b.values[l];
            if (!std::isfinite(exact)) {
                sum = exact;
                continue;
            }
        }
        sum = step<PRODUCTS, FRACTION, RESULT>(a.significands + block, a.exponents + block, b.significands + block, b.exponents + block, sum);
    }
    return sum;
}

Chain chain_of(long device) {
    switch (device) {
    case 89: return chain<16, 13, 13>;
    case 90: return chain<32, 13, 13>;
    default: return chain<32, 25, 23>;
    }
}
