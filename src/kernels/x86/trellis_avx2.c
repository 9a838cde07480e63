/* The trellis encoder with AVX2: 16 tokens at once. */
#include <immintrin.h>

#include "kernels/trellis_x86.h"
#include "kernels/unroll.h"

enum { LANES = ATH_TRELLIS_LANES_AVX2 };
typedef __m256i lanes_t;

ATH_INLINE lanes_t lanes_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
ATH_INLINE void lanes_store(void *p, lanes_t x) {
    _mm256_storeu_si256((__m256i *)p, x);
}
ATH_INLINE lanes_t lanes_set(uint16_t x) {
    return _mm256_set1_epi16((short)x);
}
ATH_INLINE lanes_t lanes_add_saturated(lanes_t a, lanes_t b) {
    return _mm256_adds_epu16(a, b);
}
ATH_INLINE lanes_t lanes_sub(lanes_t a, lanes_t b) {
    return _mm256_sub_epi16(a, b);
}
ATH_INLINE lanes_t lanes_distance(lanes_t a, lanes_t b) {
    return _mm256_abs_epi16(_mm256_sub_epi16(a, b));
}
ATH_INLINE lanes_t lanes_min(lanes_t a, lanes_t b) {
    return _mm256_min_epu16(a, b);
}
ATH_INLINE lanes_t lanes_mul(lanes_t a, lanes_t b) {
    return _mm256_mullo_epi16(a, b);
}
ATH_INLINE lanes_t lanes_and(lanes_t a, lanes_t b) {
    return _mm256_and_si256(a, b);
}
ATH_INLINE lanes_t lanes_or(lanes_t a, lanes_t b) {
    return _mm256_or_si256(a, b);
}
ATH_INLINE lanes_t lanes_xor(lanes_t a, lanes_t b) {
    return _mm256_xor_si256(a, b);
}
ATH_INLINE lanes_t lanes_shl(lanes_t x, int n) {
    return _mm256_slli_epi16(x, n);
}
ATH_INLINE lanes_t lanes_shr(lanes_t x, int n) {
    return _mm256_srli_epi16(x, n);
}
ATH_INLINE lanes_t lanes_append(lanes_t a, lanes_t b) {
    return lanes_or(lanes_shr(a, 4), lanes_shl(b, 12));
}

ATH_INLINE lanes_t lanes_where_equal(lanes_t a, lanes_t b, lanes_t x, lanes_t y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpeq_epi16(a, b));
}

/* 16 bytes of a table that begins at table[from]; the upper byte of a lane becomes 0. */
ATH_INLINE lanes_t look_up_16(const lanes_t *table, int from, lanes_t index) {
    __m128i part = _mm_loadu_si128((const __m128i *)(const void *)((const uint8_t *)table + from));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part), lanes_or(index, lanes_set(0x8000)));
}

ATH_INLINE lanes_t lanes_square(const lanes_t *table, lanes_t index, int w) {
    lanes_t x;
    if (w == 4) {
        x = look_up_16(table, 0, index);
    } else {
        const lanes_t bit4 = lanes_set(16), bit5 = lanes_set(32);
        lanes_t low = lanes_and(index, lanes_set(15)), upper = lanes_and(index, bit4);
        lanes_t a = lanes_where_equal(upper, bit4, look_up_16(table, 0, low), look_up_16(table, 16, low));
        lanes_t b = lanes_where_equal(upper, bit4, look_up_16(table, 32, low), look_up_16(table, 48, low));
        x = lanes_where_equal(lanes_and(index, bit5), bit5, a, b);
    }
    return lanes_mul(x, x);
}

ATH_INLINE void lanes_widen(lanes_t *sum, lanes_t x) {
    sum[0] = _mm256_add_epi32(sum[0], _mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
    sum[1] = _mm256_add_epi32(sum[1], _mm256_srli_epi32(x, 16));
}

#include "kernels/trellis_lanes.h"

void ath_trellis_strip_avx2(const ath_turbo_code *code, const int16_t (*x)[LANES], int n,
                            uint16_t (*words)[LANES], int32_t *squares) {
    encode_trellis_strip(code, x, n, words, squares);
}
