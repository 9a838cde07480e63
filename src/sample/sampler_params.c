/* Parameters of the chain: defaults, the names of the steps, and what is refused. */
#include "sample/sampler_params.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* One row per step, in the order of the enum. The first name is the one that is printed; the others are
 * spellings that people type. */
static const struct step_name {
    char letter;
    const char *names[5];
} step_names[ATH_STEP_COUNT] = {
    [ATH_STEP_PENALTIES] = {'e', {"penalties"}},
    [ATH_STEP_DRY] = {'d', {"dry"}},
    [ATH_STEP_TOP_N_SIGMA] = {'s', {"top_n_sigma", "top-n-sigma", "top_nsigma"}},
    [ATH_STEP_TOP_K] = {'k', {"top_k", "top-k"}},
    [ATH_STEP_TYPICAL] = {'y', {"typ_p", "typ-p", "typical", "typical_p", "typical-p"}},
    [ATH_STEP_TOP_P] = {'p', {"top_p", "top-p", "nucleus"}},
    [ATH_STEP_MIN_P] = {'m', {"min_p", "min-p"}},
    [ATH_STEP_XTC] = {'x', {"xtc"}},
    [ATH_STEP_TEMPERATURE] = {'t', {"temperature", "temp"}},
};

ath_sampler_params ath_sampler_default_params(void) {
    ath_sampler_params p = {
        .seed = ATH_SEED_RANDOM,
        .temp = 0.8f,
        .dynatemp_exponent = 1,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1,
        .top_n_sigma = -1,
        .xtc_threshold = 0.1f,
        .repeat_last_n = 64,
        .repeat_penalty = 1,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_penalty_last_n = 64,
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
        .adaptive_target = -1,
        .adaptive_decay = 0.9f,
        .n_steps = ATH_STEP_COUNT,
    };
    for (int i = 0; i < ATH_STEP_COUNT; i++) p.steps[i] = (ath_sampler_step)i;
    return p;
}

static int find_name(const char *text, size_t size) {
    for (int step = 0; step < ATH_STEP_COUNT; step++)
        for (int i = 0; i < 5 && step_names[step].names[i]; i++) {
            const char *name = step_names[step].names[i];
            if (strlen(name) == size && memcmp(name, text, size) == 0) return step;
        }
    return -1;
}

static int find_letter(char letter) {
    for (int step = 0; step < ATH_STEP_COUNT; step++)
        if (step_names[step].letter == letter) return step;
    return -1;
}

static ath_status unknown_step(const char *flag, const char *text, size_t size, ath_error *err) {
    char list[256];
    size_t at = 0;
    for (int step = 0; step < ATH_STEP_COUNT; step++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s (%c)", step ? ", " : "",
                               step_names[step].names[0], step_names[step].letter);
    return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s: no sampler is called \"%.*s\"; there are %s", flag,
                    size > 40 ? 40 : (int)size, text, list);
}

static ath_status too_many_steps(const char *flag, ath_error *err) {
    return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s: more than %d samplers", flag, ATH_SAMPLER_STEPS_MAX);
}

ath_status ath_sampler_parse_names(ath_sampler_params *params, const char *text, ath_error *err) {
    ath_sampler_params p = *params;
    p.n_steps = 0;
    for (const char *at = text; *at;) {
        size_t size = strcspn(at, ";");
        int step = find_name(at, size);
        if (step < 0) return unknown_step("--samplers", at, size, err);
        if (p.n_steps == ATH_SAMPLER_STEPS_MAX) return too_many_steps("--samplers", err);
        p.steps[p.n_steps++] = (ath_sampler_step)step;
        at += size;
        if (*at == ';') at++;
    }
    *params = p;
    return ATH_OK;
}

ath_status ath_sampler_parse_letters(ath_sampler_params *params, const char *text, ath_error *err) {
    ath_sampler_params p = *params;
    p.n_steps = 0;
    for (const char *at = text; *at; at++) {
        int step = find_letter(*at);
        if (step < 0) return unknown_step("--sampler-seq", at, 1, err);
        if (p.n_steps == ATH_SAMPLER_STEPS_MAX) return too_many_steps("--sampler-seq", err);
        p.steps[p.n_steps++] = (ath_sampler_step)step;
    }
    *params = p;
    return ATH_OK;
}

static ath_status check_floats(const ath_sampler_params *p, ath_error *err) {
    const struct {
        const char *flag;
        float value, low, high;
    } rows[] = {
        {"--temp", p->temp, -FLT_MAX, FLT_MAX},
        {"--dynatemp-range", p->dynatemp_range, 0, FLT_MAX},
        {"--dynatemp-exp", p->dynatemp_exponent, 0, FLT_MAX},
        {"--top-p", p->top_p, 0, 1},
        {"--min-p", p->min_p, 0, 1},
        {"--typical", p->typical_p, 0, 1},
        {"--top-nsigma", p->top_n_sigma, -FLT_MAX, FLT_MAX},
        {"--xtc-probability", p->xtc_probability, 0, 1},
        {"--xtc-threshold", p->xtc_threshold, 0, 1},
        {"--repeat-penalty", p->repeat_penalty, FLT_MIN, FLT_MAX},
        {"--frequency-penalty", p->frequency_penalty, -FLT_MAX, FLT_MAX},
        {"--presence-penalty", p->presence_penalty, -FLT_MAX, FLT_MAX},
        {"--dry-multiplier", p->dry_multiplier, 0, FLT_MAX},
        {"--dry-base", p->dry_base, 1, FLT_MAX},
        {"--mirostat-ent", p->mirostat_tau, 0, FLT_MAX},
        {"--mirostat-lr", p->mirostat_eta, 0, FLT_MAX},
        {"--adaptive-target", p->adaptive_target, -FLT_MAX, 1},
        {"--adaptive-decay", p->adaptive_decay, 0, 0.99f},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        float value = rows[i].value, low = rows[i].low, high = rows[i].high;
        if (value >= low && value <= high) continue;
        if (low == -FLT_MAX && high == FLT_MAX)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s must be a finite number, not %g", rows[i].flag, value);
        if (high == FLT_MAX)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s must be at least %g, not %g", rows[i].flag, low,
                            value);
        if (low == -FLT_MAX)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s must be at most %g, not %g", rows[i].flag, high,
                            value);
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s must be from %g to %g, not %g", rows[i].flag, low, high,
                        value);
    }
    return ATH_OK;
}

static ath_status check_window(const char *flag, int32_t n, int32_t n_ctx, ath_error *err) {
    if (n < -1 || n > ATH_SAMPLER_WINDOW_MAX)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s must be from -1 to %d, not %d", flag,
                        ATH_SAMPLER_WINDOW_MAX, n);
    if (n == -1 && (n_ctx < 1 || n_ctx > ATH_SAMPLER_WINDOW_MAX))
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%s -1 needs a context size from 1 to %d, not %d", flag,
                        ATH_SAMPLER_WINDOW_MAX, n_ctx);
    return ATH_OK;
}

static ath_status check_integers(const ath_sampler_params *p, ath_error *err) {
    ATH_TRY(check_window("--repeat-last-n", p->repeat_last_n, p->n_ctx, err));
    ATH_TRY(check_window("--dry-penalty-last-n", p->dry_penalty_last_n, p->n_ctx, err));
    if (p->dry_allowed_length < 0)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--dry-allowed-length must be at least 0, not %d",
                        p->dry_allowed_length);
    if (p->mirostat < 0 || p->mirostat > 2)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--mirostat must be 0, 1 or 2, not %d", p->mirostat);
    if (p->min_keep < 0)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "min_keep must be at least 0, not %d", p->min_keep);
    if (p->n_steps < 0 || p->n_steps > ATH_SAMPLER_STEPS_MAX) return too_many_steps("--samplers", err);
    for (int32_t i = 0; i < p->n_steps; i++)
        if ((int)p->steps[i] < 0 || p->steps[i] >= ATH_STEP_COUNT)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--samplers: step %d is no sampler", i);
    return ATH_OK;
}

static ath_status check_tokens(const ath_sampler_params *p, int32_t n_vocab, const int32_t *eog, int n_eog,
                               ath_error *err) {
    if (n_vocab < 1)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a vocabulary of %d tokens has nothing to choose", n_vocab);
    if (n_eog < 0 || (n_eog > 0 && !eog) || p->n_logit_bias < 0 || (p->n_logit_bias > 0 && !p->logit_bias) ||
        p->n_dry_breakers < 0 || (p->n_dry_breakers > 0 && !p->dry_breakers))
        return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                        "a token list of the sampler is missing or has a negative length");
    for (int i = 0; i < n_eog; i++)
        if (eog[i] < 0 || eog[i] >= n_vocab)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                            "end-of-generation token %d is not in the vocabulary of %d", eog[i], n_vocab);
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        ath_logit_bias b = p->logit_bias[i];
        if (b.token < 0 || b.token >= n_vocab)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "--logit-bias: token %d is not in the vocabulary of %d",
                            b.token, n_vocab);
        if (!(b.bias < INFINITY))
            return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                            "--logit-bias: the bias of token %d must be a number below infinity", b.token);
    }
    for (int32_t i = 0; i < p->n_dry_breakers; i++) {
        const ath_dry_breaker *b = &p->dry_breakers[i];
        bool bad = b->n_tokens < 1 || b->n_tokens > ATH_SAMPLER_BREAKER_MAX || !b->tokens;
        for (int32_t k = 0; !bad && k < b->n_tokens; k++) bad = b->tokens[k] < 0 || b->tokens[k] >= n_vocab;
        if (bad)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                            "--dry-sequence-breaker: breaker %d is not 1 to %d tokens of the vocabulary", i,
                            ATH_SAMPLER_BREAKER_MAX);
    }
    return ATH_OK;
}

ath_status ath_sampler_params_check(const ath_sampler_params *p, int32_t n_vocab, const int32_t *eog,
                                    int n_eog, ath_error *err) {
    ATH_TRY(check_floats(p, err));
    ATH_TRY(check_integers(p, err));
    return check_tokens(p, n_vocab, eog, n_eog, err);
}

/* One row per step: its name and values if it has an effect. */
int ath_sampler_step_describe(const ath_sampler_params *p, ath_sampler_step step, char *buf, size_t size) {
    const char *name = step_names[step].names[0];
    buf[0] = 0;
    switch (step) {
    case ATH_STEP_PENALTIES:
        if (p->repeat_last_n == 0) return 0;
        if (p->repeat_penalty == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0) return 0;
        return snprintf(buf, size, "%s repeat %g frequency %g presence %g last %d", name, p->repeat_penalty,
                        p->frequency_penalty, p->presence_penalty, p->repeat_last_n);
    case ATH_STEP_DRY:
        if (p->dry_multiplier == 0 || p->dry_penalty_last_n == 0) return 0;
        return snprintf(buf, size, "%s %g base %g allowed %d last %d", name, p->dry_multiplier, p->dry_base,
                        p->dry_allowed_length, p->dry_penalty_last_n);
    case ATH_STEP_TOP_N_SIGMA:
        return p->top_n_sigma > 0 ? snprintf(buf, size, "%s %g", name, p->top_n_sigma) : 0;
    case ATH_STEP_TOP_K: return p->top_k > 0 ? snprintf(buf, size, "%s %d", name, p->top_k) : 0;
    case ATH_STEP_TYPICAL: return p->typical_p < 1 ? snprintf(buf, size, "%s %g", name, p->typical_p) : 0;
    case ATH_STEP_TOP_P: return p->top_p < 1 ? snprintf(buf, size, "%s %g", name, p->top_p) : 0;
    case ATH_STEP_MIN_P: return p->min_p > 0 ? snprintf(buf, size, "%s %g", name, p->min_p) : 0;
    case ATH_STEP_XTC:
        if (p->xtc_probability == 0 || p->xtc_threshold > 0.5f) return 0;
        return snprintf(buf, size, "%s %g threshold %g", name, p->xtc_probability, p->xtc_threshold);
    case ATH_STEP_TEMPERATURE:
        if (p->dynatemp_range > 0)
            return snprintf(buf, size, "%s %g range %g exponent %g", name, p->temp, p->dynatemp_range,
                            p->dynatemp_exponent);
        return p->temp != 1 ? snprintf(buf, size, "%s %g", name, p->temp) : 0;
    case ATH_STEP_COUNT: break;
    }
    return 0;
}
