/* athanor quality: what cache types do to this model's output. The f16 cache and every candidate run side by
 * side over the same weights and text, pass by pass, so that nothing has to be written down between two runs.
 */
#include "quality.h"

#include <stdlib.h>
#include <string.h>

#include "auto_cache.h"
#include "json.h"
#include "report.h"

static const ath_program program = {
    ATH_PROGRAM_Q, "-m MODEL [-f TEXT] [-c N] [--types LIST] [flags]",
    "Runs cache types beside f16 on the same text, and says what each changes.", false};

enum { BASE_BYTES = 256 << 20, PROMPT_TOKENS = 256 };

static const char built_in_text[] = {
#include "quality_text.inc"
};

/* ---- types */

static int add_type(quality *q, const char *name, size_t size) {
    if (q->n_types == QUALITY_MAX_TYPES) return ath_tool_fail("--types: at most %d types", QUALITY_MAX_TYPES);
    quality_type *t = &q->type[q->n_types];
    int code = ath_tool_split_types(name, size, t->type_k, t->type_v);
    if (code >= 0) return code;
    snprintf(t->name, sizeof t->name, "%.*s", (int)size, name);
    q->n_types++;
    return -1;
}

/* False, with a word in the log, if the model's heads can't be stored in this type. */
static bool fits_heads(const quality *q, const char *name) {
    ath_cache_plan plan;
    ath_error err;
    ath_session_params sp = ath_session_params_default();
    sp.n_ctx = 256;
    sp.type_k = sp.type_v = name;
    if (ath_engine_plan_cache(q->engine, &sp, &plan, &err) == ATH_OK) return true;
    ath_tool_log(ATH_LOG_INFO, "%s is left out: %s", name, err.message);
    return false;
}

/* Types that are for use; ":plain" ones are for comparison. */
static bool wanted_by_default(const char *name) {
    return strcmp(name, "q8_0") == 0 || (strncmp(name, "turbo", 5) == 0 && !strchr(name, ':'));
}

static int choose_types(quality *q) {
    const char *list = ATH_ARG_TEXT(q->args, TYPES), *name;
    int code = -1;
    if (!list) {
        for (int i = 0; (name = ath_cache_type_name(i)) && code < 0; i++)
            if (wanted_by_default(name) && fits_heads(q, name))
                code = add_type(q, name, strlen(name));
        if (code < 0 && !q->n_types)
            return ath_tool_fail(
                "neither q8_0 nor a turbo type holds this model's heads: name others with --types");
        return code;
    }
    for (size_t size; *list && code < 0; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        if (size) code = add_type(q, list, size);
    }
    return code < 0 && !q->n_types ? ath_tool_fail("--types names no cache type") : code;
}

static int read_tokens(quality *q) {
    const char *path = ATH_ARG_TEXT(q->args, FILE);
    size_t size = sizeof built_in_text;
    char *text = path ? ath_tool_read_file(path, &size) : NULL;
    if (path && !text) return 1;
    q->tokens = ath_tool_tokens(q->engine, path ? text : built_in_text, size, &q->n_tokens);
    free(text);
    return q->tokens ? -1 : 1;
}

/* ---- lengths */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* How long a sequence may be: as far as the model has learned positions, where it has; and for a length that nobody
 * asked for no longer than in training, or than the windows. */
static size_t longest(const quality *q, bool asked_for) {
    size_t trained = (size_t)q->info.n_ctx_train, end = (size_t)q->info.n_ctx_max;
    size_t most = asked_for ? SIZE_MAX : trained > q->n_ctx ? trained : q->n_ctx;
    return end ? least(most, end) : most;
}

static int choose_windows(quality *q) {
    int64_t given = ATH_ARG_INT(q->args, Q_CTX_SIZE), n_ctx = given ? given : q->info.n_ctx_train;
    if (n_ctx < 16 || n_ctx > 1 << 28) return ath_tool_fail("-c %lld is out of range", (long long)n_ctx);
    q->n_ctx = least((size_t)n_ctx, longest(q, ATH_ARG_GIVEN(q->args, Q_CTX_SIZE)));
    if (q->n_ctx < 16) return ath_tool_fail("the model ends at %zu tokens: windows take 16", q->n_ctx);
    q->n_windows = q->n_tokens / q->n_ctx;
    int64_t wanted = ATH_ARG_INT(q->args, CHUNKS);
    if (wanted >= 0 && (size_t)wanted < q->n_windows) q->n_windows = (size_t)wanted;
    if (!q->n_windows)
        return ath_tool_fail(
            "the text has %zu tokens, and a window takes %zu: give a longer one with -f, or a smaller "
            "-c, or more --chunks",
            q->n_tokens, q->n_ctx);
    return -1;
}

static void choose_greedy(quality *q) {
    size_t most = longest(q, ATH_ARG_GIVEN(q->args, GREEDY));
    q->n_prompt = least(least(q->n_tokens, PROMPT_TOKENS), most / 2);
    q->n_greedy = least((size_t)ATH_ARG_INT(q->args, GREEDY), most - q->n_prompt);
}

/* Half the records as often as it takes to make them fit. */
static int choose_needles(quality *q) {
    size_t most = longest(q, ATH_ARG_GIVEN(q->args, NEEDLES));
    for (q->n_needles = (int)ATH_ARG_INT(q->args, NEEDLES); q->n_needles; q->n_needles /= 2) {
        if (quality_prepare_needles(q) >= 0) return 1;
        if (q->n_needle_head + QUALITY_QUESTION <= most) return -1;
    }
    q->n_needle_head = 0;
    return -1;
}

static int choose_lengths(quality *q) {
    int code = choose_windows(q);
    if (code >= 0) return code;
    choose_greedy(q);
    code = choose_needles(q);
    if (code >= 0) return code;
    bool cut = q->n_ctx < (size_t)ATH_ARG_INT(q->args, Q_CTX_SIZE);
    cut |= q->n_greedy < (size_t)ATH_ARG_INT(q->args, GREEDY);
    cut |= q->n_needles < ATH_ARG_INT(q->args, NEEDLES);
    if (cut)
        ath_tool_log(ATH_LOG_INFO,
                     "a model of %lld positions: windows of %zu, a continuation of %zu, %d records",
                     (long long)q->info.n_ctx_train, q->n_ctx, q->n_greedy, q->n_needles);
    return -1;
}

/* ---- opening */

/* Passes end at multiples of 128 where that is possible: pages are full then. */
static size_t pass_rows(const quality *q) {
    size_t rows = (size_t)BASE_BYTES / (q->n_vocab * sizeof(float)), most = (size_t)q->info.n_ubatch;
    if (rows > most) rows = most;
    return rows >= 128 ? rows / 128 * 128 : rows ? rows : 1;
}

static int open_session(quality *q, quality_type *t, int64_t n_ctx) {
    ath_session_params sp;
    ath_error err;
    int code = ath_tool_session_params(q->args, &sp);
    if (code >= 0) return code;
    sp.n_ctx = n_ctx;
    sp.type_k = t->type_k;
    sp.type_v = t->type_v;
    if (ath_session_open(&t->session, q->engine, &sp, &err) != ATH_OK)
        return ath_tool_fail("%s: %s", t->name, err.message);
    ath_tool_stop_on_interrupt(t->session);
    if (ath_session_measure(t->session, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_session_stats s;
    ath_session_get_stats(t->session, &s);
    t->bytes_per_token = s.bytes_per_token;
    t->bits = s.bytes_per_token_f16 > 0 ? 16 * s.bytes_per_token / s.bytes_per_token_f16 : 16;
    size_t n = q->n_windows * (q->n_ctx - 1);
    t->kld = malloc(n * sizeof *t->kld);
    t->nll_ratio = malloc(n * sizeof *t->nll_ratio);
    t->same_top = malloc(n * sizeof *t->same_top);
    t->greedy = malloc((q->n_greedy + 1) * sizeof *t->greedy);
    return t->kld && t->nll_ratio && t->same_top && t->greedy ? -1 : ath_tool_fail("out of memory");
}

static int open_sessions(quality *q) {
    size_t n_ctx = q->n_ctx, needles = q->n_needle_head ? q->n_needle_head + QUALITY_QUESTION : 0;
    if (needles > n_ctx) n_ctx = needles;
    if (q->n_prompt + q->n_greedy > n_ctx) n_ctx = q->n_prompt + q->n_greedy;
    strcpy(q->f16.name, "f16");
    strcpy(q->f16.type_k, "f16");
    strcpy(q->f16.type_v, "f16");
    int code = open_session(q, &q->f16, (int64_t)n_ctx);
    for (int i = 0; i < q->n_types && code < 0; i++) code = open_session(q, &q->type[i], (int64_t)n_ctx);
    q->rows = pass_rows(q);
    q->base = malloc(q->rows * q->n_vocab * sizeof *q->base);
    if (code < 0 && !q->base) code = ath_tool_fail("out of memory");
    return code;
}

/* What can't be written should be known before the run, not after it. */
static int open_outputs(quality *q) {
    const char *json = ATH_ARG_TEXT(q->args, JSON_FILE), *plot = ATH_ARG_TEXT(q->args, PLOT);
    if (json && ath_outfile_open(&q->json, json)) return 1;
    return plot && ath_outfile_open(&q->plot, plot) ? 1 : -1;
}

/* All sessions say the same of their context: once is enough. */
static void log_once(void *user, ath_log_level level, const char *line) {
    quality *q = user;
    if (strcmp(line, q->logged) == 0) return;
    snprintf(q->logged, sizeof q->logged, "%s", line);
    ath_tool_log_callback(NULL, level, line);
}

static int open_all(quality *q) {
    ath_engine_params ep;
    ath_error err;
    int64_t greedy = ATH_ARG_INT(q->args, GREEDY), needles = ATH_ARG_INT(q->args, NEEDLES);
    if (greedy < 0 || greedy > 1 << 24) return ath_tool_fail("--greedy expects 0 or more");
    if (needles < 0 || needles > 64) return ath_tool_fail("--needles expects 0 to 64");
    int code = ath_tool_engine_params(q->args, &ep);
    if (code < 0) code = open_outputs(q);
    if (code >= 0) return code;
    ep.log = log_once;
    ep.log_user = q;
    if (ath_engine_open(&q->engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_get_info(q->engine, &q->info);
    q->n_vocab = (size_t)q->info.n_vocab;
    code = choose_types(q);
    if (code < 0) code = read_tokens(q);
    if (code < 0) code = choose_lengths(q);
    return code < 0 ? open_sessions(q) : code;
}

/* ---- the run */

static double total_work(const quality *q) {
    double windows = (double)(q->n_windows * q->n_ctx),
           needles = (double)(q->n_needle_head + 30 * (size_t)q->n_needles);
    double greedy = (double)(QUALITY_DECODE_COST * q->n_greedy + (q->n_greedy ? q->n_prompt : 0));
    return (1 + q->n_types) * (windows + needles + greedy);
}

/* Until it fails, with f16 first: what the others do counts beside that. The windows are worth a report even then. */
static void run_test(quality *q, int (*test)(quality *, quality_type *)) {
    for (int i = -1; i < q->n_types && !ath_tool_interrupted; i++)
        if (test(q, i < 0 ? &q->f16 : &q->type[i]) >= 0) {
            q->test_failed = true;
            return;
        }
}

static int run_tests(quality *q) {
    ath_progress_start(&q->progress, "quality", total_work(q), false);
    int code = quality_run_windows(q);
    if (code < 0 && q->n_needles) run_test(q, quality_run_needles);
    if (code < 0 && q->n_greedy) run_test(q, quality_run_greedy);
    ath_progress_end(&q->progress);
    return code;
}

/* The flag with which this is not the model that its file holds, as it was given; NULL: there is none. */
static const char *changing_flag(const ath_args *args) {
    static const ath_flag_id flags[] = {
        ATH_FLAG_DEBUG_K_BIAS,  ATH_FLAG_LORA,       ATH_FLAG_LORA_SCALED,    ATH_FLAG_OVERRIDE_KV,
        ATH_FLAG_ROPE_SCALING,  ATH_FLAG_ROPE_SCALE, ATH_FLAG_ROPE_FREQ_BASE, ATH_FLAG_ROPE_FREQ_SCALE,
        ATH_FLAG_YARN_ORIG_CTX, ATH_FLAG_YARN_EXT,   ATH_FLAG_YARN_ATTN,      ATH_FLAG_YARN_SLOW,
        ATH_FLAG_YARN_FAST,
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (ath_args_given(args, flags[i])) return args->values[flags[i]].name;
    return strcmp(ATH_ARG_TEXT(args, ACTIVATIONS), "f32") == 0 ? "--activations f32" : NULL;
}

/* For auto. Nothing that was measured is lost if that fails. */
static void keep_verdicts(const quality *q, const quality_result *results) {
    const char *flag = changing_flag(q->args);
    if (!ATH_ARG_ON(q->args, STORE) || ath_tool_interrupted) return;
    if (flag) {
        ath_tool_log(ATH_LOG_INFO, "verdicts with %s are not the model's own, and are not kept for auto",
                     flag);
        return;
    }
    cJSON *json = quality_json(q, results, true);
    if (cJSON_GetArraySize(cJSON_GetObjectItem(json, "types")) && ath_verdicts_store(q->engine, json))
        ath_tool_log(ATH_LOG_WARN, "the verdicts are not kept for auto");
    cJSON_Delete(json);
}

static int write_json(quality *q, const quality_result *results) {
    if (!q->json.file) return 0;
    return ath_json_print(quality_json(q, results, false), q->json.file) || ath_outfile_commit(&q->json);
}

static int write_plot(quality *q) {
    if (!q->plot.file) return 0;
    quality_plot(q, q->plot.file);
    return ath_outfile_commit(&q->plot);
}

static int report(quality *q) {
    quality_result *results = calloc((size_t)q->n_types, sizeof *results);
    bool ok = results != NULL;
    for (int i = 0; i < q->n_types && ok; i++) ok = quality_summarize(q, &q->type[i], &results[i]);
    int code = ok ? 0 : ath_tool_fail("out of memory");
    ath_report_saturated(q->f16.session);
    if (ok) {
        quality_print(q, results);
        code = ath_tool_flush();
        code |= write_json(q, results);
        code |= write_plot(q);
        keep_verdicts(q, results);
    }
    free(results);
    return code;
}

static int run_all(quality *q) {
    double start = ath_tool_now_ms();
    int code = open_all(q);
    if (code >= 0) return code;
    ath_tool_log(ATH_LOG_INFO, "%d windows of %zu tokens; %d cache types beside f16; passes of %zu rows",
                 (int)q->n_windows, q->n_ctx, q->n_types, q->rows);
    code = run_tests(q);
    if (code >= 0) return code;
    char took[32];
    ath_format_seconds(took, (ath_tool_now_ms() - start) * 1e-3);
    ath_tool_log(ATH_LOG_INFO, "%s after %s", ath_tool_interrupted ? "interrupted" : "done", took);
    code = report(q);
    return code || q->test_failed ? 1 : ath_tool_interrupted ? ATH_EXIT_INTERRUPTED : 0;
}

static void close_type(quality_type *t) {
    ath_session_close(&t->session);
    free(t->kld);
    free(t->nll_ratio);
    free(t->same_top);
    free(t->greedy);
}

int ath_tool_quality(int argc, char **argv) {
    ath_args args;
    quality *q = calloc(1, sizeof *q);
    if (!q) return ath_tool_fail("out of memory");
    q->args = &args;
    int code = ath_tool_begin(&args, &program, argc, argv);
    ath_tool_catch_interrupt();
    if (code < 0) code = run_all(q);
    close_type(&q->f16);
    for (int i = 0; i < q->n_types; i++) close_type(&q->type[i]);
    ath_engine_close(&q->engine);
    free(q->tokens);
    free(q->base);
    free(q->needle_head);
    ath_outfile_abandon(&q->json);
    ath_outfile_abandon(&q->plot);
    free(q);
    ath_args_free(&args);
    return code;
}
