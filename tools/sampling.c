/* From flags to a sampler. The tokens that only the vocabulary knows (ends of text, DRY's breakers) are found
 * here, because the sampler has no tokenizer. */
#include "sampling.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sampler_lists {
    ath_logit_bias *bias;
    ath_token *eog;
    int n_eog;
    ath_dry_breaker *breakers;
    size_t n_breakers, cap_breakers;
} sampler_lists;

/* ---- --logit-bias ID+X, ID-X */

static int parse_bias(const char *text, int64_t n_vocab, ath_logit_bias *out) {
    char *at, *end;
    long id = strtol(text, &at, 10);
    if (at == text || (*at != '+' && *at != '-'))
        return ath_tool_fail("--logit-bias expects ID+X or ID-X, but got \"%.40s\"", text);
    if (id < 0 || id >= n_vocab)
        return ath_tool_fail("--logit-bias %.40s: there is no such token among %lld", text,
                             (long long)n_vocab);
    double bias = strtod(at, &end);
    if (end == at + 1 || *end || isnan(bias))
        return ath_tool_fail("--logit-bias expects ID+X or ID-X, but got \"%.40s\"", text);
    *out = (ath_logit_bias){(int32_t)id, (float)bias};
    return -1;
}

static int read_biases(const ath_args *args, int64_t n_vocab, sampler_lists *lists, ath_sampler_params *p) {
    size_t n = 0;
    while (ath_args_item(args, ATH_FLAG_LOGIT_BIAS, n)) n++;
    if (!n) return -1;
    lists->bias = calloc(n, sizeof *lists->bias);
    if (!lists->bias) return ath_tool_fail("out of memory");
    for (size_t i = 0; i < n; i++) {
        int code = parse_bias(ath_args_item(args, ATH_FLAG_LOGIT_BIAS, i), n_vocab, &lists->bias[i]);
        if (code >= 0) return code;
    }
    p->logit_bias = lists->bias;
    p->n_logit_bias = (int32_t)n;
    return -1;
}

static int find_eog(const ath_engine *e, int64_t n_vocab, sampler_lists *lists) {
    lists->eog = malloc((size_t)n_vocab * sizeof *lists->eog);
    if (!lists->eog) return ath_tool_fail("out of memory");
    for (int64_t id = 0; id < n_vocab; id++)
        if (ath_token_is_eog(e, (ath_token)id)) lists->eog[lists->n_eog++] = (ath_token)id;
    return -1;
}

/* ---- breakers of DRY: what ath_dry_breaker in athanor_sample.h asks for */

/* The breaker {token, ids of the text `rest`}. */
static int add_breaker(const ath_engine *e, sampler_lists *lists, ath_token token, const char *rest,
                       size_t size) {
    ath_token *ids = NULL;
    size_t n = 0;
    ath_error err;
    if (size && ath_tokenize(e, rest, size, 0, &ids, &n, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    ath_token *all = malloc((n + 1) * sizeof *all);
    if (lists->n_breakers == lists->cap_breakers) {
        size_t cap = lists->cap_breakers ? 2 * lists->cap_breakers : 64;
        ath_dry_breaker *more = realloc(lists->breakers, cap * sizeof *more);
        if (more) lists->breakers = more, lists->cap_breakers = cap;
    }
    if (!all || lists->n_breakers == lists->cap_breakers) {
        free(all);
        free(ids);
        return ath_tool_fail("out of memory");
    }
    all[0] = token;
    if (n) memcpy(all + 1, ids, n * sizeof *all);
    free(ids);
    lists->breakers[lists->n_breakers++] = (ath_dry_breaker){all, (int32_t)(n + 1)};
    return -1;
}

/* One breaker text against one token's text. */
static int match_breaker(const ath_engine *e, sampler_lists *lists, ath_token token, const char *piece,
                         size_t n_piece, const char *text, size_t n_text) {
    if (memmem(piece, n_piece, text, n_text)) return add_breaker(e, lists, token, NULL, 0);
    for (size_t n = n_text - 1 < n_piece ? n_text - 1 : n_piece; n > 0; n--) {
        if (memcmp(piece + n_piece - n, text, n) != 0) continue;
        int code = add_breaker(e, lists, token, text + n, n_text - n);
        if (code >= 0) return code;
    }
    return -1;
}

static int add_breaker_text(const ath_engine *e, int64_t n_vocab, sampler_lists *lists, const char *text,
                            size_t size) {
    char piece[1024]; /* longer tokens are no punctuation */
    for (int64_t id = 0; id < n_vocab && size; id++) {
        size_t n = ath_token_piece(e, (ath_token)id, true, piece, sizeof piece);
        int code = n && n <= sizeof piece ? match_breaker(e, lists, (ath_token)id, piece, n, text, size) : -1;
        if (code >= 0) return code;
    }
    return -1;
}

static int find_breakers(const ath_args *args, const ath_engine *e, int64_t n_vocab, sampler_lists *lists) {
    static const char *const standard[] = {"\n", ":", "\"", "*"};
    int code = -1;
    if (!ATH_ARG_GIVEN(args, DRY_BREAKER))
        for (int i = 0; i < 4 && code < 0; i++) code = add_breaker_text(e, n_vocab, lists, standard[i], 1);
    const char *item;
    for (size_t i = 0; code < 0 && (item = ath_args_item(args, ATH_FLAG_DRY_BREAKER, i)); i++) {
        if (strcmp(item, "none") == 0) continue;
        char *text = strdup(item);
        if (!text) return ath_tool_fail("out of memory");
        size_t size = ath_tool_unescape(text, strlen(text));
        code = add_breaker_text(e, n_vocab, lists, text, size);
        free(text);
    }
    return code;
}

/* ---- plain values */

static void copy_reals(const ath_args *args, ath_sampler_params *p) {
    p->temp = (float)ATH_ARG_REAL(args, TEMP);
    p->dynatemp_range = (float)ATH_ARG_REAL(args, DYNATEMP_RANGE);
    p->dynatemp_exponent = (float)ATH_ARG_REAL(args, DYNATEMP_EXP);
    p->top_p = (float)ATH_ARG_REAL(args, TOP_P);
    p->min_p = (float)ATH_ARG_REAL(args, MIN_P);
    p->typical_p = (float)ATH_ARG_REAL(args, TYPICAL);
    p->top_n_sigma = (float)ATH_ARG_REAL(args, TOP_N_SIGMA);
    p->xtc_probability = (float)ATH_ARG_REAL(args, XTC_PROBABILITY);
    p->xtc_threshold = (float)ATH_ARG_REAL(args, XTC_THRESHOLD);
    p->repeat_penalty = (float)ATH_ARG_REAL(args, REPEAT_PENALTY);
    p->frequency_penalty = (float)ATH_ARG_REAL(args, FREQUENCY_PENALTY);
    p->presence_penalty = (float)ATH_ARG_REAL(args, PRESENCE_PENALTY);
    p->dry_multiplier = (float)ATH_ARG_REAL(args, DRY_MULTIPLIER);
    p->dry_base = (float)ATH_ARG_REAL(args, DRY_BASE);
    p->mirostat_tau = (float)ATH_ARG_REAL(args, MIROSTAT_ENT);
    p->mirostat_eta = (float)ATH_ARG_REAL(args, MIROSTAT_LR);
    p->adaptive_target = (float)ATH_ARG_REAL(args, ADAPTIVE_TARGET);
    p->adaptive_decay = (float)ATH_ARG_REAL(args, ADAPTIVE_DECAY);
}

static int copy_ints(const ath_args *args, ath_sampler_params *p) {
    const struct {
        ath_flag_id id;
        int32_t *to;
    } ints[] = {{ATH_FLAG_TOP_K, &p->top_k},
                {ATH_FLAG_REPEAT_LAST_N, &p->repeat_last_n},
                {ATH_FLAG_DRY_ALLOWED, &p->dry_allowed_length},
                {ATH_FLAG_DRY_LAST_N, &p->dry_penalty_last_n},
                {ATH_FLAG_MIROSTAT, &p->mirostat}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        const ath_arg *arg = &args->values[ints[i].id];
        if (arg->number < INT_MIN || arg->number > INT_MAX)
            return ath_tool_fail("%s %s is out of range", arg->name, arg->text);
        *ints[i].to = (int32_t)arg->number;
    }
    int64_t seed = ATH_ARG_INT(args, SEED);
    if (seed < -1 || seed > UINT32_MAX)
        return ath_tool_fail("--seed expects -1 to %u, but got %lld", UINT32_MAX, (long long)seed);
    p->seed = (uint32_t)seed;
    return -1;
}

static int parse_steps(const ath_args *args, ath_sampler_params *p) {
    ath_error err;
    if (ATH_ARG_GIVEN(args, SAMPLERS) &&
        ath_sampler_parse_names(p, ATH_ARG_TEXT(args, SAMPLERS), &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    if (ATH_ARG_GIVEN(args, SAMPLER_SEQ) &&
        ath_sampler_parse_letters(p, ATH_ARG_TEXT(args, SAMPLER_SEQ), &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    return -1;
}

/* ---- what the model's file recommends, for what no flag speaks of */

static void take_defaults(const ath_args *args, const ath_engine *e, ath_sampler_params *p) {
    const struct {
        const char *name;
        ath_flag_id id;
        float *real;
        int32_t *integer;
    } defaults[] = {{"temp", ATH_FLAG_TEMP, &p->temp, NULL},
                    {"top_k", ATH_FLAG_TOP_K, NULL, &p->top_k},
                    {"top_p", ATH_FLAG_TOP_P, &p->top_p, NULL},
                    {"min_p", ATH_FLAG_MIN_P, &p->min_p, NULL},
                    {"xtc_probability", ATH_FLAG_XTC_PROBABILITY, &p->xtc_probability, NULL},
                    {"xtc_threshold", ATH_FLAG_XTC_THRESHOLD, &p->xtc_threshold, NULL},
                    {"penalty_last_n", ATH_FLAG_REPEAT_LAST_N, NULL, &p->repeat_last_n},
                    {"penalty_repeat", ATH_FLAG_REPEAT_PENALTY, &p->repeat_penalty, NULL},
                    {"mirostat", ATH_FLAG_MIROSTAT, NULL, &p->mirostat},
                    {"mirostat_tau", ATH_FLAG_MIROSTAT_ENT, &p->mirostat_tau, NULL},
                    {"mirostat_eta", ATH_FLAG_MIROSTAT_LR, &p->mirostat_eta, NULL}};
    char taken[512] = "", key[64];
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        double value;
        snprintf(key, sizeof key, "general.sampling.%s", defaults[i].name);
        if (ath_args_given(args, defaults[i].id) || !ath_engine_metadata_number(e, key, &value)) continue;
        if (!(fabs(value) < INT_MAX)) {
            ath_tool_log(ATH_LOG_WARN, "%s of the model is %g: it is left out", key, value);
            continue;
        }
        if (defaults[i].real)
            *defaults[i].real = (float)value;
        else
            *defaults[i].integer = (int32_t)value;
        size_t used = strlen(taken);
        snprintf(taken + used, sizeof taken - used, "%s%s %g", used ? ", " : "", defaults[i].name, (float)value);
    }
    if (*taken) ath_tool_log(ATH_LOG_INFO, "sampling as the model's file recommends: %s", taken);
}

static void take_default_steps(const ath_args *args, const ath_engine *e, ath_sampler_params *p) {
    char text[512];
    ath_error err;
    if (ATH_ARG_GIVEN(args, SAMPLERS) || ATH_ARG_GIVEN(args, SAMPLER_SEQ) ||
        !ath_engine_metadata_string(e, "general.sampling.sequence", text, sizeof text))
        return;
    if (ath_sampler_parse_names(p, text, &err) == ATH_OK || ath_sampler_parse_letters(p, text, &err) == ATH_OK)
        ath_tool_log(ATH_LOG_INFO, "samplers as the model's file recommends: %s", text);
    else
        ath_tool_log(ATH_LOG_WARN, "general.sampling.sequence of the model is left out: %s", err.message);
}

int ath_tool_make_sampler(ath_sampler **out, const ath_args *args, const ath_engine *engine, int64_t n_ctx) {
    ath_sampler_params p = ath_sampler_default_params();
    sampler_lists lists = {0};
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    copy_reals(args, &p);
    p.ignore_eos = ATH_ARG_ON(args, IGNORE_EOS);
    p.n_ctx = n_ctx > INT_MAX ? INT_MAX : (int32_t)n_ctx;
    int code = copy_ints(args, &p);
    take_defaults(args, engine, &p);
    take_default_steps(args, engine, &p);
    if (code < 0) code = parse_steps(args, &p);
    if (code < 0) code = read_biases(args, info.n_vocab, &lists, &p);
    if (code < 0) code = find_eog(engine, info.n_vocab, &lists);
    if (code < 0 && p.dry_multiplier != 0) code = find_breakers(args, engine, info.n_vocab, &lists);
    p.dry_breakers = lists.breakers;
    p.n_dry_breakers = (int32_t)lists.n_breakers;
    ath_error err;
    if (code < 0 &&
        ath_sampler_create(out, &p, (int32_t)info.n_vocab, lists.eog, lists.n_eog, &err) != ATH_OK)
        code = ath_tool_fail("%s", err.message);
    for (size_t i = 0; i < lists.n_breakers; i++) free((void *)lists.breakers[i].tokens);
    free(lists.breakers);
    free(lists.bias);
    free(lists.eog);
    return code;
}
