/* Vectors of floats under the same names for every instruction set, so that a kernel is written once: a
 * header <kernel>_lanes.h has its functions, and the files <kernel>_avx2.c, _avx512.c and _neon.c include it,
 * each compiled for its instruction set. Operations are added here when a kernel needs them.
 *
 *   vf, VF_LANES            a vector of VF_LANES floats: 8, 16, or 4
 *   vf_mask                 a choice of lanes
 *
 *   vf_load, vf_store       unaligned
 *   vf_load_f16, _bf16      of half floats, as floats
 *   vf_store_bf16           rounded to nearest, ties to even; so the next
 *   vf_store_i16            as integers, which must fit
 *   vf_set(x)               x in all lanes
 *   vf_add, sub, mul, div
 *   vf_fma(a, b, c)         a * b + c, rounded once
 *   vf_fnma(a, b, c)        -a * b + c, rounded once
 *   vf_neg(x)               with the other sign, NaN too
 *   vf_min, vf_max(a, b)    NaN where b is NaN; a must be a number
 *   vf_max_known(a, b)      a where b is NaN; a must be a number
 *   vf_sqrt(x)
 *   vf_round(x)             to the nearest whole number, ties to even
 *   vf_scale(x, n)          x * 2^n for whole n from -150 to 129 and |x| in [0.5, 2], rounded once
 *
 *   vf_not_le, vf_not_lt    lanes where a > b, a >= b, or one of them is NaN
 *   vf_between(t, lo, hi)   lanes i with lo <= t + i < hi
 *   vf_keep(mask, x)        x in the lanes of mask, 0 in the others
 *   vf_where(mask, a, b)    a in the lanes of mask, b in the others
 *   vf_max_where(mask, a, b)  vf_max_known(a, b) in the lanes of mask, a in the others
 *
 *   vf_sum_16(x)            of 16 / VF_LANES vectors, halves first, as ath_sum_lanes
 *   vf_top(x)               the greatest lane, of numbers
 *
 *   vi                      a vector of VF_LANES 32-bit integers
 *   vi_load(p), vi_set(x)   unaligned; x in all lanes
 *   vf_of_vi(x)             as floats
 *
 * On x86 also:
 *
 *   vf_min_known(a, b)      as vf_max_known
 *   vf_abs(x), vf_copysign(a, b)
 *   vf_gt, vf_ge(a, b)      lanes where a > b, a >= b
 *   vf_not_eq(a, b)         lanes where a < b, a > b, or one of them is NaN
 *   vf_store_f16            rounded to nearest, ties to even
 *   vf_look_up(t, i)        t[i] for indices 0 to 15 of t[16]; vi_look_up: of integers
 *   vi_load_u16(p)          of 16-bit numbers
 *   vi_store, vi_add, and, or
 *   vi_shl, vi_shr(x, n)    unsigned, by the same n in all lanes
 *   vi_keep(mask, x)        as vf_keep
 *   vi_increment(x, mask)   x + 1 in the lanes of mask, x in the others
 *   vi_of_vf(x)             cut off towards zero */
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
