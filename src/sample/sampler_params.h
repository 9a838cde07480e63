/* What sampler.c needs of the parameters beyond athanor_sample.h. Internal to sample/. */
#ifndef ATH_SAMPLE_SAMPLER_PARAMS_H
#define ATH_SAMPLE_SAMPLER_PARAMS_H

#include <stddef.h>

#include "athanor/athanor_sample.h"

enum {
    ATH_SAMPLER_WINDOW_MAX = 1 << 24, /* tokens that penalties and DRY can look back */
    ATH_SAMPLER_BREAKER_MAX = 64,     /* tokens of one DRY breaker */
};

/* Everything that ath_sampler_create refuses. */
ath_status ath_sampler_params_check(const ath_sampler_params *p, int32_t n_vocab, const int32_t *eog,
                                    int n_eog, ath_error *err);

/* Name and values of a step, as in ath_sampler_chain; returns its length, 0 if the step has no effect. */
int ath_sampler_step_describe(const ath_sampler_params *p, ath_sampler_step step, char *buf, size_t size);

#endif
