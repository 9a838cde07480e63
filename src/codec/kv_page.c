/* Encoder and decoder of KV pages: the reference of docs/turbo_format.md. Every operation is one rounded f32
 * operation and every sum has a stated order, so that versions for other instruction sets give the same
 * bytes. While a page is encoded its tokens are the lanes: x[head_dim][128], for K and V alike. */
#include "codec/kv_page.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "codec/quant_legacy.h"
#include "codec/tensor_type.h"
#include "codec/trellis.h"
#include "codec/turbo_tables.h"

enum { TOKENS = ATH_PAGE_TOKENS };

/* A part whose squares add up to less is zero; the least that f16 input gives otherwise is far above. */
static const float ZERO_SQUARE = 1e-30f;

#define SCALAR_CODE(name, bits)                                                                              \
    {                                                                                                        \
        .k = bits, .L = bits, .w = bits, .table = ath_##name##_values, .scale = ath_##name##_scale,          \
        .thresholds = ath_##name##_thresholds                                                                \
    }
#define TRELLIS_CODE(name, bits, state_bits, index_bits, input_limit)                                        \
    {                                                                                                        \
        .k = bits, .L = state_bits, .w = index_bits, .table = ath_##name##_values,                           \
        .scale = ath_##name##_scale, .targets = ath_##name##_targets,                                        \
        .target_scale = ath_##name##_target_scale, .limit = input_limit                                      \
    }

const ath_turbo_code *ath_turbo_code_of(ath_kv_type type) {
    static const ath_turbo_code codes[] = {
        SCALAR_CODE(turbo4, 4),
        SCALAR_CODE(turbo3, 3),
        SCALAR_CODE(turbo2, 2),
        TRELLIS_CODE(turbo4_tcq, 4, 8, 6, ATH_TURBO4_TCQ_LIMIT),
        TRELLIS_CODE(turbo3_tcq, 3, 7, 4, ATH_TURBO3_TCQ_LIMIT),
        TRELLIS_CODE(turbo2_tcq, 2, 6, 4, ATH_TURBO2_TCQ_LIMIT),
        SCALAR_CODE(turbo4, 4), /* :plain */
        SCALAR_CODE(turbo3, 3),
        SCALAR_CODE(turbo2, 2),
    };
    return &codes[type - ATH_KV_TURBO4];
}

float ath_eq_scale(uint8_t e) {
    int step = (int)e - ATH_EQ_ONE + ATH_EQ_STEPS;
    return ath_eq_scales[step < 0 ? 0 : step > 2 * ATH_EQ_STEPS ? 2 * ATH_EQ_STEPS : step];
}

static void put_u16(uint8_t *p, uint16_t x) {
    memcpy(p, &x, sizeof x);
}

static uint16_t get_u16(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Adds the symbols of a part of n channels to the codes of a token, which are zero there. */
static void put_symbols(const ath_kv_layout *layout, int part, size_t token, const uint8_t *symbols,
                        uint8_t *codes) {
    int k = ath_kv_turbo_bits(layout->type);
    for (int i = 0; i < layout->part_dim[part]; i++) {
        for (int j = 0; j < k; j++) {
            size_t bit = (size_t)(k * (layout->part_start[part] + i) + j);
            codes[ath_turbo_byte_at(layout, token, bit / 8)] |= (uint8_t)((symbols[i] >> j & 1) << bit % 8);
        }
    }
}

void ath_turbo_values(const ath_kv_layout *layout, const uint8_t *page, int part, size_t token,
                      int8_t *values) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    size_t start = (size_t)(layout->part_start[part] * code->k) / 8;
    size_t size = (size_t)(layout->part_dim[part] * code->k) / 8;
    uint8_t stream[128 / 2 + 2]; /* of the part, and its first two bytes again */
    for (size_t b = 0; b < size + 2; b++)
        stream[b] = page[layout->codes_at + ath_turbo_byte_at(layout, token, start + b % size)];
    for (int i = 0; i < layout->part_dim[part]; i++) {
        const uint8_t *at = stream + i * code->k / 8;
        unsigned window = (unsigned)(at[0] | at[1] << 8) >> i * code->k % 8;
        values[i] = code->table[ath_turbo_index(code, window & ((1u << code->L) - 1))];
    }
}

/* Sum of a row of tokens in 16 lanes that are then folded in halves. */
static float sum_tokens(const float *x) {
    float s[16] = {0};
    for (int i = 0; i < TOKENS; i += 16) {
        for (int j = 0; j < 16; j++) s[j] += x[i + j];
    }
    for (int half = 8; half; half /= 2) {
        for (int j = 0; j < half; j++) s[j] += s[j + half];
    }
    return s[0];
}

/* Takes the mean of every channel out of x and writes it to the page. */
static void centre_key(const ath_kv_layout *layout, float *x, uint8_t *out) {
    for (int c = 0; c < layout->head_dim; c++) {
        float *row = x + (size_t)c * TOKENS;
        uint16_t stored = ath_f32_to_f16(sum_tokens(row) / TOKENS);
        put_u16(out + layout->mean_at + 2 * (size_t)c, stored);
        float mean = ath_f16_to_f32(stored);
        for (int t = 0; t < TOKENS; t++) row[t] -= mean;
    }
}

uint8_t ath_eq_byte(float ratio) {
    int e = ATH_EQ_ONE - ATH_EQ_STEPS;
    for (int i = 0; i < 2 * ATH_EQ_STEPS; i++) e += ratio >= ath_eq_thresholds[i];
    return (uint8_t)e;
}

/* Divides every channel by about the square root of its rms, and writes the divisors to the page. */
static void equalise_key(const ath_kv_layout *layout, float *x, uint8_t *out) {
    float root[ATH_MAX_HEAD_DIM], sum = 0;
    for (int c = 0; c < layout->head_dim; c++) {
        const float *row = x + (size_t)c * TOKENS;
        float square[TOKENS];
        for (int t = 0; t < TOKENS; t++) square[t] = row[t] * row[t];
        root[c] = sqrtf(sqrtf(sum_tokens(square) / TOKENS));
        sum += root[c];
    }
    float average = sum / (float)layout->head_dim;
    for (int c = 0; c < layout->head_dim; c++) {
        float *row = x + (size_t)c * TOKENS;
        uint8_t e = root[c] > 0 ? ath_eq_byte(root[c] / average) : ATH_EQ_ONE;
        out[layout->eq_at + (size_t)c] = e;
        float reciprocal = ath_eq_scale((uint8_t)(2 * ATH_EQ_ONE - e));
        for (int t = 0; t < TOKENS; t++) row[t] *= reciprocal;
    }
}

static void scalar_symbols(const ath_turbo_code *code, const float *u, int n, uint8_t *symbols) {
    for (int i = 0; i < n; i++) {
        symbols[i] = 0;
        for (int j = 0; j < (1 << code->k) - 1; j++) symbols[i] += u[i] >= code->thresholds[j];
    }
}

static void trellis_symbols(const ath_turbo_code *code, const float *u, int n, uint8_t *symbols) {
    int16_t x[128];
    float limit = (float)code->limit;
    for (int i = 0; i < n; i++) {
        float target = u[i] * code->target_scale;
        x[i] = (int16_t)rintf(target > limit ? limit : target < -limit ? -limit : target);
    }
    ath_trellis_encode(code, x, n, symbols);
}

/* Sum of squares of the table values that the symbols of a part stand for. */
static int table_square(const ath_turbo_code *code, const uint8_t *symbols, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int value = code->table[ath_turbo_index(code, ath_turbo_state(code, symbols, n, i))];
        sum += value * value;
    }
    return sum;
}

/* Norms and codes of one part. */
static void encode_turbo_part(const ath_kv_layout *layout, int part, const float *x, uint8_t *out) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    int n = layout->part_dim[part];
    const float *y = x + (size_t)layout->part_start[part] * TOKENS;
    uint8_t *norms = out + layout->norms_at + (size_t)part * TOKENS * 2;
    for (size_t t = 0; t < TOKENS; t++) {
        float square = 0, u[128];
        uint8_t symbols[128];
        for (int c = 0; c < n; c++) square += y[c * TOKENS + t] * y[c * TOKENS + t];
        if (square < ZERO_SQUARE) continue; /* norm 0 and codes 0, as they are */
        float inverse = sqrtf((float)n) / sqrtf(square);
        for (int c = 0; c < n; c++) u[c] = y[c * TOKENS + t] * inverse;
        if (code->thresholds)
            scalar_symbols(code, u, n, symbols);
        else
            trellis_symbols(code, u, n, symbols);
        put_symbols(layout, part, t, symbols, out + layout->codes_at);
        put_u16(norms + 2 * t, ath_f32_to_bf16(sqrtf(square) / sqrtf((float)table_square(code, symbols, n))));
    }
}

/* So that the f16 scale and minimum of a block don't overflow. */
static float clamp_to_f16(float x) {
    return fmaxf(-65504, fminf(65504, x));
}

static void encode_blocks(const ath_kv_layout *layout, const float *x, uint8_t *out) {
    static void (*const quantize[ATH_KV_TYPE_COUNT])(const float *src, void *dst, int64_t n) = {
        [ATH_KV_Q8_0] = ath_quantize_q8_0, [ATH_KV_Q5_1] = ath_quantize_q5_1,
        [ATH_KV_Q5_0] = ath_quantize_q5_0, [ATH_KV_Q4_1] = ath_quantize_q4_1,
        [ATH_KV_Q4_0] = ath_quantize_q4_0, [ATH_KV_IQ4_NL] = ath_quantize_iq4_nl,
    };
    size_t row_bytes = ath_tensor_type_row_bytes(ath_kv_tensor_type(layout->type), layout->head_dim);
    float row[ATH_MAX_HEAD_DIM];
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t c = 0; c < (size_t)layout->head_dim; c++) row[c] = clamp_to_f16(x[c * TOKENS + t]);
        quantize[layout->type](row, out + layout->codes_at + t * row_bytes, layout->head_dim);
    }
}

static void encode_raw(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out) {
    size_t n = (size_t)layout->head_dim * TOKENS;
    if (layout->type == ATH_KV_F16) {
        memcpy(out, tile, n * sizeof *tile);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float x = ath_f16_to_f32(tile[i]);
        if (layout->type == ATH_KV_F32)
            memcpy(out + i * sizeof x, &x, sizeof x);
        else
            put_u16(out + 2 * i, ath_f32_to_bf16(x));
    }
}

/* x[head_dim][128] of either shape of tile. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    size_t channels = (size_t)layout->head_dim;
    for (size_t c = 0; c < channels; c++) {
        for (size_t t = 0; t < TOKENS; t++) {
            x[c * TOKENS + t] = ath_f16_to_f32(tile[layout->is_key ? c * TOKENS + t : t * channels + c]);
        }
    }
}

void ath_kv_encode_page(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (ath_kv_type_is_raw(layout->type)) {
        encode_raw(layout, tile, out);
        return;
    }
    memset(out, 0, layout->bytes);
    load_tile(layout, tile, scratch);
    if (layout->is_key && ath_kv_type_has_page_data(layout->type)) {
        centre_key(layout, scratch, out);
        equalise_key(layout, scratch, out);
    }
    ath_rotate_lanes(layout, scratch, TOKENS);
    if (ath_kv_type_has_code(layout->type)) {
        for (int p = 0; p < layout->n_parts; p++) encode_turbo_part(layout, p, scratch, out);
    } else {
        encode_blocks(layout, scratch, out);
    }
}

/* Index of a value in a plain tile. */
static size_t tile_index(const ath_kv_layout *layout, size_t token, size_t channel) {
    return layout->is_key ? channel * TOKENS + token : token * (size_t)layout->head_dim + channel;
}

static void decode_turbo_part(const ath_kv_layout *layout, int part, const uint8_t *page, float *tile) {
    const uint8_t *norms = page + layout->norms_at + (size_t)part * TOKENS * 2;
    for (size_t t = 0; t < TOKENS; t++) {
        int8_t values[128];
        float norm = ath_bf16_to_f32(get_u16(norms + 2 * t));
        ath_turbo_values(layout, page, part, t, values);
        for (int i = 0; i < layout->part_dim[part]; i++) {
            size_t channel = (size_t)(layout->part_start[part] + i);
            tile[tile_index(layout, t, channel)] = norm * (float)values[i];
        }
    }
}

static void decode_blocks(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    int id = ath_kv_tensor_type(layout->type);
    size_t row_bytes = ath_tensor_type_row_bytes(id, layout->head_dim);
    float row[ATH_MAX_HEAD_DIM];
    for (size_t t = 0; t < TOKENS; t++) {
        ath_tensor_type_get(id)->dequantize(page + layout->codes_at + t * row_bytes, row, layout->head_dim);
        for (size_t c = 0; c < (size_t)layout->head_dim; c++) tile[tile_index(layout, t, c)] = row[c];
    }
}

void ath_kv_decode_page(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    size_t channels = (size_t)layout->head_dim;
    if (ath_kv_type_is_raw(layout->type)) {
        const ath_tensor_type_info *info = ath_tensor_type_get(ath_kv_tensor_type(layout->type));
        info->dequantize(page, tile, (int64_t)(channels * TOKENS));
        return;
    }
    if (ath_kv_type_has_code(layout->type)) {
        for (int p = 0; p < layout->n_parts; p++) decode_turbo_part(layout, p, page, tile);
    } else {
        decode_blocks(layout, page, tile);
    }
    if (!layout->is_key) {
        for (size_t t = 0; t < TOKENS; t++) ath_unrotate(layout, tile + t * channels);
        return;
    }
    ath_unrotate_lanes(layout, tile, TOKENS);
    if (!ath_kv_type_has_page_data(layout->type)) return;
    for (size_t c = 0; c < channels; c++) {
        float mean = ath_f16_to_f32(get_u16(page + layout->mean_at + 2 * c));
        float eq = ath_eq_scale(page[layout->eq_at + c]);
        for (size_t t = 0; t < TOKENS; t++) {
            float scaled = tile[c * TOKENS + t] * eq;
            tile[c * TOKENS + t] = scaled + mean;
        }
    }
}
