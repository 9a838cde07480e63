/* Draws that steer: mirostat holds the surprise (-log2 p) of the text near tau (Basu et al., 2020), adaptive
 * sampling holds the probability of the tokens near a target. See sampler_steps.h. */
#include "sample/sampler_steps.h"

#include <math.h>

static int32_t draw_and_learn(ath_candidates *c, ath_mirostat *m, ath_rng *rng) {
    ath_candidates_softmax(c);
    int32_t index = ath_draw_discrete(c, rng);
    if (index >= 0) m->mu -= m->eta * (-log2f(c->data[index].p) - m->tau);
    return index;
}

/* Version 1: the exponent of Zipf's law is estimated from the 100 most likely; it says which k gives a
 * surprise mu. */
int32_t ath_draw_mirostat1(ath_candidates *c, ath_mirostat *m, ath_rng *rng) {
    ath_candidates_sort(c);
    ath_candidates_softmax(c);
    float sum_tb = 0, sum_tt = 0;
    for (int32_t i = 0; i < 99 && i < c->size - 1 && c->data[i + 1].p > 0; i++) {
        float t = logf((float)(i + 2) / (float)(i + 1)), b = logf(c->data[i].p / c->data[i + 1].p);
        sum_tb += t * b;
        sum_tt += t * t;
    }
    float s = sum_tb / sum_tt, excess = s - 1;
    float k = powf((excess * powf(2, m->mu)) / (1 - powf((float)m->n_vocab, -excess)), 1 / s);
    ath_step_top_k(c, k >= 1 ? (k < (float)c->size ? (int32_t)k : c->size) : 1);
    return draw_and_learn(c, m, rng);
}

/* Version 2: candidates more surprising than mu go. */
int32_t ath_draw_mirostat2(ath_candidates *c, ath_mirostat *m, ath_rng *rng) {
    ath_candidates_sort(c);
    ath_candidates_softmax(c);
    int32_t n = 0;
    while (n < c->size && !(-log2f(c->data[n].p) > m->mu)) n++;
    ath_step_top_k(c, n > 1 ? n : 1);
    return draw_and_learn(c, m, rng);
}

/* As if tokens of the target's probability had been drawn for ever. */
void ath_adaptive_reset(ath_adaptive *a) {
    a->weighted_sum = a->target / (1 - a->decay);
    a->total_weight = 1 / (1 - a->decay);
    a->pending = -1;
}

/* New logits fall with the distance of p from the aim: quadratically near it, linearly far away. The aim
 * makes up for what the past tokens missed. */
int32_t ath_draw_adaptive(ath_candidates *c, ath_adaptive *a, ath_rng *rng) {
    const float peak = 5.0f, sharpness = 10.0f, inverse_width = 1 / 0.3f;
    ath_candidates_softmax(c);
    float aim = fminf(fmaxf(2 * a->target - a->weighted_sum / a->total_weight, 0), 1);
    for (int32_t i = 0; i < c->size; i++) {
        c->data[i].key = c->data[i].p;
        if (c->data[i].logit == -INFINITY) continue;
        float d = fabsf(c->data[i].p - aim) * inverse_width;
        c->data[i].logit = peak - sharpness * d * d / (1 + d);
    }
    c->n_sorted = 0;
    ath_candidates_softmax(c);
    int32_t index = ath_draw_discrete(c, rng);
    if (index >= 0) {
        a->pending = c->data[index].id;
        a->pending_p = c->data[index].key;
    }
    return index;
}

void ath_adaptive_accept(ath_adaptive *a, int32_t token) {
    if (a->pending < 0 || a->pending != token) return;
    a->weighted_sum = a->pending_p + a->decay * a->weighted_sum;
    a->total_weight = 1 + a->decay * a->total_weight;
    a->pending = -1;
}
