/* Butterflies of a column, that is of 16 tokens of a part, [channels][16]: encoding and expansion of pages share
 * them. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_KV_COLUMN_AVX512_H
#define ATH_KERNELS_KV_COLUMN_AVX512_H

#include "kernels/attention_avx512.h"

/* Butterflies inside blocks of 16 channels. */
static void ath_hadamard_blocks(float *x, int dim) {
    __m512 v[16];
    for (int c = 0; c < dim; c += 16) {
        for (int i = 0; i < 16; i++) v[i] = _mm512_load_ps(x + (c + i) * 16);
        ath_butterflies_avx512(v, 16, 1);
        ath_butterflies_avx512(v, 16, 2);
        ath_butterflies_avx512(v, 16, 4);
        ath_butterflies_avx512(v, 16, 8);
        for (int i = 0; i < 16; i++) _mm512_store_ps(x + (c + i) * 16, v[i]);
    }
}

/* Channel c of each of n blocks, a constant where it is called, after the butterflies between blocks. */
ATH_INLINE void ath_join_blocks(const int n, const float *x, int c, __m512 *v) {
    ATH_UNROLL
    for (int i = 0; i < n; i++) v[i] = _mm512_load_ps(x + (c + 16 * i) * 16);
    if (n > 1) ath_butterflies_avx512(v, n, 1);
    if (n > 2) ath_butterflies_avx512(v, n, 2);
    if (n > 4) ath_butterflies_avx512(v, n, 4);
}

/* body(n) for the blocks of a part. */
#define ATH_BLOCKS_DISPATCH(dim, body)                                                                       \
    do {                                                                                                     \
        if ((dim) == 128)                                                                                    \
            body(8);                                                                                         \
        else if ((dim) == 64)                                                                                \
            body(4);                                                                                         \
        else if ((dim) == 32)                                                                                \
            body(2);                                                                                         \
        else                                                                                                 \
            body(1);                                                                                         \
    } while (0)

#endif
