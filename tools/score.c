/* How a distribution over tokens is held against another, and the statistics of many such values. */
#include "score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float least_log_p = -16;

double ath_log_sum_exp(const float *logits, size_t n, size_t *top) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)expf(logits[i] - logits[best]);
    if (top) *top = best;
    return (double)logits[best] + log(sum);
}

void ath_log_probs(const float *logits, size_t n, float *log_p) {
    double log_sum = ath_log_sum_exp(logits, n, NULL);
    for (size_t i = 0; i < n; i++) log_p[i] = (float)((double)logits[i] - log_sum);
}

void ath_score_row(const float *logits, const float *base_log_p, size_t n, ath_token next, ath_score *out) {
    size_t top, base_top = 0;
    double log_sum = ath_log_sum_exp(logits, n, &top), kld = 0;
    for (size_t i = 0; i < n; i++) {
        float base = base_log_p[i];
        if (base > base_log_p[base_top]) base_top = i;
        if (base > least_log_p) kld += (double)(expf(base) * (base - (float)((double)logits[i] - log_sum)));
    }
    out->nll = log_sum - (double)logits[next];
    out->nll_base = -(double)base_log_p[next];
    out->kld = kld;
    out->p_diff = exp(-out->nll) - exp(-out->nll_base);
    out->same_top = top == base_top;
}

/* ---- moments */

void ath_add(ath_moments *m, double x) {
    m->sum += x;
    m->sum2 += x * x;
    m->n++;
}

double ath_mean_of(const ath_moments *m) {
    return m->n ? m->sum / (double)m->n : 0;
}

double ath_variance_of_mean(const ath_moments *m) {
    if (m->n < 2) return 0;
    double mean = ath_mean_of(m), spread = m->sum2 / (double)m->n - mean * mean;
    return spread > 0 ? spread / (double)(m->n - 1) : 0;
}

double ath_error_of(const ath_moments *m) {
    return sqrt(ath_variance_of_mean(m));
}

/* ---- order */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void ath_sort_floats(float *x, size_t n) {
    qsort(x, n, sizeof *x, by_value);
}

double ath_percentile(const float *sorted, size_t n, double q) {
    if (!n) return 0;
    double at = q * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return (double)sorted[below] + (at - (double)below) * (double)(sorted[above] - sorted[below]);
}

/* ---- blocks */

enum { RESAMPLES = 100 };

/* splitmix64: any good generator does; this one needs no table. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double spread_of(const ath_moments *m) {
    return sqrt(ath_variance_of_mean(m) * (double)m->n);
}

double ath_mean_error_by_block(const float *x, size_t n) {
    ath_moments means = {0};
    for (size_t b = 0; b < n / ATH_SCORE_BLOCK; b++) {
        double sum = 0;
        for (size_t i = 0; i < ATH_SCORE_BLOCK; i++) sum += (double)x[b * ATH_SCORE_BLOCK + i];
        ath_add(&means, sum / ATH_SCORE_BLOCK);
    }
    return ath_error_of(&means);
}

bool ath_errors_by_block(const float *x, size_t n, ath_block_errors *out) {
    *out = (ath_block_errors){0, 0, 0};
    size_t blocks = n / ATH_SCORE_BLOCK, size = blocks * ATH_SCORE_BLOCK;
    if (blocks < 2) return true;
    float *sample = malloc(size * sizeof *sample);
    if (!sample) return false;
    ath_moments medians = {0}, p99s = {0};
    uint64_t state = 1;
    for (int r = 0; r < RESAMPLES; r++) {
        for (size_t b = 0; b < blocks; b++)
            memcpy(sample + b * ATH_SCORE_BLOCK, x + next_random(&state) % blocks * ATH_SCORE_BLOCK,
                   ATH_SCORE_BLOCK * sizeof *x);
        ath_sort_floats(sample, size);
        ath_add(&medians, ath_percentile(sample, size, 0.5));
        ath_add(&p99s, ath_percentile(sample, size, 0.99));
    }
    free(sample);
    *out = (ath_block_errors){ath_mean_error_by_block(x, n), spread_of(&medians), spread_of(&p99s)};
    return true;
}
