/* athanor bench: the engine and session that cases run on, and the clock around what they evaluate. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* The program prints results: of the engine's log only warnings, unless more was asked for. */
static void log_warnings(void *user, ath_log_level level, const char *line) {
    if (level <= ATH_LOG_WARN || ath_tool_logs(ATH_LOG_DEBUG)) ath_tool_log_callback(user, level, line);
}

/* ---- opening */

static bool same_engine(const bench_case *a, const bench_case *b) {
    return strcmp(a->model, b->model) == 0 && a->n_batch == b->n_batch && a->n_ubatch == b->n_ubatch &&
           a->n_threads == b->n_threads;
}

static bool same_session(const bench_case *a, const bench_case *b) {
    return strcmp(a->type_k, b->type_k) == 0 && strcmp(a->type_v, b->type_v) == 0;
}

static int open_engine(bench_runner *r, const bench_case *c) {
    ath_engine_params ep;
    ath_error err;
    int code = ath_tool_engine_params(r->args, &ep);
    if (code >= 0) return code;
    ep.model_path = c->model;
    ep.n_threads = c->n_threads;
    ep.n_ubatch = c->n_ubatch < c->n_batch ? c->n_ubatch : c->n_batch;
    ep.log = log_warnings;
    if (ath_engine_open(&r->engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_get_info(r->engine, &r->info);
    const char *comma = strstr(r->info.device, ", "), *end = strrchr(r->info.device, ',');
    if (comma && end > comma) snprintf(r->isa, sizeof r->isa, "%.*s", (int)(end - comma - 2), comma + 2);
    return -1;
}

/* Ids from all over the vocabulary, the same in every run; BOS first where texts start with it. */
static int make_tokens(bench_runner *r) {
    r->tokens = malloc((size_t)r->n_ctx * sizeof *r->tokens);
    if (!r->tokens) return ath_tool_fail("out of memory");
    for (int64_t i = 0; i < r->n_ctx; i++)
        r->tokens[i] = (ath_token)(((uint64_t)i * UINT64_C(2654435761) >> 7) % (uint64_t)r->info.n_vocab);
    if (ath_engine_adds_bos(r->engine)) r->tokens[0] = ath_token_bos(r->engine);
    return -1;
}

static int open_session(bench_runner *r, const bench_case *c, int64_t n_ctx) {
    ath_session_params sp = ath_session_params_default();
    ath_error err;
    sp.n_ctx = n_ctx;
    sp.type_k = c->type_k;
    sp.type_v = c->type_v;
    if (ath_session_open(&r->session, r->engine, &sp, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    r->n_ctx = ath_session_n_ctx(r->session);
    if (r->n_ctx < n_ctx)
        return ath_tool_fail("-p, -n and -d take %lld tokens, but the model ends at %lld", (long long)n_ctx,
                             (long long)r->n_ctx);
    return make_tokens(r);
}

static int warm_up(bench_runner *r) {
    uint64_t ns = 0;
    int64_t n = r->info.n_ubatch < r->n_ctx ? r->info.n_ubatch : r->n_ctx - 1;
    int code = bench_prompt(r, n, &ns);
    if (code < 0) code = bench_generate(r, 1, &ns, NULL);
    ath_session_clear(r->session, 0);
    return code;
}

static void close_session(bench_runner *r) {
    ath_session_close(&r->session);
    free(r->tokens);
    r->tokens = NULL;
}

void bench_close(bench_runner *r) {
    close_session(r);
    ath_engine_close(&r->engine);
}

int bench_open(bench_runner *r, const bench_case *c, int64_t n_ctx) {
    bool keep_engine = r->engine && same_engine(&r->opened, c);
    if (keep_engine && r->session && same_session(&r->opened, c) && n_ctx <= r->n_ctx) return -1;
    close_session(r);
    if (!keep_engine) ath_engine_close(&r->engine);
    r->opened = *c;
    int code = keep_engine ? -1 : open_engine(r, c);
    if (code < 0) code = open_session(r, c, n_ctx);
    if (code < 0 && ATH_ARG_ON(r->args, B_WARMUP)) code = warm_up(r);
    return code;
}

/* ---- evaluation */

static uint64_t now_ns(void) {
    return (uint64_t)(ath_tool_now_ms() * 1e6);
}

static int append(bench_runner *r, int64_t n) {
    ath_error err;
    int64_t at = ath_session_length(r->session, 0);
    if (ath_session_append(r->session, 0, r->tokens + at, (size_t)n, &err) == ATH_OK) return -1;
    return ath_tool_fail("%s", err.message);
}

static int fill(bench_runner *r, int64_t n) {
    ath_error err;
    if (ath_session_fill(r->session, 0, (size_t)n, &err) == ATH_OK) return -1;
    return ath_tool_fail("%s", err.message);
}

static bool has_room(const bench_runner *r, int64_t n) {
    return n <= r->n_ctx - ath_session_length(r->session, 0);
}

static int no_room(const bench_runner *r) {
    return ath_tool_fail("there is room for %lld tokens in all: raise -d, -p or -n", (long long)r->n_ctx);
}

int bench_set_depth(bench_runner *r, int64_t depth) {
    ath_error err;
    if (depth > r->n_ctx) return no_room(r);
    int64_t missing = depth - ath_session_truncate(r->session, 0, depth);
    if (missing == 0) return -1;
    int code = r->fill ? fill(r, missing) : append(r, missing);
    if (code < 0 && ath_session_mark_entry(r->session, 0, &err) != ATH_OK) code = ath_tool_fail("%s", err.message);
    return code;
}

int bench_prompt(bench_runner *r, int64_t n, uint64_t *ns) {
    if (!has_room(r, n)) return no_room(r);
    uint64_t start = now_ns();
    int code = n ? append(r, n) : -1;
    *ns += now_ns() - start;
    return code;
}

int bench_generate(bench_runner *r, int64_t n, uint64_t *ns, uint64_t *steps) {
    if (!has_room(r, n)) return no_room(r);
    int code = -1;
    uint64_t start = now_ns(), before = start;
    for (int64_t i = 0; i < n && code < 0; i++) {
        code = append(r, 1);
        if (!steps) continue;
        uint64_t after = now_ns();
        steps[i] = after - before;
        before = after;
    }
    *ns += now_ns() - start;
    return code;
}

/* ---- facts about the model and the machine */

void bench_add_rows(bench_rows *sum, const ath_session_stats *before, const ath_session_stats *after) {
    double compressed = (double)(after->k_rows_compressed - before->k_rows_compressed) +
                        (double)(after->v_rows_compressed - before->v_rows_compressed);
    sum->compressed += compressed;
    sum->all += compressed + (double)(after->k_rows_f16 - before->k_rows_f16) +
                (double)(after->v_rows_f16 - before->v_rows_f16);
}

double bench_share(const bench_rows *rows) {
    return rows->all > 0 ? rows->compressed / rows->all : 0;
}

/* A metadata value as text; "" if the file has none of this key. */
static void metadata(const ath_engine *engine, const char *wanted, char *value, size_t cap) {
    char key[128];
    *value = 0;
    for (int64_t i = 0; i < ath_engine_n_metadata(engine); i++) {
        ath_engine_metadata_key(engine, i, key, sizeof key);
        if (strcmp(key, wanted) == 0) ath_engine_metadata_value(engine, i, value, cap);
    }
}

double bench_weight_bytes(const ath_engine *engine) {
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    char key[128], used[32], all[32];
    snprintf(key, sizeof key, "%.64s.expert_used_count", info.arch);
    metadata(engine, key, used, sizeof used);
    snprintf(key, sizeof key, "%.64s.expert_count", info.arch);
    metadata(engine, key, all, sizeof all);
    double share = atof(all) > 0 ? atof(used) / atof(all) : 1, bytes = 0, embedding = 0;
    bool own_output = false;
    for (int64_t i = 0; i < ath_engine_n_tensors(engine); i++) {
        ath_tensor_info t;
        ath_engine_tensor(engine, i, &t);
        own_output |= strcmp(t.name, "output.weight") == 0;
        if (strcmp(t.name, "token_embd.weight") == 0)
            embedding = (double)t.bytes;
        else
            bytes += (double)t.bytes * (strstr(t.name, "_exps.") ? share : 1);
    }
    return own_output ? bytes : bytes + embedding; /* a shared embedding is the output matrix */
}

void bench_model_type(const ath_engine *engine, char *text, size_t cap) {
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    char label[32];
    metadata(engine, "general.size_label", label, sizeof label);
    if (!*label && info.n_params >= 1000000000)
        snprintf(label, sizeof label, "%.3gB", (double)info.n_params * 1e-9);
    else if (!*label)
        snprintf(label, sizeof label, "%.3gM", (double)info.n_params * 1e-6);
    snprintf(text, cap, "%s %s %s", info.arch, label, info.file_type);
}

void bench_cpu_name(char *text, size_t cap) {
    char line[256];
    snprintf(text, cap, "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(text, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file) fclose(file);
}
