/* Encoding and expansion of turbo pages with AVX2: the bytes and bits of ath_kv_encode_page and
 * ath_kv_decode_page. Lanes are tokens, but for the expansion of V, whose rows are tokens: there they are
 * channels. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention_avx2.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* One part of 8 tokens, [channels][8]. Compact, because rows 512 bytes apart would share few cache sets. */
typedef struct column {
    _Alignas(32) float x[128 * 8];
} column;

/* ---- expansion */

/* Byte i of every lane, signed, as a float. */
ATH_INLINE __m256 byte_of_lanes(__m256i x, int i) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * i), 24));
}

/* Tokens 8 * eighth ... of one part of a K page: one half of every unit. */
static void expand_key_column(const ath_kv_layout *layout, int part, int eighth,
                              const ath_unpack_avx2 *unpack, const uint8_t *page, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    const uint8_t *units = page + ((int64_t)(eighth / 2) * layout->head_dim + start) / 4 * unpack->bytes;
    __m256 norm = ath_load_bf16_avx2(page + layout->norms_at + 2 * (size_t)(part * TOKENS + 8 * eighth));
    column col;
    for (int c = 0; c < dim; c += 4, units += unpack->bytes) {
        __m256i values = ath_unpack_avx2_half(unpack, units, eighth % 2);
        for (int i = 0; i < 4; i++)
            _mm256_store_ps(col.x + (c + i) * 8, _mm256_mul_ps(norm, byte_of_lanes(values, i)));
    }
    ath_butterfly_rows_avx2(col.x, dim);
    float *out = tile + (int64_t)start * TOKENS + 8 * eighth;
    const uint16_t *mean = (const uint16_t *)(const void *)(page + layout->mean_at) + start;
    const float *signs = ath_rotation_signs() + start;
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim));
    for (int c = 0; c < dim; c++) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(col.x + c * 8), scale);
        float eq = ath_eq_scale(page[layout->eq_at + (size_t)(start + c)]) * signs[c];
        y = _mm256_add_ps(_mm256_mul_ps(y, _mm256_set1_ps(eq)), _mm256_set1_ps(ath_f16_to_f32(mean[c])));
        _mm256_storeu_ps(out + c * TOKENS, y);
    }
}

/* 4 tokens of one part of a V page. */
static void expand_value_rows(const ath_kv_layout *layout, int part, int token, const ath_unpack_avx2 *unpack,
                              const uint8_t *page, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    const uint8_t *units = page + (token / 4 * (layout->head_dim / 16) + start / 16) * unpack->bytes;
    const uint16_t *norms = (const uint16_t *)(const void *)(page + layout->norms_at) + part * TOKENS + token;
    const float *signs = ath_rotation_signs() + start;
    float *rows = tile + (int64_t)token * layout->head_dim + start;
    for (int c = 0; c < dim; c += 8) {
        __m256i values = ath_unpack_avx2_half(unpack, units + c / 16 * unpack->bytes, c / 8 % 2);
        for (int t = 0; t < 4; t++) {
            __m256 y = _mm256_mul_ps(_mm256_set1_ps(ath_bf16_to_f32(norms[t])), byte_of_lanes(values, t));
            _mm256_storeu_ps(rows + t * layout->head_dim + c, y);
        }
    }
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim));
    for (int t = 0; t < 4; t++, rows += layout->head_dim) {
        ath_hadamard_avx2(rows, dim);
        for (int c = 0; c < dim; c += 8) {
            __m256 y = _mm256_mul_ps(_mm256_loadu_ps(rows + c), scale);
            _mm256_storeu_ps(rows + c, _mm256_mul_ps(y, _mm256_loadu_ps(signs + c)));
        }
    }
}

static void expand(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_decode_page(layout, page, tile);
        return;
    }
    ath_unpack_avx2 unpack = ath_unpack_init_avx2(layout->type);
    for (int p = 0; p < layout->n_parts; p++) {
        for (int g = 0; layout->is_key && g < TOKENS / 8; g++)
            expand_key_column(layout, p, g, &unpack, page, tile);
        for (int t = 0; !layout->is_key && t < TOKENS; t += 4)
            expand_value_rows(layout, p, t, &unpack, page, tile);
    }
}

/* ---- encoding */

/* x[head_dim][128] of a K tile, or of a V tile by transposing. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int64_t i = 0; i < (int64_t)dim * TOKENS; i += 8)
            _mm256_storeu_ps(x + i, ath_load_f16_avx2(tile + i));
        return;
    }
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < dim; c += 8) {
            float row[8];
            _mm256_storeu_ps(row, ath_load_f16_avx2(tile + (int64_t)t * dim + c));
            for (int i = 0; i < 8; i++) x[(c + i) * TOKENS + t] = row[i];
        }
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

/* 32 codes in bytes to half a unit. */
static inline void pack_half(int bits, const uint8_t *codes, uint8_t *out) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16((short)(1 | 1 << (bits + 8))));
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(1 | 1 << (2 * bits + 16)));
    uint64_t quads[4]; /* two lanes of 4 * bits bits each */
    _mm256_storeu_si256((__m256i *)(void *)quads, x);
    for (int i = 0; i < 4; i++) {
        uint64_t packed = (quads[i] & 0xffffffff) | quads[i] >> 32 << (4 * bits);
        memcpy(out + i * bits, &packed, (size_t)bits);
    }
}

/* Codes of 8 tokens of a part, [channels][8], to their halves of units (K) or, two units at a time (V), whole
 * units. */
static void pack_column(const ath_kv_layout *layout, int part, int eighth, const uint8_t *codes,
                        uint8_t *out) {
    int start = layout->part_start[part], dim = layout->part_dim[part], head_dim = layout->head_dim;
    int bits = ath_kv_turbo_bits(layout->type);
    for (int c = 0; layout->is_key && c < dim; c += 4) {
        uint8_t bytes[32];
        for (int i = 0; i < 32; i++) bytes[i] = codes[8 * (c + i % 4) + i / 4];
        int64_t unit = ((int64_t)(eighth / 2) * head_dim + start + c) / 4;
        pack_half(bits, bytes, out + unit * 8 * bits + eighth % 2 * 4 * bits);
    }
    for (int c = 0; !layout->is_key && c < dim; c += 8)
        for (int t = 0; t < 8; t += 4) {
            uint8_t bytes[32];
            for (int i = 0; i < 8; i++) memcpy(bytes + 4 * i, codes + 8 * (c + i) + t, 4);
            int64_t unit = (int64_t)(2 * eighth + t / 4) * (head_dim / 16) + (start + c) / 16;
            pack_half(bits, bytes, out + unit * 8 * bits + (start + c) / 8 % 2 * 4 * bits);
        }
}

static inline void store_norms(uint8_t *norms, __m256 norm) {
    __m256i u = _mm256_castps_si256(norm),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(u, 16), _mm256_setzero_si256()), 0x08);
    _mm_storeu_si128((__m128i *)(void *)norms, _mm256_castsi256_si128(u));
}

/* Codes of 8 tokens of a part, [channels][8], from rotated values and the inverse of their rms; lanes that
 * are not `there` get code 0. Returns the sum of the squares of the table values. */
static __m256i code_column(ath_kv_type type, const column *col, int dim, __m256 inverse, __m256i there,
                           uint8_t *codes) {
    const float *thresholds = ath_turbo_thresholds(type);
    int n = (1 << ath_kv_turbo_bits(type)) - 1;
    int32_t squares[16] = {0};
    for (int i = 0; i <= n; i++) squares[i] = ath_turbo_table(type)[i] * ath_turbo_table(type)[i];
    __m256i total = _mm256_setzero_si256();
    for (int c = 0; c < dim; c++) {
        __m256 u = _mm256_mul_ps(_mm256_load_ps(col->x + c * 8), inverse);
        __m256i code = _mm256_setzero_si256();
        for (int i = 0; i < n; i++)
            code = _mm256_sub_epi32(
                code, _mm256_castps_si256(_mm256_cmp_ps(u, _mm256_set1_ps(thresholds[i]), _CMP_GE_OQ)));
        code = _mm256_and_si256(code, there);
        total = _mm256_add_epi32(total, _mm256_i32gather_epi32(squares, code, 4));
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(code, code), code);
        int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
        memcpy(codes + 8 * c, &low, 4);
        memcpy(codes + 8 * c + 4, &high, 4);
    }
    return total;
}

/* Norms and codes of 8 tokens of a part, which starts at x[channel][128]. Below 1e-30 a part is zero. */
static void encode_column(const ath_kv_layout *layout, int part, int eighth, const float *x, uint8_t *out) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    uint8_t codes[128 * 8];
    column col;
    for (int c = 0; c < dim; c++)
        _mm256_store_ps(col.x + c * 8,
                        _mm256_mul_ps(_mm256_loadu_ps(x + c * TOKENS), _mm256_set1_ps(signs[c])));
    ath_butterfly_rows_avx2(col.x, dim);
    __m256 scale = _mm256_set1_ps(ath_rotation_scale(dim)), square = _mm256_setzero_ps();
    for (int c = 0; c < dim; c++) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(col.x + c * 8), scale);
        square = _mm256_add_ps(square, _mm256_mul_ps(y, y));
        _mm256_store_ps(col.x + c * 8, y);
    }
    __m256 there = _mm256_cmp_ps(square, _mm256_set1_ps(1e-30f), _CMP_NLT_UQ);
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(sqrtf((float)dim)), _mm256_sqrt_ps(square));
    __m256i table_square = code_column(layout->type, &col, dim, inverse, _mm256_castps_si256(there), codes);
    pack_column(layout, part, eighth, codes, out);
    __m256 norm = _mm256_div_ps(_mm256_sqrt_ps(square), _mm256_sqrt_ps(_mm256_cvtepi32_ps(table_square)));
    store_norms(out + layout->norms_at + 2 * (size_t)(part * TOKENS + 8 * eighth),
                _mm256_and_ps(there, norm));
}

static void encode(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    for (int p = 0; p < layout->n_parts; p++)
        for (int g = 0; g < TOKENS / 8; g++)
            encode_column(layout, p, g, scratch + (int64_t)layout->part_start[p] * TOKENS + 8 * g, out);
}

void ath_attn_pages_init_avx2(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = encode;
}
