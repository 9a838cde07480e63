/* Trellis encoders of the x86 instruction sets: many tokens at once, one per 16-bit lane. */
#ifndef ATH_KERNELS_TRELLIS_X86_H
#define ATH_KERNELS_TRELLIS_X86_H

#include "codec/kv_page.h"

enum { ATH_TRELLIS_LANES_AVX512 = 32, ATH_TRELLIS_LANES_AVX2 = 16 };

/* x[n][lanes], as ath_trellis_encode takes it, to streams words[n * k / 16][lanes]; squares[lanes]: the sum
 * of the squares of the table values that a stream stands for. */
void ath_trellis_strip_avx512(const ath_turbo_code *code, const int16_t (*x)[ATH_TRELLIS_LANES_AVX512], int n,
                              uint16_t (*words)[ATH_TRELLIS_LANES_AVX512], int32_t *squares);
void ath_trellis_strip_avx2(const ath_turbo_code *code, const int16_t (*x)[ATH_TRELLIS_LANES_AVX2], int n,
                            uint16_t (*words)[ATH_TRELLIS_LANES_AVX2], int32_t *squares);

#endif
