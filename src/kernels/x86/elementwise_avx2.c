/* The element-wise kernels with AVX2. */
#include "kernels/elementwise_lanes.h"

void ath_elementwise_kernels_avx2(ath_elementwise_kernels *k) {
    elementwise_kernels(k);
}
