/* Encoding of turbo pages, and expansion of all encoded ones, with AVX2: the bytes and bits of
 * ath_kv_encode_page and ath_kv_decode_page. Lanes are tokens, but for the expansion of V, whose rows are
 * tokens: there they are channels. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"
#include "kernels/attention_blocks_avx2.h"
#include "kernels/trellis_x86.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 8 tokens, [channels][8]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(32) float x[128 * 8];
} column;

/* ---- expansion */

/* 8 signed bytes as floats. */
ATH_INLINE __m256 floats_of(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* 16 tokens of one part of a K page into values[dim][16], not yet times their norms. */
ATH_INLINE void look_up_keys(const ath_unpack_kind kind, const ath_unpack_avx2 *unpack, const uint8_t *planes,
                             int dim, int8_t *values) {
    const __m256i apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    for (int c = 0; c < dim; c += 8) {
        ATH_UNROLL
        for (int i = 0; i < 8; i += 2) {
            __m256i x =
                ath_unpack_key_pair(unpack, kind, planes, dim * kind.k / 8, c + i, ath_unpack_bit(kind, i));
            x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, apart), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(values + 16 * (c + i)), x);
        }
    }
}

/* From the rotated values of tokens 8 * eighth ... of a part of a K page to the tile. */
static void finish_key_column(const ath_kv_layout *layout, int part, int eighth, const uint8_t *page,
                              float *x, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    ath_butterfly_rows_avx2(x, dim);
    float *out = tile + (int64_t)start * TOKENS + 8 * eighth;
    const uint16_t *mean = (const uint16_t *)(const void *)(page + layout->mean_at) + start;
    const float *signs = ath_rotation_signs() + start;
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim));
    for (int c = 0; c < dim; c++) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(x + c * 8), scale);
        float eq = ath_eq_scale(page[layout->eq_at + (size_t)(start + c)]) * signs[c];
        y = _mm256_add_ps(_mm256_mul_ps(y, _mm256_set1_ps(eq)), _mm256_set1_ps(ath_f16_to_f32(mean[c])));
        _mm256_storeu_ps(out + c * TOKENS, y);
    }
}

/* Tokens 8 * eighth ... of one part of a K page; values: of its 16. */
static void expand_key_column(const ath_kv_layout *layout, int part, int eighth, const int8_t *values,
                              const uint8_t *page, float *tile) {
    int dim = layout->part_dim[part];
    __m256 norm = ath_load_bf16_avx2(page + layout->norms_at + 2 * (size_t)(part * TOKENS + 8 * eighth));
    column col;
    for (int c = 0; c < dim; c++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(values + 16 * c + eighth % 2 * 8));
        _mm256_store_ps(col.x + c * 8, _mm256_mul_ps(norm, floats_of(bytes)));
    }
    finish_key_column(layout, part, eighth, page, col.x, tile);
}

/* From the rotated values of a token's part to what the tile holds, in place. */
static void finish_value_row(const ath_kv_layout *layout, int part, float *row) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim));
    ath_hadamard_avx2(row, dim);
    for (int c = 0; c < dim; c += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(row + c), scale);
        _mm256_storeu_ps(row + c, _mm256_mul_ps(y, _mm256_loadu_ps(signs + c)));
    }
}

/* 4 tokens of one part of a V page. */
ATH_INLINE void expand_value_rows(const ath_unpack_kind kind, const ath_kv_layout *layout, int part,
                                  int token, const ath_unpack_avx2 *unpack, const uint8_t *page,
                                  float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    const uint8_t *codes = page + (token / 4 * layout->head_dim + start) * kind.k / 2;
    const uint16_t *norms = (const uint16_t *)(const void *)(page + layout->norms_at) + part * TOKENS + token;
    /* Two channels of 4 tokens in a quadword to rows of two channels, of a token in every dword of both
     * lanes. */
    const __m256i by_token =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    float *rows = tile + (int64_t)token * layout->head_dim + start;
    for (int c = 0; c < dim; c += 8) {
        __m256i x = ath_unpack_value_eight(unpack, kind, codes, dim * kind.k / 8, c);
        x = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x, by_token),
                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
        __m128i bytes[4] = {low, _mm_srli_si128(low, 8), high, _mm_srli_si128(high, 8)};
        for (int t = 0; t < 4; t++) {
            __m256 y = _mm256_mul_ps(_mm256_set1_ps(ath_bf16_to_f32(norms[t])), floats_of(bytes[t]));
            _mm256_storeu_ps(rows + t * layout->head_dim + c, y);
        }
    }
    for (int t = 0; t < 4; t++) finish_value_row(layout, part, rows + t * layout->head_dim);
}

ATH_INLINE void expand_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            float *tile) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    ath_unpack_avx2 unpack = layout->is_key ? ath_unpack_keys_avx2(code) : ath_unpack_values_avx2(code, kind);
    for (int p = 0; p < layout->n_parts; p++) {
        for (int g = 0; layout->is_key && g < TOKENS / 16; g++) {
            int8_t values[128 * 16];
            const uint8_t *planes =
                page + ((int64_t)g * layout->head_dim + layout->part_start[p]) * 2 * kind.k;
            look_up_keys(kind, &unpack, planes, layout->part_dim[p], values);
            expand_key_column(layout, p, 2 * g, values, page, tile);
            expand_key_column(layout, p, 2 * g + 1, values, page, tile);
        }
        for (int t = 0; !layout->is_key && t < TOKENS; t += 4)
            expand_value_rows(kind, layout, p, t, &unpack, page, tile);
    }
}

/* Codes (integers plus offset) of a type with minima, integers of the others, times scales. */
ATH_INLINE __m256 block_floats(const ath_block_kind kind, __m256i integers, __m256 d, __m256 m) {
    if (!kind.has_minimum) return _mm256_mul_ps(d, _mm256_cvtepi32_ps(integers));
    __m256i codes = _mm256_add_epi32(integers, _mm256_set1_epi32(kind.offset));
    return _mm256_add_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(codes)), m);
}

/* A K page of blocks. */
ATH_INLINE void expand_key_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                                  float *tile) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    __m256i tokens = ath_block_tokens_avx2(row_bytes);
    column col;
    for (int p = 0; p < layout->n_parts; p++)
        for (int e = 0; e < TOKENS / 8; e++) {
            const uint8_t *at = page + 8 * e * row_bytes + layout->part_start[p] / ATH_KV_BLOCK * kind.bytes;
            float *x = col.x;
            for (int b = 0; b < layout->part_dim[p]; b += ATH_KV_BLOCK, at += kind.bytes) {
                __m256i quads[8];
                __m256 d, m;
                ath_block_scales_avx2(tokens, at, &d, &m);
                ath_block_tile_avx2(kind, tokens, at, row_bytes, quads);
                for (int c = 0; c < ATH_KV_BLOCK; c++, x += 8) {
                    __m256i integer = _mm256_sll_epi32(quads[c / 4], _mm_cvtsi32_si128(24 - c % 4 * 8));
                    _mm256_store_ps(x, block_floats(kind, _mm256_srai_epi32(integer, 24), d, m));
                }
            }
            finish_key_column(layout, p, e, page, col.x, tile);
        }
}

/* One token of a V page of blocks. */
ATH_INLINE void expand_value_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *at,
                                    float *row) {
    for (int c = 0; c < layout->head_dim; c += ATH_KV_BLOCK, at += kind.bytes) {
        int16_t halves[2];
        memcpy(halves, at, sizeof halves);
        __m256 d = _mm256_cvtph_ps(_mm_set1_epi16(halves[0])), m = _mm256_cvtph_ps(_mm_set1_epi16(halves[1]));
        int8_t integers[ATH_KV_BLOCK];
        _mm256_storeu_si256((__m256i *)(void *)integers, ath_block_row_avx2(kind, at));
        for (int i = 0; i < ATH_KV_BLOCK; i += 8) {
            __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(integers + i)));
            _mm256_storeu_ps(row + c + i, block_floats(kind, x, d, m));
        }
    }
    for (int p = 0; p < layout->n_parts; p++) finish_value_row(layout, p, row + layout->part_start[p]);
}

ATH_INLINE void expand_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                              float *tile) {
    if (layout->is_key) {
        expand_key_blocks(kind, layout, page, tile);
        return;
    }
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    for (int t = 0; t < TOKENS; t++)
        expand_value_blocks(kind, layout, page + t * row_bytes, tile + (int64_t)t * layout->head_dim);
}

static void expand(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    if (ath_kv_type_is_raw(layout->type)) {
        ath_kv_decode_page(layout, page, tile);
        return;
    }
    if (!ath_kv_type_is_turbo(layout->type)) {
#define BLOCKS(kind) expand_blocks(kind, layout, page, tile)
        ATH_BLOCK_DISPATCH(layout->type, BLOCKS);
#undef BLOCKS
        return;
    }
#define EXPAND(kind) expand_page(kind, layout, page, tile)
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), EXPAND);
#undef EXPAND
}

/* ---- encoding */

/* 8 rows of 8 f16 values, `stride` apart, to the columns x[8][TOKENS]. */
static void transpose_8(const uint16_t *rows, int64_t stride, float *x) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = ath_load_f16_avx2(rows + i * stride);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* r[i + j]: columns j, 4 + j of rows i to i + 3 */
        for (int j = 0; j < 4; j++) {
            __m256d low = _mm256_castps_pd(t[i + j / 2]), high = _mm256_castps_pd(t[i + j / 2 + 2]);
            r[i + j] =
                _mm256_castpd_ps(j % 2 ? _mm256_unpackhi_pd(low, high) : _mm256_unpacklo_pd(low, high));
        }
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(x + j * TOKENS, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
        _mm256_storeu_ps(x + (4 + j) * TOKENS, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
    }
}

/* x[head_dim][128] of a K tile, or of a V tile by transposing blocks of 8 x 8. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int64_t i = 0; i < (int64_t)dim * TOKENS; i += 8)
            _mm256_storeu_ps(x + i, ath_load_f16_avx2(tile + i));
        return;
    }
    for (int c = 0; c < dim; c += 8)
        for (int t = 0; t < TOKENS; t += 8) transpose_8(tile + (int64_t)t * dim + c, dim, x + c * TOKENS + t);
}

/* The stored mean of a row of tokens, taken out of it. Returns its f16. */
static uint16_t centre_row(float *row) {
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int t = 0; t < TOKENS; t += 8)
        sum[t / 8 % 2] = _mm256_add_ps(sum[t / 8 % 2], _mm256_loadu_ps(row + t));
    uint16_t stored = ath_f32_to_f16(ath_sum_lanes_avx2(sum[0], sum[1]) / TOKENS);
    __m256 mean = _mm256_set1_ps(ath_f16_to_f32(stored));
    for (int t = 0; t < TOKENS; t += 8)
        _mm256_storeu_ps(row + t, _mm256_sub_ps(_mm256_loadu_ps(row + t), mean));
    return stored;
}

static float root_of_row(const float *row) {
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int t = 0; t < TOKENS; t += 8) {
        __m256 x = _mm256_loadu_ps(row + t);
        sum[t / 8 % 2] = _mm256_add_ps(sum[t / 8 % 2], _mm256_mul_ps(x, x));
    }
    return sqrtf(sqrtf(ath_sum_lanes_avx2(sum[0], sum[1]) / TOKENS));
}

/* Mean and equalisation of K: writes both, leaves x as it is to be rotated. */
static void prepare_key(const ath_kv_layout *layout, float *x, uint8_t *out) {
    float root[ATH_MAX_HEAD_DIM], sum = 0;
    uint16_t mean[ATH_MAX_HEAD_DIM];
    for (int c = 0; c < layout->head_dim; c++) {
        mean[c] = centre_row(x + c * TOKENS);
        root[c] = root_of_row(x + c * TOKENS);
        sum += root[c];
    }
    memcpy(out + layout->mean_at, mean, (size_t)layout->head_dim * sizeof *mean);
    float average = sum / (float)layout->head_dim;
    for (int c = 0; c < layout->head_dim; c++) {
        uint8_t e = root[c] > 0 ? ath_eq_byte(root[c] / average) : 128;
        out[layout->eq_at + (size_t)c] = e;
        __m256 factor = _mm256_set1_ps(ath_eq_scale((uint8_t)(256 - e)));
        for (int t = 0; t < TOKENS; t += 8)
            _mm256_storeu_ps(x + c * TOKENS + t, _mm256_mul_ps(_mm256_loadu_ps(x + c * TOKENS + t), factor));
    }
}

/* Writes the streams of 8 tokens, up to 4 bytes of each at a time. */
typedef struct stream_writer {
    uint8_t *at[2];  /* K: half of the planes; V: those of each 4 tokens */
    __m256i pending; /* the bits not written yet */
    int n_bits;
    bool is_key;
} stream_writer;

static stream_writer writer_init(const ath_kv_layout *layout, int part, int eighth, uint8_t *out) {
    int64_t stream = (int64_t)layout->head_dim * ath_kv_turbo_bits(layout->type) / 8;
    int64_t start = (int64_t)layout->part_start[part] * ath_kv_turbo_bits(layout->type) / 8;
    stream_writer w = {.pending = _mm256_setzero_si256(), .is_key = layout->is_key};
    if (w.is_key) {
        w.at[0] = out + 16 * (stream * (eighth / 2) + start) + eighth % 2 * 8;
    } else {
        for (int i = 0; i < 2; i++) w.at[i] = out + 4 * (stream * (2 * eighth + i) + start);
    }
    return w;
}

/* The low n_bytes bytes of every token's dword. */
static inline void writer_bytes(stream_writer *w, __m256i dwords, int n_bytes) {
    const __m128i transpose = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i x = _mm256_shuffle_epi8(dwords, _mm256_broadcastsi128_si256(transpose));
    uint8_t bytes[32];
    if (w->is_key) x = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)bytes, x);
    if (w->is_key) {
        for (int i = 0; i < n_bytes; i++) memcpy(w->at[0] + 16 * i, bytes + 8 * i, 8);
        w->at[0] += 16 * n_bytes;
        return;
    }
    for (int i = 0; i < 2; i++) {
        memcpy(w->at[i], bytes + 16 * i, 4 * (size_t)n_bytes);
        w->at[i] += 4 * n_bytes;
    }
}

/* A symbol of k bits of every token. */
static inline void writer_symbol(stream_writer *w, __m256i symbol, int k) {
    w->pending = _mm256_or_si256(w->pending, _mm256_sll_epi32(symbol, _mm_cvtsi32_si128(w->n_bits)));
    w->n_bits += k;
    if (w->n_bits < 32) return;
    writer_bytes(w, w->pending, 4);
    w->n_bits -= 32;
    w->pending = _mm256_srl_epi32(symbol, _mm_cvtsi32_si128(k - w->n_bits));
}

static inline void store_norms(uint8_t *norms, __m256 norm) {
    __m256i u = _mm256_castps_si256(norm),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_setzero_si256()), 0x08);
    _mm_storeu_si128((__m128i *)(void *)norms, _mm256_castsi256_si128(u));
}

/* 8 tokens of a part, rotated. Below 1e-30 a part is zero. */
typedef struct rotated {
    column col;
    __m256 square, inverse; /* of the part; its values times inverse have an rms of 1 */
    __m256 there;           /* all ones for tokens that are not zero */
} rotated;

/* x[channel][128]: of the part's first channel and the first of the tokens. */
static void rotate_column(const ath_kv_layout *layout, int part, const float *x, rotated *r) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    for (int c = 0; c < dim; c++)
        _mm256_store_ps(r->col.x + c * 8,
                        _mm256_mul_ps(_mm256_loadu_ps(x + c * TOKENS), _mm256_set1_ps(signs[c])));
    ath_butterfly_rows_avx2(r->col.x, dim);
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim)), square = _mm256_setzero_ps();
    for (int c = 0; c < dim; c++) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(r->col.x + c * 8), scale);
        square = _mm256_add_ps(square, _mm256_mul_ps(y, y));
        _mm256_store_ps(r->col.x + c * 8, y);
    }
    r->square = square;
    r->there = _mm256_cmp_ps(square, _mm256_set1_ps(1e-30f), _CMP_NLT_UQ);
    r->inverse = _mm256_div_ps(_mm256_set1_ps(sqrtf((float)dim)), _mm256_sqrt_ps(square));
}

static void write_norms(const ath_kv_layout *layout, int part, int eighth, const rotated *r,
                        __m256i table_square, uint8_t *out) {
    __m256 norm = _mm256_div_ps(_mm256_sqrt_ps(r->square), _mm256_sqrt_ps(_mm256_cvtepi32_ps(table_square)));
    store_norms(out + layout->norms_at + 2 * (size_t)(part * TOKENS + 8 * eighth),
                _mm256_and_ps(r->there, norm));
}

/* 8 tokens of a part in scalar codes. */
static void encode_scalar(const ath_kv_layout *layout, int part, int eighth, const float *x,
                          const ath_turbo_code *code, uint8_t *out) {
    rotated r;
    rotate_column(layout, part, x + 8 * eighth, &r);
    stream_writer writer = writer_init(layout, part, eighth, out);
    int n = (1 << code->k) - 1;
    int32_t squares[16] = {0};
    for (int i = 0; i <= n; i++) squares[i] = code->table[i] * code->table[i];
    __m256i total = _mm256_setzero_si256();
    for (int c = 0; c < layout->part_dim[part]; c++) {
        __m256 u = _mm256_mul_ps(_mm256_load_ps(r.col.x + c * 8), r.inverse);
        __m256i symbol = _mm256_setzero_si256();
        for (int i = 0; i < n; i++) {
            __m256 above = _mm256_cmp_ps(u, _mm256_set1_ps(code->thresholds[i]), _CMP_GE_OQ);
            symbol = _mm256_sub_epi32(symbol, _mm256_castps_si256(above));
        }
        symbol = _mm256_and_si256(symbol, _mm256_castps_si256(r.there));
        total = _mm256_add_epi32(total, _mm256_i32gather_epi32(squares, symbol, 4));
        writer_symbol(&writer, symbol, code->k);
    }
    if (writer.n_bits) writer_bytes(&writer, writer.pending, writer.n_bits / 8);
    write_norms(layout, part, eighth, &r, total, out);
}

/* 16 tokens of a part in trellis codes. */
static void encode_trellis(const ath_kv_layout *layout, int part, int eighth, const float *x,
                           const ath_turbo_code *code, uint8_t *out) {
    enum { LANES = ATH_TRELLIS_LANES_AVX2 };
    rotated r[2];
    _Alignas(32) int16_t targets[128][LANES];
    _Alignas(32) uint16_t words[128 * 4 / 16][LANES];
    _Alignas(32) int32_t squares[LANES];
    int dim = layout->part_dim[part];
    __m256 scale = _mm256_set1_ps(code->target_scale), limit = _mm256_set1_ps((float)code->limit);
    for (int i = 0; i < 2; i++) {
        rotate_column(layout, part, x + 8 * (eighth + i), &r[i]);
        for (int c = 0; c < dim; c++) {
            __m256 u =
                _mm256_and_ps(r[i].there, _mm256_mul_ps(_mm256_load_ps(r[i].col.x + c * 8), r[i].inverse));
            u = _mm256_min_ps(_mm256_mul_ps(u, scale), limit);
            u = _mm256_max_ps(u, _mm256_sub_ps(_mm256_setzero_ps(), limit));
            __m256i packed = _mm256_cvtps_epi32(u);
            packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(packed, packed), 0xd8);
            _mm_store_si128((__m128i *)(void *)(targets[c] + 8 * i), _mm256_castsi256_si128(packed));
        }
    }
    ath_trellis_strip_avx2(code, (const int16_t(*)[LANES])targets, dim, words, squares);
    int n_words = dim * code->k / 16;
    for (int i = 0; i < 2; i++) {
        stream_writer writer = writer_init(layout, part, eighth + i, out);
        for (int word = 0; word < n_words; word += 2) {
            __m256i dwords =
                _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(void *)(words[word] + 8 * i)));
            if (word + 1 < n_words) {
                __m128i high = _mm_load_si128((const __m128i *)(void *)(words[word + 1] + 8 * i));
                dwords = _mm256_or_si256(dwords, _mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16));
            }
            dwords = _mm256_and_si256(dwords, _mm256_castps_si256(r[i].there));
            writer_bytes(&writer, dwords, word + 1 < n_words ? 4 : 2);
        }
        __m256i square = _mm256_load_si256((const __m256i *)(void *)(squares + 8 * i));
        write_norms(layout, part, eighth + i, &r[i], square, out);
    }
}

static void encode(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    for (int p = 0; p < layout->n_parts; p++) {
        const float *x = scratch + (int64_t)layout->part_start[p] * TOKENS;
        if (code->thresholds) {
            for (int g = 0; g < TOKENS / 8; g++) encode_scalar(layout, p, g, x, code, out);
        } else {
            for (int g = 0; g < TOKENS / 8; g += 2) encode_trellis(layout, p, g, x, code, out);
        }
    }
}

void ath_attn_pages_init_avx2(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = encode;
}
