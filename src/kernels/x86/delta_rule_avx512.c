/* The gated delta rule with AVX-512. */
#include <immintrin.h>

#include "kernels/delta_rule.h"
#include "kernels/unroll.h"

enum { LANES = 16, COLUMNS = 32 };
typedef __m512 lanes_t;

ATH_INLINE lanes_t lanes_load(const float *p) {
    return _mm512_load_ps(p);
}
ATH_INLINE lanes_t lanes_loadu(const float *p) {
    return _mm512_loadu_ps(p);
}
ATH_INLINE void lanes_store(float *p, lanes_t x) {
    _mm512_store_ps(p, x);
}
ATH_INLINE void lanes_storeu(float *p, lanes_t x) {
    _mm512_storeu_ps(p, x);
}
ATH_INLINE lanes_t lanes_set(float x) {
    return _mm512_set1_ps(x);
}
ATH_INLINE lanes_t lanes_add(lanes_t a, lanes_t b) {
    return _mm512_add_ps(a, b);
}
ATH_INLINE lanes_t lanes_mul(lanes_t a, lanes_t b) {
    return _mm512_mul_ps(a, b);
}
ATH_INLINE lanes_t lanes_fma(lanes_t a, lanes_t b, lanes_t c) {
    return _mm512_fmadd_ps(a, b, c);
}
ATH_INLINE lanes_t lanes_fnma(lanes_t a, lanes_t b, lanes_t c) {
    return _mm512_fnmadd_ps(a, b, c);
}

#include "kernels/delta_lanes.h"

void ath_delta_rule_avx512(const ath_delta_block *block) {
    delta_rule(block);
}
