/* Expansion of pages with AVX-512: the bits of ath_kv_decode_page. Lanes are tokens, but for V, whose rows are
 * tokens: there they are channels. */
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx512.h"
#include "kernels/attention_blocks_avx512.h"
#include "kernels/kv_column_avx512.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 16 tokens, [channels][16]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(64) float x[128 * 16];
} column;

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

ATH_INLINE void finish_key_blocks(const int n, const float *x, __m512 scale, const float *factor,
                                  const float *mean, float *out) {
    for (int c = 0; c < 16; c++) {
        __m512 v[8];
        ath_join_blocks(n, x, c, v);
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
    ath_hadamard_blocks(x, dim);
#define FINISH(n) finish_key_blocks(n, x, scale, k->factor + start, k->mean + start, out)
    ATH_BLOCKS_DISPATCH(dim, FINISH);
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

void ath_attn_pages_init_avx512(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = ath_kv_encode_avx512;
}
