/* The sampler chain: logits in, one token id out.
 *
 * Order: logit bias, the steps of params.steps one after another, then one draw. Flags, names and defaults
 * are those of the llama.cpp programs, and so is the arithmetic (float softmax, mt19937, order of the
 * candidates), so that the same seed on the same logits gives the same tokens. Deliberate differences: values
 * that make no sense are refused instead of ignored; a token of probability 0 is never drawn and does not
 * spoil "typical"; a k of mirostat 1 above 2^31 means all.
 *
 * temp <= 0 (without dynatemp) is arg-max, the lowest id among equals, whether "temperature" is in the list
 * or not. mirostat replaces the whole list by temperature and mirostat. adaptive_target >= 0 replaces the
 * final draw.
 *
 * A sampler belongs to one sequence and one thread at a time. All memory is taken by ath_sampler_create. */
#ifndef ATHANOR_SAMPLE_H
#define ATHANOR_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "athanor/athanor_error.h"

#define ATH_SEED_RANDOM 0xffffffffu /* --seed -1 */

/* The steps that --samplers and --sampler-seq can name. */
typedef enum ath_sampler_step {
    ATH_STEP_PENALTIES,   /* e */
    ATH_STEP_DRY,         /* d */
    ATH_STEP_TOP_N_SIGMA, /* s */
    ATH_STEP_TOP_K,       /* k */
    ATH_STEP_TYPICAL,     /* y */
    ATH_STEP_TOP_P,       /* p */
    ATH_STEP_MIN_P,       /* m */
    ATH_STEP_XTC,         /* x */
    ATH_STEP_TEMPERATURE, /* t */
    ATH_STEP_COUNT,
} ath_sampler_step;

enum { ATH_SAMPLER_STEPS_MAX = 32 };

typedef struct ath_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY bans the token */
} ath_logit_bias;

/* A place where DRY stops looking back: tokens[0] followed by tokens[1 .. n_tokens). For a breaker string S
 * these are {t} for each token whose text contains S, and {t, ids of the rest of S} for each token whose text
 * ends with a proper prefix of S. The caller makes the list because it has the tokenizer. */
typedef struct ath_dry_breaker {
    const int32_t *tokens;
    int32_t n_tokens;
} ath_dry_breaker;

typedef struct ath_sampler_params {
    uint32_t seed;              /* --seed; ATH_SEED_RANDOM */
    float temp;                 /* --temp; 0.8 */
    float dynatemp_range;       /* --dynatemp-range; 0 = off */
    float dynatemp_exponent;    /* --dynatemp-exp; 1 */
    int32_t top_k;              /* --top-k; 40; <= 0 = off */
    float top_p;                /* --top-p; 0.95; 1 = off */
    float min_p;                /* --min-p; 0.05; 0 = off */
    float typical_p;            /* --typical; 1 = off */
    float top_n_sigma;          /* --top-nsigma; -1; <= 0 = off */
    float xtc_probability;      /* --xtc-probability; 0 = off */
    float xtc_threshold;        /* --xtc-threshold; 0.1; above 0.5 = off */
    int32_t repeat_last_n;      /* --repeat-last-n; 64; 0 = off, -1 = n_ctx */
    float repeat_penalty;       /* --repeat-penalty; 1 = off */
    float frequency_penalty;    /* --frequency-penalty; 0 = off */
    float presence_penalty;     /* --presence-penalty; 0 = off */
    float dry_multiplier;       /* --dry-multiplier; 0 = off */
    float dry_base;             /* --dry-base; 1.75 */
    int32_t dry_allowed_length; /* --dry-allowed-length; 2 */
    int32_t dry_penalty_last_n; /* --dry-penalty-last-n; 64; 0 = off, -1 = n_ctx */
    const ath_dry_breaker
        *dry_breakers; /* [n_dry_breakers], copied; --dry-sequence-breaker as tokens; NULL */
    int32_t n_dry_breakers;
    int32_t mirostat;                 /* --mirostat; 0 = off, 1, 2 */
    float mirostat_tau;               /* --mirostat-ent; 5 */
    float mirostat_eta;               /* --mirostat-lr; 0.1 */
    float adaptive_target;            /* --adaptive-target; -1; < 0 = off */
    float adaptive_decay;             /* --adaptive-decay; 0.9 */
    bool ignore_eos;                  /* --ignore-eos: every EOG token is banned */
    const ath_logit_bias *logit_bias; /* [n_logit_bias], copied; --logit-bias; NULL */
    int32_t n_logit_bias;
    int32_t min_keep;                              /* truncating steps leave at least so many; 0 */
    int32_t n_ctx;                                 /* meaning of -1 in the two windows above; 0 = not known */
    ath_sampler_step steps[ATH_SAMPLER_STEPS_MAX]; /* --samplers, --sampler-seq */
    int32_t n_steps;
} ath_sampler_params;

typedef struct ath_sampler ath_sampler;

/* Every value at the default named above. */
ath_sampler_params ath_sampler_default_params(void);

/* Fill params->steps from "top_k;top_p;temperature" (--samplers) or "kpt" (--sampler-seq). An empty text is
 * an empty list. Unknown names are ATH_ERR_ARGUMENT with the list of those that exist; *params is then
 * unchanged. */
ath_status ath_sampler_parse_names(ath_sampler_params *params, const char *text, ath_error *err);
ath_status ath_sampler_parse_letters(ath_sampler_params *params, const char *text, ath_error *err);

/* eog[n_eog]: the ids that end generation, needed for ignore_eos; may be NULL if n_eog is 0. Nothing is kept
 * of p or eog. ATH_ERR_ARGUMENT names the flag whose value is out of range. */
ath_status ath_sampler_create(ath_sampler **out, const ath_sampler_params *p, int32_t n_vocab,
                              const int32_t *eog, int n_eog, ath_error *err);
void ath_sampler_free(ath_sampler *s); /* NULL is fine */

/* Chooses *token from logits[n_vocab] (not changed). Does not accept it. ATH_ERR_ARGUMENT if a logit is NaN
 * or +inf (naming the token), if every token is banned, or if the parameters drive all logits out of range.
 */
ath_status ath_sampler_sample(ath_sampler *s, const float *logits, int32_t *token, ath_error *err);

/* Tells the windows of penalties and DRY, and adaptive sampling, that the sequence goes on with token: call
 * it for the prompt's tokens and for each sampled one. Ids outside the vocabulary take up a place but match
 * nothing. */
void ath_sampler_accept(ath_sampler *s, int32_t token);

/* Back to the state after create: windows empty, generators at the same seed again. */
void ath_sampler_reset(ath_sampler *s);

uint32_t
ath_sampler_seed(const ath_sampler *s); /* the one in use, also where ATH_SEED_RANDOM was asked for */

/* The steps that have an effect, with their values: "top_k 40 -> top_p 0.95 -> temperature 0.8 -> dist".
 * Lives as long as the sampler. */
const char *ath_sampler_chain(const ath_sampler *s);

#ifdef __cplusplus
}
#endif
#endif
