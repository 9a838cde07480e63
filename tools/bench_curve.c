/* athanor bench --curve: decode and prefill against depth, a pass over the depths per cache type: the cache is filled
 * once, with random K and V (ath_session_fill), and goes on from depth to depth. Each row says how many bytes a decode step reads, of cache and weights, and how
 * much of the read bandwidth, measured before, that uses. Of the repetitions the fastest counts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { DEFAULT_REPEAT = 2, DEFAULT_GEN = 64, DEEPEST = 131072, SPARE_BYTES = 256 << 20 };

typedef struct curve {
    const ath_args *args;
    bench_runner runner;
    bench_case test; /* all but the depth */
    bench_list depths;
    int64_t n_repeat;
    double bandwidth; /* GB/s */
    double (*row_bytes)[4]; /* [n_layers] of a token: K encoded, K plain, V encoded, V plain */
    char cpu[128];
} curve;

typedef struct point {
    double prompt_ts, gen_ts;
    double cache_bytes; /* read by a decode step */
    bench_rows rows;    /* read by all of them */
} point;

/* ---- bytes */

static double plain_bytes(const char *type) {
    return strcmp(type, "f32") == 0 ? 4 : 2;
}

/* Bytes of one token in one layer, as the pages hold it. */
static int encoded_bytes(const char *type, int n_heads, int head_dim, bool as_key, double *bytes) {
    ath_distortion d;
    ath_error err;
    if (ath_cache_type_distortion(type, head_dim, NULL, 128, 1, as_key, &d, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    *bytes = d.bytes_per_value * n_heads * head_dim;
    return -1;
}

static int fill_row_bytes(curve *c) {
    const bench_case *t = &c->test;
    int code = -1;
    free(c->row_bytes);
    c->row_bytes = calloc((size_t)c->runner.info.n_layers, sizeof *c->row_bytes);
    if (!c->row_bytes) return ath_tool_fail("out of memory");
    for (int il = 0; il < c->runner.info.n_layers && code < 0; il++) {
        ath_layer_info l = ath_engine_layer(c->runner.engine, il);
        if (l.cache == ATH_LAYER_RECURRENT) continue; /* keeps no rows */
        double *bytes = c->row_bytes[il];
        code = encoded_bytes(t->type_k, l.n_kv_heads, l.head_dim_k, true, &bytes[0]);
        if (code < 0) code = encoded_bytes(t->type_v, l.n_kv_heads, l.head_dim_v, false, &bytes[2]);
        bytes[1] = plain_bytes(t->type_k) * l.n_kv_heads * l.head_dim_k;
        bytes[3] = plain_bytes(t->type_v) * l.n_kv_heads * l.head_dim_v;
    }
    return code;
}

/* Of everything that the session has read so far. */
static double cache_bytes_read(const curve *c) {
    double sum = 0;
    for (int il = 0; il < c->runner.info.n_layers; il++) {
        uint64_t rows[4];
        ath_session_layer_rows(c->runner.session, il, rows);
        for (int i = 0; i < 4; i++) sum += (double)rows[i] * c->row_bytes[il][i];
    }
    return sum;
}

/* ---- points */

static double best_speed(double best, int64_t n, uint64_t ns) {
    double speed = ns ? (double)n * 1e9 / (double)ns : 0;
    return speed > best ? speed : best;
}

static int measure_point(curve *c, int64_t depth, point *p) {
    const bench_case *t = &c->test;
    double bytes = 0;
    int code = bench_set_depth(&c->runner, depth);
    for (int64_t i = 0; i < c->n_repeat && code < 0; i++) {
        uint64_t prompt_ns = 0, gen_ns = 0;
        ath_session_stats before, after;
        code = bench_prompt(&c->runner, t->n_prompt, &prompt_ns);
        if (code < 0) code = bench_set_depth(&c->runner, depth);
        double bytes_before = cache_bytes_read(c);
        ath_session_get_stats(c->runner.session, &before);
        if (code < 0) code = bench_generate(&c->runner, t->n_gen, &gen_ns, NULL);
        ath_session_get_stats(c->runner.session, &after);
        bytes += cache_bytes_read(c) - bytes_before;
        if (code < 0) code = bench_set_depth(&c->runner, depth);
        bench_add_rows(&p->rows, &before, &after);
        p->prompt_ts = best_speed(p->prompt_ts, t->n_prompt, prompt_ns);
        p->gen_ts = best_speed(p->gen_ts, t->n_gen, gen_ns);
    }
    p->cache_bytes = t->n_gen ? bytes / (double)(c->n_repeat * t->n_gen) : 0;
    return code;
}

static void print_head(void) {
    puts("engine,cpu,isa,threads,model,type_k,type_v,depth,pp_ts,tg_ts,cache_bytes_per_token,weight_bytes_per_token,"
         "gb_per_s,bandwidth_gb_per_s,percent_of_bandwidth,share_compressed");
}

static int print_point(const curve *c, int64_t depth, const point *p) {
    const bench_runner *r = &c->runner;
    double weights = bench_weight_bytes(r->engine), speed = (p->cache_bytes + weights) * p->gen_ts * 1e-9;
    char model[128];
    bench_model_type(r->engine, model, sizeof model);
    printf("athanor,\"%s\",%s,%d,\"%s\",%s,%s,%" PRId64 ",%.3f,%.3f,%.0f,%.0f,%.3f,%.3f,%.1f,%.4f\n", c->cpu, r->isa,
           r->info.n_threads, model, c->test.type_k, c->test.type_v, depth, p->prompt_ts, p->gen_ts, p->cache_bytes,
           weights, speed, c->bandwidth, 100 * speed / c->bandwidth, bench_share(&p->rows));
    return ath_tool_flush() ? 1 : -1;
}

/* ---- one type */

/* Where the model's positions end: those that it was trained on, and what is measured there a little beyond; where it
 * has learned each of them there is no beyond. */
static int64_t deepest_of_model(const curve *c) {
    const ath_engine_info *info = &c->runner.info;
    return info->n_ctx_max ? info->n_ctx_max - c->test.n_prompt - c->test.n_gen : info->n_ctx_train;
}

/* The deepest depth that the model and memory hold in these types; -1: none. */
static int64_t deepest(const curve *c, int64_t spare) {
    const bench_runner *r = &c->runner;
    int64_t best = -1;
    for (size_t i = 0; i < c->depths.n; i++) {
        ath_cache_plan plan;
        ath_session_params sp = ath_session_params_default();
        int64_t depth = c->depths.values[i];
        sp.n_ctx = depth + c->test.n_prompt + c->test.n_gen;
        sp.type_k = c->test.type_k;
        sp.type_v = c->test.type_v;
        if (depth > deepest_of_model(c) || ath_engine_plan_cache(r->engine, &sp, &plan, NULL) != ATH_OK) continue;
        uint64_t bytes = (uint64_t)plan.bytes_pages + plan.bytes_recent + plan.bytes_state + plan.bytes_entries +
                         (uint64_t)spare;
        if (bytes <= ath_available_memory() && depth > best) best = depth;
    }
    return best;
}

static int run_type(curve *c) {
    int64_t n_test = c->test.n_prompt + c->test.n_gen;
    int code = bench_open(&c->runner, &c->test, n_test);
    if (code < 0 && c->bandwidth == 0) code = bench_read_bandwidth(c->args, c->runner.info.n_threads, &c->bandwidth);
    if (code >= 0) return code;
    int64_t last = deepest(c, SPARE_BYTES), asked = c->depths.values[c->depths.n - 1];
    if (last < asked)
        ath_tool_log(ATH_LOG_WARN, "%s/%s: the model or the memory ends below depth %lld", c->test.type_k,
                     c->test.type_v, (long long)asked);
    if (last > 0) code = bench_open(&c->runner, &c->test, last + n_test);
    if (code < 0) code = fill_row_bytes(c);
    for (size_t i = 0; i < c->depths.n && code < 0 && !ath_tool_interrupted; i++) {
        point p = {0};
        if (c->depths.values[i] > last) break;
        code = measure_point(c, c->depths.values[i], &p);
        if (code < 0) code = print_point(c, c->depths.values[i], &p);
    }
    return code;
}

/* ---- all of them */

static int by_size(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Without -d: 0, then 2048 doubled to 131072. */
static int read_depths(curve *c) {
    if (ATH_ARG_GIVEN(c->args, B_DEPTH)) {
        int code = bench_numbers(c->args, ATH_FLAG_B_DEPTH, 0, &c->depths);
        if (code < 0) qsort(c->depths.values, c->depths.n, sizeof *c->depths.values, by_size);
        return code;
    }
    c->depths.values = calloc(8, sizeof *c->depths.values);
    if (!c->depths.values) return ath_tool_fail("out of memory");
    c->depths.n = 1;
    for (int64_t depth = 2048; depth <= DEEPEST; depth *= 2) c->depths.values[c->depths.n++] = depth;
    return -1;
}

static int read_settings(curve *c, const bench_case *cases, size_t n_cases) {
    const char *format = ATH_ARG_TEXT(c->args, B_OUTPUT);
    if (ATH_ARG_GIVEN(c->args, B_OUTPUT) && strcmp(format, "csv") != 0)
        return ath_tool_fail("--curve prints CSV, not -o %s", format);
    if (ATH_ARG_GIVEN(c->args, B_CACHE_K) || ATH_ARG_GIVEN(c->args, B_CACHE_V))
        return ath_tool_fail("--curve takes its cache types from --types, as in --types f16,q8_0/turbo3");
    for (size_t i = 0; i < n_cases; i++) {
        if (!bench_same_settings(&cases[i], &cases[0]))
            return ath_tool_fail("--curve takes one value each for -m, -b, -ub and -t");
        if (cases[i].n_prompt) c->test.n_prompt = cases[i].n_prompt;
        if (cases[i].n_gen) c->test.n_gen = cases[i].n_gen;
    }
    if (!ATH_ARG_GIVEN(c->args, B_GEN)) c->test.n_gen = DEFAULT_GEN;
    c->n_repeat = ATH_ARG_GIVEN(c->args, B_REPEAT) ? ATH_ARG_INT(c->args, B_REPEAT) : DEFAULT_REPEAT;
    return c->n_repeat > 0 ? read_depths(c) : ath_tool_fail("-r expects 1 or more");
}

static int run_types(curve *c) {
    char type_k[ATH_TYPE_NAME], type_v[ATH_TYPE_NAME];
    int code = -1;
    c->test.type_k = type_k;
    c->test.type_v = type_v;
    const char *list = ATH_ARG_TEXT(c->args, B_TYPES);
    for (size_t size; *list && code < 0 && !ath_tool_interrupted; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        code = ath_tool_split_types(list, size, type_k, type_v);
        if (code < 0) code = run_type(c);
        bench_close(&c->runner); /* the names change, and memory for the next type counts from here */
    }
    return code;
}

int bench_curve(const ath_args *args) {
    bench_case *cases;
    size_t n_cases;
    char **strings[BENCH_WORD_LISTS];
    curve c = {.args = args, .runner = {.args = args, .fill = true}};
    int code = bench_make_cases(args, &cases, &n_cases, strings);
    if (code < 0) {
        c.test = cases[0];
        c.test.n_prompt = c.test.n_gen = 0;
        code = read_settings(&c, cases, n_cases);
    }
    bench_cpu_name(c.cpu, sizeof c.cpu);
    if (code < 0) {
        ath_tool_log(ATH_LOG_INFO, "depth is made of random K and V, which takes seconds; -d without --curve evaluates tokens");
        print_head();
        code = run_types(&c);
    }
    bench_close(&c.runner);
    for (int i = 0; i < BENCH_WORD_LISTS; i++) bench_free_words(strings[i]);
    free(c.depths.values);
    free(c.row_bytes);
    free(cases);
    return code < 0 ? ath_tool_interrupted ? ATH_EXIT_INTERRUPTED : 0 : code;
}
