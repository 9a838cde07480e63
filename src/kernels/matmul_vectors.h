/* What the matrix products of AVX2, AVX-512 and NEON share beside the products: the scales of tiles of
 * activations and the table of kernels. A file defines tile_float, and type##_w##width of quantised types. */
#ifndef ATH_KERNELS_MATMUL_VECTORS_H
#define ATH_KERNELS_MATMUL_VECTORS_H

#include <string.h>

#include "base/half.h"
#include "kernels/matmul.h"
#include "kernels/unroll.h"

/* How the 32 values of a block become integers. */
typedef struct block_scale {
    float dx, scale; /* value of one step; its inverse */
    bool finite;
    bool zero; /* all integers are zero */
} block_scale;

/* top: bits of the largest magnitude, so that infinities and NaN come out largest. */
ATH_INLINE block_scale block_scale_of(uint32_t top) {
    float amax = ath_f32_from_bits(top);
    block_scale s = {.dx = amax / 127.0f, .scale = 127.0f / amax, .finite = top < 0x7f800000};
    if (s.finite && amax < 0x1p-100f) s.dx = 0;
    s.zero = !s.finite || s.dx == 0;
    return s;
}

/* What stands behind the integers of column c; sum: of 16 integers each. */
ATH_INLINE void store_block_scale(const block_scale s, const int16_t *sum, int width, int c, uint8_t *tile) {
    float sx = s.finite ? (float)(sum[0] + sum[1]) * s.dx : s.dx;
    memcpy(tile + 32 * width + 4 * c, &s.dx, 4);
    memcpy(tile + 36 * width + 4 * c, &sx, 4);
    memcpy(tile + 40 * width + 4 * c, sum, 4);
}

/* block quantises 32 values into column c of a tile's block. */
ATH_INLINE void quantise_with(void (*block)(const float *x, int width, int c, uint8_t *tile),
                              const float *const *rows, int n_cols, int width, int64_t n_in, void *tile) {
    if (n_cols < width) memset(tile, 0, ath_tile_bytes(true, width, n_in));
    for (int64_t i = 0; i < n_in / 32; i++) {
        for (int c = 0; c < n_cols; c++) block(rows[c] + 32 * i, width, c, (uint8_t *)tile + i * 44 * width);
    }
}

#define FLOAT_TILE(type, width)                                                                              \
    static void type##_w##width(const ath_matmul_tile *t) {                                                  \
        tile_float(ATH_PANEL_##type, width, t);                                                              \
    }
#define FLOAT_TILES(type)                                                                                    \
    FLOAT_TILE(type, 1) FLOAT_TILE(type, 2) FLOAT_TILE(type, 4) FLOAT_TILE(type, 8) FLOAT_TILE(type, 16)

/* The kernels of a type into ath_matmul_kernels *k. */
#define SET_TILES(type)                                                                                      \
    k->tile[ATH_PANEL_##type][0] = type##_w1;                                                                \
    k->tile[ATH_PANEL_##type][1] = type##_w2;                                                                \
    k->tile[ATH_PANEL_##type][2] = type##_w4;                                                                \
    k->tile[ATH_PANEL_##type][3] = type##_w8;
#define SET_FLOAT_TILES(type) SET_TILES(type) k->tile[ATH_PANEL_##type][4] = type##_w16;

#endif
