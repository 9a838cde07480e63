/* Expansion of turbo pages with NEON: the bits of ath_kv_decode_page, 16 tokens at a time, whose bytes of a
 * plane are one register. Lanes are tokens, but for V, whose rows are tokens: there they are channels. */
#include "base/half.h"
#include "kernels/attention_neon.h"

enum { TOKENS = ATH_PAGE_TOKENS, LANES = 16, REGISTERS = LANES / 4 };

/* One part of 16 tokens, [channels][16]. */
typedef struct column {
    _Alignas(16) float x[128 * LANES];
} column;

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

void ath_attn_pages_init_neon(ath_attn_kernels *k) {
    k->expand = expand;
    k->encode = ath_kv_encode_neon;
}
