/* What ran and how long it took. The names of the time lines are those that scripts search for. */
#include "report.h"

#include <string.h>

#include "json.h"

static double mib(size_t bytes) {
    return (double)bytes / 1048576.0;
}
static double per_second(size_t n, double ms) {
    return n && ms > 0 ? (double)n / ms * 1e3 : 0;
}

double ath_report_share(const ath_session_stats *s) {
    double compressed = (double)(s->k_rows_compressed + s->v_rows_compressed);
    double all = compressed + (double)(s->k_rows_f16 + s->v_rows_f16);
    return all > 0 ? compressed / all : 0;
}

void ath_report_saturated(const ath_session *session) {
    ath_session_stats s;
    ath_session_get_stats(session, &s);
    if (s.saturated)
        ath_tool_log(ATH_LOG_WARN, "%llu values of K and V were outside +-65504 and were clamped: -ctk f32 -ctv f32 keeps them",
                     (unsigned long long)s.saturated);
}

void ath_report_start(const ath_report *r) {
    ath_engine_info e;
    ath_session_stats s;
    ath_engine_get_info(r->engine, &e);
    ath_session_get_stats(r->session, &s);
    ath_tool_log(ATH_LOG_INFO, "athanor    %s", ATHANOR_VERSION);
    ath_tool_log(ATH_LOG_INFO, "model      %s%s%s, %s, %s, %.1f M parameters, %.1f MiB", e.name,
                 *e.name ? ": " : "", e.path, e.arch, e.file_type, (double)e.n_params * 1e-6,
                 mib(e.file_bytes));
    ath_tool_log(ATH_LOG_INFO, "device     %s (prefill: %d threads)", e.device, e.n_threads_batch);
    const ath_arg *layers = &r->args->values[ATH_FLAG_GPU_LAYERS];
    if (layers->name && strcmp(layers->text, "0") != 0)
        ath_tool_log(ATH_LOG_INFO, "           %s %s: this build has no GPU support, the CPU is used",
                     layers->name, layers->text);
    ath_tool_log(ATH_LOG_INFO, "matmul     %s", e.matmul_kernel);
    ath_tool_log(ATH_LOG_INFO, "attention  %s", s.attention_kernel);
    ath_tool_log(ATH_LOG_INFO,
                 "cache      K %s, V %s; %.1f bytes per token (f16: %.1f); %.1f MiB now, %.1f MiB at -c %lld",
                 s.type_k, s.type_v, s.bytes_per_token, s.bytes_per_token_f16, mib(s.cache_bytes),
                 mib(s.cache_bytes_at_ctx), (long long)ath_session_n_ctx(r->session));
    if (r->sampler) ath_tool_log(ATH_LOG_INFO, "sampler    %s", r->sampler);
}

static void time_line(const char *name, double ms, size_t n, const char *unit) {
    ath_tool_log(ATH_LOG_INFO, "%16s = %10.2f ms / %5zu %s ( %8.2f ms per token, %8.2f tokens per second)",
                 name, ms, n, unit, n ? ms / (double)n : 0, per_second(n, ms));
}

void ath_report_times(const ath_report *r) {
    ath_engine_info e;
    ath_session_stats s;
    ath_engine_get_info(r->engine, &e);
    ath_session_get_stats(r->session, &s);
    time_line("sampling time", r->sample_ms, r->n_generated, "runs  ");
    ath_tool_log(ATH_LOG_INFO, "%16s = %10.2f ms", "load time", e.load_ms);
    time_line("prompt eval time", r->prompt_ms, r->n_prompt, "tokens");
    time_line("eval time", r->eval_ms, r->n_eval, "runs  ");
    ath_tool_log(ATH_LOG_INFO, "%16s = %10.2f ms / %5zu tokens", "total time",
                 ath_tool_now_ms() - r->start_ms, r->n_prompt + r->n_eval);
    ath_tool_log(ATH_LOG_INFO, "%16s = %10.2f MiB; %.1f %% of the rows read were compressed", "cache",
                 mib(s.cache_bytes), 100 * ath_report_share(&s));
}

/* ---- JSON */

static void add(cJSON *json, const char *name, double value) {
    cJSON_AddNumberToObject(json, name, value);
}

static void add_engine(cJSON *json, const ath_engine *engine) {
    ath_engine_info e;
    ath_engine_get_info(engine, &e);
    cJSON_AddStringToObject(json, "version", ATHANOR_VERSION);
    cJSON_AddStringToObject(json, "model", e.path);
    cJSON_AddStringToObject(json, "name", e.name);
    cJSON_AddStringToObject(json, "architecture", e.arch);
    cJSON_AddStringToObject(json, "file_type", e.file_type);
    cJSON_AddStringToObject(json, "device", e.device);
    cJSON_AddStringToObject(json, "matmul_kernel", e.matmul_kernel);
    add(json, "threads", e.n_threads);
    add(json, "threads_batch", e.n_threads_batch);
    add(json, "ubatch", e.n_ubatch);
    add(json, "n_params", (double)e.n_params);
    add(json, "file_bytes", (double)e.file_bytes);
    add(json, "weight_bytes", (double)e.weight_bytes);
    add(json, "load_ms", e.load_ms);
}

static void add_layers(cJSON *json, const ath_session *session, int n_layers) {
    static const char *const names[] = {"k_rows_compressed", "k_rows_f16", "v_rows_compressed", "v_rows_f16"};
    cJSON *layers = cJSON_AddArrayToObject(json, "layers");
    for (int il = 0; il < n_layers; il++) {
        uint64_t rows[4];
        ath_session_layer_rows(session, il, rows);
        cJSON *layer = cJSON_CreateObject();
        for (int i = 0; i < 4; i++) add(layer, names[i], (double)rows[i]);
        cJSON_AddItemToArray(layers, layer);
    }
}

static void add_session(cJSON *json, const ath_session *session) {
    ath_session_stats s;
    ath_session_get_stats(session, &s);
    cJSON_AddStringToObject(json, "type_k", s.type_k);
    cJSON_AddStringToObject(json, "type_v", s.type_v);
    cJSON_AddStringToObject(json, "attention_kernel", s.attention_kernel);
    add(json, "n_ctx", (double)ath_session_n_ctx(session));
    add(json, "bytes_per_token", s.bytes_per_token);
    add(json, "bytes_per_token_f16", s.bytes_per_token_f16);
    add(json, "cache_bytes", (double)s.cache_bytes);
    add(json, "cache_bytes_at_ctx", (double)s.cache_bytes_at_ctx);
    add(json, "scratch_bytes", (double)s.scratch_bytes);
    add(json, "k_rows_compressed", (double)s.k_rows_compressed);
    add(json, "k_rows_f16", (double)s.k_rows_f16);
    add(json, "v_rows_compressed", (double)s.v_rows_compressed);
    add(json, "v_rows_f16", (double)s.v_rows_f16);
    add(json, "share_compressed", ath_report_share(&s));
    add(json, "saturated", (double)s.saturated);
}

static void add_ids(cJSON *json, const char *name, const ath_token *ids, size_t n) {
    cJSON_AddItemToObject(json, name, n ? cJSON_CreateIntArray(ids, (int)n) : cJSON_CreateArray());
}

static void add_times(cJSON *json, const ath_report *r) {
    add(json, "prompt_tokens", (double)r->n_prompt);
    add(json, "prompt_ms", r->prompt_ms);
    add(json, "prompt_tokens_per_second", per_second(r->n_prompt, r->prompt_ms));
    add(json, "eval_tokens", (double)r->n_eval);
    add(json, "eval_ms", r->eval_ms);
    add(json, "eval_tokens_per_second", per_second(r->n_eval, r->eval_ms));
    add(json, "sample_ms", r->sample_ms);
    add(json, "total_ms", ath_tool_now_ms() - r->start_ms);
    if (!r->stop) return;
    add(json, "context_shifts", (double)r->n_shifts);
    cJSON_AddStringToObject(json, "stop", r->stop);
    add_ids(json, "prompt_ids", r->prompt, r->n_ids_prompt);
    add_ids(json, "ids", r->ids, r->n_generated);
}

int ath_report_json(const ath_report *r, FILE *file) {
    ath_engine_info e;
    ath_engine_get_info(r->engine, &e);
    cJSON *json = cJSON_CreateObject();
    add_engine(json, r->engine);
    add_session(json, r->session);
    add_times(json, r);
    add_layers(json, r->session, e.n_layers);
    return ath_json_print(json, file);
}
