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
        return code;
    }
    for (size_t size; *list && code < 0; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        if (size) code = add_type(q, list, size);
    }
    return code < 0 && !q->n_types ? ath_tool_fail("--types names no cache type") : code;
}

/* ---- opening */

static int read_tokens(quality *q) {
    const char *path = ATH_ARG_TEXT(q->args, FILE);
    size_t size = sizeof built_in_text;
    char *text = path ? ath_tool_read_file(path, &size) : NULL;
    if (path && !text) return 1;
    q->tokens = ath_tool_tokens(q->engine, path ? text : built_in_text, size, &q->n_tokens);
    free(text);
    if (!q->tokens) return 1;
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
    size_t n_ctx = q->n_ctx, needles = q->n_needle_head ? q->n_needle_head + 128 : 0;
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

static int open_all(quality *q) {
    ath_engine_params ep;
    ath_error err;
    int64_t n_ctx = ATH_ARG_INT(q->args, Q_CTX_SIZE), greedy = ATH_ARG_INT(q->args, GREEDY);
    int64_t needles = ATH_ARG_INT(q->args, NEEDLES);
    if (greedy < 0 || greedy > 1 << 24) return ath_tool_fail("--greedy expects 0 or more");
    if (needles < 0 || needles > 64) return ath_tool_fail("--needles expects 0 to 64");
    int code = ath_tool_engine_params(q->args, &ep);
    if (code >= 0) return code;
    if (ath_engine_open(&q->engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_get_info(q->engine, &q->info);
    q->n_vocab = (size_t)q->info.n_vocab;
    n_ctx = n_ctx ? n_ctx : q->info.n_ctx_train;
    if (n_ctx < 16 || n_ctx > 1 << 28) return ath_tool_fail("-c %lld is out of range", (long long)n_ctx);
    q->n_ctx = (size_t)n_ctx;
    code = choose_types(q);
    if (code < 0) code = read_tokens(q);
    q->n_greedy = (size_t)greedy;
    q->n_prompt = q->n_tokens < PROMPT_TOKENS ? q->n_tokens : PROMPT_TOKENS;
    q->n_needles = (int)needles;
    if (code < 0 && needles) code = quality_prepare_needles(q);
    return code < 0 ? open_sessions(q) : code;
}

/* ---- the run */

static double total_work(const quality *q) {
    double windows = (double)(q->n_windows * q->n_ctx),
           needles = (double)(q->n_needle_head + 30 * (size_t)q->n_needles);
    double greedy = (double)(QUALITY_DECODE_COST * q->n_greedy + (q->n_greedy ? q->n_prompt : 0));
    return (1 + q->n_types) * (windows + needles + greedy);
}

static int run_tests(quality *q) {
    ath_progress_start(&q->progress, "quality", total_work(q), false);
    int code = quality_run_windows(q);
    for (int i = -1; i < q->n_types && code < 0 && q->n_needles && !ath_tool_interrupted; i++)
        code = quality_run_needles(q, i < 0 ? &q->f16 : &q->type[i]);
    for (int i = -1; i < q->n_types && code < 0 && q->n_greedy && !ath_tool_interrupted; i++)
        code = quality_run_greedy(q, i < 0 ? &q->f16 : &q->type[i]);
    ath_progress_end(&q->progress);
    return code;
}

static int write_json(quality *q, const quality_result *results) {
    const char *path = ATH_ARG_TEXT(q->args, JSON_FILE);
    bool store = ATH_ARG_ON(q->args, STORE) && !ath_tool_interrupted;
    if (!path && !store) return 0;
    cJSON *json = quality_json(q, results);
    if (store && ath_verdicts_store(q->engine, json)) {
        cJSON_Delete(json);
        return 1;
    }
    ath_outfile out;
    if (path && ath_outfile_open(&out, path) == 0)
        return ath_json_print(json, out.file) || ath_outfile_commit(&out);
    cJSON_Delete(json);
    return path != NULL;
}

static int write_plot(const quality *q) {
    const char *path = ATH_ARG_TEXT(q->args, PLOT);
    ath_outfile out;
    if (!path) return 0;
    if (ath_outfile_open(&out, path)) return 1;
    quality_plot(q, out.file);
    return ath_outfile_commit(&out);
}

static int report(quality *q) {
    quality_result *results = calloc((size_t)q->n_types, sizeof *results);
    bool ok = results != NULL;
    for (int i = 0; i < q->n_types && ok; i++) ok = quality_summarize(q, &q->type[i], &results[i]);
    int code = ok ? 0 : ath_tool_fail("out of memory");
    ath_report_saturated(q->f16.session);
    if (ok) {
        quality_print(q, results);
        code = ath_tool_flush() || write_json(q, results) || write_plot(q);
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
    return code ? code : ath_tool_interrupted ? ATH_EXIT_INTERRUPTED : 0;
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
    free(q);
    ath_args_free(&args);
    return code;
}
