/* athanor bench: results as a table, CSV, JSON or SQL. Names and order of the fields are those of llama-bench, so that
 * scripts read both; what only this engine has stands behind them, in JSON alone. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "build_info.inc"
#include "json.h"

typedef enum field_kind { FIELD_TEXT, FIELD_INT, FIELD_BOOL, FIELD_REAL } field_kind;

typedef struct field {
    const char *name;
    field_kind kind;
    char value[512];
} field;

enum { MAX_FIELDS = 48 };
typedef struct fields {
    field f[MAX_FIELDS];
    size_t n;
} fields;

/* ---- figures */

double bench_mean(const double *values, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    return n ? sum / (double)n : 0;
}

static double deviation(const double *values, size_t n) {
    double mean = bench_mean(values, n), sum = 0;
    for (size_t i = 0; i < n; i++) sum += (values[i] - mean) * (values[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : 0;
}

typedef struct figures {
    double ns, ns_deviation, per_second, per_second_deviation;
} figures;

static double tokens_per_second(const bench_result *r, size_t i) {
    return r->ns[i] ? (double)(r->test.n_prompt + r->test.n_gen) * 1e9 / (double)r->ns[i] : 0;
}

static figures figures_of(const bench_result *r) {
    double *values = malloc((r->n + 1) * sizeof *values);
    figures f = {0};
    if (!values) return f;
    for (size_t i = 0; i < r->n; i++) values[i] = (double)r->ns[i];
    f.ns = bench_mean(values, r->n);
    f.ns_deviation = deviation(values, r->n);
    for (size_t i = 0; i < r->n; i++) values[i] = tokens_per_second(r, i);
    f.per_second = bench_mean(values, r->n);
    f.per_second_deviation = deviation(values, r->n);
    free(values);
    return f;
}

void bench_test_name(const bench_case *c, char *text, size_t cap) {
    char prompt[32] = "", gen[32] = "", depth[32] = "";
    if (c->n_prompt) snprintf(prompt, sizeof prompt, "pp%" PRId64, c->n_prompt);
    if (c->n_gen) snprintf(gen, sizeof gen, "tg%" PRId64, c->n_gen);
    if (c->n_depth) snprintf(depth, sizeof depth, " @ d%" PRId64, c->n_depth);
    snprintf(text, cap, "%s%s%s%s", prompt, *prompt && *gen ? "+" : "", gen, depth);
}

/* ---- the fields of a row */

static void add_text(fields *f, const char *name, const char *value) {
    field *at = &f->f[f->n++];
    at->name = name;
    at->kind = FIELD_TEXT;
    snprintf(at->value, sizeof at->value, "%s", value);
}

static void add_number(fields *f, const char *name, field_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add_number(fields *f, const char *name, field_kind kind, const char *format, ...) {
    field *at = &f->f[f->n++];
    at->name = name;
    at->kind = kind;
    va_list ap;
    va_start(ap, format);
    vsnprintf(at->value, sizeof at->value, format, ap);
    va_end(ap);
}

static void add_int(fields *f, const char *name, int64_t value) {
    add_number(f, name, FIELD_INT, "%" PRId64, value);
}

static void add_bool(fields *f, const char *name, bool value) {
    add_number(f, name, FIELD_BOOL, "%d", value);
}

static void add_build(fields *f) {
    char cpu[128];
    bench_cpu_name(cpu, sizeof cpu);
    add_text(f, "build_commit", ATH_BUILD_COMMIT);
    add_int(f, "build_number", ATH_BUILD_NUMBER);
    add_text(f, "cpu_info", cpu);
    add_text(f, "gpu_info", "");
    add_text(f, "backends", "CPU");
}

static int64_t tensor_bytes(const ath_engine *engine) {
    int64_t sum = 0;
    for (int64_t i = 0; i < ath_engine_n_tensors(engine); i++) {
        ath_tensor_info t;
        ath_engine_tensor(engine, i, &t);
        sum += (int64_t)t.bytes;
    }
    return sum;
}

static void add_model(fields *f, const bench_runner *r) {
    char type[128];
    bench_model_type(r->engine, type, sizeof type);
    add_text(f, "model_filename", r->info.path);
    add_text(f, "model_type", type);
    add_int(f, "model_size", tensor_bytes(r->engine));
    add_int(f, "model_n_params", (int64_t)r->info.n_params);
}

/* Of the settings that don't exist here, what they amount to: no layer on a GPU, attention always fused. */
static void add_settings(fields *f, const bench_case *c, const bench_runner *r) {
    add_int(f, "n_batch", c->n_batch);
    add_int(f, "n_ubatch", c->n_ubatch);
    add_int(f, "n_threads", r->info.n_threads);
    const char *mask = ATH_ARG_TEXT(r->args, AFFINITY);
    add_text(f, "cpu_mask", mask ? mask : "0x0");
    add_bool(f, "cpu_strict", ATH_ARG_ON(r->args, CPU_STRICT));
    add_int(f, "poll", ATH_ARG_INT(r->args, POLL));
    add_text(f, "type_k", c->type_k);
    add_text(f, "type_v", c->type_v);
    add_int(f, "n_gpu_layers", 0);
    add_int(f, "n_cpu_moe", 0);
    add_text(f, "split_mode", "layer");
    add_int(f, "main_gpu", 0);
    add_bool(f, "no_kv_offload", false);
    add_bool(f, "flash_attn", true);
    add_text(f, "devices", "auto");
    add_text(f, "tensor_split", "0.00");
    add_text(f, "tensor_buft_overrides", "none");
    add_text(f, "load_mode", "auto");
    add_bool(f, "embeddings", false);
    add_bool(f, "no_op_offload", false);
    add_bool(f, "no_host", false);
    add_int(f, "fit_target", 0);
    add_int(f, "fit_min_ctx", 0);
}

static void fill_fields(fields *f, const bench_result *r) {
    figures v = figures_of(r);
    f->n = 0;
    add_build(f);
    add_model(f, r->runner);
    add_settings(f, &r->test, r->runner);
    add_int(f, "n_prompt", r->test.n_prompt);
    add_int(f, "n_gen", r->test.n_gen);
    add_int(f, "n_depth", r->test.n_depth);
    add_text(f, "test_time", r->time);
    add_number(f, "avg_ns", FIELD_INT, "%.0f", v.ns);
    add_number(f, "stddev_ns", FIELD_INT, "%.0f", v.ns_deviation);
    add_number(f, "avg_ts", FIELD_REAL, "%.6f", v.per_second);
    add_number(f, "stddev_ts", FIELD_REAL, "%.6f", v.per_second_deviation);
}

/* ---- CSV and SQL */

static void put_quoted(FILE *file, const char *text, char quote) {
    fputc(quote, file);
    for (; *text; text++) {
        if (*text == quote) fputc(quote, file);
        fputc(*text, file);
    }
    fputc(quote, file);
}

static void put_names(FILE *file, const fields *f, const char *between) {
    for (size_t i = 0; i < f->n; i++) fprintf(file, "%s%s", i ? between : "", f->f[i].name);
}

static int csv_row(bench_writer *w, const bench_result *result) {
    fields f;
    fill_fields(&f, result);
    if (w->n_rows == 0) {
        put_names(w->file, &f, ",");
        fputc('\n', w->file);
    }
    for (size_t i = 0; i < f.n; i++) {
        if (i) fputc(',', w->file);
        put_quoted(w->file, f.f[i].value, '"');
    }
    fputc('\n', w->file);
    return 0;
}

static int sql_row(bench_writer *w, const bench_result *result) {
    static const char *const types[] = {
        [FIELD_TEXT] = "TEXT", [FIELD_INT] = "INTEGER", [FIELD_BOOL] = "INTEGER", [FIELD_REAL] = "REAL"};
    fields f;
    fill_fields(&f, result);
    if (w->n_rows == 0) {
        fputs("CREATE TABLE IF NOT EXISTS llama_bench (\n", w->file);
        for (size_t i = 0; i < f.n; i++)
            fprintf(w->file, "  %s %s%s\n", f.f[i].name, types[f.f[i].kind], i + 1 < f.n ? "," : "");
        fputs(");\n\n", w->file);
    }
    fputs("INSERT INTO llama_bench (", w->file);
    put_names(w->file, &f, ", ");
    fputs(") VALUES (", w->file);
    for (size_t i = 0; i < f.n; i++) {
        if (i) fputs(", ", w->file);
        put_quoted(w->file, f.f[i].value, '\'');
    }
    fputs(");\n", w->file);
    return 0;
}

/* ---- JSON */

static void add_samples(cJSON *json, const bench_result *r) {
    cJSON *ns = cJSON_AddArrayToObject(json, "samples_ns"), *ts = cJSON_AddArrayToObject(json, "samples_ts");
    for (size_t i = 0; i < r->n; i++) {
        cJSON_AddItemToArray(ns, cJSON_CreateNumber((double)r->ns[i]));
        cJSON_AddItemToArray(ts, cJSON_CreateNumber(tokens_per_second(r, i)));
    }
    if (!r->steps) return;
    cJSON *steps = cJSON_AddArrayToObject(json, "steps_ns");
    for (size_t i = 0; i < r->n; i++) {
        cJSON *one = cJSON_CreateArray();
        for (int64_t s = 0; s < r->test.n_gen; s++)
            cJSON_AddItemToArray(one, cJSON_CreateNumber((double)r->steps[i * (size_t)r->test.n_gen + (size_t)s]));
        cJSON_AddItemToArray(steps, one);
    }
}

static void add_engine(cJSON *json, const bench_result *r) {
    cJSON_AddStringToObject(json, "engine", "athanor " ATHANOR_VERSION);
    cJSON_AddStringToObject(json, "isa", r->runner->isa);
    cJSON_AddStringToObject(json, "matmul_kernel", r->runner->info.matmul_kernel);
    cJSON_AddStringToObject(json, "attention_kernel", r->stats.attention_kernel);
    cJSON_AddStringToObject(json, "effective_type_k", r->stats.type_k);
    cJSON_AddStringToObject(json, "effective_type_v", r->stats.type_v);
    cJSON_AddNumberToObject(json, "share_compressed", bench_share(&r->rows));
    cJSON_AddNumberToObject(json, "bytes_per_token", r->stats.bytes_per_token);
    cJSON_AddNumberToObject(json, "scratch_bytes", (double)r->stats.scratch_bytes);
}

static cJSON *make_json(const bench_result *result) {
    fields f;
    fill_fields(&f, result);
    cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; i < f.n; i++) {
        const field *at = &f.f[i];
        switch (at->kind) {
        case FIELD_TEXT: cJSON_AddStringToObject(json, at->name, at->value); break;
        case FIELD_BOOL: cJSON_AddBoolToObject(json, at->name, at->value[0] == '1'); break;
        case FIELD_INT:
        case FIELD_REAL: cJSON_AddRawToObject(json, at->name, at->value); break;
        }
    }
    add_samples(json, result);
    add_engine(json, result);
    return json;
}

static int print_json(bench_writer *w, const bench_result *result, bool one_line) {
    cJSON *json = make_json(result);
    char *text = one_line ? cJSON_PrintUnformatted(json) : cJSON_Print(json);
    cJSON_Delete(json);
    if (!text) return ath_tool_fail("out of memory");
    fputs(text, w->file);
    cJSON_free(text);
    return 0;
}

static int jsonl_row(bench_writer *w, const bench_result *result) {
    if (print_json(w, result, true)) return 1;
    fputc('\n', w->file);
    return 0;
}

static void json_begin(bench_writer *w) {
    fputs("[\n", w->file);
}

static int json_row(bench_writer *w, const bench_result *result) {
    if (w->n_rows) fputs(",\n", w->file);
    return print_json(w, result, false);
}

static void json_end(bench_writer *w) {
    fputs("\n]\n", w->file);
}

/* ---- the table */

typedef struct column {
    const char *title;
    int width;
    bool right;
} column;

enum { COLUMN_MODEL, COLUMN_SIZE, COLUMN_PARAMS, COLUMN_BACKEND, COLUMN_THREADS, COLUMN_EXTRA };
static const column columns[] = {
    [COLUMN_MODEL] = {"model", 30, false},     [COLUMN_SIZE] = {"size", 10, true},
    [COLUMN_PARAMS] = {"params", 10, true},    [COLUMN_BACKEND] = {"backend", 10, false},
    [COLUMN_THREADS] = {"threads", 7, true},   [COLUMN_EXTRA] = {"n_batch", 7, true},
    [COLUMN_EXTRA + 1] = {"n_ubatch", 8, true}, [COLUMN_EXTRA + 2] = {"type_k", 10, true},
    [COLUMN_EXTRA + 3] = {"type_v", 10, true}, [COLUMN_EXTRA + BENCH_MD_COLUMNS] = {"test", 15, true},
    [COLUMN_EXTRA + BENCH_MD_COLUMNS + 1] = {"t/s", 20, true},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static bool column_shown(const bench_writer *w, int i) {
    return i < COLUMN_EXTRA || i >= COLUMN_EXTRA + BENCH_MD_COLUMNS || w->extra_columns[i - COLUMN_EXTRA];
}

/* Padded to a width in characters, not bytes. */
static void put_cell(FILE *file, const column *c, const char *text) {
    int size = 0;
    for (const char *at = text; *at; at++) size += ((unsigned char)*at & 0xc0) != 0x80;
    int pad = size < c->width ? c->width - size : 0;
    fprintf(file, " %*s%s%*s |", c->right ? pad : 0, "", text, c->right ? 0 : pad, "");
}

static void md_head(const bench_writer *w) {
    fputc('|', w->file);
    for (int i = 0; i < N_COLUMNS; i++)
        if (column_shown(w, i)) put_cell(w->file, &columns[i], columns[i].title);
    fputs("\n|", w->file);
    for (int i = 0; i < N_COLUMNS; i++) {
        if (!column_shown(w, i)) continue;
        fputc(' ', w->file);
        for (int dash = columns[i].right; dash < columns[i].width; dash++) fputc('-', w->file);
        fputs(columns[i].right ? ": |" : " |", w->file);
    }
    fputc('\n', w->file);
}

static void md_values(char cells[N_COLUMNS][128], const bench_result *r) {
    double size = (double)tensor_bytes(r->runner->engine) / 1048576, params = (double)r->runner->info.n_params * 1e-6;
    figures v = figures_of(r);
    bench_model_type(r->runner->engine, cells[COLUMN_MODEL], 128);
    snprintf(cells[COLUMN_SIZE], 128, size < 1024 ? "%.2f MiB" : "%.2f GiB", size < 1024 ? size : size / 1024);
    snprintf(cells[COLUMN_PARAMS], 128, params < 1000 ? "%.2f M" : "%.2f B", params < 1000 ? params : params / 1000);
    snprintf(cells[COLUMN_BACKEND], 128, "CPU");
    snprintf(cells[COLUMN_THREADS], 128, "%d", r->runner->info.n_threads);
    snprintf(cells[COLUMN_EXTRA], 128, "%d", r->test.n_batch);
    snprintf(cells[COLUMN_EXTRA + 1], 128, "%d", r->test.n_ubatch);
    snprintf(cells[COLUMN_EXTRA + 2], 128, "%s", r->test.type_k);
    snprintf(cells[COLUMN_EXTRA + 3], 128, "%s", r->test.type_v);
    bench_test_name(&r->test, cells[COLUMN_EXTRA + BENCH_MD_COLUMNS], 128);
    snprintf(cells[COLUMN_EXTRA + BENCH_MD_COLUMNS + 1], 128, "%.2f ± %.2f", v.per_second, v.per_second_deviation);
}

static int md_row(bench_writer *w, const bench_result *result) {
    char cells[N_COLUMNS][128];
    md_values(cells, result);
    if (w->n_rows == 0) md_head(w);
    fputc('|', w->file);
    for (int i = 0; i < N_COLUMNS; i++)
        if (column_shown(w, i)) put_cell(w->file, &columns[i], cells[i]);
    fputc('\n', w->file);
    return 0;
}

static void md_end(bench_writer *w) {
    fprintf(w->file, "\nbuild: %s (%d)\n", ATH_BUILD_COMMIT, ATH_BUILD_NUMBER);
}

/* ---- choice */

static const bench_format formats[] = {
    {"md", NULL, md_row, md_end},      {"csv", NULL, csv_row, NULL}, {"json", json_begin, json_row, json_end},
    {"jsonl", NULL, jsonl_row, NULL}, {"sql", NULL, sql_row, NULL},
};

bool bench_writer_has_steps(const bench_writer *w) {
    return w->format && strncmp(w->format->name, "json", 4) == 0;
}

bench_writer bench_writer_open(const char *format, FILE *file, const bench_case *cases, size_t n) {
    bench_writer w = {.file = file};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, format) == 0) w.format = &formats[i];
    static const ath_flag_id flags[BENCH_MD_COLUMNS] = {ATH_FLAG_B_BATCH, ATH_FLAG_B_UBATCH, ATH_FLAG_B_CACHE_K,
                                                        ATH_FLAG_B_CACHE_V};
    for (size_t i = 0; i < n; i++) {
        char values[BENCH_MD_COLUMNS][32];
        snprintf(values[0], 32, "%d", cases[i].n_batch);
        snprintf(values[1], 32, "%d", cases[i].n_ubatch);
        snprintf(values[2], 32, "%s", cases[i].type_k);
        snprintf(values[3], 32, "%s", cases[i].type_v);
        for (int c = 0; c < BENCH_MD_COLUMNS; c++)
            w.extra_columns[c] |= strcmp(values[c], ath_args_default(flags[c])) != 0;
    }
    return w;
}
