/* The chain: which steps run, in which order, over which memory. See athanor_sample.h for the contract. */
#include "athanor/athanor_sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "sample/sampler_params.h"
#include "sample/sampler_steps.h"

typedef enum pick { PICK_DIST, PICK_GREEDY, PICK_MIROSTAT1, PICK_MIROSTAT2, PICK_ADAPTIVE } pick;

struct ath_sampler {
    ath_sampler_params p; /* its lists are NULL; -1 windows and the seed are resolved */
    int32_t n_vocab;
    ath_sampler_step steps[ATH_SAMPLER_STEPS_MAX + 1]; /* those with an effect */
    int32_t n_steps;
    pick pick;
    ath_logit_bias *bias; /* [n_bias], the user's and those of ignore_eos */
    int32_t n_bias;
    ath_candidates c;
    ath_candidate *storage; /* [n_vocab] */
    ath_history history;
    ath_penalties penalties;
    ath_dry dry;
    ath_mirostat mirostat;
    ath_adaptive adaptive;
    ath_rng rng;     /* of the final draw */
    ath_rng xtc_rng; /* the same seed: in llama.cpp each sampler has its own generator */
    char chain[2048];
};

/* Whether the greatest logit always survives the step, so that arg-max doesn't need it. */
static bool keeps_greatest(ath_sampler_step step) {
    return step == ATH_STEP_TOP_K || step == ATH_STEP_TOP_P || step == ATH_STEP_MIN_P ||
           step == ATH_STEP_TOP_N_SIGMA;
}

static void plan_steps(ath_sampler *s) {
    const ath_sampler_params *p = &s->p;
    static const ath_sampler_step mirostat_steps[] = {ATH_STEP_TEMPERATURE};
    const ath_sampler_step *steps = p->mirostat ? mirostat_steps : p->steps;
    int32_t n_steps = p->mirostat ? 1 : p->n_steps;
    bool greedy = p->temp <= 0 && p->dynatemp_range <= 0;
    char text[128];
    for (int32_t i = 0; i < n_steps; i++) {
        if (greedy && steps[i] == ATH_STEP_TEMPERATURE) break; /* one candidate is left: nothing can follow */
        if (ath_sampler_step_describe(p, steps[i], text, sizeof text) > 0) s->steps[s->n_steps++] = steps[i];
    }
    if (greedy) {
        s->pick = PICK_GREEDY;
        while (s->n_steps > 0 && keeps_greatest(s->steps[s->n_steps - 1])) s->n_steps--;
    } else if (p->mirostat) {
        s->pick = p->mirostat == 1 ? PICK_MIROSTAT1 : PICK_MIROSTAT2;
    } else {
        s->pick = p->adaptive_target >= 0 ? PICK_ADAPTIVE : PICK_DIST;
    }
}

static void describe_chain(ath_sampler *s) {
    const ath_sampler_params *p = &s->p;
    size_t at = 0, size = sizeof s->chain;
    char text[128];
    if (s->n_bias) at += (size_t)snprintf(s->chain, size, "logit_bias %d -> ", s->n_bias);
    for (int32_t i = 0; i < s->n_steps && at < size; i++) {
        ath_sampler_step_describe(p, s->steps[i], text, sizeof text);
        at += (size_t)snprintf(s->chain + at, size - at, "%s -> ", text);
    }
    if (at >= size) return;
    switch (s->pick) {
    case PICK_DIST: snprintf(s->chain + at, size - at, "dist"); break;
    case PICK_GREEDY: snprintf(s->chain + at, size - at, "greedy"); break;
    case PICK_MIROSTAT1:
    case PICK_MIROSTAT2:
        snprintf(s->chain + at, size - at, "mirostat %d entropy %g rate %g", p->mirostat, p->mirostat_tau,
                 p->mirostat_eta);
        break;
    case PICK_ADAPTIVE:
        snprintf(s->chain + at, size - at, "adaptive_p %g decay %g", p->adaptive_target, p->adaptive_decay);
        break;
    }
}

static bool has_step(const ath_sampler *s, ath_sampler_step step) {
    for (int32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i] == step) return true;
    return false;
}

/* calloc that is never asked for 0 bytes; false if there is no memory. */
static bool take(void *pointer, size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    memcpy(pointer, &memory, sizeof memory);
    return memory != NULL;
}

static bool make_bias(ath_sampler *s, const ath_sampler_params *p, const int32_t *eog, int n_eog) {
    int64_t n = (int64_t)p->n_logit_bias + (p->ignore_eos ? n_eog : 0);
    if (n > INT32_MAX || !take(&s->bias, (size_t)n, sizeof *s->bias)) return false;
    for (int32_t i = 0; i < p->n_logit_bias; i++) s->bias[s->n_bias++] = p->logit_bias[i];
    for (int i = 0; p->ignore_eos && i < n_eog; i++)
        s->bias[s->n_bias++] = (ath_logit_bias){eog[i], -INFINITY};
    return true;
}

/* The breakers in order of their first token (a counting sort), so that a token finds its own. */
static bool make_breakers(ath_dry *dry, const ath_sampler_params *p) {
    int64_t n_tails = 0;
    for (int32_t i = 0; i < p->n_dry_breakers; i++) n_tails += p->dry_breakers[i].n_tokens - 1;
    if (n_tails > INT32_MAX) return false;
    int32_t *order = NULL, *first = NULL, at = 0;
    bool ok = take(&first, (size_t)dry->n_vocab + 1, sizeof *first) &&
              take(&order, (size_t)p->n_dry_breakers, sizeof *order) &&
              take(&dry->offset, (size_t)p->n_dry_breakers + 1, sizeof *dry->offset) &&
              take(&dry->tails, (size_t)n_tails, sizeof *dry->tails);
    dry->first = first;
    if (ok) {
        for (int32_t i = 0; i < p->n_dry_breakers; i++) first[p->dry_breakers[i].tokens[0]]++;
        for (int32_t t = 0, sum = 0; t <= dry->n_vocab; t++) first[t] = sum += first[t];
        for (int32_t i = p->n_dry_breakers - 1; i >= 0; i--) order[--first[p->dry_breakers[i].tokens[0]]] = i;
        for (int32_t i = 0; i < p->n_dry_breakers; i++) {
            const ath_dry_breaker *b = &p->dry_breakers[order[i]];
            for (int32_t k = 1; k < b->n_tokens; k++) dry->tails[at++] = b->tokens[k];
            dry->offset[i + 1] = at;
        }
    }
    free(order);
    return ok;
}

static bool make_windows(ath_sampler *s, const ath_sampler_params *p) {
    int32_t n_vocab = s->n_vocab, capacity = 0;
    s->penalties = (ath_penalties){
        NULL, n_vocab, s->p.repeat_last_n, p->repeat_penalty, p->frequency_penalty, p->presence_penalty};
    s->dry = (ath_dry){.multiplier = p->dry_multiplier,
                       .base = p->dry_base,
                       .allowed_length = p->dry_allowed_length,
                       .last_n = s->p.dry_penalty_last_n,
                       .n_vocab = n_vocab};
    if (has_step(s, ATH_STEP_PENALTIES)) {
        capacity = s->penalties.last_n;
        if (!take(&s->penalties.counts, (size_t)n_vocab, sizeof(int32_t))) return false;
    }
    if (has_step(s, ATH_STEP_DRY)) {
        if (s->dry.last_n > capacity) capacity = s->dry.last_n;
        if (!take(&s->dry.z, (size_t)s->dry.last_n, sizeof(int32_t)) ||
            !take(&s->dry.longest, (size_t)n_vocab, sizeof(int32_t)) || !make_breakers(&s->dry, p))
            return false;
    }
    s->history.capacity = capacity;
    return take(&s->history.tokens, (size_t)capacity, sizeof(int32_t));
}

static ath_status resolve(ath_sampler_params *p, ath_error *err) {
    if (p->repeat_last_n == -1) p->repeat_last_n = p->n_ctx;
    if (p->dry_penalty_last_n == -1) p->dry_penalty_last_n = p->n_ctx;
    while (p->seed == ATH_SEED_RANDOM)
        if (getentropy(&p->seed, sizeof p->seed) != 0)
            return ATH_FAIL(err, ATH_ERR_IO, "the system has no random numbers; choose a --seed");
    p->dry_breakers = NULL;
    p->logit_bias = NULL;
    return ATH_OK;
}

ath_status ath_sampler_create(ath_sampler **out, const ath_sampler_params *p, int32_t n_vocab,
                              const int32_t *eog, int n_eog, ath_error *err) {
    *out = NULL;
    ATH_TRY(ath_sampler_params_check(p, n_vocab, eog, n_eog, err));
    ath_sampler_params resolved = *p;
    ATH_TRY(resolve(&resolved, err));
    ath_sampler *s;
    if (!take(&s, 1, sizeof *s)) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a sampler");
    s->p = resolved;
    s->n_vocab = n_vocab;
    plan_steps(s);
    if (!take(&s->storage, (size_t)n_vocab, sizeof *s->storage) || !make_bias(s, p, eog, n_eog) ||
        !make_windows(s, p)) {
        ath_sampler_free(s);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a sampler over %d tokens", n_vocab);
    }
    s->mirostat = (ath_mirostat){p->mirostat_tau, p->mirostat_eta, 0, n_vocab};
    s->adaptive = (ath_adaptive){.target = p->adaptive_target, .decay = p->adaptive_decay};
    describe_chain(s);
    ath_sampler_reset(s);
    *out = s;
    return ATH_OK;
}

void ath_sampler_free(ath_sampler *s) {
    if (!s) return;
    free(s->storage);
    free(s->bias);
    free(s->history.tokens);
    free(s->penalties.counts);
    free(s->dry.z);
    free(s->dry.longest);
    free(s->dry.first);
    free(s->dry.offset);
    free(s->dry.tails);
    free(s);
}

void ath_sampler_reset(ath_sampler *s) {
    ath_rng_seed(&s->rng, s->p.seed);
    ath_rng_seed(&s->xtc_rng, s->p.seed);
    s->history.n = s->history.head = 0;
    if (s->penalties.counts) memset(s->penalties.counts, 0, (size_t)s->n_vocab * sizeof(int32_t));
    s->mirostat.mu = 2 * s->mirostat.tau;
    ath_adaptive_reset(&s->adaptive);
}

uint32_t ath_sampler_seed(const ath_sampler *s) {
    return s->p.seed;
}

const char *ath_sampler_chain(const ath_sampler *s) {
    return s->chain;
}

void ath_sampler_accept(ath_sampler *s, int32_t token) {
    ath_history_accept(&s->history, &s->penalties, token);
    if (s->pick == PICK_ADAPTIVE) ath_adaptive_accept(&s->adaptive, token);
}

/* Candidates in order of their ids, biases added. */
static ath_status load(ath_sampler *s, const float *logits, ath_error *err) {
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (!(logits[i] < INFINITY))
            return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                            "the logit of token %d is %s: the model's output is broken", i,
                            isnan(logits[i]) ? "NaN" : "infinite");
        s->storage[i] = (ath_candidate){.id = i, .logit = logits[i]};
    }
    for (int32_t i = 0; i < s->n_bias; i++) s->storage[s->bias[i].token].logit += s->bias[i].bias;
    s->c = (ath_candidates){s->storage, s->n_vocab, 0};
    if (ath_candidates_max(&s->c) == -INFINITY)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                        "every token of the vocabulary is banned: nothing can be sampled");
    return ATH_OK;
}

static void run_step(ath_sampler *s, ath_sampler_step step) {
    const ath_sampler_params *p = &s->p;
    ath_candidates *c = &s->c;
    switch (step) {
    case ATH_STEP_PENALTIES: ath_step_penalties(c, &s->penalties); break;
    case ATH_STEP_DRY: ath_step_dry(c, &s->dry, &s->history); break;
    case ATH_STEP_TOP_N_SIGMA: ath_step_top_n_sigma(c, p->top_n_sigma); break;
    case ATH_STEP_TOP_K: ath_step_top_k(c, p->top_k); break;
    case ATH_STEP_TYPICAL: ath_step_typical(c, p->typical_p, p->min_keep); break;
    case ATH_STEP_TOP_P: ath_step_top_p(c, p->top_p, p->min_keep); break;
    case ATH_STEP_MIN_P: ath_step_min_p(c, p->min_p, p->min_keep); break;
    case ATH_STEP_XTC: ath_step_xtc(c, p->xtc_probability, p->xtc_threshold, p->min_keep, &s->xtc_rng); break;
    case ATH_STEP_TEMPERATURE:
        ath_step_dynamic_temperature(c, p->temp, p->dynatemp_range, p->dynatemp_exponent);
        break;
    case ATH_STEP_COUNT: break;
    }
}

static int32_t draw(ath_sampler *s) {
    switch (s->pick) {
    case PICK_DIST: return ath_draw_dist(&s->c, &s->rng);
    case PICK_GREEDY: ath_step_greedy(&s->c); return isfinite(s->c.data[0].logit) ? 0 : -1;
    case PICK_MIROSTAT1: return ath_draw_mirostat1(&s->c, &s->mirostat, &s->rng);
    case PICK_MIROSTAT2: return ath_draw_mirostat2(&s->c, &s->mirostat, &s->rng);
    case PICK_ADAPTIVE: return ath_draw_adaptive(&s->c, &s->adaptive, &s->rng);
    }
    return -1;
}

ath_status ath_sampler_sample(ath_sampler *s, const float *logits, int32_t *token, ath_error *err) {
    ATH_TRY(load(s, logits, err));
    for (int32_t i = 0; i < s->n_steps; i++) run_step(s, s->steps[i]);
    int32_t index = draw(s);
    if (index < 0)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "these sampling parameters drive the logits out of range (%s)",
                        s->chain);
    *token = s->c.data[index].id;
    return ATH_OK;
}
