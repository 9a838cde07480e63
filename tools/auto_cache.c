/* -ctk auto, -ctv auto: the best quality that fits. A table says what to expect of a type; where athanor
 * quality ran on this model, its verdicts count instead. */
#include "auto_cache.h"

#include <stdlib.h>
#include <string.h>

static const double least_bits = 3;         /* below that only with --kv-allow-2bit */
static const double share_of_memory = 0.85; /* of what is free; the rest is for scratch and the system */
/* A verdict on windows of so many tokens counts for any context: from there on it looks at how the damage grows with depth. */
static const int64_t long_enough = 2048;

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

/* The library's own string for a type, NULL if it has none. */
static const char *known_type(const char *name, size_t size) {
    const char *known;
    for (int i = 0; (known = ath_cache_type_name(i)); i++)
        if (strlen(known) == size && memcmp(known, name, size) == 0) return known;
    return NULL;
}

/* ---- what is known: rows of the table, and verdicts in their place */

typedef struct known_row {
    const char *type_k, *type_v;
    ath_rating is;
    double expected; /* KLD in the table, or the measured one of a pair that it doesn't hold */
} known_row;

typedef struct known {
    known_row row[ATH_MAX_CHOICES];
    int n;
} known;

static known_row *find(known *all, const char *k, const char *v) {
    for (int i = 0; i < all->n; i++)
        if (all->row[i].type_k == k && all->row[i].type_v == v) return &all->row[i];
    return NULL;
}

/* Takes the place of what was known of the pair. */
static void add_row(known *all, const char *k, const char *v, ath_rating is) {
    known_row *row = find(all, k, v);
    if (!row && all->n == ATH_MAX_CHOICES) return;
    double table = row ? row->expected : is.kld;
    if (!row) row = &all->row[all->n++];
    *row = (known_row){k, v, is, table};
}

static void add_table(known *all) {
    for (int i = 0; i < N_EXPECTED; i++) {
        const char *k = known_type(expected[i].type_k, strlen(expected[i].type_k));
        const char *v = known_type(expected[i].type_v, strlen(expected[i].type_v));
        if (k && v) add_row(all, k, v, (ath_rating){expected[i].class, expected[i].kld, false});
    }
}

/* "turbo3" or "q8_0/turbo3". False: a type that this build doesn't have. */
static bool split_types(const char *text, const char **k, const char **v) {
    const char *slash = strchr(text, '/');
    *k = known_type(text, slash ? (size_t)(slash - text) : strlen(text));
    *v = slash ? known_type(slash + 1, strlen(slash + 1)) : *k;
    return *k && *v;
}

/* A verdict on short windows says little of a long context, unless it is a bad one. */
static void add_verdicts(known *all, const ath_engine *engine, int64_t n_ctx) {
    cJSON *stored = ath_verdicts_load(engine);
    int64_t needed = n_ctx < long_enough ? n_ctx : long_enough;
    const cJSON *entry;
    int n_short = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(stored, "types")) {
        ath_verdict verdict;
        const char *k, *v;
        if (!ath_verdict_read(entry, &verdict) || !split_types(verdict.type, &k, &v)) continue;
        if (strcmp(k, "f16") == 0 && strcmp(v, "f16") == 0) continue; /* the reference itself */
        if (verdict.class == ATH_CLASS_BAD || verdict.context >= (double)needed)
            add_row(all, k, v, (ath_rating){verdict.class, verdict.kld, true});
        else
            n_short++;
    }
    cJSON_Delete(stored);
    if (n_short)
        ath_tool_log(ATH_LOG_INFO, "auto cache: %d verdict%s on windows of less than %lld tokens left out", n_short,
                     n_short == 1 ? "" : "s", (long long)needed);
}

/* Where a type was measured to be worse than the table says, those that the table puts below it are no
 * better. */
static void lower_expectations(known *all) {
    for (int i = 0; i < all->n; i++)
        for (int j = 0; j < all->n; j++) {
            known_row *row = &all->row[i];
            const known_row *m = &all->row[j];
            if (row->is.measured || !m->is.measured || m->expected > row->expected) continue;
            if (m->is.class > row->is.class) row->is.class = m->is.class;
            if (m->is.kld > row->is.kld) row->is.kld = m->is.kld;
        }
}

/* ---- candidates */

/* Two types that were rated apart, together: what damages more decides. */
static ath_rating worse(ath_rating a, ath_rating b) {
    return (ath_rating){a.class > b.class ? a.class : b.class, a.kld > b.kld ? a.kld : b.kld, false};
}

/* What a row says of a choice. A side that is given stands. The row rates the pair if it holds just that pair; else, if it
 * is of one type and no other row holds the pair, it rates the free side. */
static void add_choice(ath_choices *out, known *all, const known_row *row, const char *given_k, const char *given_v) {
    const char *k = given_k ? given_k : row->type_k, *v = given_v ? given_v : row->type_v;
    bool plain = (!given_k && strchr(k, ':')) || (!given_v && strchr(v, ':')); /* for comparison, no choice */
    if (plain) return;
    ath_choice *c = &out->choice[out->n];
    *c = (ath_choice){.type_k = k, .type_v = v, .pair = row->is, .own = row->is};
    if (find(all, k, v) != row) {
        if (row->type_k != row->type_v || find(all, k, v)) return;
        const char *given = given_k ? given_k : given_v;
        const known_row *other = find(all, given, given);
        c->pair = worse(row->is, other ? other->is : (ath_rating){.class = ATH_CLASS_UNKNOWN});
    }
    out->n++;
}

static int compare_ratings(const ath_rating *x, const ath_rating *y) {
    if (x->class != y->class) return (int)x->class - (int)y->class;
    return (x->kld > y->kld) - (x->kld < y->kld);
}

/* A given side that is the worse one makes all pairs equal: then the free side decides. */
static int by_quality(const void *a, const void *b) {
    const ath_choice *x = a, *y = b;
    int order = compare_ratings(&x->pair, &y->pair);
    return order ? order : compare_ratings(&x->own, &y->own);
}

/* The side that is given, NULL if it is "auto". The library's string where there is one: types are compared by address. */
static const char *given_type(const char *type) {
    if (strcmp(type, "auto") == 0) return NULL;
    const char *same = known_type(type, strlen(type));
    return same ? same : type;
}

static void add_candidates(ath_choices *out, const ath_engine *engine, const ath_session_params *p) {
    known all = {.n = 0};
    add_table(&all);
    add_verdicts(&all, engine, out->n_ctx);
    lower_expectations(&all);
    for (int i = 0; i < all.n; i++)
        add_choice(out, &all, &all.row[i], given_type(p->type_k), given_type(p->type_v));
    qsort(out->choice, (size_t)out->n, sizeof out->choice[0], by_quality);
}

/* ---- memory */

static ath_status plan_choice(const ath_engine *engine, const ath_choice *c, const ath_session_params *p, int64_t n_ctx,
                              ath_cache_plan *plan, ath_error *err) {
    ath_session_params session = *p;
    session.type_k = c->type_k;
    session.type_v = c->type_v;
    session.n_ctx = n_ctx;
    return ath_engine_plan_cache(engine, &session, plan, err);
}

static uint64_t all_bytes(const ath_cache_plan *plan, const ath_session_params *p) {
    return ((uint64_t)plan->bytes_pages + plan->bytes_recent + plan->bytes_state + plan->bytes_entries) *
           (uint64_t)p->n_seqs;
}

int64_t ath_largest_context(const ath_engine *engine, const ath_choice *c, const ath_session_params *p, uint64_t budget) {
    int64_t low = 0, high = ((int64_t)1 << 32) / 256, largest = 0;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        ath_cache_plan plan;
        if (plan_choice(engine, c, p, middle * 256, &plan, NULL) == ATH_OK && all_bytes(&plan, p) <= budget) {
            low = middle;
            largest = plan.n_tokens;
        } else
            high = middle - 1;
    }
    return largest;
}

/* Returns -1, or 1 after an error line if no choice can be stored at all: the reason is then one that all have, such as
 * a given type that doesn't exist. */
static int size_choices(ath_choices *out, const ath_engine *engine, const ath_session_params *p) {
    int n_fit = 0;
    ath_error err, first = {0};
    for (int i = 0; i < out->n; i++) {
        ath_choice *c = &out->choice[i];
        ath_cache_plan plan;
        c->fits_heads = plan_choice(engine, c, p, out->n_ctx, &plan, &err) == ATH_OK;
        if (!i && !c->fits_heads) first = err;
        if (!c->fits_heads) continue;
        n_fit++;
        c->bytes = all_bytes(&plan, p);
        c->bytes_per_token = plan.bytes_per_token;
        c->bits = plan.bytes_per_token_f16 > 0 ? 16 * plan.bytes_per_token / plan.bytes_per_token_f16 : 16;
    }
    return n_fit ? -1 : ath_tool_fail("%s", first.message);
}

/* ---- the choice */

static bool may_take(const ath_choice *c, bool allow_2bit) {
    if (!c->fits_heads || c->own.class >= ATH_CLASS_BAD) return false;
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

static void describe_quality(const ath_choice *c, const ath_session_params *p, char *buf, size_t cap) {
    if (c->pair.class == ATH_CLASS_EXACT)
        snprintf(buf, cap, "the reference itself");
    else if (c->pair.class == ATH_CLASS_UNKNOWN)
        snprintf(buf, cap, "of unknown quality: %s is neither in the table nor measured",
                 given_type(p->type_k) ? c->type_k : c->type_v);
    else
        snprintf(buf, cap, "%s, mean KLD %s %.2g", ath_class_name(c->pair.class),
                 c->pair.measured ? "measured here" : "expected", c->pair.kld);
}

static void explain(ath_choices *out, const ath_session_params *p, bool allow_2bit) {
    const ath_choice *c = &out->choice[out->chosen];
    char quality[128];
    describe_quality(c, p, quality, sizeof quality);
    double mib = (double)c->bytes / 1048576, budget = (double)out->budget / 1048576;
    const char *of = out->budget_given ? "--kv-budget" : "free memory";
    if (out->chosen_fits)
        snprintf(out->why, sizeof out->why,
                 "K %s, V %s (%s): the best that fits %lld tokens into %s, %.1f of %.0f MiB", c->type_k,
                 c->type_v, quality, (long long)out->n_ctx, of, mib, budget);
    else
        snprintf(
            out->why, sizeof out->why,
            "K %s, V %s (%s): nothing%s fits %lld tokens into %s, this is the smallest, %.1f of %.0f MiB",
            c->type_k, c->type_v, quality, allow_2bit ? "" : " of 3 bits or more", (long long)out->n_ctx, of,
            mib, budget);
}

int ath_make_choices(ath_choices *out, const ath_args *args, const ath_engine *engine, const ath_session_params *p,
                     uint64_t spare) {
    memset(out, 0, sizeof *out);
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
    add_candidates(out, engine, p);
    int code = size_choices(out, engine, p);
    if (code >= 0) return code;
    bool allow_2bit = ATH_ARG_ON(args, KV_ALLOW_2BIT);
    choose(out, allow_2bit);
    if (out->chosen >= 0) explain(out, p, allow_2bit);
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
    const ath_choice *c = &choices.choice[choices.chosen];
    params->type_k = c->type_k;
    params->type_v = c->type_v;
    bool good = choices.chosen_fits && c->pair.class != ATH_CLASS_BAD;
    ath_tool_log(good ? ATH_LOG_INFO : ATH_LOG_WARN, "auto cache: %s", choices.why);
    return -1;
}
