/* What the C attention kernels share. */
#ifndef ATH_KERNELS_ATTENTION_C_H
#define ATH_KERNELS_ATTENTION_C_H

#include "kernels/attention.h"

/* The sum of 16 lanes, halves first: the order of a SIMD register's horizontal sum. Destroys lanes. */
static inline float ath_sum_lanes(float *lanes) {
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

void ath_turbo_query_c(const ath_kv_layout *layout, const uint8_t *page, const float *q, int n,
                       ath_turbo_query *out);
void ath_turbo_scores_c(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                        int group0, int group1, float *scores, const uint8_t *next);
void ath_turbo_accumulate_c(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                            const float *weights, int n, float *acc, const uint8_t *next);
void ath_block_scores_c(const ath_kv_layout *layout, const uint8_t *page, const ath_turbo_query *q, int n,
                        int group0, int group1, float *scores, const uint8_t *next);
void ath_block_accumulate_c(const ath_kv_layout *layout, const uint8_t *page, int lo, int hi,
                            const float *weights, int n, float *acc, const uint8_t *next);

#endif
