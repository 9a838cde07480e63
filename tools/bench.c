/* athanor bench (llama-bench): speed of prompts and of generation. The flags of llama-bench make lists of settings and
 * tests; all combinations run, one after another, each several times. bench_curve.c, bench_memory.c and
 * bench_commands.c are the other modes. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ath_program program = {
    ATH_PROGRAM_B, "-m MODEL [-p N] [-n N] [-d N] [-ctk T] [-ctv T] [flags]",
    "Measures speed. Flags that take lists (N,...) are combined with each other: every combination is a test.", false};

typedef struct bench {
    const ath_args *args;
    bench_case *cases;
    size_t n_cases;
    char **strings[BENCH_WORD_LISTS];
    bench_runner runner;
    bench_writer writers[2];
    uint64_t *ns, *steps; /* of the present test */
    size_t n_repeat;
    int64_t delay;
} bench;

/* ---- before anything runs */

/* Every cache type of the cases is known, and every model can hold its types. */
static int check_types(const bench *b) {
    int code = -1;
    ath_engine *engine = NULL;
    for (size_t i = 0; i < b->n_cases && code < 0; i++) {
        const bench_case *c = &b->cases[i];
        ath_cache_plan plan;
        ath_error err;
        if (i == 0 || strcmp(c->model, c[-1].model) != 0) {
            ath_engine_close(&engine);
            ath_engine_params ep = ath_tool_metadata_params(b->args);
            ep.model_path = c->model;
            if (ath_engine_open(&engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
        }
        ath_session_params sp = ath_session_params_default();
        sp.n_ctx = 256;
        sp.type_k = c->type_k;
        sp.type_v = c->type_v;
        if (ath_engine_plan_cache(engine, &sp, &plan, &err) != ATH_OK)
            code = ath_tool_fail("%s", err.message);
    }
    ath_engine_close(&engine);
    return code;
}

static int prepare(bench *b) {
    int64_t repeat = ATH_ARG_INT(b->args, B_REPEAT);
    b->delay = ATH_ARG_INT(b->args, B_DELAY);
    if (repeat < 1 || repeat > 100000) return ath_tool_fail("-r expects 1 to 100000");
    if (b->delay < 0 || b->delay > 86400) return ath_tool_fail("--delay expects 0 to 86400 seconds");
    b->n_repeat = (size_t)repeat;
    b->writers[0] = bench_writer_open(ATH_ARG_TEXT(b->args, B_OUTPUT), stdout, b->cases, b->n_cases);
    b->writers[1] = bench_writer_open(ATH_ARG_TEXT(b->args, B_OUTPUT_ERR), stderr, b->cases, b->n_cases);
    int64_t most = 0;
    for (size_t i = 0; i < b->n_cases; i++)
        if (b->cases[i].n_gen > most) most = b->cases[i].n_gen;
    b->ns = calloc(b->n_repeat, sizeof *b->ns);
    if (ATH_ARG_ON(b->args, B_STEPS)) {
        if (!bench_writer_has_steps(&b->writers[0]) && !bench_writer_has_steps(&b->writers[1]))
            return ath_tool_fail("--steps goes with -o json or -o jsonl: the other forms have no place for them");
        b->steps = calloc(b->n_repeat * (size_t)most + 1, sizeof *b->steps);
        if (!b->steps) return ath_tool_fail("out of memory");
    }
    return b->ns ? check_types(b) : ath_tool_fail("out of memory");
}

/* ---- one test */

static void show_progress(const bench *b, size_t at, const char *what) {
    char name[96];
    if (!ATH_ARG_ON(b->args, B_PROGRESS)) return;
    bench_test_name(&b->cases[at], name, sizeof name);
    fprintf(stderr, "bench: test %zu of %zu, %s: %s\n", at + 1, b->n_cases, name, what);
}

static int run_repetitions(bench *b, size_t at, bench_result *result) {
    const bench_case *c = &b->cases[at];
    int code = -1;
    for (size_t i = 0; i < b->n_repeat && code < 0 && !ath_tool_interrupted; i++) {
        char what[64];
        snprintf(what, sizeof what, "run %zu of %zu", i + 1, b->n_repeat);
        show_progress(b, at, what);
        ath_session_stats before;
        ath_session_get_stats(b->runner.session, &before);
        uint64_t *steps = b->steps ? b->steps + i * (size_t)c->n_gen : NULL;
        b->ns[i] = 0;
        code = bench_prompt(&b->runner, c->n_prompt, &b->ns[i]);
        if (code < 0) code = bench_generate(&b->runner, c->n_gen, &b->ns[i], steps);
        ath_session_get_stats(b->runner.session, &result->stats);
        bench_add_rows(&result->rows, &before, &result->stats);
        result->n = i + 1;
        if (code < 0) code = bench_set_depth(&b->runner, c->n_depth);
    }
    return code;
}

static int write_result(bench *b, const bench_result *result) {
    for (size_t i = 0; i < 2; i++) {
        bench_writer *w = &b->writers[i];
        if (!w->format) continue;
        if (w->format->row(w, result)) return 1;
        w->n_rows++;
        if (i == 0 && ath_tool_flush()) return 1;
    }
    return -1;
}

static int run_case(bench *b, size_t at) {
    const bench_case *c = &b->cases[at];
    bench_result result = {.test = *c, .runner = &b->runner, .ns = b->ns, .steps = b->steps};
    if (b->delay) nanosleep(&(struct timespec){.tv_sec = (time_t)b->delay}, NULL);
    show_progress(b, at, "filling the cache");
    int code = bench_open(&b->runner, c, bench_shared_context(b->cases, b->n_cases, at));
    if (code < 0) code = bench_set_depth(&b->runner, c->n_depth);
    time_t now = time(NULL);
    struct tm utc;
    strftime(result.time, sizeof result.time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    if (code < 0) code = run_repetitions(b, at, &result);
    return code < 0 && result.n ? write_result(b, &result) : code;
}

/* ---- all of them */

static int run_tests(bench *b) {
    for (int i = 0; i < 2; i++)
        if (b->writers[i].format && b->writers[i].format->begin) b->writers[i].format->begin(&b->writers[i]);
    int code = -1;
    for (size_t i = 0; i < b->n_cases && code < 0 && !ath_tool_interrupted; i++) code = run_case(b, i);
    for (int i = 0; i < 2; i++)
        if (b->writers[i].format && b->writers[i].format->end) b->writers[i].format->end(&b->writers[i]);
    if (code < 0) code = ath_tool_flush();
    return code ? code : ath_tool_interrupted ? ATH_EXIT_INTERRUPTED : 0;
}

static int run_bench(const ath_args *args) {
    bench b = {.args = args, .runner.args = args};
    int code = bench_make_cases(args, &b.cases, &b.n_cases, b.strings);
    if (code < 0) code = prepare(&b);
    if (code < 0) code = run_tests(&b);
    bench_close(&b.runner);
    for (int i = 0; i < BENCH_WORD_LISTS; i++) bench_free_words(b.strings[i]);
    free(b.cases);
    free(b.ns);
    free(b.steps);
    return code;
}

/* One of the modes, which exclude each other. */
static int choose_mode(const ath_args *args) {
    bool memory = ATH_ARG_ON(args, B_MEMORY), curve = ATH_ARG_ON(args, B_CURVE), commands = ATH_ARG_ON(args, B_COMMANDS);
    if (memory + curve + commands > 1) return ath_tool_fail("--memory, --curve and --commands exclude each other");
    if (memory) return bench_memory(args);
    if (curve) return bench_curve(args);
    return commands ? bench_commands(args) : run_bench(args);
}

int ath_tool_bench(int argc, char **argv) {
    ath_args args;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0 && ATH_ARG_ON(&args, LIST_DEVICES)) {
        puts("CPU");
        code = ath_tool_flush();
    }
    ath_tool_catch_interrupt();
    if (code < 0) code = choose_mode(&args);
    ath_args_free(&args);
    return code;
}
