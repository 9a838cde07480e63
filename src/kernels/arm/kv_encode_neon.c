/* Encoding of turbo pages with NEON: the bytes of ath_kv_encode_page, 16 tokens at a time, whose bytes of a plane
 * are one register. */
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_neon.h"
#include "kernels/lanes.h"
#include "kernels/trellis_arm.h"

enum { TOKENS = ATH_PAGE_TOKENS, COLUMN = 16, STRIP = ATH_TRELLIS_LANES_NEON };

/* 4 rows of 4 f16 values, `stride` apart, to the columns x[4][TOKENS]. */
ATH_INLINE void transpose(const uint16_t *rows, int64_t stride, float *x) {
    float32x4_t r[4];
    for (int i = 0; i < 4; i++) r[i] = vf_load_f16(rows + i * stride);
    float64x2_t even[2], odd[2]; /* columns 0 and 2, 1 and 3, of two rows */
    for (int i = 0; i < 2; i++) {
        even[i] = vreinterpretq_f64_f32(vtrn1q_f32(r[2 * i], r[2 * i + 1]));
        odd[i] = vreinterpretq_f64_f32(vtrn2q_f32(r[2 * i], r[2 * i + 1]));
    }
    vf_store(x, vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1])));
    vf_store(x + TOKENS, vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1])));
    vf_store(x + 2 * TOKENS, vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1])));
    vf_store(x + 3 * TOKENS, vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1])));
}

static void hadamard_column(float *x, int dim) {
    ath_butterfly_rows_neon(x, dim, COLUMN);
}

static void trellis_strip(const ath_turbo_code *code, const int16_t (*x)[STRIP], int n,
                          uint16_t (*words)[STRIP], int32_t *squares) {
    ath_trellis_strip_neon(code, x, n, words, squares);
}

enum { SYMBOL_BYTES = 1 };
typedef uint8x16_t symbols;

ATH_INLINE symbols symbols_set(uint8_t x) {
    return vdupq_n_u8(x);
}
ATH_INLINE symbols symbols_put(symbols all, symbols s, int n) {
    return vorrq_u8(all, vshlq_u8(s, vdupq_n_s8((int8_t)n)));
}
ATH_INLINE symbols symbols_rest(symbols s, int n) {
    return vshlq_u8(s, vdupq_n_s8((int8_t)-n));
}

/* The low bytes of 16 lanes. */
ATH_INLINE symbols narrow_16(const uint32x4_t *x) {
    uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(x[0]), vreinterpretq_u16_u32(x[1]));
    uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(x[2]), vreinterpretq_u16_u32(x[3]));
    return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}
ATH_INLINE symbols symbols_keep(symbols s, const vf_mask *mask) {
    return vandq_u8(s, narrow_16(mask));
}

/* All tokens of the two strips, so t is 0. */
ATH_INLINE symbols symbols_of_strips(uint16_t (*words)[32][STRIP], int b, int t) {
    uint8x16_t low = vreinterpretq_u8_u16(vld1q_u16(words[0][b / 2] + t));
    uint8x16_t high = vreinterpretq_u8_u16(vld1q_u16(words[1][b / 2] + t));
    return b % 2 ? vuzp2q_u8(low, high) : vuzp1q_u8(low, high);
}

ATH_INLINE void symbols_write(uint8_t **at, bool is_key, symbols s, int n_bytes) {
    uint8_t lanes[COLUMN];
    if (is_key) {
        vst1q_u8(at[0], s);
        at[0] += 16 * n_bytes;
        return;
    }
    vst1q_u8(lanes, s);
    for (int i = 0; i < 4; i++, at[i - 1] += 4 * n_bytes) memcpy(at[i], lanes + 4 * i, 4);
}

typedef struct coder {
    const ath_turbo_code *code;
    uint8x16_t magnitudes; /* of the table */
} coder;

static coder coder_init(const ath_turbo_code *code) {
    uint8_t magnitudes[16] = {0};
    for (int i = 0; i < 1 << code->k; i++) magnitudes[i] = (uint8_t)abs(code->table[i]);
    return (coder){code, vld1q_u8(magnitudes)};
}

/* Number of thresholds <= u. */
ATH_INLINE symbols coder_symbols(const coder *c, const vf *u) {
    uint32x4_t symbol[4];
    for (int v = 0; v < 4; v++) {
        symbol[v] = vdupq_n_u32(0);
        for (int i = 0; i < (1 << c->code->k) - 1; i++)
            symbol[v] = vsubq_u32(symbol[v], vcgeq_f32(u[v], vf_set(c->code->thresholds[i])));
    }
    return narrow_16(symbol);
}

ATH_INLINE void coder_squares(const coder *c, symbols s, vi *total) {
    uint8x16_t size = vqtbl1q_u8(c->magnitudes, s);
    uint16x8_t low = vmull_u8(vget_low_u8(size), vget_low_u8(size)), high = vmull_high_u8(size, size);
    const uint16x4_t squares[4] = {vget_low_u16(low), vget_high_u16(low), vget_low_u16(high),
                                   vget_high_u16(high)};
    for (int v = 0; v < 4; v++) total[v] = vaddq_s32(total[v], vreinterpretq_s32_u32(vmovl_u16(squares[v])));
}

#include "kernels/kv_encode_lanes.h"

void ath_kv_encode_neon(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (!ath_kv_type_is_turbo(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    encode_turbo(layout, scratch, out);
}
