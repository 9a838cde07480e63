/* Vectors of floats under the same names for every instruction set, so that a kernel is written once: a
 * header <kernel>_lanes.h has its functions, and the files <kernel>_avx2.c, _avx512.c and _neon.c include it,
 * each compiled for its instruction set. Operations are added here when a kernel needs them.
 *
 *   vf, VF_LANES            a vector of VF_LANES floats: 8, 16, or 4
 *   vf_mask                 a choice of lanes
 *
 *   vf_load, vf_store       unaligned
 *   vf_load_f16, _bf16      of half floats, as floats
 *   vf_set(x)               x in all lanes
 *   vf_add, sub, mul, div
 *   vf_fma(a, b, c)         a * b + c, rounded once
 *   vf_fnma(a, b, c)        -a * b + c, rounded once
 *   vf_neg(x)               with the other sign, NaN too
 *   vf_min, vf_max(a, b)    NaN where b is NaN; a must be a number
 *   vf_max_known(a, b)      a where b is NaN; a must be a number
 *   vf_round(x)             to the nearest whole number, ties to even
 *   vf_scale(x, n)          x * 2^n for whole n from -150 to 129 and |x| in [0.5, 2], rounded once
 *
 *   vf_not_le(a, b)         lanes where a > b, or one of them is NaN
 *   vf_between(t, lo, hi)   lanes i with lo <= t + i < hi
 *   vf_keep(mask, x)        x in the lanes of mask, 0 in the others
 *   vf_where(mask, a, b)    a in the lanes of mask, b in the others
 *   vf_max_where(mask, a, b)  vf_max_known(a, b) in the lanes of mask, a in the others
 *
 *   vf_sum_16(x)            of 16 / VF_LANES vectors, halves first, as ath_sum_lanes
 *   vf_top(x)               the greatest lane, of numbers */
#ifndef ATH_KERNELS_LANES_H
#define ATH_KERNELS_LANES_H

#if defined(__AVX512F__)
#include "kernels/lanes_avx512.h"
#elif defined(__AVX2__)
#include "kernels/lanes_avx2.h"
#elif defined(__aarch64__)
#include "kernels/lanes_neon.h"
#endif

#endif
