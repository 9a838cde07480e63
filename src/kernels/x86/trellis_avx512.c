/* The trellis encoder with AVX-512: 32 tokens at once. */
#include <immintrin.h>

#include "kernels/trellis_x86.h"
#include "kernels/unroll.h"

enum { LANES = ATH_TRELLIS_LANES_AVX512 };
typedef __m512i lanes_t;

ATH_INLINE lanes_t lanes_load(const void *p) {
    return _mm512_loadu_si512(p);
}
ATH_INLINE void lanes_store(void *p, lanes_t x) {
    _mm512_storeu_si512(p, x);
}
ATH_INLINE lanes_t lanes_set(uint16_t x) {
    return _mm512_set1_epi16((short)x);
}
ATH_INLINE lanes_t lanes_add_saturated(lanes_t a, lanes_t b) {
    return _mm512_adds_epu16(a, b);
}
ATH_INLINE lanes_t lanes_sub(lanes_t a, lanes_t b) {
    return _mm512_sub_epi16(a, b);
}
ATH_INLINE lanes_t lanes_distance(lanes_t a, lanes_t b) {
    return _mm512_abs_epi16(_mm512_sub_epi16(a, b));
}
ATH_INLINE lanes_t lanes_min(lanes_t a, lanes_t b) {
    return _mm512_min_epu16(a, b);
}
ATH_INLINE lanes_t lanes_mul(lanes_t a, lanes_t b) {
    return _mm512_mullo_epi16(a, b);
}
ATH_INLINE lanes_t lanes_and(lanes_t a, lanes_t b) {
    return _mm512_and_si512(a, b);
}
ATH_INLINE lanes_t lanes_or(lanes_t a, lanes_t b) {
    return _mm512_or_si512(a, b);
}
ATH_INLINE lanes_t lanes_xor(lanes_t a, lanes_t b) {
    return _mm512_xor_si512(a, b);
}
ATH_INLINE lanes_t lanes_shl(lanes_t x, int n) {
    return _mm512_slli_epi16(x, (unsigned)n);
}
ATH_INLINE lanes_t lanes_shr(lanes_t x, int n) {
    return _mm512_srli_epi16(x, (unsigned)n);
}
ATH_INLINE lanes_t lanes_append(lanes_t a, lanes_t b) {
    return _mm512_shrdi_epi16(a, b, 4);
}

ATH_INLINE lanes_t lanes_where_equal(lanes_t a, lanes_t b, lanes_t x, lanes_t y) {
    return _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(a, b), y);
}

/* The table is looked up bytewise; the upper byte of a lane is not. */
ATH_INLINE lanes_t lanes_square(const lanes_t *table, lanes_t index, int w) {
    (void)w;
    lanes_t x = _mm512_maskz_permutexvar_epi8(0x5555555555555555, index, table[0]);
    return _mm512_mullo_epi16(x, x);
}

ATH_INLINE void lanes_widen(lanes_t *sum, lanes_t x) {
    sum[0] = _mm512_add_epi32(sum[0], _mm512_and_si512(x, _mm512_set1_epi32(0xffff)));
    sum[1] = _mm512_add_epi32(sum[1], _mm512_srli_epi32(x, 16));
}

#include "kernels/trellis_lanes.h"

void ath_trellis_strip_avx512(const ath_turbo_code *code, const int16_t (*x)[LANES], int n,
                              uint16_t (*words)[LANES], int32_t *squares) {
    encode_trellis_strip(code, x, n, words, squares);
}
