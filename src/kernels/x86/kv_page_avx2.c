/* Encoding and expansion of pages with AVX2: the bytes and bits of ath_kv_encode_page and ath_kv_decode_page.
 * Lanes are tokens, but for the expansion of V, whose rows are tokens: there they are channels. */
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

/* What unrotated values of a channel are multiplied by, and what is added. */
typedef struct key_channels {
    float factor[ATH_MAX_HEAD_DIM], mean[ATH_MAX_HEAD_DIM];
} key_channels;

static void load_key_channels(const ath_kv_layout *layout, const uint8_t *page, key_channels *k) {
    const float *signs = ath_rotation_signs();
    for (int c = 0; c < layout->head_dim; c += 8) {
        __m256 eq = ath_eq_scales_avx2(page + layout->eq_at + c);
        _mm256_storeu_ps(k->factor + c, _mm256_mul_ps(eq, _mm256_loadu_ps(signs + c)));
        _mm256_storeu_ps(k->mean + c, ath_load_f16_avx2(page + layout->mean_at + 2 * c));
    }
}

/* From the rotated values of tokens 8 * eighth ... of a part of a K page to the tile. */
static void finish_key_column(const ath_kv_layout *layout, int part, int eighth, const key_channels *k,
                              float *x, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    ath_butterfly_rows_avx2(x, dim);
    float *out = tile + (int64_t)start * TOKENS + 8 * eighth;
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim));
    for (int c = 0; c < dim; c++) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(x + c * 8), scale);
        y = _mm256_mul_ps(y, _mm256_set1_ps(k->factor[start + c]));
        _mm256_storeu_ps(out + c * TOKENS, _mm256_add_ps(y, _mm256_set1_ps(k->mean[start + c])));
    }
}

/* Tokens 8 * eighth ... of one part of a K page; values: of its 16. */
static void expand_key_column(const ath_kv_layout *layout, int part, int eighth, const int8_t *values,
                              const uint8_t *page, const key_channels *channels, float *tile) {
    int dim = layout->part_dim[part];
    __m256 norm = ath_load_bf16_avx2(page + layout->norms_at + 2 * (size_t)(part * TOKENS + 8 * eighth));
    column col;
    for (int c = 0; c < dim; c++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(values + 16 * c + eighth % 2 * 8));
        _mm256_store_ps(col.x + c * 8, _mm256_mul_ps(norm, floats_of(bytes)));
    }
    finish_key_column(layout, part, eighth, channels, col.x, tile);
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
    key_channels channels;
    if (layout->is_key) load_key_channels(layout, page, &channels);
    for (int p = 0; p < layout->n_parts; p++) {
        for (int g = 0; layout->is_key && g < TOKENS / 16; g++) {
            int8_t values[128 * 16];
            const uint8_t *planes =
                page + ((int64_t)g * layout->head_dim + layout->part_start[p]) * 2 * kind.k;
            look_up_keys(kind, &unpack, planes, layout->part_dim[p], values);
            expand_key_column(layout, p, 2 * g, values, page, &channels, tile);
            expand_key_column(layout, p, 2 * g + 1, values, page, &channels, tile);
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
    key_channels channels;
    load_key_channels(layout, page, &channels);
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
            finish_key_column(layout, p, e, &channels, col.x, tile);
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
    if (ath_kv_type_is_raw(layout->type) || ath_kv_type_is_plain(layout->type)) {
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

/* One block of 8 tokens, lanes are tokens: codes, scale, minimum. */
typedef struct block_codes_8 {
    __m256i codes[ATH_KV_BLOCK];
    __m256 d, m;
} block_codes_8;

static inline __m256 inverse_of(__m256 d) {
    __m256 there = _mm256_cmp_ps(d, _mm256_setzero_ps(), _CMP_NEQ_UQ);
    return _mm256_and_ps(there, _mm256_div_ps(_mm256_set1_ps(1.0f), d));
}

/* The values of largest magnitude, with their signs; the first of equals. */
static inline __m256 signed_max(const __m256 *x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 max = x[0];
    for (int j = 1; j < ATH_KV_BLOCK; j++) {
        __m256 larger = _mm256_cmp_ps(_mm256_andnot_ps(sign, x[j]), _mm256_andnot_ps(sign, max), _CMP_GT_OQ);
        max = _mm256_blendv_ps(max, x[j], larger);
    }
    return max;
}

/* Cut off to integers of 0 .. max. */
static inline __m256i cut_off(__m256 x, int max) {
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), _mm256_set1_ps((float)max));
    return _mm256_cvttps_epi32(x);
}

/* encode_symmetric of quant_legacy.c, with 16 or 32 codes. */
static void quantise_symmetric(const __m256 *x, int n_codes, block_codes_8 *out) {
    float middle = (float)(n_codes / 2);
    out->d = _mm256_div_ps(signed_max(x), _mm256_set1_ps(-middle));
    __m256 id = inverse_of(out->d), half = _mm256_set1_ps(middle + 0.5f);
    for (int j = 0; j < ATH_KV_BLOCK; j++)
        out->codes[j] = cut_off(_mm256_add_ps(_mm256_mul_ps(x[j], id), half), n_codes - 1);
}

/* encode_range of it. */
static void quantise_range(const __m256 *x, int n_codes, block_codes_8 *out) {
    __m256 max = x[0], half = _mm256_set1_ps(0.5f);
    out->m = x[0];
    for (int j = 1; j < ATH_KV_BLOCK; j++) {
        out->m = _mm256_min_ps(x[j], out->m);
        max = _mm256_max_ps(x[j], max);
    }
    out->d = _mm256_div_ps(_mm256_sub_ps(max, out->m), _mm256_set1_ps((float)(n_codes - 1)));
    __m256 id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m256 y = _mm256_mul_ps(_mm256_sub_ps(x[j], out->m), id);
        out->codes[j] = cut_off(_mm256_add_ps(y, half), n_codes - 1);
    }
}

/* ath_quantize_q8_0: halves away from zero, by adding what is just below a half and cutting off. */
static void quantise_bytes(const __m256 *x, block_codes_8 *out) {
    const __m256 most = _mm256_set1_ps(127.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 below_half = _mm256_set1_ps(0x1.fffffep-2f);
    out->d = _mm256_div_ps(_mm256_andnot_ps(sign, signed_max(x)), most);
    __m256 id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m256 y = _mm256_min_ps(_mm256_mul_ps(x[j], id), most);
        y = _mm256_max_ps(y, _mm256_set1_ps(-127.0f));
        __m256 half = _mm256_or_ps(below_half, _mm256_and_ps(y, sign));
        out->codes[j] = _mm256_cvttps_epi32(_mm256_add_ps(y, half));
    }
}

/* ath_quantize_iq4_nl: the value is the table's first, and a step further for each middle between neighbours
 * that 2x exceeds. */
static void quantise_table(const __m256 *x, block_codes_8 *out) {
    const int8_t *table = ath_block_table();
    __m256 id = inverse_of(_mm256_div_ps(signed_max(x), _mm256_set1_ps((float)table[0])));
    __m256 xy = _mm256_setzero_ps(), yy = _mm256_setzero_ps();
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m256 y = _mm256_mul_ps(x[j], id), twice = _mm256_add_ps(y, y);
        __m256i code = _mm256_setzero_si256(), value = _mm256_set1_epi32(table[0]);
        for (int k = 0; k < 15; k++) {
            __m256 middle = _mm256_set1_ps((float)(table[k] + table[k + 1]));
            __m256i above = _mm256_castps_si256(_mm256_cmp_ps(twice, middle, _CMP_GT_OQ));
            code = _mm256_sub_epi32(code, above);
            __m256i step = _mm256_and_si256(above, _mm256_set1_epi32(table[k + 1] - table[k]));
            value = _mm256_add_epi32(value, step);
        }
        y = _mm256_cvtepi32_ps(value);
        xy = _mm256_add_ps(xy, _mm256_mul_ps(x[j], y));
        yy = _mm256_add_ps(yy, _mm256_mul_ps(y, y));
        out->codes[j] = code;
    }
    out->d = _mm256_div_ps(xy, yy);
}

/* 16 bytes of each token, bytes[j] being lane by lane those of its place j, to rows of the page. */
static void store_rows(const __m256i *bytes, uint8_t *at, int64_t row_bytes) {
    __m256i quads[4], rows[4];
    for (int i = 0; i < 4; i++) {
        quads[i] = bytes[4 * i];
        for (int j = 1; j < 4; j++)
            quads[i] =
                _mm256_or_si256(quads[i], _mm256_sll_epi32(bytes[4 * i + j], _mm_cvtsi32_si128(8 * j)));
    }
    ath_transpose_dwords_avx2(quads, rows);
    for (int i = 0; i < 4; i++, at += row_bytes) {
        _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(rows[i]));
        _mm_storeu_si128((__m128i *)(void *)(at + 4 * row_bytes), _mm256_extracti128_si256(rows[i], 1));
    }
}

/* The block of 8 tokens, at: of the first. */
ATH_INLINE void store_blocks(const ath_block_kind kind, block_codes_8 *b, uint8_t *at, int64_t row_bytes) {
    uint16_t d[8], m[8] = {0};
    uint32_t fifth[8];
    _mm_storeu_si128((__m128i *)(void *)d, _mm256_cvtps_ph(b->d, _MM_FROUND_TO_NEAREST_INT));
    if (kind.has_minimum)
        _mm_storeu_si128((__m128i *)(void *)m, _mm256_cvtps_ph(b->m, _MM_FROUND_TO_NEAREST_INT));
    __m256i bits = _mm256_setzero_si256();
    for (int j = 0; kind.bits == 5 && j < ATH_KV_BLOCK; j++)
        bits =
            _mm256_or_si256(bits, _mm256_sll_epi32(_mm256_srli_epi32(b->codes[j], 4), _mm_cvtsi32_si128(j)));
    _mm256_storeu_si256((__m256i *)(void *)fifth, bits);
    for (int t = 0; t < 8; t++) {
        uint8_t *token = at + t * row_bytes;
        memcpy(token, &d[t], sizeof d[t]);
        if (kind.has_minimum) memcpy(token + 2, &m[t], sizeof m[t]);
        if (kind.bits == 5) memcpy(token + kind.high_at, &fifth[t], sizeof fifth[t]);
    }
    const __m256i mask = _mm256_set1_epi32(kind.bits == 8 ? 255 : 15);
    for (int j = 0; j < ATH_KV_BLOCK; j++) b->codes[j] = _mm256_and_si256(b->codes[j], mask);
    for (int j = 0; kind.bits < 8 && j < 16; j++)
        b->codes[j] = _mm256_or_si256(b->codes[j], _mm256_slli_epi32(b->codes[j + 16], 4));
    store_rows(b->codes, at + kind.codes_at, row_bytes);
    if (kind.bits == 8) store_rows(b->codes + 16, at + kind.codes_at + 16, row_bytes);
}

/* 8 tokens of a part. x: of its first channel and token. */
ATH_INLINE void encode_block_column(const ath_block_kind kind, const ath_kv_layout *layout, int part,
                                    int eighth, const float *x, uint8_t *out) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    uint8_t *at = out + 8 * eighth * row_bytes + layout->part_start[part] / ATH_KV_BLOCK * kind.bytes;
    const __m256 most = _mm256_set1_ps(65504.0f), least = _mm256_set1_ps(-65504.0f); /* of f16 */
    rotated r;
    rotate_column(layout, part, x + 8 * eighth, &r);
    for (int c = 0; c < layout->part_dim[part]; c += ATH_KV_BLOCK, at += kind.bytes) {
        __m256 values[ATH_KV_BLOCK];
        block_codes_8 b;
        for (int j = 0; j < ATH_KV_BLOCK; j++)
            values[j] = _mm256_max_ps(_mm256_min_ps(_mm256_load_ps(r.col.x + (c + j) * 8), most), least);
        if (kind.bits == 8)
            quantise_bytes(values, &b);
        else if (kind.has_table)
            quantise_table(values, &b);
        else if (kind.has_minimum)
            quantise_range(values, 1 << kind.bits, &b);
        else
            quantise_symmetric(values, 1 << kind.bits, &b);
        store_blocks(kind, &b, at, row_bytes);
    }
}

ATH_INLINE void encode_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const float *x,
                              uint8_t *out) {
    for (int p = 0; p < layout->n_parts; p++)
        for (int e = 0; e < TOKENS / 8; e++)
            encode_block_column(kind, layout, p, e, x + (int64_t)layout->part_start[p] * TOKENS, out);
}

static void encode(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (ath_kv_type_is_raw(layout->type) || ath_kv_type_is_plain(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    if (!ath_kv_type_is_turbo(layout->type)) {
#define BLOCKS(kind) encode_blocks(kind, layout, scratch, out)
        ATH_BLOCK_DISPATCH(layout->type, BLOCKS);
#undef BLOCKS
        return;
    }
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
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
