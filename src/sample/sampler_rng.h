/* The 32-bit Mersenne Twister (Matsumoto and Nishimura, 1998) and uniform numbers made of it by libstdc++'s
 * rules: C++'s standard leaves these open, and a seed has to mean the same draws as in programs built with
 * that library. */
#ifndef ATH_SAMPLE_SAMPLER_RNG_H
#define ATH_SAMPLE_SAMPLER_RNG_H

#include <stdint.h>

typedef struct ath_rng {
    uint32_t state[624];
    int next; /* 624: the state has to be renewed first */
} ath_rng;

void ath_rng_seed(ath_rng *rng, uint32_t seed);
uint32_t ath_rng_next(ath_rng *rng);
double ath_rng_double(ath_rng *rng); /* [0, 1), two draws */
float ath_rng_float(ath_rng *rng);   /* [0, 1), one draw */

#endif
