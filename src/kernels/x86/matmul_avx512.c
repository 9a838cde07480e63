/* Matrix products for AVX-512 with VNNI. A register holds the panel's 16 rows; formats and widths are
 * constants of each instance, so that the compiler keeps the sums of all columns in registers and unrolls the
 * block.
 *
 * vpdpbusd multiplies unsigned codes with the signed activations; the zero point is taken off by starting
 * each sum at -zero * (sum of the activations), which vpdpwssd makes from the two half sums. See matmul.h for
 * the formula. */
#include <immintrin.h>
#include <string.h>

#include "base/half.h"
#include "kernels/matmul.h"
#include "kernels/unroll.h"

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

/* idot[c] += groups [g0, g1) of a block times each column. */
ATH_INLINE void dot_groups(const ath_panel_info f, const int width, const uint8_t *codes, const uint8_t *act,
                           __m512i table, int g0, int g1, __m512i *idot) {
    ATH_UNROLL
    for (int g = g0; g < g1; g++) {
        __m512i w = unpack_group(f, codes, g, table);
        ATH_UNROLL
        for (int c = 0; c < width; c++)
            idot[c] = _mm512_dpbusd_epi32(idot[c], w, broadcast_i32(act + (g * width + c) * 4));
    }
}

/* Starts sums at -zero * (half sums chosen by which: 1 first, 2 second, 3 both). */
ATH_INLINE void start_sums(const ath_panel_info f, const int width, const uint8_t *sums, int which,
                           __m512i *idot) {
    uint32_t z = (uint32_t)-f.zero & 0xffff, pair = (which & 1 ? z : 0) | (which & 2 ? z << 16 : 0);
    ATH_UNROLL
    for (int c = 0; c < width; c++) {
        idot[c] = _mm512_setzero_si512();
        if (f.zero)
            idot[c] = _mm512_dpwssd_epi32(idot[c], _mm512_set1_epi32((int)pair), broadcast_i32(sums + 4 * c));
    }
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

/* A block of a type with two integer scales. Their sum of products is below 2^24 (Q6_K: 2 * 128 * 16 * 32 *
 * 127), so it is exact in floats, where a multiplication is one step instead of two. */
ATH_INLINE void add_block_sub2(const ath_panel_info f, const int width, const uint8_t *codes,
                               const uint8_t *sub, __m512 d, __m512 m, const uint8_t *act, __m512i table,
                               __m512 *acc) {
    const uint8_t *dx = act + 32 * width, *sums = act + 40 * width;
    __m512i idot[ATH_TILE_MAX], min = _mm512_setzero_si512();
    __m512 total[ATH_TILE_MAX];
    ATH_UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i scale = f.min ? load_u8(sub + 16 * h) : load_i8(sub + 16 * h);
        if (f.min) {
            min = _mm512_or_si512(min, _mm512_slli_epi32(_mm512_srli_epi32(scale, 4), 16 * (unsigned)h));
            scale = _mm512_and_si512(scale, _mm512_set1_epi32(15));
        }
        __m512 factor = _mm512_cvtepi32_ps(scale);
        start_sums(f, width, sums, 1 << h, idot);
        dot_groups(f, width, codes, act, table, 4 * h, 4 * h + 4, idot);
        ATH_UNROLL
        for (int c = 0; c < width; c++) {
            __m512 part = _mm512_cvtepi32_ps(idot[c]);
            total[c] = h ? _mm512_fmadd_ps(part, factor, total[c]) : _mm512_mul_ps(part, factor);
        }
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) {
        __m512 x = broadcast_f32(dx + 4 * c);
        acc[c] = _mm512_fmadd_ps(total[c], _mm512_mul_ps(d, x), acc[c]);
        if (!f.min) continue;
        __m512i imin = _mm512_dpwssd_epi32(_mm512_setzero_si512(), min, broadcast_i32(sums + 4 * c));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(imin), _mm512_mul_ps(m, x), acc[c]);
    }
}

ATH_INLINE void add_block(const ath_panel_info f, const int width, const uint8_t *codes, const uint8_t *sub,
                          __m512 d, __m512 m, const uint8_t *act, __m512i table, __m512 *acc) {
    __m512i idot[ATH_TILE_MAX];
    start_sums(f, width, act + 40 * width, 3, idot);
    dot_groups(f, width, codes, act, table, 0, 8, idot);
    if (f.sub == 1) {
        d = _mm512_mul_ps(d, _mm512_cvtepi32_ps(load_i8(sub)));
        if (f.min) m = _mm512_mul_ps(m, _mm512_cvtepi32_ps(load_u8(sub + 16)));
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) {
        __m512 scale = _mm512_mul_ps(d, broadcast_f32(act + 32 * width + 4 * c));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(idot[c]), scale, acc[c]);
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

ATH_INLINE void tile_quantised(const ath_panel_info f, const int width, const ath_matmul_tile *t) {
    const int code_bytes = ath_panel_code_bytes(f.bits), sub_bytes = ath_panel_sub_bytes(f.min, f.sub);
    const int head_bytes = ath_panel_head_bytes((int)f.type, f.min);
    const int64_t n_blocks = t->n_in / 32,
                  next_scales = (int64_t)ath_panel_bytes(t->format, t->n_in) - ATH_PANEL_AHEAD;
    const uint8_t *codes = t->panel, *scales = codes + n_blocks * code_bytes, *act = t->act;
    const __m512i table = load_table(f);
    __m512 acc[ATH_TILE_MAX], d, m = _mm512_setzero_ps();
    ATH_UNROLL
    for (int c = 0; c < width; c++) acc[c] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_blocks; i += f.blocks) {
        d = f.type == ATH_TYPE_MXFP4 ? load_e8m0_half(scales) : load_f16(scales);
        if (f.min) m = load_f16(scales + 32);
        if (width == 1) fetch_ahead(scales + next_scales, head_bytes + f.blocks * sub_bytes);
        if (f.min && f.sub) m = _mm512_xor_ps(m, _mm512_set1_ps(-0.0f)); /* K types subtract their minimum */
        scales += head_bytes;
        for (int b = 0; b < f.blocks; b++) {
            if (width == 1) fetch_ahead(codes, code_bytes);
            if (f.sub == 2)
                add_block_sub2(f, width, codes, scales, d, m, act, table, acc);
            else
                add_block(f, width, codes, scales, d, m, act, table, acc);
            codes += code_bytes;
            scales += sub_bytes;
            act += 44 * width;
        }
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) store_rows(t, c, acc[c]);
}

ATH_INLINE __m512 load_weights(const ath_panel_format format, const uint8_t *panel, int64_t k) {
    if (format == ATH_PANEL_F32) return _mm512_loadu_ps(panel + 64 * k);
    if (format == ATH_PANEL_F16) return load_f16(panel + 32 * k);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(panel + 32 * k)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

ATH_INLINE void tile_float(const ath_panel_format format, const int width, const ath_matmul_tile *t) {
    const int value_bytes = format == ATH_PANEL_F32 ? 4 : 2;
    __m512 acc[4][ATH_TILE_MAX_FLOAT];
    ATH_UNROLL
    for (int p = 0; p < 4; p++) {
        ATH_UNROLL
        for (int c = 0; c < width; c++) acc[p][c] = _mm512_setzero_ps();
    }
    int64_t k = 0;
    for (; k + 4 <= t->n_in; k += 4) {
        if (width == 1)
            fetch_ahead(t->panel + k * value_bytes * ATH_PANEL_ROWS, 4 * value_bytes * ATH_PANEL_ROWS);
        ATH_UNROLL
        for (int p = 0; p < 4; p++) {
            __m512 w = load_weights(format, t->panel, k + p);
            ATH_UNROLL
            for (int c = 0; c < width; c++)
                acc[p][c] = _mm512_fmadd_ps(w, broadcast_f32(t->act + ((k + p) * width + c) * 4), acc[p][c]);
        }
    }
    ATH_UNROLL
    for (int p = 0; p < 3; p++) {
        if (k + p >= t->n_in) break;
        __m512 w = load_weights(format, t->panel, k + p);
        ATH_UNROLL
        for (int c = 0; c < width; c++)
            acc[p][c] = _mm512_fmadd_ps(w, broadcast_f32(t->act + ((k + p) * width + c) * 4), acc[p][c]);
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++)
        store_rows(t, c,
                   _mm512_add_ps(_mm512_add_ps(acc[0][c], acc[1][c]), _mm512_add_ps(acc[2][c], acc[3][c])));
}

#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    static const ath_panel_info info_##type = {ATH_TYPE_##type, bits, zero, ATH_TABLE_##table,               \
                                               blocks,          min,  sub};                                  \
    static void type##_w1(const ath_matmul_tile *t) {                                                        \
        tile_quantised(info_##type, 1, t);                                                                   \
    }                                                                                                        \
    static void type##_w2(const ath_matmul_tile *t) {                                                        \
        tile_quantised(info_##type, 2, t);                                                                   \
    }                                                                                                        \
    static void type##_w4(const ath_matmul_tile *t) {                                                        \
        tile_quantised(info_##type, 4, t);                                                                   \
    }                                                                                                        \
    static void type##_w8(const ath_matmul_tile *t) {                                                        \
        tile_quantised(info_##type, 8, t);                                                                   \
    }
#include "kernels/matmul_formats.def"
#undef ATH_PANEL

#define FLOAT_TILES(type)                                                                                    \
    static void type##_w1(const ath_matmul_tile *t) {                                                        \
        tile_float(ATH_PANEL_##type, 1, t);                                                                  \
    }                                                                                                        \
    static void type##_w2(const ath_matmul_tile *t) {                                                        \
        tile_float(ATH_PANEL_##type, 2, t);                                                                  \
    }                                                                                                        \
    static void type##_w4(const ath_matmul_tile *t) {                                                        \
        tile_float(ATH_PANEL_##type, 4, t);                                                                  \
    }
FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)

/* Quantises 32 values into column c of a tile's block. */
ATH_INLINE void quantise_block(const float *x, int width, int c, uint8_t *tile) {
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    __m512i top =
        _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
    uint32_t bits = _mm512_reduce_max_epu32(top);
    float amax = ath_f32_from_bits(bits), dx = amax / 127.0f, scale = 127.0f / amax;
    bool finite = bits < 0x7f800000;
    if (finite && amax < 0x1p-100f) dx = 0;
    __mmask16 keep = finite && dx != 0 ? 0xffff : 0;
    __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, _mm512_set1_ps(scale)));
    __m512i qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, _mm512_set1_ps(scale)));
    int16_t sum[2] = {(int16_t)_mm512_reduce_add_epi32(qa), (int16_t)_mm512_reduce_add_epi32(qb)};
    int32_t q[8];
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)q + 1, _mm512_cvtepi32_epi8(qb));
    ATH_UNROLL
    for (int g = 0; g < 8; g++) memcpy(tile + (g * width + c) * 4, &q[g], 4);
    float sx = finite ? (float)(sum[0] + sum[1]) * dx : dx;
    memcpy(tile + 32 * width + 4 * c, &dx, 4);
    memcpy(tile + 36 * width + 4 * c, &sx, 4);
    memcpy(tile + 40 * width + 4 * c, sum, 4);
}

static void quantise(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    if (n_cols < width) memset(tile, 0, ath_tile_bytes(true, width, n_in));
    for (int64_t i = 0; i < n_in / 32; i++) {
        for (int c = 0; c < n_cols; c++)
            quantise_block(rows[c] + 32 * i, width, c, (uint8_t *)tile + i * 44 * width);
    }
}

void ath_matmul_kernels_avx512(ath_matmul_kernels *k) {
#define SET(type)                                                                                            \
    k->tile[ATH_PANEL_##type][0] = type##_w1;                                                                \
    k->tile[ATH_PANEL_##type][1] = type##_w2;                                                                \
    k->tile[ATH_PANEL_##type][2] = type##_w4;
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    SET(type) k->tile[ATH_PANEL_##type][3] = type##_w8;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    SET(F32)
    SET(F16)
    SET(BF16)
    k->quantise = quantise;
    k->isa = "avx512vnni";
}
