/* The gated delta rule with AVX2. */
#include "kernels/delta_lanes.h"

void ath_delta_rule_avx2(const ath_delta_block *block) {
    delta_rule(block);
}
