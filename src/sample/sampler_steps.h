/* The candidates of one token and the steps over them. Internal to sample/; the tests use it too.
 *
 * Sums are float and run in the present order of the array, as in llama.cpp: a draw depends on both. */
#ifndef ATH_SAMPLE_SAMPLER_STEPS_H
#define ATH_SAMPLE_SAMPLER_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "sample/sampler_rng.h"

typedef struct ath_candidate {
    int32_t id;
    float logit;
    float p;   /* valid after softmax only */
    float key; /* what the array is being sorted by; scratch between steps */
} ath_candidate;

/* Between steps n_sorted is 0 (any order) or size (descending by logit, equals by ascending id). */
typedef struct ath_candidates {
    ath_candidate *data;
    int32_t size;
    int32_t n_sorted;
} ath_candidates;

/* sampler_candidates.c */

/* p of every candidate; the logits stay. */
void ath_candidates_softmax(ath_candidates *c);
float ath_candidates_max(const ath_candidates *c); /* size >= 1 */

/* Sorting by key on demand: after heapify, each pop puts the next best of the rest at data[n_sorted++]. */
void ath_candidates_heapify(ath_candidates *c);
void ath_candidates_pop(ath_candidates *c);
void ath_candidates_heapify_logits(ath_candidates *c); /* no-op if sorted */
void ath_candidates_sort(ath_candidates *c);
void ath_candidates_keep_best(ath_candidates *c, int32_t k); /* 1 <= k <= size; sorted */

/* Draws, as an index into data, or -1 if the weights are no numbers. dist computes p itself and always takes
 * one number; discrete uses p as it is and takes none for a single candidate. */
int32_t ath_draw_dist(ath_candidates *c, ath_rng *rng);
int32_t ath_draw_discrete(const ath_candidates *c, ath_rng *rng);

/* sampler_truncation.c: the candidates that stay keep their logits (top_n_sigma: see there); min_keep is a
 * lower bound of how many do. */

void ath_step_top_k(ath_candidates *c, int32_t k);
void ath_step_top_p(ath_candidates *c, float p, int32_t min_keep);
void ath_step_min_p(ath_candidates *c, float p, int32_t min_keep);
void ath_step_typical(ath_candidates *c, float p, int32_t min_keep);
void ath_step_top_n_sigma(ath_candidates *c, float n);
void ath_step_xtc(ath_candidates *c, float probability, float threshold, int32_t min_keep, ath_rng *rng);

/* sampler_temperature.c */

void ath_step_greedy(ath_candidates *c); /* leaves the first of the greatest */
void ath_step_temperature(ath_candidates *c, float temp);
void ath_step_dynamic_temperature(ath_candidates *c, float temp, float range, float exponent);

/* sampler_penalties.c */

/* The last tokens of the sequence, a ring. */
typedef struct ath_history {
    int32_t *tokens; /* [capacity] */
    int32_t capacity, n, head;
} ath_history;

/* The i-th token from the end, 0 <= i < n. */
static inline int32_t ath_history_at(const ath_history *h, int32_t i) {
    int32_t at = h->head - 1 - i;
    return h->tokens[at < 0 ? at + h->capacity : at];
}

typedef struct ath_penalties {
    int32_t *counts; /* [n_vocab] in the last last_n tokens; NULL = off */
    int32_t n_vocab, last_n;
    float repeat, frequency, presence;
} ath_penalties;

/* Puts token into the ring and into the counts. Needs last_n <= capacity. */
void ath_history_accept(ath_history *h, ath_penalties *penalties, int32_t token);
void ath_step_penalties(ath_candidates *c, const ath_penalties *penalties);

/* sampler_dry.c: "don't repeat yourself": a token that would continue a repetition longer than allowed_length
 * loses multiplier * base^(length - allowed_length). */

typedef struct ath_dry {
    float multiplier, base;
    int32_t allowed_length, last_n, n_vocab;
    int32_t *z;       /* [last_n] scratch; NULL = off */
    int32_t *longest; /* [n_vocab] 1 + length of the longest repetition that the token continues; 0 between
                         calls */
    int32_t *first;   /* [n_vocab + 1] breakers first[t] .. first[t + 1] begin with token t */
    int32_t *offset;  /* [n_breakers + 1] into tails */
    int32_t *tails;   /* the tokens behind the first, in order */
} ath_dry;

void ath_step_dry(ath_candidates *c, ath_dry *dry, const ath_history *history);

/* sampler_mirostat.c: steps that end in a draw and learn from it. They return an index into c->data, -1 as
 * above. */

typedef struct ath_mirostat {
    float tau, eta, mu;
    int32_t n_vocab;
} ath_mirostat;

int32_t ath_draw_mirostat1(ath_candidates *c, ath_mirostat *m, ath_rng *rng);
int32_t ath_draw_mirostat2(ath_candidates *c, ath_mirostat *m, ath_rng *rng);

typedef struct ath_adaptive {
    float target, decay;
    float weighted_sum, total_weight; /* of the probabilities of past tokens */
    int32_t pending;                  /* the token drawn last, -1 once accepted */
    float pending_p;
} ath_adaptive;

void ath_adaptive_reset(ath_adaptive *a);
int32_t ath_draw_adaptive(ath_candidates *c, ath_adaptive *a, ath_rng *rng);
void ath_adaptive_accept(ath_adaptive *a, int32_t token);

#endif
