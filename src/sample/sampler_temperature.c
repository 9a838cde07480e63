/* Temperature. See sampler_steps.h. */
#include "sample/sampler_steps.h"

#include <math.h>

void ath_step_greedy(ath_candidates *c) {
    int32_t best = 0;
    for (int32_t i = 1; i < c->size; i++)
        if (c->data[i].logit > c->data[best].logit) best = i;
    c->data[0] = c->data[best];
    c->size = 1;
    c->n_sorted = 1;
}

/* Division keeps the order. A tiny temperature would make infinities of several logits; measured from the
 * greatest, which changes no probability, it makes one 0 and the others negative. */
void ath_step_temperature(ath_candidates *c, float temp) {
    if (temp <= 0) {
        ath_step_greedy(c);
        return;
    }
    float max = ath_candidates_max(c), shift = isfinite(max / temp) ? 0 : max;
    for (int32_t i = 0; i < c->size; i++) c->data[i].logit = (c->data[i].logit - shift) / temp;
}

/* Temperature between temp - range and temp + range, by the entropy of the candidates. */
void ath_step_dynamic_temperature(ath_candidates *c, float temp, float range, float exponent) {
    if (range <= 0) {
        ath_step_temperature(c, temp);
        return;
    }
    if (c->size <= 1) return;
    float low = fmaxf(0, temp - range), high = temp + range, entropy = 0;
    ath_candidates_sort(c);
    ath_candidates_softmax(c);
    for (int32_t i = 0; i < c->size; i++)
        if (c->data[i].p > 0) entropy -= c->data[i].p * logf(c->data[i].p);
    float share = entropy / -logf(1.0f / (float)c->size);
    ath_step_temperature(c, low + (high - low) * powf(share, exponent));
}
