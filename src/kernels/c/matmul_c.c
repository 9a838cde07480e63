/* Matrix products in plain C: the specification that the SIMD versions must equal bit for bit (see matmul.h).
 */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/matmul.h"

/* One block of a panel as numbers, for all 16 rows. */
typedef struct panel_block {
    int value[ATH_PANEL_ROWS][32];
    float dw[ATH_PANEL_ROWS], mw[ATH_PANEL_ROWS];
    int sc[2][ATH_PANEL_ROWS], mn[2][ATH_PANEL_ROWS];
} panel_block;

static int read_code(int bits, const uint8_t *planes, int group, int at) {
    if (bits == 8) return planes[64 * group + at];
    int low = bits >= 4 ? 4 : 2;
    const uint8_t *high = planes + 64 * low;
    int code = low == 4 ? planes[64 * (group / 2) + at] >> group % 2 * 4 & 15
                        : planes[64 * (group / 4) + at] >> group % 4 * 2 & 3;
    if (bits - low == 2) return code | (high[64 * (group / 4) + at] >> group % 4 * 2 & 3) << low;
    if (bits - low == 1) return code | (high[at] >> group & 1) << low;
    return code;
}

static float half_at(const uint8_t *p, int i) {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return ath_f16_to_f32(h);
}

/* Half of 2^(e - 127): the E2M1 table holds doubled values. */
static float e8m0_half(uint8_t e) {
    return ath_f32_from_bits(e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23);
}

static void read_scales(const ath_panel_info *f, const uint8_t *head, const uint8_t *sub, panel_block *b) {
    for (int r = 0; r < ATH_PANEL_ROWS; r++) {
        b->dw[r] = f->type == ATH_TYPE_MXFP4 ? e8m0_half(head[r]) : half_at(head, r);
        b->mw[r] = f->min ? half_at(head + 32, r) : 0.0f;
        if (f->sub == 1) {
            b->dw[r] *= (float)(int8_t)sub[r];
            if (f->min) b->mw[r] = -(b->mw[r] * (float)sub[16 + r]);
        }
        for (int h = 0; f->sub == 2 && h < 2; h++) {
            b->sc[h][r] = f->min ? sub[16 * h + r] & 15 : (int8_t)sub[16 * h + r];
            b->mn[h][r] = f->min ? sub[16 * h + r] >> 4 : 0;
        }
    }
}

static void read_block(const ath_panel_info *f, const uint8_t *panel, int64_t n_in, int64_t i,
                       panel_block *b) {
    int code_bytes = ath_panel_code_bytes(f->bits), sub_bytes = ath_panel_sub_bytes(f->min, f->sub);
    int head_bytes = ath_panel_head_bytes(f->type, f->min);
    const uint8_t *codes = panel + i * code_bytes;
    const uint8_t *head =
        panel + n_in / 32 * code_bytes + i / f->blocks * (head_bytes + f->blocks * sub_bytes);
    for (int r = 0; r < ATH_PANEL_ROWS; r++) {
        for (int j = 0; j < 32; j++) {
            int code = read_code(f->bits, codes, j / 4, 4 * r + j % 4);
            b->value[r][j] = f->table ? ath_panel_tables[f->table][code] : code - f->zero;
        }
    }
    read_scales(f, head, head + head_bytes + i % f->blocks * sub_bytes, b);
}

static float add_block(const ath_panel_info *f, const panel_block *b, int r, const uint8_t *act, int width,
                       int c, float acc) {
    float dx, sx;
    int16_t sum[2];
    memcpy(&dx, act + 32 * width + 4 * c, 4);
    memcpy(&sx, act + 36 * width + 4 * c, 4);
    memcpy(sum, act + 40 * width + 4 * c, 4);
    int dot[2] = {0, 0};
    for (int j = 0; j < 32; j++) dot[j / 16] += b->value[r][j] * (int8_t)act[ath_tile_q_at(width, c, j)];
    int idot = f->sub == 2 ? b->sc[0][r] * dot[0] + b->sc[1][r] * dot[1] : dot[0] + dot[1];
    acc = fmaf((float)idot, b->dw[r] * dx, acc);
    if (!f->min) return acc;
    if (f->sub == 2) return fmaf((float)(b->mn[0][r] * sum[0] + b->mn[1][r] * sum[1]), -b->mw[r] * dx, acc);
    return fmaf(b->mw[r], sx, acc);
}

static void tile_quantised(const ath_matmul_tile *t) {
    const ath_panel_info *f = &ath_panel_infos[t->format];
    float acc[ATH_TILE_MAX][ATH_PANEL_ROWS] = {{0}};
    panel_block b;
    for (int64_t i = 0; i < t->n_in / 32; i++) {
        read_block(f, t->panel, t->n_in, i, &b);
        const uint8_t *act = t->act + i * 44 * t->width;
        for (int c = 0; c < t->n_cols; c++) {
            for (int r = 0; r < t->n_rows; r++) acc[c][r] = add_block(f, &b, r, act, t->width, c, acc[c][r]);
        }
    }
    for (int c = 0; c < t->n_cols; c++) memcpy(t->out[c], acc[c], (size_t)t->n_rows * sizeof(float));
}

static float float_at(ath_panel_format format, const uint8_t *panel, int64_t i) {
    if (format == ATH_PANEL_F32) {
        float x;
        memcpy(&x, panel + 4 * i, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, panel + 2 * i, 2);
    return format == ATH_PANEL_F16 ? ath_f16_to_f32(h) : ath_bf16_to_f32(h);
}

static void tile_float(const ath_matmul_tile *t) {
    float acc[ATH_TILE_MAX][ATH_PANEL_ROWS] = {{0}};
    const float *act = (const float *)t->act;
    for (int64_t start = 0; start < t->n_in; start += ATH_FLOAT_BLOCK) {
        float part[ATH_TILE_MAX][ATH_PANEL_ROWS] = {{0}};
        int64_t end = start + ATH_FLOAT_BLOCK < t->n_in ? start + ATH_FLOAT_BLOCK : t->n_in;
        for (int64_t k = start; k < end; k++) {
            for (int r = 0; r < t->n_rows; r++) {
                float w = float_at(t->format, t->panel, k * ATH_PANEL_ROWS + r);
                for (int c = 0; c < t->n_cols; c++) part[c][r] = fmaf(w, act[k * t->width + c], part[c][r]);
            }
        }
        for (int c = 0; c < t->n_cols; c++) {
            for (int r = 0; r < t->n_rows; r++) acc[c][r] += part[c][r];
        }
    }
    for (int c = 0; c < t->n_cols; c++) memcpy(t->out[c], acc[c], (size_t)t->n_rows * sizeof(float));
}

static void quantise_block(const float *x, int width, int c, uint8_t *tile) {
    uint32_t top = 0; /* as bits, so that infinities and NaN come out largest */
    for (int j = 0; j < 32; j++) {
        uint32_t bits = ath_f32_bits(x[j]) & 0x7fffffff;
        if (bits > top) top = bits;
    }
    float amax = ath_f32_from_bits(top), dx = amax / 127.0f, scale = 127.0f / amax;
    if (top >= 0x7f800000)
        scale = 0;
    else if (amax < 0x1p-100f)
        dx = scale = 0;
    int16_t sum[2] = {0, 0};
    for (int j = 0; j < 32; j++) {
        int q = scale == 0 ? 0 : (int)rintf(x[j] * scale);
        sum[j / 16] = (int16_t)(sum[j / 16] + q);
        tile[ath_tile_q_at(width, c, j)] = (uint8_t)(int8_t)q;
    }
    float sx = top >= 0x7f800000 ? dx : (float)(sum[0] + sum[1]) * dx;
    memcpy(tile + 32 * width + 4 * c, &dx, 4);
    memcpy(tile + 36 * width + 4 * c, &sx, 4);
    memcpy(tile + 40 * width + 4 * c, sum, 4);
}

static void quantise(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    if (n_cols < width) memset(tile, 0, ath_tile_bytes(true, width, n_in));
    for (int c = 0; c < n_cols; c++) {
        for (int64_t i = 0; i < n_in / 32; i++)
            quantise_block(rows[c] + 32 * i, width, c, (uint8_t *)tile + i * 44 * width);
    }
}

/* A few inputs of every column at a time, so that what is written stays in the first cache. */
static void interleave(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    enum { STEP = 16 };
    float *out = tile;
    if (n_cols < width) memset(tile, 0, ath_tile_bytes(false, width, n_in));
    for (int64_t start = 0; start < n_in; start += STEP) {
        int64_t end = start + STEP < n_in ? start + STEP : n_in;
        for (int c = 0; c < n_cols; c++) {
            for (int64_t k = start; k < end; k++) out[k * width + c] = rows[c][k];
        }
    }
}

void ath_matmul_kernels_c(ath_matmul_kernels *k) {
    memset(k, 0, sizeof *k);
    for (int format = 0; format < ATH_PANEL_COUNT; format++) {
        for (int w = 0; w < ATH_TILE_WIDTHS; w++)
            k->tile[format][w] = format < ATH_PANEL_QUANTISED ? tile_quantised : tile_float;
    }
    k->quantise = quantise;
    k->interleave = interleave;
    k->columns[0] = ATH_TILE_MAX;
    k->columns[1] = ATH_TILE_MAX / 2;
    k->isa = "c";
}
