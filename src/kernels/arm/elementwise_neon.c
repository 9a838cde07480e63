/* The element-wise kernels with NEON. */
#include "kernels/elementwise_lanes.h"

void ath_elementwise_kernels_neon(ath_elementwise_kernels *k) {
    elementwise_kernels(k);
}
