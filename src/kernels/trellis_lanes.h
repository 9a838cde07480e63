/* The encoder of the trellis types with tokens in 16-bit lanes: the symbols of ath_trellis_encode
 * (docs/turbo_format.md, "Trellis encoder"). An instruction set's file defines the vector type and its few
 * operations, then includes this.
 *
 *   lanes_t, LANES                   vector of LANES unsigned 16-bit numbers
 *   lanes_load, lanes_store          unaligned
 *   lanes_set(x)                     x in all lanes
 *   lanes_add_saturated, lanes_sub, lanes_mul
 *   lanes_distance(a, b)             |a - b| of signed numbers
 *   lanes_min, lanes_and, lanes_or, lanes_xor
 *   lanes_shl, lanes_shr             by a constant
 *   lanes_append(a, b)               a >> 4 | b << 12
 *   lanes_where_equal(a, b, x, y)    a == b ? y : x
 *   lanes_square(squares, e, w)      squares[e] of 2^w entries
 *   lanes_widen(sum, x)              sum[0], sum[1] += even, odd lanes of x in 32 bits
 *
 * A cost is kept in a word with the group's high bits (h) in its k low bits, which costs leave free: the
 * least word is the least cost and among equals the lowest h. */
#ifndef ATH_KERNELS_TRELLIS_LANES_H
#define ATH_KERNELS_TRELLIS_LANES_H

#include <string.h>

#include "codec/trellis.h"
#include "kernels/unroll.h"

enum { GROUPS = ATH_TRELLIS_GROUPS, PACKED = GROUPS / 4, RENORMALISE = 4 };

/* Constants of a code that the compiler must see; and those that it need not. */
typedef struct trellis_shape {
    int k, L, w;
} trellis_shape;

typedef struct trellis_walk {
    lanes_t cost[GROUPS];
    lanes_t target[64];
    lanes_t squares[64 / sizeof(lanes_t)]; /* 64 bytes of |value|, as lanes_square wants them */
    uint16_t high[128][PACKED][LANES];     /* h of four groups in a word */
} trellis_walk;

ATH_INLINE lanes_t least_cost(const lanes_t *cost) {
    lanes_t least = cost[0];
    ATH_UNROLL
    for (int g = 1; g < GROUPS; g++) least = lanes_min(least, cost[g]);
    return least;
}

/* One step at x; its choices go to high. */
ATH_INLINE void walk_step(const trellis_shape shape, trellis_walk *walk, const int16_t *x,
                          uint16_t (*high)[LANES]) {
    const int k = shape.k, shift = shape.L - shape.k, n_branches = 1 << shape.w;
    const lanes_t keep = lanes_set((uint16_t)(0xffff << k)), clip = lanes_set(ATH_TRELLIS_CLIP);
    lanes_t branch[64], cost[GROUPS], value = lanes_load(x);
    ATH_UNROLL
    for (int e = 0; e < n_branches; e++) {
        lanes_t d = lanes_min(lanes_distance(value, walk->target[e]), clip);
        branch[e] = lanes_and(lanes_mul(d, d), keep);
    }
    ATH_UNROLL
    for (int g = 0; g < GROUPS; g++) cost[g] = walk->cost[g];
    lanes_t packed = lanes_set(0);
    ATH_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        lanes_t best = lanes_set(0xffff);
        ATH_UNROLL
        for (int h = 0; h < 1 << k; h++) {
            const int state = g | h << shift, e = (state ^ state >> shape.w) & (n_branches - 1);
            best = lanes_min(best, lanes_add_saturated(cost[state >> k], branch[e]));
        }
        packed = lanes_append(packed, best);
        if (g % 4 == 3) lanes_store(high[g / 4], packed);
        walk->cost[g] = lanes_or(lanes_and(best, keep), lanes_set((uint16_t)(g << k >> shift)));
    }
}

/* Keeps costs below 2^16: between groups they differ by at most 3 * ATH_TRELLIS_CLIP^2, and 4 steps add as
 * much each. */
ATH_INLINE void renormalise(const trellis_shape shape, trellis_walk *walk) {
    lanes_t least = lanes_and(least_cost(walk->cost), lanes_set((uint16_t)(0xffff << shape.k)));
    ATH_UNROLL
    for (int g = 0; g < GROUPS; g++) walk->cost[g] = lanes_sub(walk->cost[g], least);
}

/* The state before a step's survivor of a group. */
ATH_INLINE lanes_t survivor(const trellis_shape shape, uint16_t (*high)[LANES], lanes_t group) {
    const lanes_t bit0 = lanes_set(1), bit1 = lanes_set(2), bit2 = lanes_set(4), bit3 = lanes_set(8);
    lanes_t g = lanes_and(group, bit2);
    lanes_t a = lanes_where_equal(g, bit2, lanes_load(high[0]), lanes_load(high[1]));
    lanes_t b = lanes_where_equal(g, bit2, lanes_load(high[2]), lanes_load(high[3]));
    a = lanes_where_equal(lanes_and(group, bit3), bit3, a, b);
    a = lanes_where_equal(lanes_and(group, bit1), bit1, a, lanes_shr(a, 8));
    a = lanes_where_equal(lanes_and(group, bit0), bit0, a, lanes_shr(a, 4));
    a = lanes_and(a, lanes_set((uint16_t)((1 << shape.k) - 1)));
    return lanes_or(group, lanes_shl(a, shape.L - shape.k));
}

ATH_INLINE lanes_t seam_state(const trellis_shape shape, trellis_walk *walk, const int16_t (*x)[LANES],
                              int n) {
    const int reach = ATH_TRELLIS_REACH / shape.k;
    for (int g = 0; g < GROUPS; g++)
        walk->cost[g] = lanes_set((uint16_t)(g << shape.k >> (shape.L - shape.k)));
    for (int step = 0; step < 2 * reach; step++) {
        walk_step(shape, walk, x[(4 * n + reach - 1 - step) % n], walk->high[step]);
        if (step % RENORMALISE == RENORMALISE - 1) renormalise(shape, walk);
    }
    const lanes_t keep = lanes_set((uint16_t)(0xffff << shape.k));
    lanes_t least = lanes_and(least_cost(walk->cost), keep), group = lanes_set(0), state = group;
    for (int g = GROUPS - 1; g >= 0; g--)
        group = lanes_where_equal(lanes_and(walk->cost[g], keep), least, group, lanes_set((uint16_t)g));
    for (int step = 2 * reach - 1; step >= reach - 1; step--) {
        state = survivor(shape, walk->high[step], group);
        group = lanes_shr(state, shape.k);
    }
    return state;
}

/* Symbols of 16 values from first on into k words; their squares into sum. Returns the state of the next
 * value. */
ATH_INLINE lanes_t trace_16(const trellis_shape shape, trellis_walk *walk, int first, int n, lanes_t state,
                            uint16_t (*words)[LANES], lanes_t *sum) {
    const lanes_t symbol_mask = lanes_set((uint16_t)((1 << shape.k) - 1));
    const lanes_t index_mask = lanes_set((uint16_t)((1 << shape.w) - 1));
    lanes_t out[4] = {lanes_set(0), lanes_set(0), lanes_set(0), lanes_set(0)}, square = lanes_set(0);
    ATH_UNROLL
    for (int i = 0; i < 16; i++) {
        const int word = shape.k * i / 16, bit = shape.k * i % 16;
        lanes_t symbol = lanes_and(state, symbol_mask);
        out[word] = lanes_or(out[word], lanes_shl(symbol, bit));
        if (bit + shape.k > 16) out[word + 1] = lanes_shr(symbol, 16 - bit);
        lanes_t index = lanes_and(lanes_xor(state, lanes_shr(state, shape.w)), index_mask);
        square = lanes_add_saturated(square, lanes_square(walk->squares, index, shape.w));
        if (i % 4 == 3) { /* four squares of at most 127^2 fit */
            lanes_widen(sum, square);
            square = lanes_set(0);
        }
        if (first + i + 1 < n) state = survivor(shape, walk->high[first + i + 1], lanes_shr(state, shape.k));
    }
    for (int i = 0; i < shape.k; i++) lanes_store(words[i], out[i]);
    return state;
}

ATH_INLINE void encode_strip(const trellis_shape shape, const ath_turbo_code *code, const int16_t (*x)[LANES],
                             int n, uint16_t (*words)[LANES], int32_t *squares) {
    trellis_walk walk;
    uint8_t magnitudes[64];
    for (int e = 0; e < 64; e++) {
        int value = code->table[e % (1 << shape.w)];
        magnitudes[e] = (uint8_t)(value < 0 ? -value : value);
        walk.target[e] = lanes_set((uint16_t)code->targets[e % (1 << shape.w)]);
    }
    memcpy(walk.squares, magnitudes, sizeof magnitudes);
    lanes_t state = seam_state(shape, &walk, x, n), group = lanes_and(state, lanes_set(GROUPS - 1));
    for (int g = 0; g < GROUPS; g++) {
        lanes_t unreachable = lanes_set((uint16_t)(0xffff << shape.k)), none = lanes_set(0);
        lanes_t cost = lanes_where_equal(group, lanes_set((uint16_t)g), unreachable, none);
        walk.cost[g] = lanes_or(cost, lanes_set((uint16_t)(g << shape.k >> (shape.L - shape.k))));
    }
    for (int i = n - 1; i > 0; i--) {
        walk_step(shape, &walk, x[i], walk.high[i]);
        if (i % RENORMALISE == 0) renormalise(shape, &walk);
    }
    lanes_t sum[2] = {lanes_set(0), lanes_set(0)};
    for (int i = 0; i < n; i += 16)
        state = trace_16(shape, &walk, i, n, state, words + shape.k * i / 16, sum);
    uint32_t halves[2][LANES / 2];
    memcpy(halves, sum, sizeof halves);
    for (int i = 0; i < LANES; i++) squares[i] = (int32_t)halves[i % 2][i / 2];
}

/* x[n][LANES] to streams words[n * k / 16][LANES] and the sum of the squares of the values that they stand
 * for. */
static void encode_trellis_strip(const ath_turbo_code *code, const int16_t (*x)[LANES], int n,
                                 uint16_t (*words)[LANES], int32_t *squares) {
    if (code->k == 4)
        encode_strip((trellis_shape){4, 8, 6}, code, x, n, words, squares);
    else if (code->k == 3)
        encode_strip((trellis_shape){3, 7, 4}, code, x, n, words, squares);
    else
        encode_strip((trellis_shape){2, 6, 4}, code, x, n, words, squares);
}

#endif
