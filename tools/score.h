/* How a distribution over tokens is held against another, and the statistics of many such values. */
#ifndef ATH_TOOL_SCORE_H
#define ATH_TOOL_SCORE_H

#include "tool.h"

/* ln sum exp(logits), and the index of the largest. Sums are double. */
double ath_log_sum_exp(const float *logits, size_t n, size_t *top);
/* log_p[i] = ln of the probability of token i. */
void ath_log_probs(const float *logits, size_t n, float *log_p);

typedef struct ath_score {
    double nll, nll_base; /* -ln p of the token that came */
    double kld;           /* of this distribution from the base, in nats */
    double p_diff;        /* p - p of the base, of the token that came */
    bool same_top;
} ath_score;
/* Base probabilities below e^-16 don't count, because the file of log-probabilities holds none. */
void ath_score_row(const float *logits, const float *base_log_p, size_t n, ath_token next, ath_score *out);

/* ---- moments */

typedef struct ath_moments {
    double sum, sum2;
    size_t n;
} ath_moments;
void ath_add(ath_moments *m, double x);
double ath_mean_of(const ath_moments *m);
/* Variance and standard error of the mean; values count as independent. */
double ath_variance_of_mean(const ath_moments *m);
double ath_error_of(const ath_moments *m);

/* ---- order */

void ath_sort_floats(float *x, size_t n);
/* Of sorted values, interpolated; 0 <= q <= 1. */
double ath_percentile(const float *sorted, size_t n, double q);

/* ---- blocks: neighbours in a text are no independent samples */

enum { ATH_SCORE_BLOCK = 32 };
typedef struct ath_block_errors {
    double mean, median, p99;
} ath_block_errors;
/* Standard errors of mean, median and 99th percentile over blocks of 32 values: the first from the blocks'
 * means, the others from 100 bootstrap samples of blocks (seeded). 0 where there are fewer than two blocks;
 * false if out of memory. */
bool ath_errors_by_block(const float *x, size_t n, ath_block_errors *out);
/* The first of them alone. */
double ath_mean_error_by_block(const float *x, size_t n);

#endif
