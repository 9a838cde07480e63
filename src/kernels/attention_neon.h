/* What the ARM kernels on cache pages share. Only files for 64-bit ARM include it. */
#ifndef ATH_KERNELS_ATTENTION_NEON_H
#define ATH_KERNELS_ATTENTION_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/lanes.h"
#include "kernels/unpack_kind.h"
#include "kernels/unroll.h"

void ath_attn_turbo_init_neon(ath_attn_kernels *k);
void ath_attn_pages_init_neon(ath_attn_kernels *k);
void ath_kv_encode_neon(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch);

/* Operations of lanes.h for kernels that are written for NEON alone. */
#define ath_load_f16_neon  vf_load_f16
#define ath_load_bf16_neon vf_load_bf16
#define ath_visible_neon   vf_between
#define ath_sum_lanes_neon vf_sum_16
ATH_INLINE float32x4_t ath_masked_neon(float32x4_t x, uint32x4_t mask) {
    return vf_keep(mask, x);
}

/* 16 signed bytes as floats. */
ATH_INLINE void ath_floats_neon(int8x16_t bytes, float32x4_t *out) {
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

/* Two levels of butterflies, of rows `half` and 2 * half apart. */
ATH_INLINE void ath_butterfly_4_neon(float *x, int64_t half) {
    float32x4_t a = vld1q_f32(x), b = vld1q_f32(x + half), c = vld1q_f32(x + 2 * half),
                d = vld1q_f32(x + 3 * half);
    float32x4_t s0 = vaddq_f32(a, b), d0 = vsubq_f32(a, b), s1 = vaddq_f32(c, d), d1 = vsubq_f32(c, d);
    vst1q_f32(x, vaddq_f32(s0, s1));
    vst1q_f32(x + half, vaddq_f32(d0, d1));
    vst1q_f32(x + 2 * half, vsubq_f32(s0, s1));
    vst1q_f32(x + 3 * half, vsubq_f32(d0, d1));
}

/* Butterflies of rows of `lanes` values, x[n][lanes], ascending from neighbours; n >= 4. */
ATH_INLINE void ath_butterfly_rows_neon(float *x, int n, const int lanes) {
    int half = 1;
    for (; 2 * half < n; half *= 4)
        for (int i = 0; i < n; i++) {
            if (i & 3 * half) continue;
            for (int j = 0; j < lanes; j += 4) ath_butterfly_4_neon(x + i * lanes + j, half * lanes);
        }
    for (int i = 0; i < half * lanes && half < n; i += 4) {
        float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + half * lanes + i);
        vst1q_f32(x + i, vaddq_f32(a, b));
        vst1q_f32(x + half * lanes + i, vsubq_f32(a, b));
    }
}

/* Unnormalised Walsh-Hadamard transform of n >= 16 contiguous values, butterflies ascending. */
ATH_INLINE void ath_hadamard_neon(float *x, int n) {
    const uint32x4_t odd = vreinterpretq_u32_u64(vdupq_n_u64(UINT64_C(0x8000000000000000)));
    const uint32x4_t pairs = vcombine_u32(vdup_n_u32(0), vdup_n_u32(0x80000000));
    for (int i = 0; i < n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        v = vaddq_f32(vrev64q_f32(v), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), odd)));
        v = vaddq_f32(vextq_f32(v, v, 2), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), pairs)));
        vst1q_f32(x + i, v);
    }
    ath_butterfly_rows_neon(x, n / 4, 4);
}

/* x[i] = x[i] * factor * y[i], in this order; y may be NULL. */
ATH_INLINE void ath_multiply_neon(float *x, const float *y, float factor, int n) {
    for (int i = 0; i < n; i += 4) {
        float32x4_t v = vmulq_n_f32(vld1q_f32(x + i), factor);
        vst1q_f32(x + i, y ? vmulq_f32(v, vld1q_f32(y + i)) : v);
    }
}

/* ---- symbols to table values. A state lies in two neighbouring bytes of a token's stream; registers hold
 * the same byte of several tokens. After a unit of 1 byte (3 for codes of 3 bits) states begin at the same
 * bits again. */

ATH_INLINE int8x16x4_t ath_unpack_table_neon(const ath_turbo_code *code) {
    int8_t entries[64];
    for (int i = 0; i < 64; i++) entries[i] = code->table[i & ((1 << code->w) - 1)];
    return vld1q_s8_x4(entries);
}

ATH_INLINE int ath_unit_bytes(const ath_unpack_kind kind) {
    return kind.k == 3 ? 3 : 1;
}
ATH_INLINE int ath_unit_channels(const ath_unpack_kind kind) {
    return kind.k == 3 ? 8 : 8 / kind.k;
}

/* The values of channel i of a unit, whose bytes and the one after it are `bytes`, in registers `stride`
 * apart. */
ATH_INLINE int8x16_t ath_unpack_neon(const ath_unpack_kind kind, const int8x16x4_t *table,
                                     const uint8x16_t *bytes, const int stride, const int i) {
    const int at = kind.k * i / 8, bit = kind.k * i % 8, fold = (1 << kind.w) - 1;
    uint8x16_t x = bytes[at * stride];
    if (bit) x = x >> vdupq_n_u8((uint8_t)bit);
    if (bit + kind.L > 8) x = vorrq_u8(x, bytes[(at + 1) * stride] << vdupq_n_u8((uint8_t)(8 - bit)));
    if (bit + kind.L != 8) x = vandq_u8(x, vdupq_n_u8((uint8_t)((1 << kind.L) - 1)));
    if (kind.L > kind.w)
        x = vandq_u8(veorq_u8(x, x >> vdupq_n_u8((uint8_t)kind.w)), vdupq_n_u8((uint8_t)fold));
    return kind.w == 6 ? vqtbl4q_s8(*table, x) : vqtbl1q_s8(table->val[0], x);
}

/* K: the channels of a part of dim channels are taken in four quarters, one after the other in a dword of
 * each token. So that a quarter is made of whole units it may be more than a fourth; what lies beyond the
 * part is its beginning again. */
ATH_INLINE int ath_unpack_quarter(const ath_unpack_kind kind, int dim) {
    return kind.k == 3 && dim < 32 ? 8 : dim / 4;
}

/* Byte j of the quarters' streams, of 16 tokens. */
ATH_INLINE void ath_load_quarters_neon(const uint8_t *planes, int quarter, int size, int j, uint8x16_t *out) {
    uint8x16_t p[4];
    for (int i = 0; i < 4; i++, j += quarter) {
        while (j >= size) j -= size;
        p[i] = vld1q_u8(planes + 16 * j);
    }
    uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(p[0], p[1])),
               b = vreinterpretq_u16_u8(vzip1q_u8(p[2], p[3]));
    out[0] = vreinterpretq_u8_u16(vzip1q_u16(a, b));
    out[1] = vreinterpretq_u8_u16(vzip2q_u16(a, b));
    a = vreinterpretq_u16_u8(vzip2q_u8(p[0], p[1])), b = vreinterpretq_u16_u8(vzip2q_u8(p[2], p[3]));
    out[2] = vreinterpretq_u8_u16(vzip1q_u16(a, b));
    out[3] = vreinterpretq_u8_u16(vzip2q_u16(a, b));
}

/* 16 tokens of a part of a K page: values[quarter][16 tokens][4 quarters]. */
ATH_INLINE void ath_unpack_keys_neon(const ath_unpack_kind kind, const int8x16x4_t *table,
                                     const uint8_t *planes, int dim, int8_t *values) {
    const int unit = ath_unit_bytes(kind), quarter = ath_unpack_quarter(kind, dim) * kind.k / 8;
    uint8x16_t bytes[4][4];
    ath_load_quarters_neon(planes, quarter, dim * kind.k / 8, 0, bytes[0]);
    for (int j = 0; j < quarter; j += unit) {
        for (int i = 1; i < unit; i++)
            ath_load_quarters_neon(planes, quarter, dim * kind.k / 8, j + i, bytes[i]);
        /* after a quarter's last byte comes the next quarter's first, and the first's after the last */
        ath_load_quarters_neon(planes, quarter, dim * kind.k / 8, j + unit, bytes[unit]);
        ATH_UNROLL
        for (int i = 0; i < ath_unit_channels(kind); i++)
            for (int v = 0; v < 4; v++, values += 16)
                vst1q_s8(values, ath_unpack_neon(kind, table, bytes[0] + v, 4, i));
        for (int v = 0; v < 4; v++) bytes[0][v] = bytes[unit][v];
    }
}

/* Channels of 4 units, x[i] holding channel i of each, in their order. */
ATH_INLINE void ath_store_units_neon(const ath_unpack_kind kind, const int8x16_t *x, int n_units,
                                     int8_t *values) {
    uint32_t *out = (uint32_t *)(void *)values;
    uint32x4x4_t y;
    if (kind.k == 4) {
        uint32x4x2_t two = {{vreinterpretq_u32_s8(x[0]), vreinterpretq_u32_s8(x[1])}};
        vst2q_u32(out, two);
        return;
    }
    for (int i = 0; i < 4; i++) y.val[i] = vreinterpretq_u32_s8(x[i]);
    if (kind.k == 2) {
        vst4q_u32(out, y);
        return;
    }
    for (int half = 0; half < 2; half++, out += 4) {
        for (int i = 0; i < 4; i++) y.val[i] = vreinterpretq_u32_s8(x[4 * half + i]);
        vst4q_lane_u32(out, y, 0);
        vst4q_lane_u32(out + 8, y, 1);
        if (n_units < 4) continue;
        vst4q_lane_u32(out + 16, y, 2);
        vst4q_lane_u32(out + 24, y, 3);
    }
}

/* 4 tokens of a part of a V page, whose planes begin at start: values[dim][4 tokens]. */
ATH_INLINE void ath_unpack_values_neon(const ath_unpack_kind kind, const int8x16x4_t *table,
                                       const uint8_t *start, int dim, int8_t *values) {
    const int unit = ath_unit_bytes(kind), channels = ath_unit_channels(kind), n_units = dim / channels;
    for (int u = 0; u < n_units; u += 4) {
        const uint8_t *at = start + 4 * unit * u;
        uint8x16_t bytes[4];
        if (unit == 3) {
            uint32x4x3_t three = vld3q_u32((const uint32_t *)(const void *)at);
            for (int i = 0; i < 3; i++) bytes[i] = vreinterpretq_u8_u32(three.val[i]);
        } else {
            bytes[0] = vld1q_u8(at);
        }
        uint32_t after;
        memcpy(&after, u + 4 < n_units ? at + 16 * unit : start, sizeof after);
        bytes[unit] = vextq_u8(bytes[0], vreinterpretq_u8_u32(vdupq_n_u32(after)), 4);
        if (n_units == 2) bytes[unit] = vreinterpretq_u8_u32(vrev64q_u32(vreinterpretq_u32_u8(bytes[0])));
        int8x16_t x[8];
        ATH_UNROLL
        for (int i = 0; i < channels; i++) x[i] = ath_unpack_neon(kind, table, bytes, 1, i);
        ath_store_units_neon(kind, x, n_units - u, values + 4 * channels * u);
    }
}

#endif
