/* Attention on turbo pages with SDOT. */
#include <arm_neon.h>

#include "kernels/unroll.h"

ATH_INLINE int32x4_t dot_4(int32x4_t sum, int8x16_t x, int8x16_t y) {
    return vdotq_s32(sum, x, y);
}

#include "kernels/attention_turbo_arm.h"

void ath_attn_kernels_init_dotprod(ath_attn_kernels *k) {
    k->isa = "dotprod";
    k->turbo_scores = turbo_scores;
    k->turbo_accumulate = turbo_accumulate;
}
