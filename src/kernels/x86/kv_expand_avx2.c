/* Expansion of pages with AVX2: the bits of ath_kv_decode_page. Lanes are tokens, but for V, whose rows are
 * tokens: there they are channels. */
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"
#include "kernels/attention_blocks_avx2.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 8 tokens, [channels][8]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(32) float x[128 * 8];
} column;

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

void ath_attn_pages_init_avx2(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = ath_kv_encode_avx2;
}
