/* The trellis encoder with NEON: 8 tokens at once. */
#include <arm_neon.h>

#include "kernels/trellis_arm.h"
#include "kernels/unroll.h"

enum { LANES = ATH_TRELLIS_LANES_NEON };
typedef uint16x8_t lanes_t;

ATH_INLINE lanes_t lanes_load(const void *p) {
    return vld1q_u16((const uint16_t *)p);
}
ATH_INLINE void lanes_store(void *p, lanes_t x) {
    vst1q_u16((uint16_t *)p, x);
}
ATH_INLINE lanes_t lanes_set(uint16_t x) {
    return vdupq_n_u16(x);
}
ATH_INLINE lanes_t lanes_add_saturated(lanes_t a, lanes_t b) {
    return vqaddq_u16(a, b);
}
ATH_INLINE lanes_t lanes_sub(lanes_t a, lanes_t b) {
    return vsubq_u16(a, b);
}
ATH_INLINE lanes_t lanes_distance(lanes_t a, lanes_t b) {
    return vreinterpretq_u16_s16(vabdq_s16(vreinterpretq_s16_u16(a), vreinterpretq_s16_u16(b)));
}
ATH_INLINE lanes_t lanes_min(lanes_t a, lanes_t b) {
    return vminq_u16(a, b);
}
ATH_INLINE lanes_t lanes_mul(lanes_t a, lanes_t b) {
    return vmulq_u16(a, b);
}
ATH_INLINE lanes_t lanes_and(lanes_t a, lanes_t b) {
    return vandq_u16(a, b);
}
ATH_INLINE lanes_t lanes_or(lanes_t a, lanes_t b) {
    return vorrq_u16(a, b);
}
ATH_INLINE lanes_t lanes_xor(lanes_t a, lanes_t b) {
    return veorq_u16(a, b);
}
ATH_INLINE lanes_t lanes_shl(lanes_t x, int n) {
    return x << vdupq_n_u16((uint16_t)n);
}
ATH_INLINE lanes_t lanes_shr(lanes_t x, int n) {
    return x >> vdupq_n_u16((uint16_t)n);
}
ATH_INLINE lanes_t lanes_append(lanes_t a, lanes_t b) {
    return vsliq_n_u16(vshrq_n_u16(a, 4), b, 12);
}
ATH_INLINE lanes_t lanes_where_equal(lanes_t a, lanes_t b, lanes_t x, lanes_t y) {
    return vbslq_u16(vceqq_u16(a, b), y, x);
}

/* An index beyond the table gives 0, so the upper byte of a lane does. */
ATH_INLINE lanes_t lanes_square(const lanes_t *table, lanes_t index, int w) {
    const uint8_t *bytes = (const uint8_t *)table;
    uint8x16_t at = vreinterpretq_u8_u16(lanes_or(index, lanes_set(0xff00)));
    lanes_t x =
        vreinterpretq_u16_u8(w == 4 ? vqtbl1q_u8(vld1q_u8(bytes), at) : vqtbl4q_u8(vld1q_u8_x4(bytes), at));
    return lanes_mul(x, x);
}

ATH_INLINE void lanes_widen(lanes_t *sum, lanes_t x) {
    uint32x4_t even = vandq_u32(vreinterpretq_u32_u16(x), vdupq_n_u32(0xffff));
    uint32x4_t odd = vshrq_n_u32(vreinterpretq_u32_u16(x), 16);
    sum[0] = vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_u16(sum[0]), even));
    sum[1] = vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_u16(sum[1]), odd));
}

#include "kernels/trellis_lanes.h"

void ath_trellis_strip_neon(const ath_turbo_code *code, const int16_t (*x)[LANES], int n,
                            uint16_t (*words)[LANES], int32_t *squares) {
    encode_trellis_strip(code, x, n, words, squares);
}
