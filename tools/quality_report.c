/* athanor quality: figures, verdicts, and how they are shown. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "auto_cache.h"
#include "quality.h"

/* ---- verdicts: all limits of a class must hold (docs/quality.md says why these) */

typedef struct limits {
    double kld, top1, ppl_ratio;
    double needles;    /* share of those that f16 finds */
    double growth;     /* last quarter of the window against the second */
    double repetition; /* more than f16's */
} limits;

static const limits safe = {0.02, 0.93, 1.02, 0.03, 2, 0.15}, visible = {0.1, 0.85, 1.1, 0.15, 4, 0.4};
enum { LEAST_DEPTH = 512, LEAST_FOUND = 16 }; /* below that a record more or less is chance */
enum { SHOWING_CTX = 1024 }; /* most rows that second halves of such windows read are compressed */
static const double small_kld = 0.002; /* growth below this is of no account */

static void add_reason(char *reasons, size_t cap, const char *reason) {
    size_t at = strlen(reasons);
    snprintf(reasons + at, cap - at, "%s%s", at ? ", " : "", reason);
}

/* Of windows whose second quarter is mostly read from encoded pages already. */
static double growth_of(const quality *q, const quality_result *r) {
    double early = r->quarter[1], late = r->quarter[3];
    return q->n_ctx / 4 >= LEAST_DEPTH && late > small_kld && early > 0 ? late / early : 1;
}

static double repetition_of(const quality_type *t);

static bool within(const limits *l, const quality *q, const quality_type *t, const quality_result *r,
                   char *reasons, size_t cap) {
    reasons[0] = 0;
    if (!(r->kld_mean <= l->kld)) add_reason(reasons, cap, "mean KLD");
    if (!(r->top1 >= l->top1)) add_reason(reasons, cap, "another likeliest token too often");
    if (!(r->ppl_ratio <= l->ppl_ratio)) add_reason(reasons, cap, "perplexity");
    int found = q->f16.needles_found, lost = found - t->needles_found;
    if (t->needles_done && found >= LEAST_FOUND && lost > 2 && lost > l->needles * found)
        add_reason(reasons, cap, "records not found");
    if (growth_of(q, r) > l->growth) add_reason(reasons, cap, "grows with depth");
    if (t->n_greedy && r->repetition - repetition_of(&q->f16) > l->repetition)
        add_reason(reasons, cap, "repeats itself");
    return !reasons[0];
}

static bool is_plain(const char *type) {
    return strcmp(type, "f32") == 0 || strcmp(type, "f16") == 0 || strcmp(type, "bf16") == 0;
}

/* Is there anything to judge by? If not, with a reason where there is one. */
static bool is_known(const quality *q, const quality_type *t, quality_result *r) {
    if (!r->n) return false;
    if (t->rows_compressed || (is_plain(t->type_k) && is_plain(t->type_v))) return true;
    snprintf(r->reasons, sizeof r->reasons, "no compressed row was read%s",
             q->n_ctx < SHOWING_CTX ? ": -c 1024 or more shows what the type does" : "");
    return false;
}

static void judge(const quality *q, const quality_type *t, quality_result *r) {
    r->verdict = ath_class_name(ATH_CLASS_UNKNOWN);
    if (!is_known(q, t, r)) return;
    char unused[sizeof r->reasons];
    ath_quality_class class = ATH_CLASS_BAD;
    if (within(&safe, q, t, r, r->reasons, sizeof r->reasons))
        class = ATH_CLASS_SAFE;
    else if (within(&visible, q, t, r, unused, sizeof unused))
        class = ATH_CLASS_VISIBLE;
    else
        memcpy(r->reasons, unused, sizeof unused);
    r->verdict = ath_class_name(class);
}

/* ---- figures */

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double repetition_of(const quality_type *t) {
    if (t->n_greedy < 8) return 0;
    size_t n = t->n_greedy - 3, repeated = 0;
    uint64_t *runs = malloc(n * sizeof *runs);
    if (!runs) return 0;
    for (size_t i = 0; i < n; i++) {
        runs[i] = 0xCBF29CE484222325u;
        for (size_t j = 0; j < 4; j++) runs[i] = (runs[i] ^ (uint32_t)t->greedy[i + j]) * 0x100000001B3u;
    }
    qsort(runs, n, sizeof *runs, by_number);
    for (size_t i = 1; i < n; i++) repeated += runs[i] == runs[i - 1];
    free(runs);
    return (double)repeated / (double)n;
}

static int64_t first_difference(const quality_type *a, const quality_type *b) {
    size_t n = a->n_greedy < b->n_greedy ? a->n_greedy : b->n_greedy;
    for (size_t i = 0; i < n; i++)
        if (a->greedy[i] != b->greedy[i]) return (int64_t)i;
    return -1;
}

quality_worst quality_worst_head(const quality *q, const quality_type *t, bool is_value) {
    quality_worst worst = {0, 0, 0};
    for (int il = 0; il < q->info.n_layers; il++)
        for (int h = 0; h < ath_engine_layer(q->engine, il).n_kv_heads; h++) {
            ath_cache_error e = ath_session_cache_error(t->session, il, h);
            double value = is_value ? e.v : e.k;
            if (value > worst.value) worst = (quality_worst){il, h, value};
        }
    return worst;
}

static void add_quarters(const quality *q, const quality_type *t, quality_result *r) {
    ath_moments m[QUALITY_QUARTERS] = {{0}};
    for (size_t i = 0; i < q->n_scored; i++)
        ath_add(&m[i % (q->n_ctx - 1) * QUALITY_QUARTERS / (q->n_ctx - 1)], (double)t->kld[i]);
    for (int i = 0; i < QUALITY_QUARTERS; i++) r->quarter[i] = m[i].n ? ath_mean_of(&m[i]) : (double)NAN;
}

void quality_bins(const quality *q, const quality_type *t, double mean[QUALITY_BINS], double error[QUALITY_BINS]) {
    ath_moments values[QUALITY_BINS] = {{0}}, blocks[QUALITY_BINS] = {{0}};
    double sum = 0;
    for (size_t i = 0; i < q->n_scored; i++) {
        size_t at = i % (q->n_ctx - 1), bin = at * QUALITY_BINS / (q->n_ctx - 1), in_block = at % ATH_SCORE_BLOCK;
        ath_add(&values[bin], (double)t->kld[i]);
        sum = (in_block ? sum : 0) + (double)t->kld[i];
        if (in_block == ATH_SCORE_BLOCK - 1) ath_add(&blocks[bin], sum / ATH_SCORE_BLOCK);
    }
    for (int b = 0; b < QUALITY_BINS; b++) {
        mean[b] = values[b].n ? ath_mean_of(&values[b]) : (double)NAN;
        error[b] = ath_error_of(&blocks[b]);
    }
}

/* Positions n_ctx/2 .. n_ctx - 2 of the windows, as llama-perplexity scores them. Their number; x [n_scored]. */
static size_t second_halves(const quality *q, const float *all, float *x) {
    size_t n = 0;
    for (size_t i = 0; i < q->n_scored; i++)
        if (i % (q->n_ctx - 1) >= q->n_ctx / 2) x[n++] = all[i];
    return n;
}

static double mean_of(const float *x, size_t n) {
    ath_moments m = {0};
    for (size_t i = 0; i < n; i++) ath_add(&m, (double)x[i]);
    return ath_mean_of(&m);
}

bool quality_summarize(const quality *q, const quality_type *t, quality_result *r) {
    *r = (quality_result){0};
    float *x = malloc((q->n_scored + 1) * sizeof *x);
    if (!x) return false;
    r->n = second_halves(q, t->same_top, x);
    r->top1 = mean_of(x, r->n);
    r->top1_error = ath_mean_error_by_block(x, r->n);
    second_halves(q, t->nll_ratio, x);
    r->ppl_ratio = exp(mean_of(x, r->n));
    r->ppl_ratio_error = r->ppl_ratio * ath_mean_error_by_block(x, r->n);
    second_halves(q, t->kld, x);
    r->kld_mean = mean_of(x, r->n);
    bool ok = ath_errors_by_block(x, r->n, &r->kld_error);
    ath_sort_floats(x, r->n);
    r->kld_median = ath_percentile(x, r->n, 0.5);
    r->kld_p99 = ath_percentile(x, r->n, 0.99);
    r->kld_max = ath_percentile(x, r->n, 1);
    free(x);
    add_quarters(q, t, r);
    r->first_difference = first_difference(&q->f16, t);
    r->repetition = repetition_of(t);
    judge(q, t, r);
    return ok;
}

/* ---- text */

static void print_distribution(const quality *q, const quality_result *r) {
    printf("%-22s %5s %10s  %-20s %9s  %-18s %7s  %-17s\n", "cache", "bits", "bytes/tok", "mean KLD",
           "median", "99th percentile", "top-1", "PPL ratio");
    for (int i = 0; i < q->n_types; i++)
        printf("%-22s %5.2f %10.1f  %8.5f +/- %-7.5f %9.6f  %7.4f +/- %-6.4f %6.2f%%  %.4f +/- %.4f\n",
               q->type[i].name, q->type[i].bits, q->type[i].bytes_per_token, r[i].kld_mean,
               r[i].kld_error.mean, r[i].kld_median, r[i].kld_p99, r[i].kld_error.p99, 100 * r[i].top1,
               r[i].ppl_ratio, r[i].ppl_ratio_error);
}

static void print_tests(const quality *q, const quality_result *r) {
    printf("\n%-22s %-37s  %-10s  %-14s %s\n", "cache", "mean KLD by quarter of the window", "records",
           "continuation", "repeats");
    for (int i = -1; i < q->n_types; i++) {
        const quality_type *t = i < 0 ? &q->f16 : &q->type[i];
        char quarters[64] = "", found[32] = "-", differs[32] = "-", repeats[16] = "-";
        for (int k = 0; k < QUALITY_QUARTERS && i >= 0; k++)
            snprintf(quarters + strlen(quarters), sizeof quarters - strlen(quarters), " %8.5f",
                     r[i].quarter[k]);
        if (t->needles_done) snprintf(found, sizeof found, "%d of %d", t->needles_found, q->n_needles);
        if (t->n_greedy && i >= 0 && r[i].first_difference >= 0)
            snprintf(differs, sizeof differs, "from token %lld", (long long)r[i].first_difference + 1);
        else if (t->n_greedy)
            snprintf(differs, sizeof differs, i < 0 ? "%zu tokens" : "%zu the same", t->n_greedy);
        if (t->n_greedy) snprintf(repeats, sizeof repeats, "%.1f%%", 100 * repetition_of(t));
        printf("%-22s%-37s   %-10s  %-14s %s\n", t->name, quarters, found, differs, repeats);
    }
}

/* Median over layers: one bad layer doesn't move it, and shows as the worst head. */
static double median_error(const quality *q, const quality_type *t, bool is_value) {
    float *errors = malloc((size_t)q->info.n_layers * sizeof *errors);
    if (!errors) return 0;
    size_t n = 0;
    for (int il = 0; il < q->info.n_layers; il++) {
        ath_cache_error e = ath_session_cache_error(t->session, il, -1);
        if ((is_value ? e.v : e.k) > 0) errors[n++] = (float)(is_value ? e.v : e.k);
    }
    ath_sort_floats(errors, n);
    double median = ath_percentile(errors, n, 0.5);
    free(errors);
    return median;
}

static void print_errors(const quality *q) {
    printf("\n%-22s %-36s %s\n", "cache", "error of K: median, worst head", "error of V: median, worst head");
    for (int i = 0; i < q->n_types; i++) {
        printf("%-22s", q->type[i].name);
        for (int side = 0; side < 2; side++) {
            quality_worst worst = quality_worst_head(q, &q->type[i], side);
            char text[64] = "-";
            if (worst.value > 0)
                snprintf(text, sizeof text, "%5.2f%%, %5.2f%% (layer %d, head %d)",
                         100 * median_error(q, &q->type[i], side), 100 * worst.value, worst.layer,
                         worst.head);
            printf(" %-36s", text);
        }
        putchar('\n');
    }
}

void quality_print(const quality *q, const quality_result *r) {
    printf("%s, windows of %zu tokens, %zu positions in their second halves; everything against f16\n\n",
           *q->info.name ? q->info.name : q->info.path, q->n_ctx, q->n_types ? r[0].n : 0);
    if (!q->n_scored) {
        puts("nothing was scored");
        return;
    }
    print_distribution(q, r);
    print_tests(q, r);
    print_errors(q);
    putchar('\n');
    for (int i = 0; i < q->n_types; i++)
        printf("%-22s %s%s%s%s\n", q->type[i].name, r[i].verdict, *r[i].reasons ? " (" : "", r[i].reasons,
               *r[i].reasons ? ")" : "");
}

/* ---- JSON */

static void add(cJSON *json, const char *name, double value) {
    cJSON_AddNumberToObject(json, name, value);
}

static cJSON *tests_json(const quality *q, const quality_type *t, cJSON *json) {
    if (t->needles_done) {
        cJSON *needles = cJSON_AddObjectToObject(json, "needles");
        add(needles, "found", t->needles_found);
        add(needles, "of", q->n_needles);
        add(needles, "answer_nll", t->needle_nll);
    }
    if (t->n_greedy) {
        cJSON *greedy = cJSON_AddObjectToObject(json, "greedy");
        add(greedy, "tokens", (double)t->n_greedy);
        add(greedy, "repetition", repetition_of(t));
    }
    return json;
}

static void add_layers(cJSON *json, const quality *q, const quality_type *t) {
    cJSON *layers = cJSON_AddArrayToObject(json, "layers");
    for (int il = 0; il < q->info.n_layers; il++) {
        ath_cache_error e = ath_session_cache_error(t->session, il, -1);
        cJSON *layer = cJSON_CreateObject();
        add(layer, "k", e.k);
        add(layer, "v", e.v);
        add(layer, "k_norm", e.norm_k);
        add(layer, "v_norm", e.norm_v);
        cJSON_AddItemToArray(layers, layer);
    }
    for (int side = 0; side < 2; side++) {
        quality_worst worst = quality_worst_head(q, t, side);
        cJSON *head = cJSON_AddObjectToObject(json, side ? "worst_v" : "worst_k");
        add(head, "layer", worst.layer);
        add(head, "head", worst.head);
        add(head, "error", worst.value);
    }
}

static cJSON *type_json(const quality *q, const quality_type *t, const quality_result *r) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", t->name);
    cJSON_AddStringToObject(json, "type_k", t->type_k);
    cJSON_AddStringToObject(json, "type_v", t->type_v);
    add(json, "kld_mean", r->kld_mean);
    add(json, "kld_se", r->kld_error.mean);
    add(json, "kld_median", r->kld_median);
    add(json, "kld_median_se", r->kld_error.median);
    add(json, "kld_p99", r->kld_p99);
    add(json, "kld_p99_se", r->kld_error.p99);
    add(json, "kld_max", r->kld_max);
    add(json, "top1", r->top1);
    add(json, "top1_se", r->top1_error);
    add(json, "ppl_ratio", r->ppl_ratio);
    add(json, "ppl_ratio_se", r->ppl_ratio_error);
    cJSON_AddItemToObject(json, "kld_quarters", cJSON_CreateDoubleArray(r->quarter, QUALITY_QUARTERS));
    double bins[QUALITY_BINS], errors[QUALITY_BINS];
    quality_bins(q, t, bins, errors);
    cJSON_AddItemToObject(json, "kld_bins", cJSON_CreateDoubleArray(bins, QUALITY_BINS));
    cJSON_AddItemToObject(json, "kld_bins_se", cJSON_CreateDoubleArray(errors, QUALITY_BINS));
    add(json, "bytes_per_token", t->bytes_per_token);
    add(json, "bits_per_value", t->bits);
    tests_json(q, t, json);
    if (t->n_greedy) /* null: no difference */
        cJSON_AddItemToObject(cJSON_GetObjectItem(json, "greedy"), "first_difference",
                              r->first_difference < 0 ? cJSON_CreateNull()
                                                      : cJSON_CreateNumber((double)r->first_difference));
    add_layers(json, q, t);
    cJSON_AddStringToObject(json, "verdict", r->verdict);
    cJSON_AddStringToObject(json, "reasons", r->reasons);
    return json;
}

cJSON *quality_json(const quality *q, const quality_result *results, bool known) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", q->info.path);
    cJSON_AddStringToObject(json, "name", q->info.name);
    add(json, "context", (double)q->n_ctx);
    add(json, "windows", (double)q->n_windows);
    add(json, "positions", q->n_types ? (double)results[0].n : 0);
    cJSON_AddItemToObject(json, "f16", tests_json(q, &q->f16, cJSON_CreateObject()));
    cJSON *types = cJSON_AddArrayToObject(json, "types");
    for (int i = 0; i < q->n_types && q->n_scored; i++)
        if (!known || strcmp(results[i].verdict, ath_class_name(ATH_CLASS_UNKNOWN)) != 0)
            cJSON_AddItemToArray(types, type_json(q, &q->type[i], &results[i]));
    return json;
}
