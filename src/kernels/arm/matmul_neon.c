/* Matrix products for every 64-bit ARM. Products of quantised types are added up in 16 bits over as many
 * groups as surely fit, then in pairs to 32. */
enum { MOST = 2, CELLS = 4 };

#include "kernels/matmul_arm.h"
#include "kernels/matmul_vectors.h"

/* Groups whose products can be added up in 16 bits. */
ATH_INLINE int groups_in_16_bits(const ath_panel_info f) {
    const int n = 32767 / (127 * largest_value(f));
    return n >= 8 ? 8 : n >= 4 ? 4 : 2;
}

ATH_INLINE void dot_groups(const ath_panel_info f, const part p, const uint8_t *codes, const uint8_t *act,
                           int8x16_t table, int g0, int g1, int32x4_t (*idot)[VECTORS]) {
    const int step = groups_in_16_bits(f) < g1 - g0 ? groups_in_16_bits(f) : g1 - g0;
    int16x8_t sum[MOST][VECTORS][2]; /* of the first two rows and the last two */
    ATH_UNROLL
    for (int g = g0; g < g1; g++) {
        int8x16_t w[VECTORS];
        ATH_UNROLL
        for (int v = 0; v < p.m; v++) w[v] = unpack_group(f, codes + 16 * v, g, table);
        ATH_UNROLL
        for (int c = 0; c < p.n; c++) {
            int32_t x4;
            memcpy(&x4, act + (g * p.width + p.c0 + c) * 4, 4);
            int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(x4));
            ATH_UNROLL
            for (int v = 0; v < p.m; v++) {
                int16x8_t *s = sum[c][v];
                if (g % step) {
                    s[0] = vmlal_s8(s[0], vget_low_s8(w[v]), vget_low_s8(x));
                    s[1] = vmlal_high_s8(s[1], w[v], x);
                } else {
                    s[0] = vmull_s8(vget_low_s8(w[v]), vget_low_s8(x));
                    s[1] = vmull_high_s8(w[v], x);
                }
                if (g % step < step - 1) continue;
                int32x4_t rows = vpaddq_s32(vpaddlq_s16(s[0]), vpaddlq_s16(s[1]));
                idot[c][v] = vaddq_s32(idot[c][v], rows);
            }
        }
    }
}

ATH_INLINE float32x4_t load_weights(const ath_panel_format format, const uint8_t *panel, int64_t k, int v) {
    if (format == ATH_PANEL_F32) return vld1q_f32((const float *)(const void *)(panel + 64 * k + 16 * v));
    if (format == ATH_PANEL_F16) return load_f16(panel + 32 * k + 8 * v);
    uint16x4_t x = vreinterpret_u16_u8(vld1_u8(panel + 32 * k + 8 * v));
    return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}

enum { COLUMNS = 4 };

/* part[c][v] += weights k times each column */
ATH_INLINE void add_floats(const ath_panel_format format, const int n, const int width, const uint8_t *panel,
                           const uint8_t *act, int64_t k, float32x4_t (*part)[VECTORS]) {
    ATH_UNROLL
    for (int v = 0; v < VECTORS; v++) {
        float32x4_t w = load_weights(format, panel, k, v);
        ATH_UNROLL
        for (int c = 0; c < n; c++)
            part[c][v] = vfmaq_n_f32(part[c][v], w, load_float(act + (k * width + c) * 4));
    }
}

/* Columns c0 .. c0 + n - 1, all rows. */
ATH_INLINE void columns_float(const ath_panel_format format, const int n, const int width,
                              const ath_matmul_tile *t, int c0) {
    float32x4_t acc[COLUMNS][VECTORS], part[COLUMNS][VECTORS];
    const uint8_t *act = t->act + 4 * c0;
    for (int i = 0; i < n * VECTORS; i++) acc[i / VECTORS][i % VECTORS] = vdupq_n_f32(0);
    for (int64_t start = 0; start < t->n_in; start += ATH_FLOAT_BLOCK) {
        int64_t end = start + ATH_FLOAT_BLOCK < t->n_in ? start + ATH_FLOAT_BLOCK : t->n_in;
        ATH_UNROLL
        for (int i = 0; i < n * VECTORS; i++) part[i / VECTORS][i % VECTORS] = vdupq_n_f32(0);
        for (int64_t k = start; k < end; k++) add_floats(format, n, width, t->panel, act, k, part);
        ATH_UNROLL
        for (int i = 0; i < n * VECTORS; i++) {
            int c = i / VECTORS, v = i % VECTORS;
            acc[c][v] = vaddq_f32(acc[c][v], part[c][v]);
        }
    }
    for (int c = 0; c < n; c++)
        for (int v = 0; v < VECTORS; v++) store_rows(t, c0 + c, v, acc[c][v]);
}

ATH_INLINE void tile_float(const ath_panel_format format, const int width, const ath_matmul_tile *t) {
    const int n = width < COLUMNS ? width : COLUMNS;
    for (int c0 = 0; c0 < t->n_cols; c0 += n) columns_float(format, n, width, t, c0);
}

FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)

/* Quantises 32 values into column c of a tile's block. */
ATH_INLINE void quantise_block(const float *x, int width, int c, uint8_t *tile) {
    float32x4_t v[8];
    uint32x4_t top = vdupq_n_u32(0);
    ATH_UNROLL
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(0x7fffffff)));
    }
    const block_scale s = block_scale_of(vmaxvq_u32(top));
    int16x4_t keep = vdup_n_s16(s.zero ? 0 : -1);
    int16x4_t q[8];
    ATH_UNROLL
    for (int i = 0; i < 8; i++) q[i] = vand_s16(keep, vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[i], s.scale))));
    int16_t sum[2] = {0, 0};
    ATH_UNROLL
    for (int g = 0; g < 8; g += 2) {
        int16x8_t two = vcombine_s16(q[g], q[g + 1]);
        uint32x2_t groups = vreinterpret_u32_s8(vmovn_s16(two));
        vst1_lane_u32((uint32_t *)(void *)(tile + ath_tile_q_at(width, c, 4 * g)), groups, 0);
        vst1_lane_u32((uint32_t *)(void *)(tile + ath_tile_q_at(width, c, 4 * g + 4)), groups, 1);
        sum[g / 4] = (int16_t)(sum[g / 4] + vaddvq_s16(two));
    }
    store_block_scale(s, sum, width, c, tile);
}

static void quantise(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    quantise_with(quantise_block, rows, n_cols, width, n_in, tile);
}

void ath_matmul_kernels_neon(ath_matmul_kernels *k) {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub) SET_TILES(type)
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    SET_FLOAT_TILES(F32)
    SET_FLOAT_TILES(F16)
    SET_FLOAT_TILES(BF16)
    k->quantise = quantise;
    k->isa = "neon";
}
