/* The element-wise kernels with AVX-512. */
#include "kernels/elementwise_lanes.h"

void ath_elementwise_kernels_avx512(ath_elementwise_kernels *k) {
    elementwise_kernels(k);
}
