/* Steps that throw candidates away. See sampler_steps.h. */
#include "sample/sampler_steps.h"

#include <math.h>

/* Keeps the front of a (partly) popped heap. */
static void keep_sorted(ath_candidates *c, int32_t n) {
    c->size = n;
    c->n_sorted = n;
}

/* The k most likely, sorted. */
void ath_step_top_k(ath_candidates *c, int32_t k) {
    if (k <= 0) return;
    ath_candidates_keep_best(c, k < c->size ? k : c->size);
}

/* The fewest most likely whose probabilities sum to p (nucleus; Holtzman et al., 2019), sorted. */
void ath_step_top_p(ath_candidates *c, float p, int32_t min_keep) {
    if (p >= 1) return;
    ath_candidates_softmax(c);
    ath_candidates_heapify_logits(c);
    float sum = 0;
    int32_t n = 0;
    while (n < c->size) {
        if (n == c->n_sorted) ath_candidates_pop(c);
        sum += c->data[n++].p;
        if (sum >= p && n >= min_keep) break;
    }
    keep_sorted(c, n);
}

/* In their present order. */
static void keep_at_least(ath_candidates *c, float floor) {
    bool sorted = c->n_sorted > 0;
    int32_t n = 0;
    for (int32_t i = 0; i < c->size; i++)
        if (c->data[i].logit >= floor) c->data[n++] = c->data[i];
    c->size = n;
    c->n_sorted = sorted ? n : 0;
}

/* Those at least p times as likely as the most likely. In logits, so that no softmax is needed. */
void ath_step_min_p(ath_candidates *c, float p, int32_t min_keep) {
    if (p <= 0) return;
    float floor = ath_candidates_max(c) + logf(p);
    int32_t n = 0;
    for (int32_t i = 0; i < c->size; i++) n += c->data[i].logit >= floor;
    if (n < min_keep || n == 0)
        ath_step_top_k(c, min_keep);
    else
        keep_at_least(c, floor);
}

/* Those whose surprise -log p is nearest to the expected one, the entropy, up to a probability mass of p
 * (locally typical sampling; Meister et al., 2022). They stay in the order of nearness. */
void ath_step_typical(ath_candidates *c, float p, int32_t min_keep) {
    if (p >= 1) return;
    ath_candidates_sort(c);
    ath_candidates_softmax(c);
    float entropy = 0;
    for (int32_t i = 0; i < c->size; i++)
        if (c->data[i].p > 0) entropy += -c->data[i].p * logf(c->data[i].p);
    for (int32_t i = 0; i < c->size; i++) c->data[i].key = -fabsf(-logf(c->data[i].p) - entropy);
    ath_candidates_heapify(c);
    float sum = 0;
    while (c->n_sorted < c->size) {
        ath_candidates_pop(c);
        sum += c->data[c->n_sorted - 1].p;
        if (sum > p && c->n_sorted >= min_keep) break;
    }
    c->size = c->n_sorted;
    c->n_sorted = 0;
}

/* Bans what is more than n standard deviations below the greatest logit (Tang et al., 2024). The banned stay
 * in the array at -inf, for later steps look at its size. Those banned before don't count. */
void ath_step_top_n_sigma(ath_candidates *c, float n) {
    if (n <= 0 || c->size <= 1) return;
    float sum = 0, squares = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < c->size; i++) {
        if (c->data[i].logit == -INFINITY) continue;
        sum += c->data[i].logit;
        count++;
    }
    if (!count) return;
    float mean = sum / (float)count;
    for (int32_t i = 0; i < c->size; i++) {
        float d = c->data[i].logit - mean;
        if (c->data[i].logit != -INFINITY) squares += d * d;
    }
    float floor = ath_candidates_max(c) - n * sqrtf(squares / (float)count);
    for (int32_t i = 0; i < c->size; i++)
        if (c->data[i].logit < floor) c->data[i].logit = -INFINITY;
}

/* "Exclude top choices": with the given probability, of those at least as likely as threshold only the least
 * likely stays. Sorted unless it did nothing. */
void ath_step_xtc(ath_candidates *c, float probability, float threshold, int32_t min_keep, ath_rng *rng) {
    if (probability <= 0 || threshold > 0.5f || c->size < 2) return;
    if (ath_rng_float(rng) > probability) return;
    ath_candidates_sort(c);
    ath_candidates_softmax(c);
    int32_t last = 0;
    while (last + 1 < c->size && c->data[last + 1].p >= threshold) last++;
    if (c->size - last < min_keep) return;
    for (int32_t i = last; i < c->size; i++) c->data[i - last] = c->data[i];
    keep_sorted(c, c->size - last);
}
