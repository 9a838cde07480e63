/* The gated delta rule with AVX-512. */
#include "kernels/delta_lanes.h"

void ath_delta_rule_avx512(const ath_delta_block *block) {
    delta_rule(block);
}
