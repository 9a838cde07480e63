/* Matrix products of quantised types for AVX-512: what VNNI and AMX share. A register holds the panel's 16
 * rows; formats and widths are constants of each instance, so that the compiler keeps the sums of all columns
 * in registers and unrolls the block. See matmul.h for the formula. A file defines, before it includes this,
 *     LOOK_AHEAD   how many blocks the products run ahead of their scaling: 0, or a power of two less one
 * and after it
 *     dot_block    idot[h][c] = products of a block (of its half h, for types with two sub-scales) with
 * column c */
#ifndef ATH_KERNELS_MATMUL_AVX512_H
#define ATH_KERNELS_MATMUL_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "base/half.h"
#include "kernels/matmul.h"
#include "kernels/unroll.h"

enum { BLOCK_CODES = 32 * ATH_PANEL_ROWS };

typedef __m512i block_sums[2][ATH_TILE_MAX];

/* codes: packed, or as `expand` made them. */
ATH_INLINE void dot_block(const ath_panel_info f, const int width, const uint8_t *codes, const bool expanded,
                          const uint8_t *act, __m512i table, block_sums idot);

ATH_INLINE __m512i broadcast_i32(const uint8_t *p) {
    return _mm512_broadcastd_epi32(_mm_loadu_si32(p));
}

ATH_INLINE __m512 broadcast_f32(const uint8_t *p) {
    return _mm512_castsi512_ps(broadcast_i32(p));
}

/* Shifts bytes by count (right if negative); bits that cross bytes are for the caller to mask. */
ATH_INLINE __m512i shift_left(__m512i x, int count) {
    if (count > 0) return _mm512_slli_epi16(x, (unsigned)count);
    return count < 0 ? _mm512_srli_epi16(x, (unsigned)-count) : x;
}

/* The 64 codes of a group as unsigned bytes, value + zero. */
ATH_INLINE __m512i unpack_group(const ath_panel_info f, const uint8_t *planes, int g, __m512i table) {
    if (f.bits == 8) return _mm512_loadu_si512(planes + 64 * g);
    const int low = f.bits >= 4 ? 4 : 2, high = f.bits - low, groups = 8 / low;
    __m512i code = shift_left(_mm512_loadu_si512(planes + 64 * (g / groups)), -low * (g % groups));
    code = _mm512_and_si512(code, _mm512_set1_epi8((1 << low) - 1));
    if (high) {
        __m512i bits = _mm512_loadu_si512(planes + 64 * low + (high == 2 ? 64 * (g / 4) : 0));
        bits = shift_left(bits, low - (high == 2 ? 2 * (g % 4) : g));
        code = _mm512_ternarylogic_epi64(code, bits, _mm512_set1_epi8((char)(((1 << high) - 1) << low)),
                                         0xf8); /* a | b&c */
    }
    return f.table ? _mm512_shuffle_epi8(table, code) : code;
}

ATH_INLINE __m512i load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

ATH_INLINE __m512i load_i8(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

ATH_INLINE __m512 load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* acc[c] += a block's products times its scales, for a type with two integer scales. Their sum of products is
 * below 2^24 (Q6_K: 2 * 128 * 16 * 32 * 127), so it is exact in floats, where a multiplication is one step
 * instead of two. */
ATH_INLINE void scale_block_sub2(const ath_panel_info f, const int width, const uint8_t *sub, __m512 d,
                                 __m512 m, const uint8_t *act, const block_sums idot, __m512 *acc) {
    const uint8_t *dx = act + 32 * width, *sums = act + 40 * width;
    __m512i min = _mm512_setzero_si512();
    __m512 factor[2];
    ATH_UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i scale = f.min ? load_u8(sub + 16 * h) : load_i8(sub + 16 * h);
        if (f.min) {
            min = _mm512_or_si512(min, _mm512_slli_epi32(_mm512_srli_epi32(scale, 4), 16 * (unsigned)h));
            scale = _mm512_and_si512(scale, _mm512_set1_epi32(15));
        }
        factor[h] = _mm512_cvtepi32_ps(scale);
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) {
        __m512 x = broadcast_f32(dx + 4 * c),
               total = _mm512_mul_ps(_mm512_cvtepi32_ps(idot[0][c]), factor[0]);
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(idot[1][c]), factor[1], total);
        acc[c] = _mm512_fmadd_ps(total, _mm512_mul_ps(d, x), acc[c]);
        if (!f.min) continue;
        __m512i imin = _mm512_dpwssd_epi32(_mm512_setzero_si512(), min, broadcast_i32(sums + 4 * c));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(imin), _mm512_mul_ps(m, x), acc[c]);
    }
}

ATH_INLINE void scale_block(const ath_panel_info f, const int width, const uint8_t *sub, __m512 d, __m512 m,
                            const uint8_t *act, const block_sums idot, __m512 *acc) {
    if (f.sub == 1) {
        d = _mm512_mul_ps(d, _mm512_cvtepi32_ps(load_i8(sub)));
        if (f.min) m = _mm512_mul_ps(m, _mm512_cvtepi32_ps(load_u8(sub + 16)));
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) {
        __m512 scale = _mm512_mul_ps(d, broadcast_f32(act + 32 * width + 4 * c));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(idot[0][c]), scale, acc[c]);
        if (f.min) acc[c] = _mm512_fmadd_ps(m, broadcast_f32(act + 36 * width + 4 * c), acc[c]);
    }
}

/* Half of 2^(e - 127), denormal for e < 2. */
ATH_INLINE __m512 load_e8m0_half(const uint8_t *p) {
    __m512i e = load_u8(p), one = _mm512_set1_epi32(1);
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __mmask16 small = _mm512_cmple_epi32_mask(e, one);
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(bits, small, _mm512_set1_epi32(0x00200000), e));
}

ATH_INLINE __m512i load_table(const ath_panel_info f) {
    if (!f.table) return _mm512_setzero_si512();
    __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ath_panel_tables[f.table]));
    return _mm512_add_epi8(t, _mm512_set1_epi8((char)f.zero));
}

ATH_INLINE void store_rows(const ath_matmul_tile *t, int c, __m512 sum) {
    if (c < t->n_cols) _mm512_mask_storeu_ps(t->out[c], (__mmask16)((1u << t->n_rows) - 1), sum);
}

/* One column means decode: weights come from memory once, in the order in which panels lie there. */
ATH_INLINE void fetch_ahead(const uint8_t *p, const int bytes) {
    ATH_UNROLL
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + ATH_PANEL_AHEAD + i, _MM_HINT_T0);
}

ATH_INLINE void tile_quantised(const ath_panel_info f, const int width, const bool expanded,
                               const ath_matmul_tile *t) {
    const int code_bytes = ath_panel_code_bytes(f.bits), sub_bytes = ath_panel_sub_bytes(f.min, f.sub);
    const int head_bytes = ath_panel_head_bytes((int)f.type, f.min);
    const int64_t n_blocks = t->n_in / 32,
                  next_scales = (int64_t)ath_panel_bytes(t->format, t->n_in) - ATH_PANEL_AHEAD;
    const uint8_t *codes = expanded ? t->codes : t->panel, *scales = t->panel + n_blocks * code_bytes,
                  *act = t->act;
    const __m512i table = load_table(f);
    const int step = expanded ? BLOCK_CODES : code_bytes;
    __m512 acc[ATH_TILE_MAX], d, m = _mm512_setzero_ps();
    block_sums idot[LOOK_AHEAD + 1];
    ATH_UNROLL
    for (int c = 0; c < width; c++) acc[c] = _mm512_setzero_ps();
    for (int64_t i = 0; i < LOOK_AHEAD && i < n_blocks; i++)
        dot_block(f, width, codes + i * step, expanded, act + i * 44 * width, table, idot[i & LOOK_AHEAD]);
    for (int64_t i = 0; i < n_blocks; i += f.blocks) {
        d = f.type == ATH_TYPE_MXFP4 ? load_e8m0_half(scales) : load_f16(scales);
        if (f.min) m = load_f16(scales + 32);
        if (width == 1) fetch_ahead(scales + next_scales, head_bytes + f.blocks * sub_bytes);
        if (f.min && f.sub) m = _mm512_xor_ps(m, _mm512_set1_ps(-0.0f)); /* K types subtract their minimum */
        scales += head_bytes;
        for (int b = 0; b < f.blocks; b++) {
            if (width == 1) fetch_ahead(codes, code_bytes);
            if (!LOOK_AHEAD || i + b + LOOK_AHEAD < n_blocks)
                dot_block(f, width, codes + LOOK_AHEAD * step, expanded, act + LOOK_AHEAD * 44 * width, table,
                          idot[(i + b + LOOK_AHEAD) & LOOK_AHEAD]);
            if (f.sub == 2)
                scale_block_sub2(f, width, scales, d, m, act, idot[(i + b) & LOOK_AHEAD], acc);
            else
                scale_block(f, width, scales, d, m, act, idot[(i + b) & LOOK_AHEAD], acc);
            codes += step;
            scales += sub_bytes;
            act += 44 * width;
        }
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) store_rows(t, c, acc[c]);
}

/* The codes of a panel as bytes in the order of groups, less `minus`. */
ATH_INLINE void expand_panel(const ath_panel_info f, const int minus, const uint8_t *panel, int64_t n_in,
                             uint8_t *codes) {
    const __m512i table = load_table(f);
    for (int64_t i = 0; i < n_in / 32; i++) {
        ATH_UNROLL
        for (int g = 0; g < 8; g++) {
            __m512i code = unpack_group(f, panel, g, table);
            _mm512_store_si512(codes + 64 * g, _mm512_sub_epi8(code, _mm512_set1_epi8((char)minus)));
        }
        panel += ath_panel_code_bytes(f.bits);
        codes += BLOCK_CODES;
    }
}

#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    static const ath_panel_info info_##type = {ATH_TYPE_##type, bits, zero, ATH_TABLE_##table,               \
                                               blocks,          min,  sub};
#include "kernels/matmul_formats.def"
#undef ATH_PANEL

#endif
