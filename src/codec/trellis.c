/* The reference encoder of the trellis types: Viterbi's algorithm with integer costs, one token at a time.
 *
 * Walking a stream from its last value to its first, a step from state_{i+1} to state_i shifts a new symbol
 * in at the low end, so the states that differ in their k high bits only (a group) lead to the same states:
 * one survivor of each of the 16 groups is all that a step hands to the next. The stream is circular: first
 * its state at the seam is chosen from the values around it, then the best path from that state back to it.
 */
#include "codec/trellis.h"

#include <stdlib.h>
#include <string.h>

enum { GROUPS = ATH_TRELLIS_GROUPS, UNREACHABLE = 1 << 30, MAX_STEPS = 128 };

/* Costs of the groups' survivors, and each step's survivors: their k high bits. */
typedef struct trellis_walk {
    int32_t cost[GROUPS];
    uint8_t high[MAX_STEPS][GROUPS];
} trellis_walk;

static void walk_step(const ath_turbo_code *code, trellis_walk *walk, int step, int x) {
    int32_t branch[1 << 6], cost[GROUPS];
    for (int e = 0; e < 1 << code->w; e++) {
        int difference = abs(x - code->targets[e]);
        if (difference > ATH_TRELLIS_CLIP) difference = ATH_TRELLIS_CLIP;
        branch[e] = difference * difference >> code->k << code->k;
    }
    for (unsigned group = 0; group < GROUPS; group++) {
        cost[group] = INT32_MAX;
        for (unsigned high = 0; high < 1u << code->k; high++) {
            unsigned state = group | high << (code->L - code->k);
            int32_t candidate = walk->cost[state >> code->k] + branch[ath_turbo_index(code, state)];
            if (candidate >= cost[group]) continue; /* the lowest of equals */
            cost[group] = candidate;
            walk->high[step][group] = (uint8_t)high;
        }
    }
    memcpy(walk->cost, cost, sizeof cost);
}

/* The state before a step's survivor of a group. */
static unsigned survivor(const ath_turbo_code *code, const trellis_walk *walk, int step, unsigned group) {
    return group | (unsigned)walk->high[step][group] << (code->L - code->k);
}

/* state_0 of the best path over the values from reach - 1 down to -reach, without a condition at its ends. */
static unsigned seam_state(const ath_turbo_code *code, const int16_t *x, int n, trellis_walk *walk) {
    int reach = ATH_TRELLIS_REACH / code->k;
    memset(walk->cost, 0, sizeof walk->cost);
    for (int step = 0; step < 2 * reach; step++) {
        walk_step(code, walk, step, x[(4 * n + reach - 1 - step) % n]); /* n may be less than reach */
    }
    unsigned group = 0, state = 0;
    for (unsigned g = 1; g < GROUPS; g++) {
        if (walk->cost[g] < walk->cost[group]) group = g;
    }
    for (int step = 2 * reach - 1; step >= reach - 1; step--) {
        state = survivor(code, walk, step, group);
        group = state >> code->k;
    }
    return state;
}

void ath_trellis_encode(const ath_turbo_code *code, const int16_t *x, int n, uint8_t *symbols) {
    trellis_walk walk;
    unsigned state = seam_state(code, x, n, &walk);
    for (unsigned g = 0; g < GROUPS; g++) walk.cost[g] = g == state % GROUPS ? 0 : UNREACHABLE;
    for (int i = n - 1; i > 0; i--) walk_step(code, &walk, i, x[i]);
    for (int i = 0; i < n; i++) {
        symbols[i] = (uint8_t)(state & ((1u << code->k) - 1));
        if (i < n - 1) state = survivor(code, &walk, i + 1, state >> code->k);
    }
}
