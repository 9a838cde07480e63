/* Matrix products of attention with AMX: 16 x 16 sums of bf16 products per instruction. A float goes in as two or three
 * bf16, each what the ones before it left over, rounded. */
#include <immintrin.h>
#include <string.h>

#include "kernels/attention_x86.h"

enum { TILE = 256, STEPS = 32, LANES = 16 }; /* dwords of a tile; what it holds of an operand: 16 rows or lanes */

typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_shapes;

/* In static memory: gcc 12 takes it that only its first bytes are read. Nor does it know that tiles are loaded from memory,
 * so that what is loaded must have been stored by another function. */
static const tile_shapes shapes = {.palette = 1,
                                   .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                   .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void begin(void) { _tile_loadconfig(&shapes); }

static void end(void) { _tile_release(); }

/* The first 8 bits of x, rounded, in the upper half of a dword that counts alone; x becomes what they leave over. */
ATH_INLINE __m512i split(__m512 *x) {
    __m512i high = _mm512_add_epi32(_mm512_castps_si512(*x), _mm512_set1_epi32(0x8000));
    __m512i kept = _mm512_and_si512(high, _mm512_set1_epi32(-0x10000));
    *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(kept));
    return high;
}

/* 2 x 16 floats to a row of the tile of each part, in an order of 16-bit halves of (x, y). */
ATH_INLINE void store_split(__m512 x, __m512 y, int parts, __m512i order, uint32_t *out) {
    for (int p = 0; p < parts; p++, out += TILE) {
        __m512i first = split(&x);
        _mm512_storeu_si512(out, _mm512_permutex2var_epi16(first, order, split(&y)));
    }
}

ATH_INLINE void pack_rows_parts(const int parts, const float *a, int n, int steps, uint32_t *out) {
    uint16_t halves[32]; /* the upper halves of x, then of y */
    for (int i = 0; i < 32; i++) halves[i] = (uint16_t)(2 * i + 1);
    __m512i order = _mm512_loadu_si512(halves);
    for (int row = 0; row < (n + ATH_MATRIX_ROWS - 1) / ATH_MATRIX_ROWS * ATH_MATRIX_ROWS; row++) {
        uint32_t *to = out + (int64_t)(row / 16) * (steps / STEPS) * parts * TILE + row % 16 * 16;
        const float *from = a + (int64_t)row * steps;
        for (int s = 0; s < steps; s += STEPS, to += parts * TILE) {
            __m512 x = row < n ? _mm512_loadu_ps(from + s) : _mm512_setzero_ps();
            __m512 y = row < n ? _mm512_loadu_ps(from + s + 16) : _mm512_setzero_ps();
            store_split(x, y, parts, order, to);
        }
    }
}

ATH_INLINE void pack_steps_parts(const int parts, const float *b, int steps, int lanes, uint32_t *out) {
    uint16_t halves[32]; /* the upper half of a lane of x, then of y */
    for (int i = 0; i < 32; i++) halves[i] = (uint16_t)(32 * (i % 2) + (i | 1));
    __m512i order = _mm512_loadu_si512(halves);
    for (int s = 0; s < steps; s += 2, b += 2 * lanes)
        for (int lane = 0; lane < lanes; lane += LANES) {
            uint32_t *to = out + ((int64_t)lane / LANES * (steps / STEPS) + s / STEPS) * parts * TILE + s % STEPS / 2 * 16;
            store_split(_mm512_loadu_ps(b + lane), _mm512_loadu_ps(b + lanes + lane), parts, order, to);
        }
}

/* Sums are tiles 0 to 3: rows 0 with lanes 0, rows 1 with lanes 0, then both with lanes 1. */
#define MULTIPLY()                                                                                           \
    do {                                                                                                     \
        _tile_dpbf16ps(0, 4, 6);                                                                             \
        _tile_dpbf16ps(1, 5, 6);                                                                             \
        _tile_dpbf16ps(2, 4, 7);                                                                             \
        _tile_dpbf16ps(3, 5, 7);                                                                             \
    } while (0)
#define LOAD_ROWS(part)                                                                                      \
    do {                                                                                                     \
        _tile_loadd(4, a + (part) * TILE, 64);                                                               \
        _tile_loadd(5, a + (part) * TILE + next, 64);                                                        \
    } while (0)
#define LOAD_LANES(part)                                                                                     \
    do {                                                                                                     \
        _tile_loadd(6, b + (part) * TILE, 64);                                                               \
        _tile_loadd(7, b + (part) * TILE + next, 64);                                                        \
    } while (0)

/* 32 rows by 32 lanes. Of parts i and j those products are left out that are as small as what the last part leaves over. */
ATH_INLINE void product_block(const int parts, const uint32_t *a, const uint32_t *b, int steps, float *out, int64_t lanes,
                              bool add) {
    const size_t stride = (size_t)lanes * sizeof *out;
    const int64_t next = (int64_t)(steps / STEPS) * parts * TILE;
    if (add) {
        _tile_loadd(0, out, stride);
        _tile_loadd(1, out + 16 * lanes, stride);
        _tile_loadd(2, out + 16, stride);
        _tile_loadd(3, out + 16 * lanes + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int s = 0; s < steps; s += STEPS, a += parts * TILE, b += parts * TILE) {
        LOAD_ROWS(0);
        if (parts == 3) {
            LOAD_LANES(2);
            MULTIPLY();
        }
        LOAD_LANES(1);
        MULTIPLY();
        if (parts == 3) {
            LOAD_ROWS(1);
            MULTIPLY();
            LOAD_LANES(0);
            MULTIPLY();
            LOAD_ROWS(2);
            MULTIPLY();
            LOAD_ROWS(0);
        } else {
            LOAD_LANES(0);
            MULTIPLY();
            LOAD_ROWS(1);
        }
        MULTIPLY();
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 16 * lanes, stride);
    _tile_stored(2, out + 16, stride);
    _tile_stored(3, out + 16 * lanes + 16, stride);
}

ATH_INLINE void product_parts(const int parts, const uint32_t *a, const uint32_t *b, int n, int steps, int lanes, float *out,
                              bool add) {
    int64_t step = (int64_t)steps / STEPS * parts * TILE;
    for (int row = 0; row < n; row += ATH_MATRIX_ROWS)
        for (int lane = 0; lane < lanes; lane += ATH_MATRIX_LANES)
            product_block(parts, a + row / 16 * step, b + lane / LANES * step, steps, out + (int64_t)row * lanes + lane, lanes,
                          add);
}

static void pack_rows(const float *a, int n, int steps, int parts, uint32_t *out) {
    if (parts == 2)
        pack_rows_parts(2, a, n, steps, out);
    else
        pack_rows_parts(3, a, n, steps, out);
}

static void pack_steps(const float *b, int steps, int lanes, int parts, uint32_t *out) {
    if (parts == 2)
        pack_steps_parts(2, b, steps, lanes, out);
    else
        pack_steps_parts(3, b, steps, lanes, out);
}

static void product(const uint32_t *a, const uint32_t *b, int n, int steps, int lanes, int parts, float *out, bool add) {
    if (parts == 2)
        product_parts(2, a, b, n, steps, lanes, out, add);
    else
        product_parts(3, a, b, n, steps, lanes, out, add);
}

void ath_attn_kernels_init_amx(ath_attn_kernels *k) {
    static const ath_attn_matrix matrix = {begin, end, pack_rows, pack_steps, product};
    k->isa = "avx512 amx";
    k->matrix = &matrix;
}
