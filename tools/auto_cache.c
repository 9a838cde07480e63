/* -ctk auto, -ctv auto: the best quality that fits. A table says what to expect of a type; where athanor
 * quality ran on this model, its verdicts count instead. */
#include "auto_cache.h"

#include <stdlib.h>
#include <string.h>

static const double least_bits = 3;         /* below that only with --kv-allow-2bit */
static const double share_of_memory = 0.85; /* of what is free; the rest is for scratch and the system */

/* What to expect, as docs/quality.md has it: mean KL divergence from f16 on models that were measured. Pairs
 * are K, V. Types that this build doesn't have are left out. */
static const struct {
    const char *type_k, *type_v;
    ath_quality_class class;
    double kld;
} expected[] = {
#define EXPECT(k, v, class, kld) {k, v, ATH_CLASS_##class, kld},
#include "auto_expected.def"
#undef EXPECT
};
enum { N_EXPECTED = sizeof expected / sizeof expected[0] };

const char *ath_class_name(ath_quality_class c) {
    static const char *const names[] = {"exact", "safe", "visible", "not recommended", "unknown"};
    return names[c];
}

static ath_quality_class class_from(const char *verdict) {
    for (int c = ATH_CLASS_EXACT; c < ATH_CLASS_UNKNOWN; c++)
        if (strcmp(verdict, ath_class_name((ath_quality_class)c)) == 0) return (ath_quality_class)c;
    return ATH_CLASS_UNKNOWN;
}

/* The library's own string for a type, NULL if it has none. */
static const char *known_type(const char *name, size_t size) {
    const char *known;
    for (int i = 0; (known = ath_cache_type_name(i)); i++)
        if (strlen(known) == size && memcmp(known, name, size) == 0) return known;
    return NULL;
}

/* ---- candidates */

static ath_choice *find(ath_choices *out, const char *k, const char *v) {
    for (int i = 0; i < out->n; i++)
        if (out->choice[i].type_k == k && out->choice[i].type_v == v) return &out->choice[i];
    return NULL;
}

/* Adds a pair, or corrects what the table said of it. A fixed side takes the place of the candidate's. */
static void add_choice(ath_choices *out, const char *k, const char *v, ath_quality_class class, double kld,
                       bool measured) {
    ath_choice *c = find(out, k, v);
    if (!c && out->n == ATH_MAX_CHOICES) return;
    if (!c)
        c = &out->choice[out->n++];
    else if (!measured)
        return; /* the first row of the table is the better one */
    double table = c->type_k ? c->expected : kld;
    *c = (ath_choice){
        .type_k = k, .type_v = v, .class = class, .kld = kld, .expected = table, .measured = measured};
}

/* Where a type was measured to be worse than the table says, those that the table puts below it are no
 * better. */
static void lower_expectations(ath_choices *out) {
    for (int i = 0; i < out->n; i++)
        for (int j = 0; j < out->n; j++) {
            ath_choice *c = &out->choice[i];
            const ath_choice *m = &out->choice[j];
            if (c->measured || !m->measured || m->expected > c->expected) continue;
            if (m->class > c->class && m->class != ATH_CLASS_UNKNOWN) c->class = m->class;
            if (m->kld > c->kld) c->kld = m->kld;
        }
}

/* "turbo3" or "q8_0/turbo3" */
static bool split_types(const char *text, const char **k, const char **v) {
    const char *slash = strchr(text, '/');
    *k = known_type(text, slash ? (size_t)(slash - text) : strlen(text));
    *v = slash ? known_type(slash + 1, strlen(slash + 1)) : *k;
    return *k && *v;
}

static void add_measured(ath_choices *out, const cJSON *stored, const char *fixed_k, const char *fixed_v) {
    const cJSON *type;
    cJSON_ArrayForEach(type, cJSON_GetObjectItem(stored, "types")) {
        const cJSON *name = cJSON_GetObjectItem(type, "type"), *kld = cJSON_GetObjectItem(type, "kld_mean");
        const cJSON *verdict = cJSON_GetObjectItem(type, "verdict");
        const char *k, *v;
        if (!cJSON_IsString(name) || !cJSON_IsNumber(kld) || !cJSON_IsString(verdict)) continue;
        if (!split_types(name->valuestring, &k, &v) || strchr(name->valuestring, ':')) continue; /* plain: no choice */
        /* a verdict on both sides together is the nearest thing to one on the free side */
        add_choice(out, fixed_k ? fixed_k : k, fixed_v ? fixed_v : v, class_from(verdict->valuestring),
                   kld->valuedouble, true);
    }
}

static int by_quality(const void *a, const void *b) {
    const ath_choice *x = a, *y = b;
    if (x->class != y->class) return (int)x->class - (int)y->class;
    return (x->kld > y->kld) - (x->kld < y->kld);
}

static void add_candidates(ath_choices *out, const ath_engine *engine, const char *fixed_k,
                           const char *fixed_v) {
    for (int i = 0; i < N_EXPECTED; i++) {
        const char *k = known_type(expected[i].type_k, strlen(expected[i].type_k));
        const char *v = known_type(expected[i].type_v, strlen(expected[i].type_v));
        if (k && v)
            add_choice(out, fixed_k ? fixed_k : k, fixed_v ? fixed_v : v, expected[i].class, expected[i].kld,
                       false);
    }
    cJSON *stored = ath_verdicts_load(engine);
    add_measured(out, stored, fixed_k, fixed_v);
    cJSON_Delete(stored);
    lower_expectations(out);
    qsort(out->choice, (size_t)out->n, sizeof out->choice[0], by_quality);
}

/* ---- memory */

static bool plan_bytes(const ath_engine *engine, const ath_choice *c, const ath_session_params *p, int64_t n_ctx,
                       uint64_t *bytes, ath_cache_plan *plan) {
    if (ath_engine_plan_cache(engine, c->type_k, c->type_v, n_ctx, p->entry_every, plan, NULL) != ATH_OK) return false;
    *bytes = ((uint64_t)plan->bytes_pages + plan->bytes_recent + plan->bytes_state + plan->bytes_entries) *
             (uint64_t)p->n_seqs;
    return true;
}

static int64_t largest_context(const ath_engine *engine, const ath_choice *c, const ath_session_params *p,
                               uint64_t budget) {
    int64_t low = 0, high = ((int64_t)1 << 32) / 256;
    if (c->bytes_per_token > 0) { /* no context takes less than that */
        double most = (double)budget / (c->bytes_per_token * p->n_seqs) / 256 + 1;
        if (most < (double)high) high = (int64_t)most;
    }
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        ath_cache_plan plan;
        uint64_t bytes;
        if (plan_bytes(engine, c, p, middle * 256, &bytes, &plan) && bytes <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    return low * 256;
}

static void size_choice(ath_choices *out, ath_choice *c, const ath_engine *engine, const ath_session_params *p) {
    ath_cache_plan plan;
    c->fits_heads = plan_bytes(engine, c, p, (out->n_ctx + 255) / 256 * 256, &c->bytes, &plan);
    if (!c->fits_heads) return;
    c->bytes_per_token = plan.bytes_per_token;
    c->bits = plan.bytes_per_token_f16 > 0 ? 16 * plan.bytes_per_token / plan.bytes_per_token_f16 : 16;
    c->largest = largest_context(engine, c, p, out->budget);
}

/* ---- the choice */

static bool may_take(const ath_choice *c, bool allow_2bit) {
    if (!c->fits_heads || c->class >= ATH_CLASS_BAD) return false;
    return allow_2bit || c->bits >= least_bits;
}

static void choose(ath_choices *out, bool allow_2bit) {
    out->chosen = -1;
    int smallest = -1;
    for (int i = 0; i < out->n; i++) {
        const ath_choice *c = &out->choice[i];
        if (!may_take(c, allow_2bit)) continue;
        if (c->bytes <= out->budget) {
            out->chosen = i;
            out->chosen_fits = true;
            return;
        }
        if (smallest < 0 || c->bytes < out->choice[smallest].bytes) smallest = i;
    }
    out->chosen = smallest;
}

static void explain(ath_choices *out, bool allow_2bit) {
    const ath_choice *c = &out->choice[out->chosen];
    char source[64] = "the reference itself";
    if (c->kld > 0)
        snprintf(source, sizeof source, "%s, mean KLD %s %.2g", ath_class_name(c->class),
                 c->measured ? "measured here" : "expected", c->kld);
    double mib = (double)c->bytes / 1048576, budget = (double)out->budget / 1048576;
    const char *of = out->budget_given ? "--kv-budget" : "free memory";
    if (out->chosen_fits)
        snprintf(out->why, sizeof out->why,
                 "K %s, V %s (%s): the best that fits %lld tokens into %s, %.1f of %.0f MiB", c->type_k,
                 c->type_v, source, (long long)out->n_ctx, of, mib, budget);
    else
        snprintf(
            out->why, sizeof out->why,
            "K %s, V %s (%s): nothing%s fits %lld tokens into %s, this is the smallest, %.1f of %.0f MiB",
            c->type_k, c->type_v, source, allow_2bit ? "" : " of 3 bits or more", (long long)out->n_ctx, of,
            mib, budget);
}

int ath_make_choices(ath_choices *out, const ath_args *args, const ath_engine *engine, const ath_session_params *p,
                     uint64_t spare) {
    memset(out, 0, sizeof *out);
    const char *fixed_k = strcmp(p->type_k, "auto") == 0 ? NULL : p->type_k;
    const char *fixed_v = strcmp(p->type_v, "auto") == 0 ? NULL : p->type_v;
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    out->n_ctx = p->n_ctx ? p->n_ctx : info.n_ctx_train;
    int64_t mib = ATH_ARG_INT(args, KV_BUDGET);
    out->budget_given = ATH_ARG_GIVEN(args, KV_BUDGET);
    if (out->budget_given && (mib < 1 || mib > (int64_t)1 << 32))
        return ath_tool_fail("--kv-budget expects MiB, 1 or more, but got %lld", (long long)mib);
    uint64_t available = ath_available_memory();
    if (available == UINT64_MAX) available = (uint64_t)1 << 60;
    available = available > spare ? available - spare : 0;
    out->budget = out->budget_given ? (uint64_t)mib << 20 : (uint64_t)((double)available * share_of_memory);
    add_candidates(out, engine, fixed_k, fixed_v);
    for (int i = 0; i < out->n; i++) size_choice(out, &out->choice[i], engine, p);
    bool allow_2bit = ATH_ARG_ON(args, KV_ALLOW_2BIT);
    choose(out, allow_2bit);
    if (out->chosen >= 0) explain(out, allow_2bit);
    return -1;
}

int ath_auto_cache(const ath_args *args, const ath_engine *engine, ath_session_params *params) {
    bool wanted = strcmp(params->type_k, "auto") == 0 || strcmp(params->type_v, "auto") == 0;
    if (!wanted) return -1;
    ath_choices choices;
    int code = ath_make_choices(&choices, args, engine, params, 0);
    if (code >= 0) return code;
    if (choices.chosen < 0)
        return ath_tool_fail(
            "auto finds no cache type for this model%s",
            ATH_ARG_ON(args, KV_ALLOW_2BIT) ? "" : " of 3 bits or more: --kv-allow-2bit allows less");
    params->type_k = choices.choice[choices.chosen].type_k;
    params->type_v = choices.choice[choices.chosen].type_v;
    ath_tool_log(choices.chosen_fits ? ATH_LOG_INFO : ATH_LOG_WARN, "auto cache: %s", choices.why);
    return -1;
}
