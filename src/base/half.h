/* Half-precision floats in plain C: IEEE 754 binary16 (f16) and bfloat16 (bf16), round to nearest even.
 * Kernels have their own SIMD versions; these are the reference and must give the same bits. */
#ifndef ATH_BASE_HALF_H
#define ATH_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ath_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ath_f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float ath_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return ath_f32_from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return ath_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float x = (float)mantissa * 0x1p-24f; /* zero and denormals are exact in f32 */
    return sign ? -x : x;
}

/* Overflow gives infinity; NaN stays NaN (quiet). */
static inline uint16_t ath_f32_to_f16(float x) {
    uint32_t u = ath_f32_bits(x), sign = (u >> 16) & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x3ff));
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) { /* below the smallest normal f16: let the FPU round to multiples of 2^-24 */
        float y = ath_f32_from_bits(u) + 0.5f;
        return (uint16_t)(sign | (ath_f32_bits(y) - 0x3f000000));
    }
    u += 0xc8000fff + ((u >> 13) & 1); /* rebias the exponent by -112, round half to even */
    return (uint16_t)(sign | u >> 13);
}

static inline float ath_bf16_to_f32(uint16_t b) { return ath_f32_from_bits((uint32_t)b << 16); }

static inline uint16_t ath_f32_to_bf16(float x) {
    uint32_t u = ath_f32_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#endif
