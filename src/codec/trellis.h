/* Symbols of a turbo code: states, and the reference encoder of the trellis types (docs/turbo_format.md,
 * "Trellis"). */
#ifndef ATH_CODEC_TRELLIS_H
#define ATH_CODEC_TRELLIS_H

#include "codec/kv_page.h"

enum {
    ATH_TRELLIS_GROUPS = 16, /* 2^(L-k) of every trellis type: states that differ in their k high bits */
    ATH_TRELLIS_REACH = 48,  /* bits before and after a stream's seam that its state there is chosen from */
    ATH_TRELLIS_CLIP = 96,   /* a difference counts at most this */
};

/* Entry of the table that a state stands for. */
static inline unsigned ath_turbo_index(const ath_turbo_code *code, unsigned state) {
    return (state ^ (code->L > code->w ? state >> code->w : 0)) & ((1u << code->w) - 1);
}

/* state_i of a part of n symbols. */
static inline unsigned ath_turbo_state(const ath_turbo_code *code, const uint8_t *symbols, int n, int i) {
    unsigned state = 0;
    for (int j = 0; j * code->k < code->L; j++) state |= (unsigned)symbols[(i + j) % n] << j * code->k;
    return state & ((1u << code->L) - 1);
}

/* symbols[n] of x[n], 16 <= n <= 128, in the code's target units and within its limit. */
void ath_trellis_encode(const ath_turbo_code *code, const int16_t *x, int n, uint8_t *symbols);

#endif
