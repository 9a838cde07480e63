/* Encoding and expansion of turbo pages with NEON: the bytes and bits of ath_kv_encode_page and
 * ath_kv_decode_page, 16 tokens at a time, whose bytes of a plane are one register. Lanes are tokens, but for
 * the expansion of V, whose rows are tokens: there they are channels. */
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "kernels/attention_neon.h"
#include "kernels/trellis_arm.h"

enum { TOKENS = ATH_PAGE_TOKENS, LANES = 16, REGISTERS = LANES / 4 };

/* One part of 16 tokens, [channels][16]. */
typedef struct column {
    _Alignas(16) float x[128 * LANES];
} column;

/* ---- expansion */

/* Tokens 16 * group ... of one part of a K page. */
ATH_INLINE void expand_key_column(const ath_unpack_kind kind, const ath_kv_layout *layout, int part,
                                  int group, const int8x16x4_t *table, const uint8_t *page, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part],
        quarter = ath_unpack_quarter(kind, dim);
    const uint8_t *norms = page + layout->norms_at + 2 * (size_t)(part * TOKENS + LANES * group);
    _Alignas(16) int8_t values[32 * 64];
    column col;
    ath_unpack_keys_neon(kind, table, page + ((int64_t)group * layout->head_dim + start) * 2 * kind.k, dim,
                         values);
    for (int i = 0; i < quarter; i++) {
        int8x16x4_t quarters = vld4q_s8(values + 64 * i);
        for (int j = 0; j < 4 && j * quarter + i < dim; j++) {
            float32x4_t x[REGISTERS];
            ath_floats_neon(quarters.val[j], x);
            for (int v = 0; v < REGISTERS; v++)
                vst1q_f32(col.x + (j * quarter + i) * LANES + 4 * v,
                          vmulq_f32(ath_load_bf16_neon(norms + 8 * v), x[v]));
        }
    }
    ath_butterfly_rows_neon(col.x, dim, LANES);
    const uint16_t *mean = (const uint16_t *)(const void *)(page + layout->mean_at) + start;
    for (int c = 0; c < dim; c++) {
        float eq = ath_eq_scale(page[layout->eq_at + (size_t)(start + c)]) * ath_rotation_signs()[start + c];
        float *out = tile + (int64_t)(start + c) * TOKENS + LANES * group;
        for (int v = 0; v < REGISTERS; v++) {
            float32x4_t y = vmulq_n_f32(vld1q_f32(col.x + c * LANES + 4 * v), ath_rotation_scale(dim));
            vst1q_f32(out + 4 * v, vaddq_f32(vmulq_n_f32(y, eq), vdupq_n_f32(ath_f16_to_f32(mean[c]))));
        }
    }
}

/* 4 tokens of one part of a V page. */
ATH_INLINE void expand_value_rows(const ath_unpack_kind kind, const ath_kv_layout *layout, int part,
                                  int token, const int8x16x4_t *table, const uint8_t *page, float *tile) {
    int start = layout->part_start[part], dim = layout->part_dim[part];
    const uint16_t *norms = (const uint16_t *)(const void *)(page + layout->norms_at) + part * TOKENS + token;
    float *rows = tile + (int64_t)token * layout->head_dim + start;
    _Alignas(16) int8_t values[128 * 4];
    ath_unpack_values_neon(kind, table, page + (token / 4 * layout->head_dim + start) * kind.k / 2, dim,
                           values);
    for (int c = 0; c < dim; c += 16) {
        int8x16x4_t tokens = vld4q_s8(values + 4 * c);
        for (int t = 0; t < 4; t++) {
            float32x4_t x[4];
            ath_floats_neon(tokens.val[t], x);
            for (int v = 0; v < 4; v++)
                vst1q_f32(rows + t * layout->head_dim + c + 4 * v,
                          vmulq_n_f32(x[v], ath_bf16_to_f32(norms[t])));
        }
    }
    for (int t = 0; t < 4; t++, rows += layout->head_dim) {
        ath_hadamard_neon(rows, dim);
        ath_multiply_neon(rows, ath_rotation_signs() + start, ath_rotation_scale(dim), dim);
    }
}

ATH_INLINE void expand_page(const ath_unpack_kind kind, const ath_kv_layout *layout, const uint8_t *page,
                            float *tile) {
    int8x16x4_t table = ath_unpack_table_neon(ath_turbo_code_of(layout->type));
    for (int p = 0; p < layout->n_parts; p++) {
        for (int g = 0; layout->is_key && g < TOKENS / LANES; g++)
            expand_key_column(kind, layout, p, g, &table, page, tile);
        for (int t = 0; !layout->is_key && t < TOKENS; t += 4)
            expand_value_rows(kind, layout, p, t, &table, page, tile);
    }
}

static void expand(const ath_kv_layout *layout, const uint8_t *page, float *tile) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_decode_page(layout, page, tile);
        return;
    }
#define EXPAND(kind) expand_page(kind, layout, page, tile)
    ATH_UNPACK_DISPATCH(ath_turbo_code_of(layout->type), EXPAND);
#undef EXPAND
}

/* ---- encoding */

/* 4 rows of 4 f16 values, `stride` apart, to the columns x[4][TOKENS]. */
ATH_INLINE void transpose_4(const uint16_t *rows, int64_t stride, float *x) {
    float32x4_t r[4];
    for (int i = 0; i < 4; i++) r[i] = ath_load_f16_neon(rows + i * stride);
    float64x2_t even[2], odd[2]; /* columns 0 and 2, 1 and 3, of two rows */
    for (int i = 0; i < 2; i++) {
        even[i] = vreinterpretq_f64_f32(vtrn1q_f32(r[2 * i], r[2 * i + 1]));
        odd[i] = vreinterpretq_f64_f32(vtrn2q_f32(r[2 * i], r[2 * i + 1]));
    }
    vst1q_f32(x, vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1])));
    vst1q_f32(x + TOKENS, vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1])));
    vst1q_f32(x + 2 * TOKENS, vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1])));
    vst1q_f32(x + 3 * TOKENS, vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1])));
}

/* x[head_dim][128] of a K tile, or of a V tile by transposing blocks of 4 x 4. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int64_t i = 0; i < (int64_t)dim * TOKENS; i += 4) vst1q_f32(x + i, ath_load_f16_neon(tile + i));
        return;
    }
    for (int t = 0; t < TOKENS; t += 4)
        for (int c = 0; c < dim; c += 4) transpose_4(tile + (int64_t)t * dim + c, dim, x + c * TOKENS + t);
}

/* The stored mean of a row of tokens, taken out of it. Returns its f16. */
static uint16_t centre_row(float *row) {
    float32x4_t sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vdupq_n_f32(0);
    for (int t = 0; t < TOKENS; t += 4) sum[t / 4 % 4] = vaddq_f32(sum[t / 4 % 4], vld1q_f32(row + t));
    uint16_t stored = ath_f32_to_f16(ath_sum_lanes_neon(sum) / TOKENS);
    float32x4_t mean = vdupq_n_f32(ath_f16_to_f32(stored));
    for (int t = 0; t < TOKENS; t += 4) vst1q_f32(row + t, vsubq_f32(vld1q_f32(row + t), mean));
    return stored;
}

static float root_of_row(const float *row) {
    float32x4_t sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vdupq_n_f32(0);
    for (int t = 0; t < TOKENS; t += 4) {
        float32x4_t x = vld1q_f32(row + t);
        sum[t / 4 % 4] = vaddq_f32(sum[t / 4 % 4], vmulq_f32(x, x));
    }
    return sqrtf(sqrtf(ath_sum_lanes_neon(sum) / TOKENS));
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
        ath_multiply_neon(x + c * TOKENS, NULL, ath_eq_scale((uint8_t)(256 - e)), TOKENS);
    }
}

/* Writes the streams of 16 tokens, a byte of each at a time. */
typedef struct stream_writer {
    uint8_t *at[4]; /* K: the planes; V: those of each 4 tokens */
    bool is_key;
} stream_writer;

static stream_writer writer_init(const ath_kv_layout *layout, int part, int group, uint8_t *out) {
    int bits = ath_kv_turbo_bits(layout->type);
    int64_t stream = (int64_t)layout->head_dim * bits / 8,
            start = (int64_t)layout->part_start[part] * bits / 8;
    stream_writer w = {.is_key = layout->is_key};
    for (int i = 0; i < 4; i++) {
        int64_t v_at = 4 * (stream * (4 * group + i) + start);
        w.at[i] = out + (w.is_key ? 16 * (stream * group + start) : v_at);
    }
    return w;
}

ATH_INLINE void write_bytes(stream_writer *w, uint8x16_t bytes) {
    if (w->is_key) {
        vst1q_u8(w->at[0], bytes);
        w->at[0] += LANES;
        return;
    }
    uint8_t lanes[LANES];
    vst1q_u8(lanes, bytes);
    for (int i = 0; i < 4; i++, w->at[i - 1] += 4) memcpy(w->at[i], lanes + 4 * i, 4);
}

/* 16 tokens of a part, rotated. Below 1e-30 a part is zero. */
typedef struct rotated {
    column col;
    float32x4_t square[REGISTERS],
        inverse[REGISTERS];      /* of the part; values times inverse have an rms of 1 */
    uint32x4_t there[REGISTERS]; /* all ones for tokens that are not zero */
} rotated;

/* x[channel][128]: of the part's first channel and the first of the tokens. */
static void rotate_column(const ath_kv_layout *layout, int part, const float *x, rotated *r) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    for (int c = 0; c < dim; c++)
        for (int v = 0; v < REGISTERS; v++)
            vst1q_f32(r->col.x + c * LANES + 4 * v, vmulq_n_f32(vld1q_f32(x + c * TOKENS + 4 * v), signs[c]));
    ath_butterfly_rows_neon(r->col.x, dim, LANES);
    for (int v = 0; v < REGISTERS; v++) r->square[v] = vdupq_n_f32(0);
    for (int c = 0; c < dim; c++)
        for (int v = 0; v < REGISTERS; v++) {
            float *at = r->col.x + c * LANES + 4 * v;
            float32x4_t y = vmulq_n_f32(vld1q_f32(at), ath_rotation_scale(dim));
            r->square[v] = vaddq_f32(r->square[v], vmulq_f32(y, y));
            vst1q_f32(at, y);
        }
    for (int v = 0; v < REGISTERS; v++) {
        r->there[v] = vmvnq_u32(vcltq_f32(r->square[v], vdupq_n_f32(1e-30f)));
        r->inverse[v] = vdivq_f32(vdupq_n_f32(sqrtf((float)dim)), vsqrtq_f32(r->square[v]));
    }
}

/* The low bytes of 16 lanes. */
ATH_INLINE uint8x16_t narrow_16(const uint32x4_t *x) {
    uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(x[0]), vreinterpretq_u16_u32(x[1]));
    uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(x[2]), vreinterpretq_u16_u32(x[3]));
    return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

static void write_norms(const ath_kv_layout *layout, int part, int group, const rotated *r,
                        const uint32x4_t *table_square, uint8_t *out) {
    uint16_t *norms = (uint16_t *)(void *)(out + layout->norms_at) + part * TOKENS + LANES * group;
    for (int v = 0; v < REGISTERS; v++) {
        float32x4_t norm = vdivq_f32(vsqrtq_f32(r->square[v]), vsqrtq_f32(vcvtq_f32_u32(table_square[v])));
        uint32x4_t u = vandq_u32(r->there[v], vreinterpretq_u32_f32(norm));
        uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
        vst1_u16(norms + 4 * v, vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
    }
}

/* The symbols of channel c: how many thresholds are not above a value. */
ATH_INLINE uint8x16_t scalar_symbols(const ath_turbo_code *code, const rotated *r, int c) {
    uint32x4_t symbol[REGISTERS];
    for (int v = 0; v < REGISTERS; v++) {
        float32x4_t u = vmulq_f32(vld1q_f32(r->col.x + c * LANES + 4 * v), r->inverse[v]);
        symbol[v] = vdupq_n_u32(0);
        for (int i = 0; i < (1 << code->k) - 1; i++)
            symbol[v] = vsubq_u32(symbol[v], vcgeq_f32(u, vdupq_n_f32(code->thresholds[i])));
        symbol[v] = vandq_u32(symbol[v], r->there[v]);
    }
    return narrow_16(symbol);
}

/* 16 tokens of a part in scalar codes. */
static void encode_scalar(const ath_kv_layout *layout, int part, int group, const float *x,
                          const ath_turbo_code *code, uint8_t *out) {
    rotated r;
    rotate_column(layout, part, x + LANES * group, &r);
    stream_writer writer = writer_init(layout, part, group, out);
    uint8_t magnitude[16] = {0};
    for (int i = 0; i < 1 << code->k; i++) magnitude[i] = (uint8_t)abs(code->table[i]);
    const uint8x16_t magnitudes = vld1q_u8(magnitude);
    uint32x4_t total[REGISTERS];
    for (int v = 0; v < REGISTERS; v++) total[v] = vdupq_n_u32(0);
    uint8x16_t pending = vdupq_n_u8(0); /* the bits not written yet */
    int n_bits = 0;
    for (int c = 0; c < layout->part_dim[part]; c++) {
        uint8x16_t symbol = scalar_symbols(code, &r, c), size = vqtbl1q_u8(magnitudes, symbol);
        uint16x8_t low = vmull_u8(vget_low_u8(size), vget_low_u8(size)), high = vmull_high_u8(size, size);
        total[0] = vaddw_u16(total[0], vget_low_u16(low));
        total[1] = vaddw_high_u16(total[1], low);
        total[2] = vaddw_u16(total[2], vget_low_u16(high));
        total[3] = vaddw_high_u16(total[3], high);
        pending = vorrq_u8(pending, vshlq_u8(symbol, vdupq_n_s8((int8_t)n_bits)));
        n_bits += code->k;
        if (n_bits < 8) continue;
        write_bytes(&writer, pending);
        n_bits -= 8;
        pending = vshlq_u8(symbol, vdupq_n_s8((int8_t)(n_bits - code->k)));
    }
    write_norms(layout, part, group, &r, total, out);
}

/* 16 tokens of a part in trellis codes, in two strips. */
static void encode_trellis(const ath_kv_layout *layout, int part, int group, const float *x,
                           const ath_turbo_code *code, uint8_t *out) {
    enum { STRIP = ATH_TRELLIS_LANES_NEON };
    rotated r;
    int16_t targets[2][128][STRIP];
    uint16_t words[2][128 * 4 / 16][STRIP];
    int32_t squares[LANES];
    int dim = layout->part_dim[part];
    float32x4_t limit = vdupq_n_f32((float)code->limit);
    rotate_column(layout, part, x + LANES * group, &r);
    for (int c = 0; c < dim; c++)
        for (int v = 0; v < REGISTERS; v++) {
            float32x4_t u = vmulq_f32(vld1q_f32(r.col.x + c * LANES + 4 * v), r.inverse[v]);
            u = vmulq_n_f32(ath_masked_neon(u, r.there[v]), code->target_scale);
            u = vmaxq_f32(vminq_f32(u, limit), vnegq_f32(limit));
            vst1_s16(targets[v / 2][c] + v % 2 * 4, vmovn_s32(vcvtnq_s32_f32(u)));
        }
    for (int i = 0; i < 2; i++)
        ath_trellis_strip_neon(code, (const int16_t(*)[STRIP])targets[i], dim, words[i], squares + STRIP * i);
    stream_writer writer = writer_init(layout, part, group, out);
    uint8x16_t there = narrow_16(r.there);
    for (int i = 0; i < dim * code->k / 16; i++) {
        uint8x16_t a = vreinterpretq_u8_u16(vld1q_u16(words[0][i])),
                   b = vreinterpretq_u8_u16(vld1q_u16(words[1][i]));
        write_bytes(&writer, vandq_u8(vuzp1q_u8(a, b), there));
        write_bytes(&writer, vandq_u8(vuzp2q_u8(a, b), there));
    }
    uint32x4_t total[REGISTERS];
    for (int v = 0; v < REGISTERS; v++) total[v] = vreinterpretq_u32_s32(vld1q_s32(squares + 4 * v));
    write_norms(layout, part, group, &r, total, out);
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
        for (int g = 0; g < TOKENS / LANES; g++)
            (code->thresholds ? encode_scalar : encode_trellis)(layout, p, g, x, code, out);
    }
}

void ath_attn_pages_init_neon(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = encode;
}
