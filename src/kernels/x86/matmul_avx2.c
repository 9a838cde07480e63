/* Matrix products for AVX2. A register holds 8 of the panel's 16 rows, so a tile is done in two halves and at
 * most four columns at a time; formats and counts are constants of each instance. See matmul.h for the
 * formula.
 *
 * vpmaddubsw adds pairs of products in 16 bits with saturation. Codes of up to 6 bits cannot reach it, and
 * their sums over several groups stay in 16 bits too. For 8-bit values the signs go over to the activations:
 * 128 * 127 * 2 fits. */
#include <immintrin.h>

#include "kernels/matmul_vectors.h"

enum { HALF = 8, MOST = 4 }; /* rows and columns at a time */

/* The part of a tile that an inner loop works on: columns c0 .. c0 + n - 1 of width, rows 8*half .. */
typedef struct part {
    int width, n, c0, half;
} part;

ATH_INLINE __m256i broadcast_i32(const uint8_t *p) {
    return _mm256_broadcastd_epi32(_mm_loadu_si32(p));
}

ATH_INLINE __m256 broadcast_f32(const uint8_t *p) {
    return _mm256_castsi256_ps(broadcast_i32(p));
}

ATH_INLINE __m256i load_bytes(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

ATH_INLINE __m256i shift_left(__m256i x, int count) {
    if (count > 0) return _mm256_slli_epi16(x, count);
    return count < 0 ? _mm256_srli_epi16(x, -count) : x;
}

/* Values outside -63..63: products take the signed way. */
ATH_INLINE bool is_wide(const ath_panel_info f) {
    return f.zero > 64;
}

/* 32 values of a group: signed if wide, else unsigned with the zero point in. */
ATH_INLINE __m256i unpack_group(const ath_panel_info f, const uint8_t *planes, int g, __m256i table) {
    if (f.bits == 8) return _mm256_xor_si256(load_bytes(planes + 64 * g), _mm256_set1_epi8((char)0x80));
    const int low = f.bits >= 4 ? 4 : 2, high = f.bits - low, groups = 8 / low;
    __m256i code = shift_left(load_bytes(planes + 64 * (g / groups)), -low * (g % groups));
    code = _mm256_and_si256(code, _mm256_set1_epi8((1 << low) - 1));
    if (high) {
        __m256i bits = load_bytes(planes + 64 * low + (high == 2 ? 64 * (g / 4) : 0));
        bits = shift_left(bits, low - (high == 2 ? 2 * (g % 4) : g));
        code =
            _mm256_or_si256(code, _mm256_and_si256(bits, _mm256_set1_epi8((char)(((1 << high) - 1) << low))));
    }
    return f.table ? _mm256_shuffle_epi8(table, code) : code;
}

/* Groups whose products can be added up in 16 bits: 2 * 127 * largest code each. */
ATH_INLINE int groups_in_16_bits(const ath_panel_info f) {
    if (is_wide(f)) return 1;
    int n = 32767 / (2 * 127 * (f.table ? 2 * f.zero : (1 << f.bits) - 1));
    return n >= 8 ? 8 : n >= 4 ? 4 : 2;
}

/* idot[c] += groups [g0, g1) of a block times each column. */
ATH_INLINE void dot_groups(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *act,
                           __m256i table, int g0, int g1, __m256i *idot) {
    const int step = groups_in_16_bits(f) < g1 - g0 ? groups_in_16_bits(f) : g1 - g0;
    __m256i sum[MOST];
    ATH_UNROLL
    for (int g = g0; g < g1; g++) {
        __m256i w = unpack_group(f, codes + 32 * p.half, g, table), size = _mm256_abs_epi8(w);
        ATH_UNROLL
        for (int c = 0; c < p.n; c++) {
            __m256i x = broadcast_i32(act + (g * p.width + p.c0 + c) * 4);
            __m256i products =
                is_wide(f) ? _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
            sum[c] = g % step ? _mm256_add_epi16(sum[c], products) : products;
            if (g % step == step - 1)
                idot[c] = _mm256_add_epi32(idot[c], _mm256_madd_epi16(sum[c], _mm256_set1_epi16(1)));
        }
    }
}

/* Starts sums at -zero * (half sums chosen by which: 1 first, 2 second, 3 both). */
ATH_INLINE void start_sums(const ath_panel_info f, const part p, const uint8_t *sums, int which,
                           __m256i *idot) {
    uint32_t z = (uint32_t)-f.zero & 0xffff, pair = (which & 1 ? z : 0) | (which & 2 ? z << 16 : 0);
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) {
        idot[c] = _mm256_setzero_si256();
        if (f.zero && !is_wide(f))
            idot[c] = _mm256_madd_epi16(_mm256_set1_epi32((int)pair), broadcast_i32(sums + 4 * (p.c0 + c)));
    }
}

ATH_INLINE __m256i load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

ATH_INLINE __m256i load_i8(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

ATH_INLINE __m256 load_f16(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* A block of a type with two integer scales. Their sum of products is below 2^24 (Q6_K: 2 * 128 * 16 * 32 *
 * 127), so it is exact in floats, where a multiplication is one step instead of two. */
ATH_INLINE void add_block_sub2(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *sub,
                               __m256 d, __m256 m, const uint8_t *act, __m256i table, __m256 *acc) {
    const uint8_t *dx = act + 32 * p.width, *sums = act + 40 * p.width;
    __m256i idot[MOST], min = _mm256_setzero_si256();
    __m256 total[MOST];
    ATH_UNROLL
    for (int h = 0; h < 2; h++) {
        const uint8_t *at = sub + 16 * h + HALF * p.half;
        __m256i scale = f.min ? load_u8(at) : load_i8(at);
        if (f.min) {
            min = _mm256_or_si256(min, _mm256_slli_epi32(_mm256_srli_epi32(scale, 4), 16 * h));
            scale = _mm256_and_si256(scale, _mm256_set1_epi32(15));
        }
        start_sums(f, p, sums, 1 << h, idot);
        dot_groups(f, p, codes, act, table, 4 * h, 4 * h + 4, idot);
        ATH_UNROLL
        for (int c = 0; c < p.n; c++) {
            __m256 product = _mm256_cvtepi32_ps(idot[c]), factor = _mm256_cvtepi32_ps(scale);
            total[c] = h ? _mm256_fmadd_ps(product, factor, total[c]) : _mm256_mul_ps(product, factor);
        }
    }
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) {
        __m256 x = broadcast_f32(dx + 4 * (p.c0 + c));
        acc[c] = _mm256_fmadd_ps(total[c], _mm256_mul_ps(d, x), acc[c]);
        if (!f.min) continue;
        __m256i imin = _mm256_madd_epi16(min, broadcast_i32(sums + 4 * (p.c0 + c)));
        acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(imin), _mm256_mul_ps(m, x), acc[c]);
    }
}

ATH_INLINE void add_block(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *sub,
                          __m256 d, __m256 m, const uint8_t *act, __m256i table, __m256 *acc) {
    __m256i idot[MOST];
    start_sums(f, p, act + 40 * p.width, 3, idot);
    dot_groups(f, p, codes, act, table, 0, 8, idot);
    if (f.sub == 1) {
        d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(load_i8(sub + HALF * p.half)));
        if (f.min) m = _mm256_mul_ps(m, _mm256_cvtepi32_ps(load_u8(sub + 16 + HALF * p.half)));
    }
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) {
        const uint8_t *dx = act + 32 * p.width + 4 * (p.c0 + c);
        acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(idot[c]), _mm256_mul_ps(d, broadcast_f32(dx)), acc[c]);
        if (f.min) acc[c] = _mm256_fmadd_ps(m, broadcast_f32(dx + 4 * p.width), acc[c]);
    }
}

/* Half of 2^(e - 127), denormal for e < 2. */
ATH_INLINE __m256 load_e8m0_half(const uint8_t *p) {
    __m256i e = load_u8(p), one = _mm256_set1_epi32(1);
    __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, usual, _mm256_cmpgt_epi32(e, one)));
}

ATH_INLINE __m256i load_table(const ath_panel_info f) {
    if (!f.table) return _mm256_setzero_si256();
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)ath_panel_tables[f.table]));
    return is_wide(f) ? t : _mm256_add_epi8(t, _mm256_set1_epi8((char)f.zero));
}

ATH_INLINE void store_rows(const ath_matmul_tile *t, int c, int half, __m256 sum) {
    int n = t->n_rows - HALF * half;
    if (c >= t->n_cols) return;
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (n > 0) _mm256_maskstore_ps(t->out[c] + HALF * half, mask, sum);
}

/* One column means decode: weights come from memory once, in the order in which panels lie there. The first
 * half of the rows brings the lines that the second half finds in the cache. */
ATH_INLINE void fetch_ahead(const part p, const uint8_t *at, const int bytes) {
    if (p.width > 1 || p.half) return;
    ATH_UNROLL
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)at + ATH_PANEL_AHEAD + i, _MM_HINT_T0);
}

ATH_INLINE void part_quantised(const ath_panel_info f, const part p, const ath_matmul_tile *t) {
    const int code_bytes = ath_panel_code_bytes(f.bits), sub_bytes = ath_panel_sub_bytes(f.min, f.sub);
    const int head_bytes = ath_panel_head_bytes((int)f.type, f.min);
    const int64_t n_blocks = t->n_in / 32,
                  next_scales = (int64_t)ath_panel_bytes(t->format, t->n_in) - ATH_PANEL_AHEAD;
    const uint8_t *codes = t->panel, *scales = codes + n_blocks * code_bytes, *act = t->act;
    const __m256i table = load_table(f);
    __m256 acc[MOST], d, m = _mm256_setzero_ps();
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) acc[c] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n_blocks; i += f.blocks) {
        d = f.type == ATH_TYPE_MXFP4 ? load_e8m0_half(scales + HALF * p.half)
                                     : load_f16(scales + 16 * p.half);
        if (f.min) m = load_f16(scales + 32 + 16 * p.half);
        fetch_ahead(p, scales + next_scales, head_bytes + f.blocks * sub_bytes);
        if (f.min && f.sub) m = _mm256_xor_ps(m, _mm256_set1_ps(-0.0f)); /* K types subtract their minimum */
        scales += head_bytes;
        for (int b = 0; b < f.blocks; b++) {
            fetch_ahead(p, codes, code_bytes);
            if (f.sub == 2)
                add_block_sub2(f, p, codes, scales, d, m, act, table, acc);
            else
                add_block(f, p, codes, scales, d, m, act, table, acc);
            codes += code_bytes;
            scales += sub_bytes;
            act += 44 * p.width;
        }
    }
    ATH_UNROLL
    for (int c = 0; c < p.n; c++) store_rows(t, p.c0 + c, p.half, acc[c]);
}

ATH_INLINE void tile_quantised(const ath_panel_info f, const int width, const ath_matmul_tile *t) {
    const int n = width < MOST ? width : MOST;
    for (int c0 = 0; c0 < t->n_cols; c0 += n) {
        part_quantised(f, (part){width, n, c0, 0}, t);
        if (t->n_rows > HALF) part_quantised(f, (part){width, n, c0, 1}, t);
    }
}

ATH_INLINE __m256 load_weights(const ath_panel_format format, const uint8_t *panel, int64_t k, int half) {
    if (format == ATH_PANEL_F32) return _mm256_loadu_ps((const float *)(panel + 64 * k + 32 * half));
    if (format == ATH_PANEL_F16) return load_f16(panel + 32 * k + 16 * half);
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(panel + 32 * k + 16 * half)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* part[c][half] += weights k times each column */
ATH_INLINE void add_floats(const ath_panel_format format, const int n, const int width, const uint8_t *panel,
                           const uint8_t *act, int64_t k, __m256 (*part)[2]) {
    ATH_UNROLL
    for (int c = 0; c < n; c++) {
        __m256 x = broadcast_f32(act + (k * width + c) * 4);
        ATH_UNROLL
        for (int half = 0; half < 2; half++)
            part[c][half] = _mm256_fmadd_ps(load_weights(format, panel, k, half), x, part[c][half]);
    }
}

/* Columns c0 .. c0 + n - 1, all rows. */
ATH_INLINE void columns_float(const ath_panel_format format, const int n, const int width,
                              const ath_matmul_tile *t, int c0) {
    const int value_bytes = format == ATH_PANEL_F32 ? 4 : 2;
    const part first = {width, n, c0, 0};
    const uint8_t *act = t->act + 4 * c0;
    __m256 acc[MOST][2], part[MOST][2];
    ATH_UNROLL
    for (int c = 0; c < n; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < t->n_in;) {
        int64_t end = k + ATH_FLOAT_BLOCK < t->n_in ? k + ATH_FLOAT_BLOCK : t->n_in;
        ATH_UNROLL
        for (int c = 0; c < n; c++) part[c][0] = part[c][1] = _mm256_setzero_ps();
        for (; k + 4 <= end; k += 4) {
            fetch_ahead(first, t->panel + k * value_bytes * ATH_PANEL_ROWS, 4 * value_bytes * ATH_PANEL_ROWS);
            ATH_UNROLL
            for (int i = 0; i < 4; i++) add_floats(format, n, width, t->panel, act, k + i, part);
        }
        for (; k < end; k++) add_floats(format, n, width, t->panel, act, k, part);
        ATH_UNROLL
        for (int i = 0; i < 2 * n; i++)
            acc[i / 2][i % 2] = _mm256_add_ps(acc[i / 2][i % 2], part[i / 2][i % 2]);
    }
    ATH_UNROLL
    for (int i = 0; i < 2 * n; i++) store_rows(t, c0 + i / 2, i % 2, acc[i / 2][i % 2]);
}

ATH_INLINE void tile_float(const ath_panel_format format, const int width, const ath_matmul_tile *t) {
    const int n = width < MOST ? width : MOST;
    for (int c0 = 0; c0 < t->n_cols; c0 += n) columns_float(format, n, width, t, c0);
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

FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)

ATH_INLINE uint32_t reduce_max(__m256i x) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

ATH_INLINE int16_t reduce_add(__m256i x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (int16_t)_mm_cvtsi128_si32(s);
}

/* Quantises 32 values into column c of a tile's block. */
ATH_INLINE void quantise_block(const float *x, int width, int c, uint8_t *tile) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i q[4], top = _mm256_setzero_si256();
    ATH_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const block_scale s = block_scale_of(reduce_max(top));
    __m256i keep = _mm256_set1_epi32(s.zero ? 0 : -1);
    ATH_UNROLL
    for (int i = 0; i < 4; i++) {
        q[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(s.scale))));
    }
    int16_t sum[2] = {reduce_add(_mm256_add_epi32(q[0], q[1])), reduce_add(_mm256_add_epi32(q[2], q[3]))};
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    int32_t groups[8];
    _mm256_storeu_si256((__m256i *)groups,
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    for (int g = 0; g < 8; g++) memcpy(tile + ath_tile_q_at(width, c, 4 * g), &groups[g], 4);
    store_block_scale(s, sum, width, c, tile);
}

static void quantise(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    quantise_with(quantise_block, rows, n_cols, width, n_in, tile);
}

void ath_matmul_kernels_avx2(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub) SET_TILES(type)
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    SET_FLOAT_TILES(F32)
    SET_FLOAT_TILES(F16)
    SET_FLOAT_TILES(BF16)
    k->quantise = quantise;
    k->isa = "avx2";
}
