/* Matrix products for AVX-512 with VNNI.
 *
 * vpdpbusd multiplies unsigned codes with the signed activations; the zero point is taken off by starting
 * each sum at -zero * (sum of the activations), which vpdpwssd makes from the two half sums. */
enum { LOOK_AHEAD = 0 };

#include "kernels/matmul_avx512.h"
#include "kernels/matmul_vectors.h"

/* idot[c] += groups [g0, g1) of a block times each column. */
ATH_INLINE void dot_groups(const ath_panel_info f, const int width, const uint8_t *codes, const bool expanded,
                           const uint8_t *act, __m512i table, int g0, int g1, __m512i *idot) {
    ATH_UNROLL
    for (int g = g0; g < g1; g++) {
        __m512i w = expanded ? _mm512_loadu_si512(codes + 64 * g) : unpack_group(f, codes, g, table);
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

ATH_INLINE void dot_block(const ath_panel_info f, const int width, const uint8_t *codes, const bool expanded,
                          const uint8_t *act, __m512i table, block_sums idot) {
    const int halves = f.sub == 2 ? 2 : 1;
    ATH_UNROLL
    for (int h = 0; h < halves; h++) {
        start_sums(f, width, act + 40 * width, halves == 2 ? 1 << h : 3, idot[h]);
        dot_groups(f, width, codes, expanded, act, table, h * 4, halves == 2 ? h * 4 + 4 : 8, idot[h]);
    }
}

ATH_INLINE __m512 load_weights(const ath_panel_format format, const uint8_t *panel, int64_t k) {
    if (format == ATH_PANEL_F32) return _mm512_loadu_ps(panel + 64 * k);
    if (format == ATH_PANEL_F16) return load_f16(panel + 32 * k);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(panel + 32 * k)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

ATH_INLINE void add_floats(const ath_panel_format format, const int width, const ath_matmul_tile *t,
                           int64_t k, __m512 *part) {
    __m512 w = load_weights(format, t->panel, k);
    ATH_UNROLL
    for (int c = 0; c < width; c++)
        part[c] = _mm512_fmadd_ps(w, broadcast_f32(t->act + (k * width + c) * 4), part[c]);
}

ATH_INLINE void tile_float(const ath_panel_format format, const int width, const ath_matmul_tile *t) {
    const int value_bytes = format == ATH_PANEL_F32 ? 4 : 2;
    __m512 acc[ATH_TILE_MAX], part[ATH_TILE_MAX];
    ATH_UNROLL
    for (int c = 0; c < width; c++) acc[c] = _mm512_setzero_ps();
    for (int64_t k = 0; k < t->n_in;) {
        int64_t end = k + ATH_FLOAT_BLOCK < t->n_in ? k + ATH_FLOAT_BLOCK : t->n_in;
        ATH_UNROLL
        for (int c = 0; c < width; c++) part[c] = _mm512_setzero_ps();
        for (; k + 4 <= end; k += 4) {
            if (width == 1)
                fetch_ahead(t->panel + k * value_bytes * ATH_PANEL_ROWS, 4 * value_bytes * ATH_PANEL_ROWS);
            ATH_UNROLL
            for (int i = 0; i < 4; i++) add_floats(format, width, t, k + i, part);
        }
        for (; k < end; k++) add_floats(format, width, t, k, part);
        ATH_UNROLL
        for (int c = 0; c < width; c++) acc[c] = _mm512_add_ps(acc[c], part[c]);
    }
    ATH_UNROLL
    for (int c = 0; c < width; c++) store_rows(t, c, acc[c]);
}

#define TILE(type, width)                                                                                    \
    static void type##_w##width(const ath_matmul_tile *t) {                                                  \
        tile_quantised(info_##type, width, false, t);                                                        \
    }
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    TILE(type, 1)                                                                                            \
    TILE(type, 2)                                                                                            \
    TILE(type, 4)                                                                                            \
    TILE(type, 8)                                                                                            \
    static void type##_wide(const ath_matmul_tile *t) {                                                      \
        tile_quantised(info_##type, 8, true, t);                                                             \
    }                                                                                                        \
    static void type##_expand(const uint8_t *panel, int64_t n_in, uint8_t *codes) {                          \
        expand_panel(info_##type, 0, panel, n_in, codes);                                                    \
    }
#include "kernels/matmul_formats.def"
#undef ATH_PANEL

FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)

/* Quantises 32 values into column c of a tile's block. */
ATH_INLINE void quantise_block(const float *x, int width, int c, uint8_t *tile) {
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    __m512i top =
        _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
    const block_scale s = block_scale_of(_mm512_reduce_max_epu32(top));
    __mmask16 keep = s.zero ? 0 : 0xffff;
    __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, _mm512_set1_ps(s.scale)));
    __m512i qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, _mm512_set1_ps(s.scale)));
    int16_t sum[2] = {(int16_t)_mm512_reduce_add_epi32(qa), (int16_t)_mm512_reduce_add_epi32(qb)};
    int32_t q[8];
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)q + 1, _mm512_cvtepi32_epi8(qb));
    ATH_UNROLL
    for (int g = 0; g < 8; g++) memcpy(tile + ath_tile_q_at(width, c, 4 * g), &q[g], 4);
    store_block_scale(s, sum, width, c, tile);
}

static void quantise(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    quantise_with(quantise_block, rows, n_cols, width, n_in, tile);
}

void ath_matmul_kernels_avx512(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub)                                                 \
    SET_TILES(type)                                                                                          \
    k->wide[ATH_PANEL_##type] = bits < 8 ? type##_wide : NULL;                                               \
    k->expand[ATH_PANEL_##type] = bits < 8 ? type##_expand : NULL;
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    SET_FLOAT_TILES(F32)
    SET_FLOAT_TILES(F16)
    SET_FLOAT_TILES(BF16)
    k->quantise = quantise;
    k->isa = "avx512vnni";
}
