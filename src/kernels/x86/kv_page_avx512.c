/* Encoding and expansion of pages with AVX-512: the bytes and bits of ath_kv_encode_page and
 * ath_kv_decode_page. Lanes are tokens, but for the expansion of V, whose rows are tokens: there they are
 * channels. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx512.h"
#include "kernels/attention_blocks_avx512.h"
#include "kernels/trellis_x86.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 16 tokens, [channels][16]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(64) float x[128 * 16];
} column;

/* Butterflies inside blocks of 16 channels. */
static void hadamard_blocks(float *x, int dim) {
    __m512 v[16];
    for (int c = 0; c < dim; c += 16) {
        for (int i = 0; i < 16; i++) v[i] = _mm512_load_ps(x + (c + i) * 16);
        ath_butterflies_avx512(v, 16, 1);
        ath_butterflies_avx512(v, 16, 2);
        ath_butterflies_avx512(v, 16, 4);
        ath_butterflies_avx512(v, 16, 8);
        for (int i = 0; i < 16; i++) _mm512_store_ps(x + (c + i) * 16, v[i]);
    }
}

/* Channel c of each of n blocks, a constant where it is called, after the butterflies between blocks. */
ATH_INLINE void join_blocks(const int n, const float *x, int c, __m512 *v) {
    ATH_UNROLL
    for (int i = 0; i < n; i++) v[i] = _mm512_load_ps(x + (c + 16 * i) * 16);
    if (n > 1) ath_butterflies_avx512(v, n, 1);
    if (n > 2) ath_butterflies_avx512(v, n, 2);
    if (n > 4) ath_butterflies_avx512(v, n, 4);
}

/* body(n) for the blocks of a part. */
#define BLOCKS_DISPATCH(dim, body)                                                                           \
    do {                                                                                                     \
        if ((dim) == 128)                                                                                    \
            body(8);                                                                                         \
        else if ((dim) == 64)                                                                                \
            body(4);                                                                                         \
        else if ((dim) == 32)                                                                                \
            body(2);                                                                                         \
        else                                                                                                 \
            body(1);                                                                                         \
    } while (0)

ATH_INLINE void hadamard_between(const int n, float *x) {
    for (int c = 0; c < 16; c++) {
        __m512 v[8];
        join_blocks(n, x, c, v);
        for (int i = 0; i < n; i++) _mm512_store_ps(x + (c + 16 * i) * 16, v[i]);
    }
}

/* The transform without signs and scale. */
static void hadamard_column(float *x, int dim) {
    hadamard_blocks(x, dim);
#define BETWEEN(n) hadamard_between(n, x)
    BLOCKS_DISPATCH(dim, BETWEEN);
#undef BETWEEN
}

/* ---- expansion */

/* Byte i of every lane, signed, as a float. */
ATH_INLINE __m512 byte_of_lanes(__m512i x, int i) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, (unsigned)(24 - 8 * i)), 24));
}

/* What unrotated values of a channel are multiplied by, and what is added. */
typedef struct key_channels {
    float factor[ATH_MAX_HEAD_DIM], mean[ATH_MAX_HEAD_DIM];
} key_channels;

static void load_key_channels(const ath_kv_layout *layout, const uint8_t *page, key_channels *k) {
    const float *signs = ath_rotation_signs();
    for (int c = 0; c < layout->head_dim; c += 16) {
        __m512 eq = ath_eq_scales_avx512(page + layout->eq_at + c);
        _mm512_storeu_ps(k->factor + c, _mm512_mul_ps(eq, _mm512_loadu_ps(signs + c)));
        _mm512_storeu_ps(k->mean + c, ath_load_f16_avx512(page + layout->mean_at + 2 * c));
    }
}

ATH_INLINE void finish_key_blocks(const int n, const float *x, __m512 scale, const float *factor, const float *mean,
                                  float *out) {
    for (int c = 0; c < 16; c++) {
        __m512 v[8];
        join_blocks(n, x, c, v);
        ATH_UNROLL
        for (int i = 0; i < n; i++) {
            __m512 y = _mm512_mul_ps(_mm512_mul_ps(v[i], scale), _mm512_set1_ps(factor[c + 16 * i]));
            _mm512_storeu_ps(out + (c + 16 * i) * TOKENS, _mm512_add_ps(y, _mm512_set1_ps(mean[c + 16 * i])));
        }
    }
}

/* From the rotated values of 16 tokens of a part of a K page to the tile. */
static void finish_key_column(const ath_kv_layout *layout, int part, int group, const key_channels *k,
                              float *x, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    float *out = tile + (int64_t)start * TOKENS + 16 * group;
    __m512 scale = _mm512_set1_ps(ath_rotation_scale(dim));
    hadamard_blocks(x, dim);
#define FINISH(n) finish_key_blocks(n, x, scale, k->factor + start, k->mean + start, out)
    BLOCKS_DISPATCH(dim, FINISH);
#undef FINISH
}

/* 16 tokens of one part of a K page. */
ATH_INLINE void expand_key_column(const ath_unpack_kind kind, const ath_kv_layout *layout, int part,
                                  int group, const ath_unpack_avx512 *unpack, const uint8_t *page,
                                  const key_channels *channels, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part], k = ath_kv_turbo_bits(layout->type);
    const uint8_t *first = page + ((int64_t)group * layout->head_dim + start) * 2 * k, *planes = first;
    __m512 norm = ath_load_bf16_avx512(page + layout->norms_at + 2 * (size_t)(part * TOKENS + 16 * group));
    column col;
    for (int c = 0; c < dim; c += 4 * kind.quads, planes += 8 * k * kind.quads) {
        __m512i window = kind.trellis && c + 4 * kind.quads == dim
                             ? ath_unpack_window_end_avx512(unpack, planes, first)
                             : ath_unpack_window_avx512(unpack, planes);
        for (int j = 0; j < kind.quads; j++) {
            __m512i values = ath_unpack_avx512_look_up(unpack, kind, window, j);
            for (int i = 0; i < 4; i++)
                _mm512_store_ps(col.x + (c + 4 * j + i) * 16, _mm512_mul_ps(norm, byte_of_lanes(values, i)));
        }
    }
    finish_key_column(layout, part, group, channels, col.x, tile);
}

/* From the rotated values of a token's part to its row of the tile. */
ATH_INLINE void finish_value_row(const int n_regs, __m512 *v, const float *signs, __m512 scale, float *row) {
    ath_hadamard_avx512(v, n_regs);
    for (int g = 0; g < n_regs; g++) {
        __m512 y = _mm512_mul_ps(v[g], scale);
        _mm512_storeu_ps(row + 16 * g, _mm512_mul_ps(y, _mm512_loadu_ps(signs + 16 * g)));
    }
}

/* 4 tokens of one part of a V page. */
ATH_INLINE void expand_value_rows(const int n_regs, const ath_unpack_kind kind, const ath_kv_layout *layout,
                                  int part, int token, const ath_unpack_avx512 *unpack, const uint8_t *page,
                                  float *tile) {
    int start = layout->part_start[part], k = ath_kv_turbo_bits(layout->type);
    const uint8_t *first = page + (token / 4 * layout->head_dim + start) * k / 2;
    const uint16_t *norms = (const uint16_t *)(const void *)(page + layout->norms_at) + part * TOKENS + token;
    const float *signs = ath_rotation_signs() + start;
    __m512 scale = _mm512_set1_ps(ath_rotation_scale(layout->part_dim[part]));
    __m512i values[8];
    for (int g = 0; g < n_regs; g++) {
        const uint8_t *at = first + 8 * k * g;
        __m512i window = kind.trellis && g == n_regs - 1 ? ath_unpack_window_end_avx512(unpack, at, first)
                                                         : ath_unpack_window_avx512(unpack, at);
        values[g] = ath_unpack_avx512_look_up(unpack, kind, window, 0);
    }
    for (int t = 0; t < 4; t++) {
        __m512 v[8], norm = _mm512_set1_ps(ath_bf16_to_f32(norms[t]));
        for (int g = 0; g < n_regs; g++) v[g] = _mm512_mul_ps(norm, byte_of_lanes(values[g], t));
        finish_value_row(n_regs, v, signs, scale, tile + (int64_t)(token + t) * layout->head_dim + start);
    }
}

ATH_INLINE void expand_keys(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            float *tile) {
    ath_unpack_avx512 unpack = ath_unpack_keys_avx512(ath_turbo_code_of(layout->type), kind, 0);
    key_channels channels;
    load_key_channels(layout, page, &channels);
    for (int p = 0; p < layout->n_parts; p++)
        for (int g = 0; g < TOKENS / 16; g++)
            expand_key_column(kind, layout, p, g, &unpack, page, &channels, tile);
}

ATH_INLINE void expand_values(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                              float *tile) {
    ath_unpack_avx512 unpack = ath_unpack_values_avx512(ath_turbo_code_of(layout->type), 16);
    for (int p = 0; p < layout->n_parts; p++) {
        int dim = layout->part_dim[p];
        for (int t = 0; t < TOKENS; t += 4) {
            if (dim == 128)
                expand_value_rows(8, kind, layout, p, t, &unpack, page, tile);
            else if (dim == 64)
                expand_value_rows(4, kind, layout, p, t, &unpack, page, tile);
            else if (dim == 32)
                expand_value_rows(2, kind, layout, p, t, &unpack, page, tile);
            else
                expand_value_rows(1, kind, layout, p, t, &unpack, page, tile);
        }
    }
}

/* A K page of blocks. */
ATH_INLINE void expand_key_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                                  float *tile) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    ath_block_unpack unpack = ath_block_unpack_avx512(kind, true, row_bytes);
    const __m512i bias = _mm512_set1_epi32(kind.has_minimum ? 0 : ath_block_bias(kind));
    column col;
    key_channels channels;
    load_key_channels(layout, page, &channels);
    for (int p = 0; p < layout->n_parts; p++)
        for (int g = 0; g < TOKENS / 16; g++) {
            const uint8_t *at = page + 16 * g * row_bytes + layout->part_start[p] / ATH_KV_BLOCK * kind.bytes;
            float *x = col.x;
            for (int b = 0; b < layout->part_dim[p]; b += ATH_KV_BLOCK, at += kind.bytes) {
                __m512i codes[8];
                __m512 d, m;
                ath_block_scales_avx512(&unpack, at, &d, &m);
                ath_block_tile_avx512(kind, true, &unpack, at, row_bytes, codes);
                for (int c = 0; c < ATH_KV_BLOCK; c++, x += 16) {
                    __m512i code = _mm512_srl_epi32(codes[c / 4], _mm_cvtsi32_si128(c % 4 * 8));
                    code = _mm512_sub_epi32(_mm512_and_si512(code, _mm512_set1_epi32(255)), bias);
                    __m512 y = _mm512_mul_ps(d, _mm512_cvtepi32_ps(code));
                    _mm512_store_ps(x, kind.has_minimum ? _mm512_add_ps(y, m) : y);
                }
            }
            finish_key_column(layout, p, g, &channels, col.x, tile);
        }
}

/* 16 codes of a block, in order: the nibbles `half` (0: low ones) of its bytes, or its bytes. */
ATH_INLINE __m128i block_codes(const ath_block_kind kind, const uint8_t *at, int half) {
    const void *codes = at + kind.codes_at + (kind.bits == 8 ? 16 * half : 0);
    __m128i x = _mm_loadu_si128((const __m128i *)codes);
    if (kind.bits == 8) return x;
    x = _mm_and_si128(half ? _mm_srli_epi16(x, 4) : x, _mm_set1_epi8(15));
    if (kind.has_table)
        return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)ath_block_table()), x);
    if (kind.bits == 5) {
        uint16_t fifth;
        memcpy(&fifth, at + kind.high_at + 2 * half, sizeof fifth);
        x = _mm_mask_add_epi8(x, fifth, x, _mm_set1_epi8(16));
    }
    return kind.has_minimum ? x : _mm_sub_epi8(x, _mm_set1_epi8((char)kind.offset));
}

/* One part of a token of a V page; row: of the token. */
ATH_INLINE void expand_value_blocks(const int n_regs, const ath_block_kind kind, const ath_kv_layout *layout,
                                    int part, const uint8_t *at, float *row) {
    int start = layout->part_start[part];
    __m512 v[8], scale = _mm512_set1_ps(ath_rotation_scale(layout->part_dim[part]));
    at += start / ATH_KV_BLOCK * kind.bytes;
    ATH_UNROLL
    for (int i = 0; i < n_regs; i += 2, at += kind.bytes) {
        int16_t halves[2];
        memcpy(halves, at, sizeof halves);
        __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16(halves[0]));
        __m512 m = _mm512_cvtph_ps(_mm256_set1_epi16(halves[1]));
        for (int j = 0; j < 2; j++) {
            v[i + j] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(block_codes(kind, at, j))));
            if (kind.has_minimum) v[i + j] = _mm512_add_ps(v[i + j], m);
        }
    }
    finish_value_row(n_regs, v, ath_rotation_signs() + start, scale, row + start);
}

ATH_INLINE void expand_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                              float *tile) {
    if (layout->is_key) {
        expand_key_blocks(kind, layout, page, tile);
        return;
    }
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    for (int t = 0; t < TOKENS; t++, page += row_bytes, tile += layout->head_dim)
        for (int p = 0; p < layout->n_parts; p++) {
            if (layout->part_dim[p] == 128)
                expand_value_blocks(8, kind, layout, p, page, tile);
            else if (layout->part_dim[p] == 64)
                expand_value_blocks(4, kind, layout, p, page, tile);
            else
                expand_value_blocks(2, kind, layout, p, page, tile);
        }
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
#define KEYS(kind)   expand_keys(kind, layout, page, tile)
#define VALUES(kind) expand_values(kind, layout, page, tile)
    if (layout->is_key)
        ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), KEYS);
    else
        ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), VALUES);
#undef KEYS
#undef VALUES
}

/* ---- encoding */

/* 16 rows of 16 f16 values, `stride` apart, to the columns x[16][TOKENS]. */
static void transpose_16(const uint16_t *rows, int64_t stride, float *x) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = ath_load_f16_avx512(rows + i * stride);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* r[i + j]: columns j, 4 + j, 8 + j, 12 + j of rows i to i + 3 */
        for (int j = 0; j < 4; j++) {
            __m512d low = _mm512_castps_pd(t[i + j / 2]), high = _mm512_castps_pd(t[i + j / 2 + 2]);
            r[i + j] =
                _mm512_castpd_ps(j % 2 ? _mm512_unpackhi_pd(low, high) : _mm512_unpacklo_pd(low, high));
        }
    for (int j = 0; j < 4; j++) {
        __m512 even[2], odd[2]; /* columns j and 8 + j, 4 + j and 12 + j, of rows 0 to 7 and 8 to 15 */
        for (int i = 0; i < 2; i++) {
            even[i] = _mm512_shuffle_f32x4(r[8 * i + j], r[8 * i + 4 + j], 0x88);
            odd[i] = _mm512_shuffle_f32x4(r[8 * i + j], r[8 * i + 4 + j], 0xdd);
        }
        _mm512_storeu_ps(x + j * TOKENS, _mm512_shuffle_f32x4(even[0], even[1], 0x88));
        _mm512_storeu_ps(x + (4 + j) * TOKENS, _mm512_shuffle_f32x4(odd[0], odd[1], 0x88));
        _mm512_storeu_ps(x + (8 + j) * TOKENS, _mm512_shuffle_f32x4(even[0], even[1], 0xdd));
        _mm512_storeu_ps(x + (12 + j) * TOKENS, _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd));
    }
}

/* x[head_dim][128] of a K tile, or of a V tile by transposing blocks of 16 x 16. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int64_t i = 0; i < (int64_t)dim * TOKENS; i += 16)
            _mm512_storeu_ps(x + i, ath_load_f16_avx512(tile + i));
        return;
    }
    for (int c = 0; c < dim; c += 16)
        for (int t = 0; t < TOKENS; t += 16)
            transpose_16(tile + (int64_t)t * dim + c, dim, x + c * TOKENS + t);
}

/* The stored mean of a row of tokens, taken out of it. Returns its f16. */
static uint16_t centre_row(float *row) {
    __m512 sum = _mm512_setzero_ps();
    for (int t = 0; t < TOKENS; t += 16) sum = _mm512_add_ps(sum, _mm512_loadu_ps(row + t));
    uint16_t stored = ath_f32_to_f16(ath_sum_lanes_avx512(sum) / TOKENS);
    __m512 mean = _mm512_set1_ps(ath_f16_to_f32(stored));
    for (int t = 0; t < TOKENS; t += 16)
        _mm512_storeu_ps(row + t, _mm512_sub_ps(_mm512_loadu_ps(row + t), mean));
    return stored;
}

static float root_of_row(const float *row) {
    __m512 sum = _mm512_setzero_ps();
    for (int t = 0; t < TOKENS; t += 16) {
        __m512 x = _mm512_loadu_ps(row + t);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(x, x));
    }
    return sqrtf(sqrtf(ath_sum_lanes_avx512(sum) / TOKENS));
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
        __m512 factor = _mm512_set1_ps(ath_eq_scale((uint8_t)(256 - e)));
        for (int t = 0; t < TOKENS; t += 16)
            _mm512_storeu_ps(x + c * TOKENS + t, _mm512_mul_ps(_mm512_loadu_ps(x + c * TOKENS + t), factor));
    }
}

/* Writes the streams of 16 tokens, up to 4 bytes of each at a time. */
typedef struct stream_writer {
    uint8_t *at[4];         /* K: the planes; V: those of each 4 tokens */
    __m512i order, pending; /* pending: the bits not written yet */
    int n_at, n_bits;
} stream_writer;

static stream_writer writer_init(const ath_kv_layout *layout, int part, int group, uint8_t *out) {
    int64_t stream = (int64_t)layout->head_dim * ath_kv_turbo_bits(layout->type) / 8;
    int64_t start = (int64_t)layout->part_start[part] * ath_kv_turbo_bits(layout->type) / 8;
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    stream_writer w = {.pending = _mm512_setzero_si512(), .n_at = layout->is_key ? 1 : 4};
    if (layout->is_key) { /* plane j: byte j of every dword */
        __m512i byte = _mm512_srli_epi32(lane, 2),
                token = _mm512_and_si512(_mm512_slli_epi32(lane, 4), _mm512_set1_epi32(48));
        w.order =
            _mm512_add_epi32(_mm512_mullo_epi32(_mm512_add_epi32(byte, token), _mm512_set1_epi32(0x01010101)),
                             _mm512_set1_epi32(0x0c080400));
        w.at[0] = out + 16 * (stream * group + start);
    } else { /* the same in every 128 bits */
        __m512i byte = _mm512_and_si512(lane, _mm512_set1_epi32(3));
        w.order = _mm512_add_epi32(_mm512_mullo_epi32(byte, _mm512_set1_epi32(0x01010101)),
                                   _mm512_set1_epi32(0x0c080400));
        for (int i = 0; i < 4; i++) w.at[i] = out + 4 * (stream * (4 * group + i) + start);
    }
    return w;
}

/* The low n_bytes bytes of every token's dword. */
static inline void writer_bytes(stream_writer *w, __m512i dwords, int n_bytes) {
    if (w->n_at == 1) {
        __mmask64 used = n_bytes == 4 ? ~(__mmask64)0 : ((__mmask64)1 << 16 * n_bytes) - 1;
        _mm512_mask_storeu_epi8(w->at[0], used, _mm512_permutexvar_epi8(w->order, dwords));
        w->at[0] += 16 * n_bytes;
        return;
    }
    __m512i x = _mm512_shuffle_epi8(dwords, w->order);
    __m128i four[4] = {_mm512_castsi512_si128(x), _mm512_extracti32x4_epi32(x, 1),
                       _mm512_extracti32x4_epi32(x, 2), _mm512_extracti32x4_epi32(x, 3)};
    for (int i = 0; i < 4; i++) {
        _mm_mask_storeu_epi8(w->at[i], (__mmask16)((1u << 4 * n_bytes) - 1), four[i]);
        w->at[i] += 4 * n_bytes;
    }
}

/* A symbol of k bits of every token. */
static inline void writer_symbol(stream_writer *w, __m512i symbol, int k) {
    w->pending = _mm512_or_si512(w->pending, _mm512_sll_epi32(symbol, _mm_cvtsi32_si128(w->n_bits)));
    w->n_bits += k;
    if (w->n_bits < 32) return;
    writer_bytes(w, w->pending, 4);
    w->n_bits -= 32;
    w->pending = _mm512_srl_epi32(symbol, _mm_cvtsi32_si128(k - w->n_bits));
}

/* What one scan over the channels of a part needs to turn a value into its scalar code. */
typedef struct coder {
    __m512 thresholds;
    __m512i squares; /* of the table */
    int bits;
} coder;

static coder coder_init(const ath_turbo_code *code) {
    int32_t squares[16] = {0};
    for (int i = 0; i < 1 << code->k; i++) squares[i] = code->table[i] * code->table[i];
    __mmask16 known = (__mmask16)((1u << ((1 << code->k) - 1)) - 1);
    return (coder){.thresholds = _mm512_maskz_loadu_ps(known, code->thresholds),
                   .squares = _mm512_loadu_si512(squares),
                   .bits = code->k};
}

/* Number of thresholds <= u, by halving. */
static inline __m512i code_of(const coder *c, __m512 u) {
    __m512i code = _mm512_setzero_si512();
    for (int step = 1 << (c->bits - 1); step; step /= 2) {
        __m512 threshold =
            _mm512_permutexvar_ps(_mm512_add_epi32(code, _mm512_set1_epi32(step - 1)), c->thresholds);
        __mmask16 above = _mm512_cmp_ps_mask(u, threshold, _CMP_GE_OQ);
        code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
    }
    return code;
}

static inline void store_norms(uint8_t *norms, __m512 norm) {
    __m512i u = _mm512_castps_si512(norm),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)(void *)norms, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}

/* 16 tokens of a part, rotated. Below 1e-30 a part is zero. */
typedef struct rotated {
    column col;
    __m512 square, inverse; /* of the part; its values times inverse have an rms of 1 */
    __mmask16 there;        /* tokens that are not zero */
} rotated;

/* x[channel][128]: of the part's first channel and the first of the tokens. */
static void rotate_column(const ath_kv_layout *layout, int part, const float *x, rotated *r) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    for (int c = 0; c < dim; c++)
        _mm512_store_ps(r->col.x + c * 16,
                        _mm512_mul_ps(_mm512_loadu_ps(x + c * TOKENS), _mm512_set1_ps(signs[c])));
    hadamard_column(r->col.x, dim);
    __m512 scale = _mm512_set1_ps(ath_rotation_scale(dim)), square = _mm512_setzero_ps();
    for (int c = 0; c < dim; c++) {
        __m512 y = _mm512_mul_ps(_mm512_load_ps(r->col.x + c * 16), scale);
        square = _mm512_add_ps(square, _mm512_mul_ps(y, y));
        _mm512_store_ps(r->col.x + c * 16, y);
    }
    r->square = square;
    r->there = _mm512_cmp_ps_mask(square, _mm512_set1_ps(1e-30f), _CMP_NLT_UQ);
    r->inverse = _mm512_div_ps(_mm512_set1_ps(sqrtf((float)dim)), _mm512_sqrt_ps(square));
}

static void write_norms(const ath_kv_layout *layout, int part, int group, const rotated *r,
                        __m512i table_square, uint8_t *out) {
    __m512 norm = _mm512_div_ps(_mm512_sqrt_ps(r->square), _mm512_sqrt_ps(_mm512_cvtepi32_ps(table_square)));
    store_norms(out + layout->norms_at + 2 * (size_t)(part * TOKENS + 16 * group),
                _mm512_maskz_mov_ps(r->there, norm));
}

/* 16 tokens of a part in scalar codes. */
static void encode_scalar(const ath_kv_layout *layout, int part, int group, const float *x,
                          const coder *coder, uint8_t *out) {
    rotated r;
    rotate_column(layout, part, x + 16 * group, &r);
    stream_writer writer = writer_init(layout, part, group, out);
    __m512i table_square = _mm512_setzero_si512();
    for (int c = 0; c < layout->part_dim[part]; c++) {
        __m512i code = code_of(coder, _mm512_mul_ps(_mm512_load_ps(r.col.x + c * 16), r.inverse));
        code = _mm512_maskz_mov_epi32(r.there, code);
        table_square = _mm512_add_epi32(table_square, _mm512_permutexvar_epi32(code, coder->squares));
        writer_symbol(&writer, code, coder->bits);
    }
    if (writer.n_bits) writer_bytes(&writer, writer.pending, writer.n_bits / 8);
    write_norms(layout, part, group, &r, table_square, out);
}

/* 32 tokens of a part in trellis codes. */
static void encode_trellis(const ath_kv_layout *layout, int part, int group, const float *x,
                           const ath_turbo_code *code, uint8_t *out) {
    enum { LANES = ATH_TRELLIS_LANES_AVX512 };
    rotated r[2];
    _Alignas(64) int16_t targets[128][LANES];
    _Alignas(64) uint16_t words[128 * 4 / 16][LANES];
    _Alignas(64) int32_t squares[LANES];
    int dim = layout->part_dim[part];
    __m512 scale = _mm512_set1_ps(code->target_scale), limit = _mm512_set1_ps((float)code->limit);
    for (int i = 0; i < 2; i++) {
        rotate_column(layout, part, x + 16 * (group + i), &r[i]);
        for (int c = 0; c < dim; c++) {
            __m512 u = _mm512_maskz_mul_ps(r[i].there, _mm512_load_ps(r[i].col.x + c * 16), r[i].inverse);
            u = _mm512_min_ps(_mm512_mul_ps(u, scale), limit);
            u = _mm512_max_ps(u, _mm512_sub_ps(_mm512_setzero_ps(), limit));
            _mm256_storeu_si256((__m256i *)(void *)(targets[c] + 16 * i),
                                _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(u)));
        }
    }
    ath_trellis_strip_avx512(code, (const int16_t(*)[LANES])targets, dim, words, squares);
    int n_words = dim * code->k / 16;
    for (int i = 0; i < 2; i++) {
        stream_writer writer = writer_init(layout, part, group + i, out);
        for (int word = 0; word < n_words; word += 2) {
            __m512i low =
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(void *)(words[word] + 16 * i)));
            __m512i dwords = low;
            if (word + 1 < n_words) {
                __m256i high = _mm256_loadu_si256((const __m256i *)(void *)(words[word + 1] + 16 * i));
                dwords = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
            }
            writer_bytes(&writer, _mm512_maskz_mov_epi32(r[i].there, dwords), word + 1 < n_words ? 4 : 2);
        }
        write_norms(layout, part, group + i, &r[i], _mm512_loadu_si512(squares + 16 * i), out);
    }
}

/* One block of 16 tokens, lanes are tokens: codes, scale, minimum. */
typedef struct block_codes_16 {
    __m512i codes[ATH_KV_BLOCK];
    __m512 d, m;
} block_codes_16;

static inline __m512 inverse_of(__m512 d) {
    __mmask16 there = _mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return _mm512_maskz_div_ps(there, _mm512_set1_ps(1.0f), d);
}

/* The values of largest magnitude, with their signs; the first of equals. */
static inline __m512 signed_max(const __m512 *x) {
    __m512 max = x[0];
    for (int j = 1; j < ATH_KV_BLOCK; j++) {
        __mmask16 larger = _mm512_cmp_ps_mask(_mm512_abs_ps(x[j]), _mm512_abs_ps(max), _CMP_GT_OQ);
        max = _mm512_mask_mov_ps(max, larger, x[j]);
    }
    return max;
}

/* Cut off to integers of 0 .. max. */
static inline __m512i cut_off(__m512 x, int max) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_setzero_ps()), _mm512_set1_ps((float)max));
    return _mm512_cvttps_epi32(x);
}

/* encode_symmetric of quant_legacy.c, with 16 or 32 codes. */
static void quantise_symmetric(const __m512 *x, int n_codes, block_codes_16 *out) {
    float middle = (float)(n_codes / 2);
    out->d = _mm512_div_ps(signed_max(x), _mm512_set1_ps(-middle));
    __m512 id = inverse_of(out->d), half = _mm512_set1_ps(middle + 0.5f);
    for (int j = 0; j < ATH_KV_BLOCK; j++)
        out->codes[j] = cut_off(_mm512_add_ps(_mm512_mul_ps(x[j], id), half), n_codes - 1);
}

/* encode_range of it. */
static void quantise_range(const __m512 *x, int n_codes, block_codes_16 *out) {
    __m512 max = x[0], half = _mm512_set1_ps(0.5f);
    out->m = x[0];
    for (int j = 1; j < ATH_KV_BLOCK; j++) {
        out->m = _mm512_min_ps(x[j], out->m);
        max = _mm512_max_ps(x[j], max);
    }
    out->d = _mm512_div_ps(_mm512_sub_ps(max, out->m), _mm512_set1_ps((float)(n_codes - 1)));
    __m512 id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m512 y = _mm512_mul_ps(_mm512_sub_ps(x[j], out->m), id);
        out->codes[j] = cut_off(_mm512_add_ps(y, half), n_codes - 1);
    }
}

/* ath_quantize_q8_0: halves away from zero, by adding what is just below a half and cutting off. */
static void quantise_bytes(const __m512 *x, block_codes_16 *out) {
    const __m512 most = _mm512_set1_ps(127.0f), sign = _mm512_set1_ps(-0.0f);
    const __m512 below_half = _mm512_set1_ps(0x1.fffffep-2f);
    out->d = _mm512_div_ps(_mm512_abs_ps(signed_max(x)), most);
    __m512 id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m512 y = _mm512_min_ps(_mm512_mul_ps(x[j], id), most);
        y = _mm512_max_ps(y, _mm512_set1_ps(-127.0f));
        __m512 half = _mm512_or_ps(below_half, _mm512_and_ps(y, sign));
        out->codes[j] = _mm512_cvttps_epi32(_mm512_add_ps(y, half));
    }
}

/* ath_quantize_iq4_nl: the code is the number of middles between neighbours of the table that 2x exceeds. */
static void quantise_table(const __m512 *x, block_codes_16 *out) {
    const int8_t *table = ath_block_table();
    __m512 values =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)table)));
    __m512 id = inverse_of(_mm512_div_ps(signed_max(x), _mm512_set1_ps((float)table[0])));
    __m512 xy = _mm512_setzero_ps(), yy = _mm512_setzero_ps();
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        __m512 y = _mm512_mul_ps(x[j], id), twice = _mm512_add_ps(y, y);
        __m512i code = _mm512_setzero_si512();
        for (int k = 0; k < 15; k++) {
            __m512 middle = _mm512_set1_ps((float)(table[k] + table[k + 1]));
            __mmask16 above = _mm512_cmp_ps_mask(twice, middle, _CMP_GT_OQ);
            code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(1));
        }
        y = _mm512_permutexvar_ps(code, values);
        xy = _mm512_add_ps(xy, _mm512_mul_ps(x[j], y));
        yy = _mm512_add_ps(yy, _mm512_mul_ps(y, y));
        out->codes[j] = code;
    }
    out->d = _mm512_div_ps(xy, yy);
}

/* 16 bytes of each token, bytes[j] being lane by lane those of its place j, to rows of the page. */
static void store_rows(const __m512i *bytes, uint8_t *at, int64_t row_bytes) {
    __m512i quads[4], rows[4];
    for (int i = 0; i < 4; i++) {
        quads[i] = bytes[4 * i];
        for (int j = 1; j < 4; j++)
            quads[i] =
                _mm512_or_si512(quads[i], _mm512_sll_epi32(bytes[4 * i + j], _mm_cvtsi32_si128(8 * j)));
    }
    ath_transpose_dwords_avx512(quads, rows);
    for (int i = 0; i < 4; i++, at += row_bytes) {
        _mm_storeu_si128((__m128i *)(void *)at, _mm512_castsi512_si128(rows[i]));
        _mm_storeu_si128((__m128i *)(void *)(at + 4 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 1));
        _mm_storeu_si128((__m128i *)(void *)(at + 8 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 2));
        _mm_storeu_si128((__m128i *)(void *)(at + 12 * row_bytes), _mm512_extracti32x4_epi32(rows[i], 3));
    }
}

/* The block of 16 tokens, at: of the first. */
ATH_INLINE void store_blocks(const ath_block_kind kind, block_codes_16 *b, uint8_t *at, int64_t row_bytes) {
    uint16_t d[16], m[16];
    uint32_t fifth[16];
    _mm256_storeu_si256((__m256i *)(void *)d, _mm512_cvtps_ph(b->d, _MM_FROUND_TO_NEAREST_INT));
    if (kind.has_minimum)
        _mm256_storeu_si256((__m256i *)(void *)m, _mm512_cvtps_ph(b->m, _MM_FROUND_TO_NEAREST_INT));
    __m512i bits = _mm512_setzero_si512();
    for (int j = 0; kind.bits == 5 && j < ATH_KV_BLOCK; j++)
        bits =
            _mm512_or_si512(bits, _mm512_sll_epi32(_mm512_srli_epi32(b->codes[j], 4), _mm_cvtsi32_si128(j)));
    _mm512_storeu_si512(fifth, bits);
    for (int t = 0; t < 16; t++) {
        uint8_t *token = at + t * row_bytes;
        memcpy(token, &d[t], sizeof d[t]);
        if (kind.has_minimum) memcpy(token + 2, &m[t], sizeof m[t]);
        if (kind.bits == 5) memcpy(token + kind.high_at, &fifth[t], sizeof fifth[t]);
    }
    const __m512i mask = _mm512_set1_epi32(kind.bits == 8 ? 255 : 15);
    for (int j = 0; j < ATH_KV_BLOCK; j++) b->codes[j] = _mm512_and_si512(b->codes[j], mask);
    for (int j = 0; kind.bits < 8 && j < 16; j++)
        b->codes[j] = _mm512_or_si512(b->codes[j], _mm512_slli_epi32(b->codes[j + 16], 4));
    store_rows(b->codes, at + kind.codes_at, row_bytes);
    if (kind.bits == 8) store_rows(b->codes + 16, at + kind.codes_at + 16, row_bytes);
}

/* 16 tokens of a part. x: of its first channel and token. */
ATH_INLINE void encode_block_column(const ath_block_kind kind, const ath_kv_layout *layout, int part,
                                    int group, const float *x, uint8_t *out) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    uint8_t *at = out + 16 * group * row_bytes + layout->part_start[part] / ATH_KV_BLOCK * kind.bytes;
    const __m512 most = _mm512_set1_ps(65504.0f), least = _mm512_set1_ps(-65504.0f); /* of f16 */
    rotated r;
    rotate_column(layout, part, x + 16 * group, &r);
    for (int c = 0; c < layout->part_dim[part]; c += ATH_KV_BLOCK, at += kind.bytes) {
        __m512 values[ATH_KV_BLOCK];
        block_codes_16 b;
        for (int j = 0; j < ATH_KV_BLOCK; j++)
            values[j] = _mm512_max_ps(_mm512_min_ps(_mm512_load_ps(r.col.x + (c + j) * 16), most), least);
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
        for (int g = 0; g < TOKENS / 16; g++)
            encode_block_column(kind, layout, p, g, x + (int64_t)layout->part_start[p] * TOKENS, out);
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
            coder coder = coder_init(code);
            for (int g = 0; g < TOKENS / 16; g++) encode_scalar(layout, p, g, x, &coder, out);
        } else {
            for (int g = 0; g < TOKENS / 16; g += 2) encode_trellis(layout, p, g, x, code, out);
        }
    }
}

void ath_attn_pages_init_avx512(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = encode;
}
