/* The gated delta rule with NEON. */
#include "kernels/delta_lanes.h"

void ath_delta_rule_neon(const ath_delta_block *block) {
    delta_rule(block);
}
