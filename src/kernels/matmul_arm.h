/* Matrix products for ARM: what the instruction sets share. A register holds 4 of a panel's 16 rows, 4 inputs
 * each, as they lie in the panel. Values are signed bytes: codes as they are where they fit, their zero point
 * taken out by the sums of the activations. See matmul.h for the formula.
 *
 * An instruction set's file defines
 *     MOST, CELLS    columns at a time; and columns times registers of rows, as registers allow
 * before it includes this, and after it the one thing that differs:
 *     dot_groups     idot[c][v] += groups [g0, g1) of a block times column c, for rows 4v .. 4v + 3 */
#ifndef ATH_KERNELS_MATMUL_ARM_H
#define ATH_KERNELS_MATMUL_ARM_H

#include <arm_neon.h>
#include <string.h>

#include "base/half.h"
#include "kernels/matmul.h"
#include "kernels/unroll.h"

enum { VECTORS = ATH_PANEL_ROWS / 4 };

/* The part of a tile that an inner loop works on: columns c0 .. c0 + n - 1 of width, registers of rows v0 ..
 * v0 + m - 1. */
typedef struct part {
    int width, n, c0, m, v0;
} part;

ATH_INLINE void dot_groups(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *act,
                           int8x16_t table, int g0, int g1, int32x4_t (*idot)[VECTORS]);

ATH_INLINE uint8x16_t shift_left(uint8x16_t x, int count) {
    if (count > 0) return x << vdupq_n_u8((uint8_t)count);
    return count < 0 ? x >> vdupq_n_u8((uint8_t)-count) : x;
}

/* What has to be taken from every value that unpack_group gives. */
ATH_INLINE int zero_point(const ath_panel_info f) {
    return f.table || f.bits == 8 ? 0 : f.zero;
}

/* The largest magnitude that unpack_group gives. */
ATH_INLINE int largest_value(const ath_panel_info f) {
    return f.table ? f.zero : f.bits == 8 ? 128 : (1 << f.bits) - 1;
}

/* 4 rows of group g; planes: the block's, from the first of these rows on. */
ATH_INLINE int8x16_t unpack_group(const ath_panel_info f, const uint8_t *planes, int g, int8x16_t table) {
    if (f.bits == 8) return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(planes + 64 * g), vdupq_n_u8(0x80)));
    const int low = f.bits >= 4 ? 4 : 2, high = f.bits - low, groups = 8 / low, at = low * (g % groups);
    uint8x16_t code = shift_left(vld1q_u8(planes + 64 * (g / groups)), -at);
    if (at + low < 8) code = vandq_u8(code, vdupq_n_u8((uint8_t)((1 << low) - 1)));
    if (high) {
        uint8x16_t bits = vld1q_u8(planes + 64 * low + (high == 2 ? 64 * (g / 4) : 0));
        bits = shift_left(bits, low - (high == 2 ? 2 * (g % 4) : g));
        code = vorrq_u8(code, vandq_u8(bits, vdupq_n_u8((uint8_t)(((1 << high) - 1) << low))));
    }
    return f.table ? vqtbl1q_s8(table, code) : vreinterpretq_s8_u8(code);
}

ATH_INLINE float load_float(const uint8_t *p) {
    float x;
    memcpy(&x, p, 4);
    return x;
}

ATH_INLINE float32x4_t load_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

ATH_INLINE uint32x4_t load_u8(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(x))));
}

ATH_INLINE int32x4_t load_i8(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(x))));
}

/* Half of 2^(e - 127), denormal for e < 2. */
ATH_INLINE float32x4_t load_e8m0_half(const uint8_t *p) {
    uint32x4_t e = load_u8(p), one = vdupq_n_u32(1), usual = vshlq_n_u32(vsubq_u32(e, one), 23);
    uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, one), usual, small));
}

/* Sums of the activations of column c over inputs 0..15 and 16..31. */
typedef struct half_sums {
    int16_t half[2];
} half_sums;

ATH_INLINE half_sums load_sums(const part p, const uint8_t *act, int c) {
    half_sums sums;
    memcpy(&sums, act + 40 * p.width + 4 * (p.c0 + c), 4);
    return sums;
}

/* Scales of a head, in the lanes of its rows; m with its sign. */
typedef struct head_scales {
    float32x4_t d[VECTORS], m[VECTORS];
} head_scales;

ATH_INLINE head_scales load_head(const ath_panel_info f, const part p, const uint8_t *head) {
    head_scales s;
    ATH_UNROLL
    for (int v = 0; v < p.m; v++) {
        const uint8_t *at = head + 8 * (p.v0 + v);
        s.d[v] = f.type == ATH_TYPE_MXFP4 ? load_e8m0_half(head + 4 * (p.v0 + v)) : load_f16(at);
        s.m[v] = f.min ? load_f16(at + 32) : vdupq_n_f32(0);
        if (f.min && f.sub) s.m[v] = vnegq_f32(s.m[v]); /* K types subtract their minimum */
    }
    return s;
}

/* A block of a type with two integer scales. */
ATH_INLINE void add_block_sub2(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *sub,
                               const head_scales s, const uint8_t *act, int8x16_t table,
                               float32x4_t (*acc)[VECTORS]) {
    int32x4_t total[MOST][VECTORS], min[2][VECTORS];
    ATH_UNROLL
    for (int h = 0; h < 2; h++) {
        int32x4_t idot[MOST][VECTORS];
        for (int c = 0; c < p.n; c++) {
            int32x4_t start = vdupq_n_s32(-zero_point(f) * load_sums(p, act, c).half[h]);
            for (int v = 0; v < p.m; v++) idot[c][v] = start;
        }
        dot_groups(f, p, codes, act, table, 4 * h, 4 * h + 4, idot);
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) {
            const uint8_t *at = sub + 16 * h + 4 * (p.v0 + v);
            int32x4_t scale = f.min ? vreinterpretq_s32_u32(load_u8(at)) : load_i8(at);
            if (f.min) {
                min[h][v] = vshrq_n_s32(scale, 4);
                scale = vandq_s32(scale, vdupq_n_s32(15));
            }
            for (int c = 0; c < p.n; c++)
                total[c][v] = h ? vmlaq_s32(total[c][v], idot[c][v], scale) : vmulq_s32(idot[c][v], scale);
        }
    }
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) {
        float dx = load_float(act + 32 * p.width + 4 * (p.c0 + c));
        half_sums sums = load_sums(p, act, c);
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) {
            acc[c][v] = vfmaq_f32(acc[c][v], vcvtq_f32_s32(total[c][v]), vmulq_n_f32(s.d[v], dx));
            if (!f.min) continue;
            int32x4_t imin = vmlaq_n_s32(vmulq_n_s32(min[0][v], sums.half[0]), min[1][v], sums.half[1]);
            acc[c][v] = vfmaq_f32(acc[c][v], vcvtq_f32_s32(imin), vmulq_n_f32(s.m[v], dx));
        }
    }
}

ATH_INLINE void add_block(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *sub,
                          head_scales s, const uint8_t *act, int8x16_t table, float32x4_t (*acc)[VECTORS]) {
    int32x4_t idot[MOST][VECTORS];
    for (int c = 0; c < p.n; c++) {
        half_sums sums = load_sums(p, act, c);
        int32x4_t start = vdupq_n_s32(-zero_point(f) * (sums.half[0] + sums.half[1]));
        for (int v = 0; v < p.m; v++) idot[c][v] = start;
    }
    dot_groups(f, p, codes, act, table, 0, 8, idot);
    ATH_UNROLL
    for (int v = 0; v < p.m; v++) {
        if (!f.sub) break;
        const uint8_t *at = sub + 4 * (p.v0 + v);
        s.d[v] = vmulq_f32(s.d[v], vcvtq_f32_s32(load_i8(at)));
        if (f.min) s.m[v] = vmulq_f32(s.m[v], vcvtq_f32_u32(load_u8(at + 16)));
    }
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) {
        const uint8_t *dx = act + 32 * p.width + 4 * (p.c0 + c);
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) {
            float32x4_t scale = vmulq_n_f32(s.d[v], load_float(dx));
            acc[c][v] = vfmaq_f32(acc[c][v], vcvtq_f32_s32(idot[c][v]), scale);
            if (f.min) acc[c][v] = vfmaq_n_f32(acc[c][v], s.m[v], load_float(dx + 4 * p.width));
        }
    }
}

ATH_INLINE void store_rows(const ath_matmul_tile *t, int c, int v, float32x4_t sum) {
    int n = t->n_rows - 4 * v;
    float rows[4];
    if (c >= t->n_cols || n <= 0) return;
    if (n >= 4) {
        vst1q_f32(t->out[c] + 4 * v, sum);
        return;
    }
    vst1q_f32(rows, sum);
    memcpy(t->out[c] + 4 * v, rows, (size_t)n * sizeof *rows);
}

ATH_INLINE void part_quantised(const ath_panel_info f, const part p, const ath_matmul_tile *t) {
    const int code_bytes = ath_panel_code_bytes(f.bits), sub_bytes = ath_panel_sub_bytes(f.min, f.sub);
    const int head_bytes = ath_panel_head_bytes((int)f.type, f.min);
    const int64_t n_blocks = t->n_in / 32;
    const uint8_t *codes = t->panel + 16 * p.v0, *scales = t->panel + n_blocks * code_bytes, *act = t->act;
    const int8x16_t table = f.table ? vld1q_s8(ath_panel_tables[f.table]) : vdupq_n_s8(0);
    float32x4_t acc[MOST][VECTORS];
    for (int c = 0; c < p.n; c++)
        for (int v = 0; v < p.m; v++) acc[c][v] = vdupq_n_f32(0);
    for (int64_t i = 0; i < n_blocks; i += f.blocks) {
        head_scales s = load_head(f, p, scales);
        scales += head_bytes;
        for (int b = 0; b < f.blocks; b++) {
            if (f.sub == 2)
                add_block_sub2(f, p, codes, scales, s, act, table, acc);
            else
                add_block(f, p, codes, scales, s, act, table, acc);
            codes += code_bytes;
            scales += sub_bytes;
            act += 44 * p.width;
        }
    }
    for (int c = 0; c < p.n; c++)
        for (int v = 0; v < p.m; v++) store_rows(t, p.c0 + c, p.v0 + v, acc[c][v]);
}

ATH_INLINE void tile_quantised(const ath_panel_info f, const int width, const ath_matmul_tile *t) {
    const int n = width < MOST ? width : MOST, m = CELLS / n < VECTORS ? CELLS / n : VECTORS;
    for (int c0 = 0; c0 < t->n_cols; c0 += n)
        for (int v0 = 0; 4 * v0 < t->n_rows; v0 += m) part_quantised(f, (part){width, n, c0, m, v0}, t);
}

/* Unused: not every instruction set has a version for every width. */
#define TILE(type, width)                                                                                    \
    static __attribute__((unused)) void type##_w##width(const ath_matmul_tile *t) {                          \
        tile_quantised(info_##type, width, t);                                                               \
    }
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    static const ath_panel_info info_##type = {ATH_TYPE_##type, bits, zero, ATH_TABLE_##table,               \
                                               blocks,          min,  sub};                                  \
    TILE(type, 1)                                                                                            \
    TILE(type, 2)                                                                                            \
    TILE(type, 4)                                                                                            \
    TILE(type, 8)
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
#undef TILE

#endif
