/* Weights from the file layout into panels. Runs once per weight, at load (or per use without repacking). */
#include <string.h>

#include "base/half.h"
#include "codec/blocks.h"
#include "kernels/matmul.h"

/* One block of 32 values of a row, as numbers. Scales that a type lacks stay zero. */
typedef struct row_block {
    uint8_t code[32];
    uint16_t d, m; /* f16 bits; d holds the exponent byte of MXFP4 */
    int8_t sc[2];
    uint8_t mn[2];
} row_block;

static void split_nibbles(const uint8_t *qs, uint8_t *code) {
    for (int j = 0; j < 16; j++) {
        code[j] = qs[j] & 15;
        code[j + 16] = qs[j] >> 4;
    }
}

static void add_fifth_bits(uint32_t qh, uint8_t *code) {
    for (int j = 0; j < 32; j++) code[j] |= (uint8_t)((qh >> j & 1) << 4);
}

static void read_legacy(ath_tensor_type type, const uint8_t *row, int64_t i, row_block *b) {
    switch (type) {
    case ATH_TYPE_Q4_0:
    case ATH_TYPE_IQ4_NL: { /* the same layout */
        const ath_block_q4_0 *s = (const ath_block_q4_0 *)row + i;
        b->d = s->d;
        split_nibbles(s->qs, b->code);
        return;
    }
    case ATH_TYPE_Q4_1: {
        const ath_block_q4_1 *s = (const ath_block_q4_1 *)row + i;
        b->d = s->d, b->m = s->m;
        split_nibbles(s->qs, b->code);
        return;
    }
    case ATH_TYPE_Q5_0: {
        const ath_block_q5_0 *s = (const ath_block_q5_0 *)row + i;
        b->d = s->d;
        split_nibbles(s->qs, b->code);
        add_fifth_bits(s->qh, b->code);
        return;
    }
    case ATH_TYPE_Q5_1: {
        const ath_block_q5_1 *s = (const ath_block_q5_1 *)row + i;
        b->d = s->d, b->m = s->m;
        split_nibbles(s->qs, b->code);
        add_fifth_bits(s->qh, b->code);
        return;
    }
    case ATH_TYPE_Q8_0: {
        const ath_block_q8_0 *s = (const ath_block_q8_0 *)row + i;
        b->d = s->d;
        for (int j = 0; j < 32; j++) b->code[j] = (uint8_t)(s->qs[j] + 128);
        return;
    }
    default: { /* MXFP4 */
        const ath_block_mxfp4 *s = (const ath_block_mxfp4 *)row + i;
        b->d = s->e;
        split_nibbles(s->qs, b->code);
        return;
    }
    }
}

static uint8_t bits_at(uint8_t byte, int shift, int bits) {
    return (uint8_t)(byte >> shift & ((1 << bits) - 1));
}

/* Scale and minimum of block k of Q4_K and Q5_K; layout as at the decoders. */
static void read_k4_scales(const uint8_t *scales, int k, row_block *b) {
    const uint8_t *s = scales;
    b->sc[0] = (int8_t)(k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4);
    b->mn[0] = (uint8_t)(k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4);
}

static void read_q2_k(const ath_block_q2_k *s, int k, row_block *b) {
    b->d = s->d, b->m = s->dmin;
    for (int h = 0; h < 2; h++) {
        b->sc[h] = (int8_t)(s->scales[2 * k + h] & 15);
        b->mn[h] = s->scales[2 * k + h] >> 4;
    }
    for (int j = 0; j < 32; j++) b->code[j] = bits_at(s->qs[k / 4 * 32 + j], k % 4 * 2, 2);
}

static void read_q3_k(const ath_block_q3_k *s, int k, row_block *b) {
    b->d = s->d;
    for (int h = 0; h < 2; h++) {
        int i = 2 * k + h;
        b->sc[h] = (int8_t)((bits_at(s->scales[i % 8], i / 8 * 4, 4) |
                             bits_at(s->scales[8 + i % 4], i / 4 * 2, 2) << 4) -
                            32);
    }
    for (int j = 0; j < 32; j++)
        b->code[j] =
            (uint8_t)(bits_at(s->qs[k / 4 * 32 + j], k % 4 * 2, 2) | bits_at(s->hmask[j], k, 1) << 2);
}

static void read_q6_k(const ath_block_q6_k *s, int k, row_block *b) {
    b->d = s->d;
    b->sc[0] = s->scales[2 * k], b->sc[1] = s->scales[2 * k + 1];
    const uint8_t *ql = s->ql + k / 4 * 64 + k % 2 * 32, *qh = s->qh + k / 4 * 32;
    for (int j = 0; j < 32; j++)
        b->code[j] = (uint8_t)(bits_at(ql[j], k / 2 % 2 * 4, 4) | bits_at(qh[j], k % 4 * 2, 2) << 4);
}

static void read_super(ath_tensor_type type, const uint8_t *row, int64_t i, row_block *b) {
    int64_t n = i / 8;
    int k = (int)(i % 8);
    switch (type) {
    case ATH_TYPE_Q2_K: read_q2_k((const ath_block_q2_k *)row + n, k, b); return;
    case ATH_TYPE_Q3_K: read_q3_k((const ath_block_q3_k *)row + n, k, b); return;
    case ATH_TYPE_Q6_K: read_q6_k((const ath_block_q6_k *)row + n, k, b); return;
    case ATH_TYPE_Q4_K: {
        const ath_block_q4_k *s = (const ath_block_q4_k *)row + n;
        b->d = s->d, b->m = s->dmin;
        read_k4_scales(s->scales, k, b);
        for (int j = 0; j < 32; j++) b->code[j] = bits_at(s->qs[k / 2 * 32 + j], k % 2 * 4, 4);
        return;
    }
    case ATH_TYPE_Q5_K: {
        const ath_block_q5_k *s = (const ath_block_q5_k *)row + n;
        b->d = s->d, b->m = s->dmin;
        read_k4_scales(s->scales, k, b);
        for (int j = 0; j < 32; j++)
            b->code[j] =
                (uint8_t)(bits_at(s->qs[k / 2 * 32 + j], k % 2 * 4, 4) | bits_at(s->qh[j], k, 1) << 4);
        return;
    }
    default: { /* IQ4_XS */
        const ath_block_iq4_xs *s = (const ath_block_iq4_xs *)row + n;
        b->d = s->d;
        b->sc[0] =
            (int8_t)((bits_at(s->scales_l[k / 2], k % 2 * 4, 4) | (s->scales_h >> 2 * k & 3) << 4) - 32);
        split_nibbles(s->qs + 16 * k, b->code);
        return;
    }
    }
}

/* ORs the codes of one row into the zeroed planes of a block. */
static void write_codes(int bits, const uint8_t *code, int row, uint8_t *planes) {
    for (int j = 0; j < 32; j++) {
        int g = j / 4, at = 4 * row + j % 4, c = code[j];
        if (bits == 8) {
            planes[64 * g + at] = (uint8_t)c;
            continue;
        }
        int low = bits >= 4 ? 4 : 2;
        if (low == 4)
            planes[64 * (g / 2) + at] |= (uint8_t)((c & 15) << g % 2 * 4);
        else
            planes[64 * (g / 4) + at] |= (uint8_t)((c & 3) << g % 4 * 2);
        uint8_t *high = planes + 64 * low;
        c >>= low;
        if (bits - low == 2)
            high[64 * (g / 4) + at] |= (uint8_t)(c << g % 4 * 2);
        else if (bits - low == 1)
            high[at] |= (uint8_t)(c << g);
    }
}

static void write_scales(const ath_panel_info *f, const row_block *b, int64_t i, int row, uint8_t *scales) {
    int head_bytes = ath_panel_head_bytes(f->type, f->min), sub_bytes = ath_panel_sub_bytes(f->min, f->sub);
    uint8_t *head = scales + i / f->blocks * (head_bytes + f->blocks * sub_bytes);
    uint8_t *sub = head + head_bytes + i % f->blocks * sub_bytes;
    if (f->type == ATH_TYPE_MXFP4) {
        head[row] = (uint8_t)b->d;
        return;
    }
    memcpy(head + 2 * row, &b->d, 2);
    if (f->min) memcpy(head + 32 + 2 * row, &b->m, 2);
    for (int h = 0; h < f->sub; h++) {
        if (f->sub == 2 && f->min)
            sub[16 * h + row] = (uint8_t)(b->sc[h] | b->mn[h] << 4);
        else
            sub[16 * h + row] = (uint8_t)b->sc[h];
    }
    if (f->sub == 1 && f->min) sub[16 + row] = b->mn[0];
}

static void pack_float(size_t size, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n_in,
                       uint8_t *panel) {
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *row = rows + (size_t)r * row_bytes;
        uint8_t *out = panel + (size_t)r * size;
        if (size == 4) {
            for (int64_t k = 0; k < n_in; k++) memcpy(out + k * 64, row + k * 4, 4);
        } else {
            for (int64_t k = 0; k < n_in; k++) memcpy(out + k * 32, row + k * 2, 2);
        }
    }
}

void ath_panel_pack(ath_panel_format format, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n_in,
                    uint8_t *panel) {
    memset(panel, 0, ath_panel_bytes(format, n_in));
    if (format >= ATH_PANEL_QUANTISED) {
        pack_float(format == ATH_PANEL_F32 ? 4 : 2, rows, row_bytes, n_rows, n_in, panel);
        return;
    }
    const ath_panel_info *f = &ath_panel_infos[format];
    int64_t n_blocks = n_in / 32;
    uint8_t *scales = panel + n_blocks * ath_panel_code_bytes(f->bits);
    for (int64_t i = 0; i < n_blocks; i++) {
        for (int r = 0; r < n_rows; r++) {
            row_block b = {.d = 0};
            const uint8_t *row = rows + (size_t)r * row_bytes;
            if (f->blocks == 1)
                read_legacy(f->type, row, i, &b);
            else
                read_super(f->type, row, i, &b);
            write_codes(f->bits, b.code, r, panel + i * ath_panel_code_bytes(f->bits));
            write_scales(f, &b, i, r, scales);
        }
    }
}

void ath_panel_expand(ath_tensor_type type, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n_in,
                      float *panel, float *row) {
    memset(panel, 0, (size_t)n_in * 64);
    for (int r = 0; r < n_rows; r++) {
        ath_tensor_type_get(type)->dequantize(rows + (size_t)r * row_bytes, row, n_in);
        for (int64_t k = 0; k < n_in; k++) panel[k * ATH_PANEL_ROWS + r] = row[k];
    }
}
