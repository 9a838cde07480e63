/* athanor bench --commands: another program says line by line what to measure, so that it can take turns with a second
 * engine while the caches of both stay filled (bench/versus.py). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "json.h"

typedef struct server {
    bench_runner runner;
    uint64_t *steps; /* [n_ctx] */
} server;

static int answer(cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (!text) return ath_tool_fail("out of memory");
    puts(text);
    cJSON_free(text);
    return ath_tool_flush() ? 1 : -1;
}

static void add_statistics(cJSON *json, const server *s, const ath_session_stats *before) {
    ath_session_stats after;
    bench_rows rows = {0, 0};
    ath_session_get_stats(s->runner.session, &after);
    bench_add_rows(&rows, before, &after);
    cJSON_AddStringToObject(json, "isa", s->runner.isa);
    cJSON_AddStringToObject(json, "type_k", after.type_k);
    cJSON_AddStringToObject(json, "type_v", after.type_v);
    cJSON_AddNumberToObject(json, "share_compressed", bench_share(&rows));
    cJSON_AddNumberToObject(json, "bytes_per_token", after.bytes_per_token);
    cJSON_AddNumberToObject(json, "cache_bytes", (double)after.cache_bytes);
    cJSON_AddNumberToObject(json, "scratch_bytes", (double)after.scratch_bytes);
    cJSON_AddNumberToObject(json, "prefill_encode_ms", after.prefill_encode_ms - before->prefill_encode_ms);
    cJSON_AddNumberToObject(json, "weight_bytes_per_token", bench_weight_bytes(s->runner.engine));
}

static int run_command(server *s, const char *word, int64_t n, uint64_t *ns) {
    double start = ath_tool_now_ms();
    if (strcmp(word, "pp") == 0) return bench_prompt(&s->runner, n, ns);
    if (strcmp(word, "tg") == 0) return bench_generate(&s->runner, n, ns, s->steps);
    if (strcmp(word, "depth") != 0)
        return ath_tool_fail("--commands knows \"depth N\", \"pp N\" and \"tg N\", but got \"%.40s\"", word);
    int code = bench_set_depth(&s->runner, n);
    *ns = (uint64_t)((ath_tool_now_ms() - start) * 1e6);
    return code;
}

/* A test leaves the depth as it found it. */
static int obey(server *s, const char *word, int64_t n) {
    ath_session_stats before;
    int64_t depth = strcmp(word, "depth") == 0 ? n : ath_session_length(s->runner.session, 0);
    uint64_t ns = 0;
    ath_session_get_stats(s->runner.session, &before);
    int code = run_command(s, word, n, &ns);
    if (code >= 0) return code;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, word, (double)n);
    cJSON_AddNumberToObject(json, "ns", (double)ns);
    cJSON_AddNumberToObject(json, "ts", ns ? (double)n * 1e9 / (double)ns : 0);
    add_statistics(json, s, &before);
    cJSON *steps = strcmp(word, "tg") == 0 ? cJSON_AddArrayToObject(json, "steps_ns") : NULL;
    for (int64_t i = 0; steps && i < n; i++) cJSON_AddItemToArray(steps, cJSON_CreateNumber((double)s->steps[i]));
    code = bench_set_depth(&s->runner, depth);
    int printed = answer(json);
    return code < 0 ? printed : code;
}

static int serve(server *s) {
    char line[128], word[32];
    int code = -1;
    while (code < 0 && fgets(line, sizeof line, stdin)) {
        int64_t n = 0;
        int used = 0;
        if (sscanf(line, "%31s %" SCNd64 " %n", word, &n, &used) != 2 || line[used] || n < 0)
            code = ath_tool_fail("--commands expects a word and a number, but got \"%.*s\"", (int)strcspn(line, "\n"),
                                 line);
        else
            code = obey(s, word, n);
    }
    return code < 0 ? 0 : code;
}

int bench_commands(const ath_args *args) {
    bench_case *cases;
    size_t n_cases;
    char **strings[BENCH_WORD_LISTS];
    server s = {.runner.args = args};
    int code = bench_make_cases(args, &cases, &n_cases, strings);
    for (size_t i = 0; i < n_cases && code < 0; i++)
        if (!bench_same_settings(&cases[i], &cases[0]))
            code = ath_tool_fail("--commands takes one value each for -m, -ctk, -ctv, -b, -ub and -t");
    if (code < 0) code = bench_open(&s.runner, &cases[0], bench_shared_context(cases, n_cases, 0));
    if (code < 0 && !(s.steps = calloc((size_t)s.runner.n_ctx, sizeof *s.steps))) code = ath_tool_fail("out of memory");
    if (code < 0) code = serve(&s);
    bench_close(&s.runner);
    for (int i = 0; i < BENCH_WORD_LISTS; i++) bench_free_words(strings[i]);
    free(cases);
    free(s.steps);
    return code;
}
