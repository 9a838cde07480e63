/* The encoder of pages for x86, with tokens in lanes: the bytes of ath_kv_encode_page. An instruction set's
 * file defines what kv_encode_lanes.h wants, but for the symbols and the coder, which are here, and
 *
 *   count_thresholds(t, bits, u)        how many of the 2^bits - 1 ascending thresholds in t[16] are <= u
 *   store_quads(quads, at, row_bytes)   16 bytes of each of COLUMN tokens to rows of the page: lane t of quads[i]
 *                                       is bytes 4i ... 4i + 3 of token t
 *
 * then includes this. */
#ifndef ATH_KERNELS_KV_ENCODE_X86_H
#define ATH_KERNELS_KV_ENCODE_X86_H

#include <string.h>

#include "kernels/attention_blocks_x86.h"
#include "kernels/lanes.h"

/* ---- symbols of turbo types */

enum { SYMBOL_BYTES = 4 };
typedef vi symbols;

ATH_INLINE symbols symbols_set(int x) {
    return vi_set(x);
}
ATH_INLINE symbols symbols_put(symbols all, symbols s, int n) {
    return vi_or(all, vi_shl(s, n));
}
ATH_INLINE symbols symbols_rest(symbols s, int n) {
    return vi_shr(s, n);
}
ATH_INLINE symbols symbols_keep(symbols s, const vf_mask *mask) {
    return vi_keep(*mask, s);
}
ATH_INLINE symbols symbols_of_strips(uint16_t (*words)[32][STRIP], int b, int t) {
    return vi_or(vi_load_u16(words[0][b / 2] + t), vi_shl(vi_load_u16(words[0][b / 2 + 1] + t), 16));
}

typedef struct coder {
    float thresholds[16];
    int32_t squares[16]; /* of the table */
    int bits;
} coder;

ATH_INLINE coder coder_init(const ath_turbo_code *code) {
    coder c = {.bits = code->k};
    for (int i = 0; i < 1 << code->k; i++) c.squares[i] = code->table[i] * code->table[i];
    memcpy(c.thresholds, code->thresholds, ((1u << code->k) - 1) * sizeof *c.thresholds);
    return c;
}

ATH_INLINE symbols coder_symbols(const coder *c, const vf *u) {
    return count_thresholds(c->thresholds, c->bits, *u);
}

ATH_INLINE void coder_squares(const coder *c, symbols s, vi *total) {
    *total = vi_add(*total, vi_look_up(c->squares, s));
}

#include "kernels/kv_encode_lanes.h"

/* ---- block types */

/* One block of the tokens in lanes: codes, scale, minimum. */
typedef struct block {
    vi codes[ATH_KV_BLOCK];
    vf d, m;
} block;

ATH_INLINE vf inverse_of(vf d) {
    return vf_keep(vf_not_eq(d, vf_set(0)), vf_div(vf_set(1), d));
}

/* The values of largest magnitude, with their signs; the first of equals. */
ATH_INLINE vf signed_max(const vf *x) {
    vf max = x[0];
    for (int j = 1; j < ATH_KV_BLOCK; j++) max = vf_where(vf_gt(vf_abs(x[j]), vf_abs(max)), x[j], max);
    return max;
}

/* Cut off to integers of 0 .. max; NaN gives 0. */
ATH_INLINE vi cut_off(vf x, int max) {
    return vi_of_vf(vf_min(vf_max_known(vf_set(0), x), vf_set((float)max)));
}

/* encode_symmetric of quant_legacy.c, with 16 or 32 codes. */
static void quantise_symmetric(const vf *x, int n_codes, block *out) {
    float middle = (float)(n_codes / 2);
    out->d = vf_div(signed_max(x), vf_set(-middle));
    vf id = inverse_of(out->d), half = vf_set(middle + 0.5f);
    for (int j = 0; j < ATH_KV_BLOCK; j++)
        out->codes[j] = cut_off(vf_add(vf_mul(x[j], id), half), n_codes - 1);
}

/* encode_range of it. */
static void quantise_range(const vf *x, int n_codes, block *out) {
    vf min = x[0], max = x[0], half = vf_set(0.5f);
    for (int j = 1; j < ATH_KV_BLOCK; j++) {
        min = vf_min(x[j], min);
        max = vf_max(x[j], max);
    }
    out->m = min;
    out->d = vf_div(vf_sub(max, min), vf_set((float)(n_codes - 1)));
    vf id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++)
        out->codes[j] = cut_off(vf_add(vf_mul(vf_sub(x[j], min), id), half), n_codes - 1);
}

/* ath_quantize_q8_0: halves away from zero, by adding what is just below a half and cutting off. */
static void quantise_bytes(const vf *x, block *out) {
    const vf most = vf_set(127), below_half = vf_set(0x1.fffffep-2f);
    out->d = vf_div(vf_abs(signed_max(x)), most);
    vf id = inverse_of(out->d);
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        vf y = vf_max(vf_min_known(most, vf_mul(x[j], id)), vf_neg(most));
        out->codes[j] = vi_of_vf(vf_add(y, vf_copysign(below_half, y)));
    }
}

/* ath_quantize_iq4_nl: the code is the number of middles between neighbours of the table that 2x exceeds. */
static void quantise_table(const vf *x, block *out) {
    const int8_t *table = ath_block_table();
    vf xy = vf_set(0), yy = vf_set(0);
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = table[i];
    vf id = inverse_of(vf_div(signed_max(x), vf_set((float)table[0])));
    for (int j = 0; j < ATH_KV_BLOCK; j++) {
        vf y = vf_mul(x[j], id), twice = vf_add(y, y);
        vi code = vi_set(0);
        for (int k = 0; k < 15; k++)
            code = vi_increment(code, vf_gt(twice, vf_set((float)(table[k] + table[k + 1]))));
        y = vf_look_up(values, code);
        xy = vf_add(xy, vf_mul(x[j], y));
        yy = vf_add(yy, vf_mul(y, y));
        out->codes[j] = code;
    }
    out->d = vf_div(xy, yy);
}

/* 16 bytes of each token, bytes[j] being lane by lane those of its place j, to rows of the page. */
static void store_rows(const vi *bytes, uint8_t *at, int64_t row_bytes) {
    vi quads[4];
    for (int i = 0; i < 4; i++) {
        quads[i] = bytes[4 * i];
        for (int j = 1; j < 4; j++) quads[i] = vi_or(quads[i], vi_shl(bytes[4 * i + j], 8 * j));
    }
    store_quads(quads, at, row_bytes);
}

/* The block of COLUMN tokens, at: of the first. */
ATH_INLINE void store_block(const ath_block_kind kind, block *b, uint8_t *at, int64_t row_bytes) {
    uint16_t d[COLUMN], m[COLUMN] = {0};
    int32_t fifth[COLUMN];
    vi bits = vi_set(0);
    vf_store_f16(d, b->d);
    if (kind.has_minimum) vf_store_f16(m, b->m);
    for (int j = 0; kind.bits == 5 && j < ATH_KV_BLOCK; j++)
        bits = vi_or(bits, vi_shl(vi_shr(b->codes[j], 4), j));
    vi_store(fifth, bits);
    for (int t = 0; t < COLUMN; t++) {
        uint8_t *token = at + t * row_bytes;
        memcpy(token, &d[t], sizeof d[t]);
        if (kind.has_minimum) memcpy(token + 2, &m[t], sizeof m[t]);
        if (kind.bits == 5) memcpy(token + kind.high_at, &fifth[t], sizeof fifth[t]);
    }
    const vi mask = vi_set(kind.bits == 8 ? 255 : 15);
    for (int j = 0; j < ATH_KV_BLOCK; j++) b->codes[j] = vi_and(b->codes[j], mask);
    for (int j = 0; kind.bits < 8 && j < 16; j++)
        b->codes[j] = vi_or(b->codes[j], vi_shl(b->codes[j + 16], 4));
    store_rows(b->codes, at + kind.codes_at, row_bytes);
    if (kind.bits == 8) store_rows(b->codes + 16, at + kind.codes_at + 16, row_bytes);
}

/* COLUMN tokens of a part. x: of its first channel and token. */
ATH_INLINE void encode_block_column(const ath_block_kind kind, const ath_kv_layout *layout, int part,
                                    int token, const float *x, uint8_t *out) {
    int64_t row_bytes = ath_block_row_bytes(layout, kind);
    uint8_t *at = out + token * row_bytes + layout->part_start[part] / ATH_KV_BLOCK * kind.bytes;
    const vf most = vf_set(65504); /* of f16 */
    rotated r;
    rotate_column(layout, part, x + token, &r);
    for (int c = 0; c < layout->part_dim[part]; c += ATH_KV_BLOCK, at += kind.bytes) {
        vf values[ATH_KV_BLOCK];
        block b;
        for (int j = 0; j < ATH_KV_BLOCK; j++)
            values[j] = vf_max(vf_min_known(most, vf_load(r.x + (c + j) * COLUMN)), vf_neg(most));
        if (kind.bits == 8)
            quantise_bytes(values, &b);
        else if (kind.has_table)
            quantise_table(values, &b);
        else if (kind.has_minimum)
            quantise_range(values, 1 << kind.bits, &b);
        else
            quantise_symmetric(values, 1 << kind.bits, &b);
        store_block(kind, &b, at, row_bytes);
    }
}

ATH_INLINE void encode_blocks(const ath_block_kind kind, const ath_kv_layout *layout, const float *x,
                              uint8_t *out) {
    for (int p = 0; p < layout->n_parts; p++)
        for (int t = 0; t < TOKENS; t += COLUMN)
            encode_block_column(kind, layout, p, t, x + layout->part_start[p] * TOKENS, out);
}

static void encode(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch) {
    if (ath_kv_type_is_raw(layout->type) || ath_kv_type_is_plain(layout->type)) {
        ath_kv_encode_page(layout, tile, out, scratch);
        return;
    }
    load_tile(layout, tile, scratch);
    if (layout->is_key) prepare_key(layout, scratch, out);
    if (ath_kv_type_is_turbo(layout->type)) {
        encode_turbo(layout, scratch, out);
        return;
    }
#define BLOCKS(kind) encode_blocks(kind, layout, scratch, out)
    ATH_BLOCK_DISPATCH(layout->type, BLOCKS);
#undef BLOCKS
}

#endif
