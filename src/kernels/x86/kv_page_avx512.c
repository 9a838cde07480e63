/* Encoding and expansion of turbo pages with AVX-512: the bytes and bits of ath_kv_encode_page and
 * ath_kv_decode_page. Lanes are tokens, but for the expansion of V, whose rows are tokens: there they are
 * channels. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx512.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 16 tokens, [channels][16]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(64) float x[128 * 16];
} column;

/* The transform without signs and scale: first the butterflies inside blocks of 16 channels, then those
 * between blocks. */
static void hadamard_column(float *x, int dim) {
    __m512 v[16];
    for (int c = 0; c < dim; c += 16) {
        for (int i = 0; i < 16; i++) v[i] = _mm512_load_ps(x + (c + i) * 16);
        ath_butterflies_avx512(v, 16, 1);
        ath_butterflies_avx512(v, 16, 2);
        ath_butterflies_avx512(v, 16, 4);
        ath_butterflies_avx512(v, 16, 8);
        for (int i = 0; i < 16; i++) _mm512_store_ps(x + (c + i) * 16, v[i]);
    }
    for (int half = 16; half < dim; half *= 2)
        for (int c = 0; c < dim; c++) {
            if (c & half) continue;
            __m512 a = _mm512_load_ps(x + c * 16), b = _mm512_load_ps(x + (c + half) * 16);
            _mm512_store_ps(x + c * 16, _mm512_add_ps(a, b));
            _mm512_store_ps(x + (c + half) * 16, _mm512_sub_ps(a, b));
        }
}

/* ---- expansion */

/* Byte i of every lane, signed, as a float. */
ATH_INLINE __m512 byte_of_lanes(__m512i x, int i) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, (unsigned)(24 - 8 * i)), 24));
}

/* 16 tokens of one part of a K page. */
static void expand_key_column(const ath_kv_layout *layout, int part, int group,
                              const ath_unpack_avx512 *unpack, const uint8_t *page, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    const uint8_t *units = page + ((int64_t)group * layout->head_dim + start) / 4 * unpack->bytes;
    __m512 norm = ath_load_bf16_avx512(page + layout->norms_at + 2 * (size_t)(part * TOKENS + 16 * group));
    column col;
    for (int c = 0; c < dim; c += 4, units += unpack->bytes) {
        __m512i values = ath_unpack_avx512_unit(unpack, units);
        for (int i = 0; i < 4; i++)
            _mm512_store_ps(col.x + (c + i) * 16, _mm512_mul_ps(norm, byte_of_lanes(values, i)));
    }
    hadamard_column(col.x, dim);
    float *out = tile + (int64_t)start * TOKENS + 16 * group;
    const uint16_t *mean = (const uint16_t *)(const void *)(page + layout->mean_at) + start;
    const float *signs = ath_rotation_signs() + start;
    float scale = ath_rotation_scale(dim);
    for (int c = 0; c < dim; c++) {
        __m512 y = _mm512_mul_ps(_mm512_load_ps(col.x + c * 16), _mm512_set1_ps(scale));
        float eq = ath_eq_scale(page[layout->eq_at + (size_t)(start + c)]) * signs[c];
        y = _mm512_add_ps(_mm512_mul_ps(y, _mm512_set1_ps(eq)), _mm512_set1_ps(ath_f16_to_f32(mean[c])));
        _mm512_storeu_ps(out + c * TOKENS, y);
    }
}

/* 4 tokens of one part of a V page. */
ATH_INLINE void expand_value_rows(const int n_regs, const ath_kv_layout *layout, int part, int token,
                                  const ath_unpack_avx512 *unpack, const uint8_t *page, float *tile) {
    int start = layout->part_start[part];
    const uint8_t *units = page + (token / 4 * (layout->head_dim / 16) + start / 16) * unpack->bytes;
    const uint16_t *norms = (const uint16_t *)(const void *)(page + layout->norms_at) + part * TOKENS + token;
    const float *signs = ath_rotation_signs() + start;
    __m512 scale = _mm512_set1_ps(ath_rotation_scale(layout->part_dim[part]));
    __m512i values[8];
    for (int g = 0; g < n_regs; g++) values[g] = ath_unpack_avx512_unit(unpack, units + g * unpack->bytes);
    for (int t = 0; t < 4; t++) {
        __m512 v[8], norm = _mm512_set1_ps(ath_bf16_to_f32(norms[t]));
        for (int g = 0; g < n_regs; g++) v[g] = _mm512_mul_ps(norm, byte_of_lanes(values[g], t));
        ath_hadamard_avx512(v, n_regs);
        float *row = tile + (int64_t)(token + t) * layout->head_dim + start;
        for (int g = 0; g < n_regs; g++) {
            __m512 y = _mm512_mul_ps(v[g], scale);
            _mm512_storeu_ps(row + 16 * g, _mm512_mul_ps(y, _mm512_loadu_ps(signs + 16 * g)));
        }
    }
}

static void expand(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_decode_page(layout, page, tile);
        return;
    }
    ath_unpack_avx512 unpack = ath_unpack_init_avx512(layout->type, 0);
    for (int p = 0; p < layout->n_parts; p++) {
        int dim = layout->part_dim[p];
        for (int g = 0; layout->is_key && g < TOKENS / 16; g++)
            expand_key_column(layout, p, g, &unpack, page, tile);
        for (int t = 0; !layout->is_key && t < TOKENS; t += 4) {
            if (dim == 128)
                expand_value_rows(8, layout, p, t, &unpack, page, tile);
            else if (dim == 64)
                expand_value_rows(4, layout, p, t, &unpack, page, tile);
            else if (dim == 32)
                expand_value_rows(2, layout, p, t, &unpack, page, tile);
            else
                expand_value_rows(1, layout, p, t, &unpack, page, tile);
        }
    }
}

/* ---- encoding */

/* x[head_dim][128] of a K tile, or of a V tile by transposing blocks of 16 x 16. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int64_t i = 0; i < (int64_t)dim * TOKENS; i += 16)
            _mm512_storeu_ps(x + i, ath_load_f16_avx512(tile + i));
        return;
    }
    __m512i rows = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                      _mm512_set1_epi32(TOKENS));
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < dim; c += 16)
            _mm512_i32scatter_ps(x + c * TOKENS + t, rows, ath_load_f16_avx512(tile + (int64_t)t * dim + c),
                                 4);
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

/* How a unit is made of 64 codes in bytes. */
typedef struct packer {
    __m512i pairs, fours, order; /* multipliers for two bytes, two words; the used bytes of every quadword */
    __mmask64 used;
    int bits;
} packer;

static packer packer_init(int bits) {
    uint8_t order[64] = {0};
    for (int i = 0; i < 8 * bits; i++) order[i] = (uint8_t)(i / bits * 8 + i % bits);
    return (packer){.pairs = _mm512_set1_epi16((short)(1 | 1 << (bits + 8))),
                    .fours = _mm512_set1_epi32(1 | 1 << (2 * bits + 16)),
                    .order = _mm512_loadu_si512(order),
                    .used = ((__mmask64)1 << 8 * bits) - 1,
                    .bits = bits};
}

static inline void pack_unit(const packer *p, __m512i codes, uint8_t *unit) {
    __m512i x = _mm512_madd_epi16(_mm512_maddubs_epi16(codes, p->pairs), p->fours);
    __m512i high = _mm512_slli_epi64(_mm512_srli_epi64(x, 32), (unsigned)(4 * p->bits));
    x = _mm512_or_si512(_mm512_and_si512(x, _mm512_set1_epi64(0xffffffff)), high);
    _mm512_mask_storeu_epi8(unit, p->used, _mm512_permutexvar_epi8(p->order, x));
}

/* What one scan over the channels of a part needs to turn a value into its code. */
typedef struct coder {
    __m512 thresholds;
    __m512i squares; /* of the table */
    int bits;
} coder;

static coder coder_init(ath_kv_type type) {
    int bits = ath_kv_turbo_bits(type);
    int32_t squares[16] = {0};
    for (int i = 0; i < 1 << bits; i++) squares[i] = ath_turbo_table(type)[i] * ath_turbo_table(type)[i];
    __mmask16 known = (__mmask16)((1u << ((1 << bits) - 1)) - 1);
    return (coder){.thresholds = _mm512_maskz_loadu_ps(known, ath_turbo_thresholds(type)),
                   .squares = _mm512_loadu_si512(squares),
                   .bits = bits};
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

/* Codes of 16 tokens of a part, [channels][16], to their units. */
static void pack_column(const ath_kv_layout *layout, int part, int group, const uint8_t *codes,
                        const packer *p, uint8_t *out) {
    int start = layout->part_start[part], dim = layout->part_dim[part], head_dim = layout->head_dim;
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i rows = _mm512_slli_epi32(lane, 4);
    __m512i transpose = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x01010101));
    transpose = _mm512_add_epi32(transpose, _mm512_set1_epi32(0x30201000));
    for (int c = 0; c < dim; c += 16)
        for (int t = 0; t < 16; t += 4) {
            __m512i x;
            int64_t unit;
            if (layout->is_key) { /* 16 tokens x 4 channels: a transpose of bytes */
                unit = ((int64_t)group * head_dim + start + c + t) / 4;
                x = _mm512_permutexvar_epi8(transpose, _mm512_loadu_si512(codes + 16 * (c + t)));
            } else { /* 16 channels x 4 tokens: 16 dwords */
                unit = (int64_t)(4 * group + t / 4) * (head_dim / 16) + (start + c) / 16;
                x = _mm512_i32gather_epi32(rows, codes + 16 * c + t, 1);
            }
            pack_unit(p, x, out + unit * 8 * p->bits);
        }
}

/* Norms and codes of 16 tokens of a part, which starts at x[channel][128]. Below 1e-30 a part is zero. */
static void encode_column(const ath_kv_layout *layout, int part, int group, const float *x,
                          const coder *coder, const packer *packer, uint8_t *out) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    uint8_t codes[128 * 16];
    column col;
    for (int c = 0; c < dim; c++)
        _mm512_store_ps(col.x + c * 16,
                        _mm512_mul_ps(_mm512_loadu_ps(x + c * TOKENS), _mm512_set1_ps(signs[c])));
    hadamard_column(col.x, dim);
    __m512 scale = _mm512_set1_ps(ath_rotation_scale(dim)), square = _mm512_setzero_ps();
    for (int c = 0; c < dim; c++) {
        __m512 y = _mm512_mul_ps(_mm512_load_ps(col.x + c * 16), scale);
        square = _mm512_add_ps(square, _mm512_mul_ps(y, y));
        _mm512_store_ps(col.x + c * 16, y);
    }
    __mmask16 there = _mm512_cmp_ps_mask(square, _mm512_set1_ps(1e-30f), _CMP_NLT_UQ);
    __m512 inverse = _mm512_div_ps(_mm512_set1_ps(sqrtf((float)dim)), _mm512_sqrt_ps(square));
    __m512i table_square = _mm512_setzero_si512();
    for (int c = 0; c < dim; c++) {
        __m512i code = code_of(coder, _mm512_mul_ps(_mm512_load_ps(col.x + c * 16), inverse));
        code = _mm512_maskz_mov_epi32(there, code);
        table_square = _mm512_add_epi32(table_square, _mm512_permutexvar_epi32(code, coder->squares));
        _mm_storeu_si128((__m128i *)(void *)(codes + 16 * c), _mm512_cvtepi32_epi8(code));
    }
    pack_column(layout, part, group, codes, packer, out);
    __m512 norm = _mm512_div_ps(_mm512_sqrt_ps(square), _mm512_sqrt_ps(_mm512_cvtepi32_ps(table_square)));
    store_norms(out + layout->norms_at + 2 * (size_t)(part * TOKENS + 16 * group),
                _mm512_maskz_mov_ps(there, norm));
}

static void encode(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    coder coder = coder_init(layout->type);
    packer packer = packer_init(coder.bits);
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    for (int p = 0; p < layout->n_parts; p++)
        for (int g = 0; g < TOKENS / 16; g++) {
            const float *x = scratch + (int64_t)layout->part_start[p] * TOKENS + 16 * g;
            encode_column(layout, p, g, x, &coder, &packer, out);
        }
}

void ath_attn_pages_init_avx512(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = encode;
}
