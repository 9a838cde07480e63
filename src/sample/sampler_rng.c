/* mt19937. See sampler_rng.h. */
#include "sample/sampler_rng.h"

#include <math.h>

enum { N = 624, M = 397 };

void ath_rng_seed(ath_rng *rng, uint32_t seed) {
    rng->state[0] = seed;
    for (uint32_t i = 1; i < N; i++) {
        uint32_t previous = rng->state[i - 1];
        rng->state[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
    rng->next = N;
}

static void renew(uint32_t *state) {
    for (int i = 0; i < N; i++) {
        uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % N] & 0x7fffffffu);
        state[i] = state[(i + M) % N] ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0);
    }
}

uint32_t ath_rng_next(ath_rng *rng) {
    if (rng->next == N) {
        renew(rng->state);
        rng->next = 0;
    }
    uint32_t y = rng->state[rng->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* The first draw is the low word. The sum is rounded to double, so it can reach 2^64. */
double ath_rng_double(ath_rng *rng) {
    double low = ath_rng_next(rng);
    double x = (low + ath_rng_next(rng) * 0x1p32) * 0x1p-64;
    return x < 1.0 ? x : nextafter(1.0, 0.0);
}

float ath_rng_float(ath_rng *rng) {
    float x = (float)ath_rng_next(rng) * 0x1p-32f;
    return x < 1.0f ? x : nextafterf(1.0f, 0.0f);
}
