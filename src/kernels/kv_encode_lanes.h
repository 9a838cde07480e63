/* The encoder of turbo pages with tokens in lanes: the bytes of ath_kv_encode_page (docs/turbo_format.md). An
 * instruction set's file defines the following, with the vectors of lanes.h, then includes this.
 *
 *   TOKENS, COLUMN, STRIP      tokens of a page; how many of them are rotated, how many go through the trellis,
 *                              at a time
 *   transpose(rows, stride, x) VF_LANES rows of as many f16, `stride` apart, to the columns x[VF_LANES][TOKENS]
 *   hadamard_column(x, dim)    butterflies of the rows of x[dim][COLUMN]
 *   trellis_strip              ath_trellis_strip_avx2 or the like
 *
 *   symbols                    COLUMN lanes of SYMBOL_BYTES bytes, which hold bits of the tokens' streams
 *   symbols_set(x)             x in all lanes
 *   symbols_put(all, s, n)     all | s << n
 *   symbols_rest(s, n)         s >> n
 *   symbols_keep(s, mask)      s in the lanes of mask, 0 in the others
 *   symbols_of_strips(w, b, t) bytes b ... of the streams of tokens t ..., from words w[strip][word][STRIP]
 *   symbols_write(at, is_key, s, n)
 *                              the low n bytes of every lane, to where a writer's pointers are; moves them on
 *
 *   coder, coder_init(code)    what scalar codes are found by
 *   coder_symbols(c, u)        the codes of COLUMN values
 *   coder_squares(c, s, total) adds the squares of the table values that codes stand for */
#ifndef ATH_KERNELS_KV_ENCODE_LANES_H
#define ATH_KERNELS_KV_ENCODE_LANES_H

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/lanes.h"

enum { VECTORS = COLUMN / VF_LANES, SUMS = 16 / VF_LANES, GROUP = COLUMN > STRIP ? COLUMN : STRIP };

/* x[head_dim][128] of a K tile, or of a V tile by transposing blocks. */
static void load_tile(const ath_kv_layout *layout, const uint16_t *tile, float *x) {
    int dim = layout->head_dim;
    if (layout->is_key) {
        for (int i = 0; i < dim * TOKENS; i += VF_LANES) vf_store(x + i, vf_load_f16(tile + i));
        return;
    }
    for (int c = 0; c < dim; c += VF_LANES)
        for (int t = 0; t < TOKENS; t += VF_LANES) transpose(tile + t * dim + c, dim, x + c * TOKENS + t);
}

/* The stored mean of a row of tokens, taken out of it. Returns its f16. */
static uint16_t centre_row(float *row) {
    vf sum[SUMS];
    for (int i = 0; i < SUMS; i++) sum[i] = vf_set(0);
    for (int t = 0; t < TOKENS; t += 16)
        for (int i = 0; i < SUMS; i++) sum[i] = vf_add(sum[i], vf_load(row + t + VF_LANES * i));
    uint16_t stored = ath_f32_to_f16(vf_sum_16(sum) / TOKENS);
    vf mean = vf_set(ath_f16_to_f32(stored));
    for (int t = 0; t < TOKENS; t += VF_LANES) vf_store(row + t, vf_sub(vf_load(row + t), mean));
    return stored;
}

static float root_of_row(const float *row) {
    vf sum[SUMS];
    for (int i = 0; i < SUMS; i++) sum[i] = vf_set(0);
    for (int t = 0; t < TOKENS; t += 16)
        for (int i = 0; i < SUMS; i++) {
            vf x = vf_load(row + t + VF_LANES * i);
            sum[i] = vf_add(sum[i], vf_mul(x, x));
        }
    return sqrtf(sqrtf(vf_sum_16(sum) / TOKENS));
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
    for (int c = 0; c < layout->head_dim; c++, x += TOKENS) {
        uint8_t e = root[c] > 0 ? ath_eq_byte(root[c] / average) : 128;
        out[layout->eq_at + (size_t)c] = e;
        vf factor = vf_set(ath_eq_scale((uint8_t)(256 - e)));
        for (int t = 0; t < TOKENS; t += VF_LANES) vf_store(x + t, vf_mul(vf_load(x + t), factor));
    }
}

/* COLUMN tokens of a part, rotated. Compact, because rows 512 bytes apart would share few cache sets. Below
 * 1e-30 a part is zero. */
typedef struct rotated {
    _Alignas(64) float x[128 * COLUMN];   /* [channels][COLUMN] */
    vf square[VECTORS], inverse[VECTORS]; /* of the part; its values times inverse have an rms of 1 */
    vf_mask there[VECTORS];               /* tokens that are not zero */
} rotated;

/* x[channel][128]: of the part's first channel and the first of the tokens. */
static void rotate_column(const ath_kv_layout *layout, int part, const float *x, rotated *r) {
    int dim = layout->part_dim[part];
    const float *signs = ath_rotation_signs() + layout->part_start[part];
    for (int c = 0; c < dim; c++)
        for (int i = 0; i < COLUMN; i += VF_LANES)
            vf_store(r->x + c * COLUMN + i, vf_mul(vf_load(x + c * TOKENS + i), vf_set(signs[c])));
    hadamard_column(r->x, dim);
    vf scale = vf_set(ath_rotation_scale(dim)), square[VECTORS];
    for (int v = 0; v < VECTORS; v++) square[v] = vf_set(0);
    for (int c = 0; c < dim; c++)
        for (int v = 0; v < VECTORS; v++) {
            float *at = r->x + c * COLUMN + VF_LANES * v;
            vf y = vf_mul(vf_load(at), scale);
            square[v] = vf_add(square[v], vf_mul(y, y));
            vf_store(at, y);
        }
    for (int v = 0; v < VECTORS; v++) {
        r->square[v] = square[v];
        r->there[v] = vf_not_lt(square[v], vf_set(1e-30f));
        r->inverse[v] = vf_div(vf_set(sqrtf((float)dim)), vf_sqrt(square[v]));
    }
}

/* The values of channel c with an rms of 1. */
ATH_INLINE void unit_values(const rotated *r, int c, vf *u) {
    for (int v = 0; v < VECTORS; v++) u[v] = vf_mul(vf_load(r->x + c * COLUMN + VF_LANES * v), r->inverse[v]);
}

static void write_norms(const ath_kv_layout *layout, int part, int token, const rotated *r,
                        const vi *table_square, uint8_t *out) {
    uint8_t *norms = out + layout->norms_at + 2 * (size_t)(part * TOKENS + token);
    for (int v = 0; v < VECTORS; v++) {
        vf norm = vf_div(vf_sqrt(r->square[v]), vf_sqrt(vf_of_vi(table_square[v])));
        vf_store_bf16(norms + 2 * VF_LANES * v, vf_keep(r->there[v], norm));
    }
}

/* Writes the streams of COLUMN tokens. */
typedef struct writer {
    uint8_t *at[COLUMN / 4]; /* K: the first is where the planes go on; V: those of each 4 tokens */
    bool is_key;
    int n_bits;
    symbols pending; /* the n_bits not written yet */
} writer;

static writer writer_init(const ath_kv_layout *layout, int part, int token, uint8_t *out) {
    int bits = ath_kv_turbo_bits(layout->type), start = layout->part_start[part] * bits / 8;
    int64_t stream = (int64_t)layout->head_dim * bits / 8;
    writer w = {.is_key = layout->is_key, .pending = symbols_set(0)};
    for (int i = 0; i < COLUMN / 4; i++) w.at[i] = out + 4 * (stream * (token / 4 + i) + start);
    if (w.is_key) w.at[0] = out + 16 * (stream * (token / 16) + start) + token % 16;
    return w;
}

/* A symbol of k bits of every token. */
ATH_INLINE void writer_symbol(writer *w, symbols s, int k) {
    w->pending = symbols_put(w->pending, s, w->n_bits);
    w->n_bits += k;
    if (w->n_bits < 8 * SYMBOL_BYTES) return;
    symbols_write(w->at, w->is_key, w->pending, SYMBOL_BYTES);
    w->n_bits -= 8 * SYMBOL_BYTES;
    w->pending = symbols_rest(s, k - w->n_bits);
}

/* COLUMN tokens of a part in scalar codes. x: of its first channel and token. */
static void encode_scalar(const ath_kv_layout *layout, int part, int token, const float *x,
                          const coder *coder, uint8_t *out) {
    int k = ath_kv_turbo_bits(layout->type);
    rotated r;
    rotate_column(layout, part, x + token, &r);
    writer w = writer_init(layout, part, token, out);
    vi total[VECTORS];
    for (int v = 0; v < VECTORS; v++) total[v] = vi_set(0);
    for (int c = 0; c < layout->part_dim[part]; c++) {
        vf u[VECTORS];
        unit_values(&r, c, u);
        symbols s = symbols_keep(coder_symbols(coder, u), r.there);
        coder_squares(coder, s, total);
        writer_symbol(&w, s, k);
    }
    if (w.n_bits) symbols_write(w.at, w.is_key, w.pending, w.n_bits / 8);
    write_norms(layout, part, token, &r, total, out);
}

/* GROUP tokens of a part in trellis codes. x: of its first channel and token. */
static void encode_trellis(const ath_kv_layout *layout, int part, int token, const float *x,
                           const ath_turbo_code *code, uint8_t *out) {
    rotated r[GROUP / COLUMN];
    _Alignas(64) int16_t targets[GROUP / STRIP][128][STRIP];
    _Alignas(64) uint16_t words[GROUP / STRIP][128 * 4 / 16][STRIP] = {0};
    _Alignas(64) int32_t squares[GROUP];
    int dim = layout->part_dim[part], n_bytes = dim * code->k / 8;
    vf scale = vf_set(code->target_scale), most = vf_set((float)code->limit), least = vf_neg(most);
    for (int i = 0; i < GROUP / COLUMN; i++) {
        rotate_column(layout, part, x + token + COLUMN * i, &r[i]);
        for (int c = 0; c < dim; c++) {
            vf u[VECTORS];
            unit_values(&r[i], c, u);
            for (int v = 0; v < VECTORS; v++) {
                int t = COLUMN * i + VF_LANES * v;
                vf target = vf_mul(vf_keep(r[i].there[v], u[v]), scale);
                vf_store_i16(targets[t / STRIP][c] + t % STRIP, vf_max(vf_min(target, most), least));
            }
        }
    }
    for (int i = 0; i < GROUP / STRIP; i++)
        trellis_strip(code, (const int16_t(*)[STRIP])targets[i], dim, words[i], squares + STRIP * i);
    for (int i = 0; i < GROUP / COLUMN; i++) {
        writer w = writer_init(layout, part, token + COLUMN * i, out);
        vi total[VECTORS];
        for (int b = 0; b < n_bytes; b += SYMBOL_BYTES) {
            symbols s = symbols_keep(symbols_of_strips(words, b, COLUMN * i), r[i].there);
            symbols_write(w.at, w.is_key, s, n_bytes - b < SYMBOL_BYTES ? n_bytes - b : SYMBOL_BYTES);
        }
        for (int v = 0; v < VECTORS; v++) total[v] = vi_load(squares + COLUMN * i + VF_LANES * v);
        write_norms(layout, part, token + COLUMN * i, &r[i], total, out);
    }
}

/* The codes of x[head_dim][128], as load_tile and prepare_key leave it. */
static void encode_turbo(const ath_kv_layout *layout, const float *x, uint8_t *out) {
    const ath_turbo_code *code = ath_turbo_code_of(layout->type);
    for (int p = 0; p < layout->n_parts; p++) {
        const float *of_part = x + layout->part_start[p] * TOKENS;
        if (code->thresholds) {
            coder coder = coder_init(code);
            for (int t = 0; t < TOKENS; t += COLUMN) encode_scalar(layout, p, t, of_part, &coder, out);
        } else {
            for (int t = 0; t < TOKENS; t += GROUP) encode_trellis(layout, p, t, of_part, code, out);
        }
    }
}

#endif
