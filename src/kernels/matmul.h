/* Matrix products: the layout of weights and activations, and the kernels over them.
 *
 * Weights lie in panels of 16 output rows (the last one of a matrix padded with zero rows); lanes are rows.
 *
 * Panel of a quantised type: for each block of 32 inputs its codes, then all scales (offset panel_scales_at).
 *   A block has 512 codes in 8 groups of 64: group g holds inputs 4g..4g+3, code at 4*row + (input % 4).
 *   Bits of a code, low ones first, in planes of 64 bytes (byte j of a plane serves code j of its groups):
 *     8 bits           8 planes, one per group
 *     low 4 bits       4 planes: plane p has group 2p in the low and 2p+1 in the high nibble (types of 4, 5, 6 bits)
 *     low/high 2 bits  2 planes: plane p has groups 4p..4p+3, two bits each (low of 2 and 3 bits, high of 6)
 *     high 1 bit       1 plane: bit g is group g (types of 3 and 5 bits)
 *   Scales: for each head (blocks in matmul_formats.def) f16 d[16], f16 m[16] if there is a minimum (MXFP4: one
 *   byte e[16] instead of both), then for each of its blocks
 *     sub 1:  int8 sc[16], and u8 mn[16] if there is a minimum
 *     sub 2:  int8 sc[2][16], or with a minimum (Q2_K) u8 [2][16] with sc in the low and mn in the high nibble
 * Panel of a float type: [n_in][16] values of the type.
 *
 * Activations lie in tiles of `width` columns (1, 2, 4, 8 or 16), so that one pointer serves all. Quantised, for
 * each block: int8 q[8 groups][width][4], or q[16][32] in a tile of 16; float dx[width], float sx[width],
 * int16 sum[width][2], where
 *   amax   = largest |x| of the 32
 *   dx     = amax / 127
 *   q      = round to nearest even(x * (127 / amax))
 *   sum[h] = sum of q over inputs 16h..16h+15
 *   sx     = (float)(sum[0] + sum[1]) * dx
 * If amax < 2^-100, q = 0 and dx = 0; if it is infinite or NaN, q = 0 and dx = sx = amax / 127, so the outputs are
 * NaN. Float: [n_in][width].
 *
 * The product of a row and a column, the same bits in every version: acc = 0; for each block, ascending:
 *   sub 0, 1: idot = sum of value * q (exact integer);               dw = d, or d * (float)sc for sub 1
 *   sub 2:    idot = sc[0] * dot of the first 16 + sc[1] * dot of the others (exact in int32);       dw = d
 *   acc = fmaf((float)idot, dw * dx, acc)
 *   with a minimum: Q4_1, Q5_1:   acc = fmaf(m, sx, acc)
 *                   Q4_K, Q5_K:   acc = fmaf(-(m * (float)mn), sx, acc)
 *                   Q2_K:         acc = fmaf((float)(mn[0] * sum[0] + mn[1] * sum[1]), -m * dx, acc)
 * and for float types, for each 64 inputs (the last ones may be fewer): part = 0; part = fmaf(w, x, part) for
 * each input in ascending order; acc = acc + part. So a column takes one register, and a chain of fma ends
 * before the next one waits for it. */
#ifndef ATH_KERNELS_MATMUL_H
#define ATH_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/tensor_type.h"

enum {
    ATH_PANEL_ROWS = 16,
    ATH_TILE_MAX = 16,   /* columns of a tile */
    ATH_TILE_WIDTHS = 5, /* 1, 2, 4, 8, 16 */
    ATH_FLOAT_BLOCK = 64,
    ATH_PANEL_AHEAD = 4096, /* bytes that a kernel for one column fetches ahead, best of 512 to 8192 */
};

typedef enum ath_panel_format {
#define ATH_PANEL(type, bits, zero, table, blocks, min, sub) ATH_PANEL_##type,
#include "kernels/matmul_formats.def"
#undef ATH_PANEL
    ATH_PANEL_QUANTISED,
    ATH_PANEL_F32 = ATH_PANEL_QUANTISED,
    ATH_PANEL_F16,
    ATH_PANEL_BF16,
    ATH_PANEL_COUNT,
    ATH_PANEL_NONE = -1,
} ath_panel_format;

enum { ATH_TABLE_NONE, ATH_TABLE_IQ4, ATH_TABLE_E2M1 };

typedef struct ath_panel_info { /* a row of matmul_formats.def */
    ath_tensor_type type;
    int bits, zero, table, blocks, min, sub;
} ath_panel_info;

extern const ath_panel_info ath_panel_infos[ATH_PANEL_QUANTISED];
extern const int8_t *const ath_panel_tables[3]; /* 16 values each, by ATH_TABLE_*; the first is NULL */

/* Bytes of a block's codes, of a head and of a block's sub-scales: constants when the arguments are. */
static inline int ath_panel_code_bytes(int bits) {
    return 64 * bits;
}
static inline int ath_panel_head_bytes(int type, int min) {
    return type == ATH_TYPE_MXFP4 ? 16 : 32 + 32 * min;
}
static inline int ath_panel_sub_bytes(int min, int sub) {
    return sub == 2 ? 32 : sub * (16 + 16 * min);
}

/* The panel format of a type; ATH_PANEL_NONE for types that are expanded to F32 panels when they are used. */
ath_panel_format ath_panel_format_of(ath_tensor_type type);
/* Whole cache lines. */
size_t ath_panel_bytes(ath_panel_format format, int64_t n_in);

/* Packs n_rows <= 16 rows, row_bytes apart, in the file layout of the format's type; missing rows become
 * zero. */
void ath_panel_pack(ath_panel_format format, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n_in,
                    uint8_t *panel);
/* The same for any weight type, as an F32 panel. row: scratch of n_in floats. */
void ath_panel_expand(ath_tensor_type type, const uint8_t *rows, size_t row_bytes, int n_rows, int64_t n_in,
                      float *panel, float *row);

/* Width of the tile that holds n columns (n <= the largest width): the next power of two. */
static inline int ath_tile_width(int n) {
    return n > 8 ? 16 : n > 4 ? 8 : n > 2 ? 4 : n;
}
static inline int ath_tile_width_log2(int width) {
    return width == 16 ? 4 : width == 8 ? 3 : width / 2;
}
/* Where q of column c and input j of 32 lies in a block of a quantised tile. */
static inline int ath_tile_q_at(int width, int c, int j) {
    return width == ATH_TILE_MAX ? 32 * c + j : j / 4 * 4 * width + 4 * c + j % 4;
}
static inline size_t ath_tile_bytes(bool quantised, int width, int64_t n_in) {
    return (size_t)width * (size_t)(quantised ? n_in / 32 * 44 : n_in * 4);
}

typedef struct ath_matmul_tile {
    ath_panel_format format;
    const uint8_t *panel;
    const uint8_t *codes; /* what `expand` made of the panel; only `wide` reads it */
    const uint8_t *act;   /* tile, quantised or float as the format wants it */
    float *const *out;  /* [n_cols]: where the panel's first row goes */
    int64_t n_in;
    int width, n_cols; /* columns >= n_cols of the tile are padding */
    int n_rows;        /* <= 16 rows are stored */
} ath_matmul_tile;

typedef void (*ath_matmul_fn)(const ath_matmul_tile *tile);
/* Fills an activation tile from n_cols <= width rows of n_in values each; the other columns become zero. */
typedef void (*ath_act_fn)(const float *const *rows, int n_cols, int width, int64_t n_in, void *tile);

/* Unpacks the codes of a panel, one byte each, in a layout of the version's own: n_in * 16 bytes, 64-byte
 * aligned. */
typedef void (*ath_expand_fn)(const uint8_t *panel, int64_t n_in, uint8_t *codes);

typedef struct ath_matmul_kernels {
    ath_matmul_fn tile[ATH_PANEL_COUNT][ATH_TILE_WIDTHS]; /* [format][log2 width] */
    /* Many columns of a quantised type: codes are unpacked once, and tiles of columns[1] columns are
     * multiplied with them. NULL where a version has nothing faster than `tile`. */
    ath_expand_fn expand[ATH_PANEL_QUANTISED];
    ath_matmul_fn wide[ATH_PANEL_QUANTISED];
    /* Around a thread's calls of `wide`; NULL if nothing is needed. */
    void (*enter)(void), (*leave)(void);
    ath_act_fn quantise, interleave;
    int columns[2];  /* of the widest tile worth making: float, quantised */
    const char *isa; /* "avx512vnni" */
} ath_matmul_kernels;

/* The best kernels for a set of CPU flags (cpu_flags.h). */
void ath_matmul_kernels_init(ath_matmul_kernels *k, uint32_t flags);

/* One per instruction set: overwrite what they have a version of. */
void ath_matmul_kernels_c(ath_matmul_kernels *k);
void ath_matmul_kernels_avx2(ath_matmul_kernels *k);
void ath_matmul_kernels_avx512(ath_matmul_kernels *k);
void ath_matmul_kernels_amx(ath_matmul_kernels *k);
void ath_matmul_kernels_neon(ath_matmul_kernels *k);
void ath_matmul_kernels_dotprod(ath_matmul_kernels *k);
void ath_matmul_kernels_i8mm(ath_matmul_kernels *k);

#endif
