/* Values for the cache's tests: K and V are a function of layer, side, head, channel, position and token, so
 * that a row in the wrong place or of the wrong sequence is seen. */
#ifndef TEST_KV_VALUES_H
#define TEST_KV_VALUES_H

#include <stdint.h>

static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* splitmix64 */
typedef struct rng {
    uint64_t state;
} rng;
static inline uint64_t rng_next(rng *r) {
    return mix64(r->state += 0x9e3779b97f4a7c15ull);
}
static inline int64_t rng_below(rng *r, int64_t n) {
    return (int64_t)(rng_next(r) % (uint64_t)n);
}

/* In [-2, 2); is_value 0: K, 1: V, 2: Q. K has a part that is constant over tokens, as biased models have. */
static inline float kv_value(int layer, int is_value, int head, int channel, int64_t pos, uint32_t token) {
    uint64_t where =
        ((uint64_t)layer << 48) ^ ((uint64_t)is_value << 40) ^ ((uint64_t)head << 20) ^ (uint64_t)channel;
    uint64_t bits = mix64(mix64(where + 1) + mix64((uint64_t)pos * 0x100000001b3ull + token));
    float x = (float)(int64_t)(bits >> 40) * (4.0f / (1 << 24)) - 2;
    if (is_value == 0 && channel % 16 == 3) x += 3;
    return x;
}

#endif
