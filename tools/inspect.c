/* athanor inspect: what a GGUF file holds, and what its cache will take in every type. */
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "tool.h"

static const ath_program program = {ATH_PROGRAM_I, "MODEL.gguf [--json] [--tensors]",
                                    "Shows a model file's metadata and tensors, and the memory of its cache.",
                                    true};

static const int64_t plan_tokens[] = {2 << 10, 8 << 10, 32 << 10, 128 << 10};
enum { N_PLANS = 4, MAX_TENSOR_TYPES = 64 };

typedef struct type_sum {
    const char *type;
    int64_t n;
    size_t bytes;
} type_sum;

/* ---- metadata */

/* Text of a library call that fills buffers, malloc'd; never NULL. */
static char *whole_text(size_t (*get)(const ath_engine *, int64_t, char *, size_t), const ath_engine *e,
                        int64_t i) {
    size_t size = get(e, i, NULL, 0);
    char *text = malloc(size + 1);
    if (!text) {
        ath_tool_fail("out of memory");
        exit(1);
    }
    get(e, i, text, size + 1);
    return text;
}

static void print_metadata(const ath_engine *e) {
    printf("\nmetadata\n");
    for (int64_t i = 0; i < ath_engine_n_metadata(e); i++) {
        char *key = whole_text(ath_engine_metadata_key, e, i),
             *value = whole_text(ath_engine_metadata_value, e, i);
        bool cut = strlen(value) > 200;
        printf("  %s = %.200s%s\n", key, value, cut ? " ..." : "");
        free(key);
        free(value);
    }
}

static cJSON *metadata_json(const ath_engine *e) {
    cJSON *json = cJSON_CreateObject();
    for (int64_t i = 0; i < ath_engine_n_metadata(e); i++) {
        char *key = whole_text(ath_engine_metadata_key, e, i),
             *value = whole_text(ath_engine_metadata_value, e, i);
        cJSON_AddStringToObject(json, key, value);
        free(key);
        free(value);
    }
    return json;
}

/* ---- tensors */

/* Sums by type, in the order of their first tensor; returns their number. */
static int sum_types(const ath_engine *e, type_sum *sums) {
    int n_types = 0;
    for (int64_t i = 0; i < ath_engine_n_tensors(e); i++) {
        ath_tensor_info t;
        ath_engine_tensor(e, i, &t);
        int at = 0;
        while (at < n_types && strcmp(sums[at].type, t.type) != 0) at++;
        if (at == MAX_TENSOR_TYPES) continue; /* more types than exist */
        if (at == n_types) sums[n_types++] = (type_sum){.type = t.type};
        sums[at].n++;
        sums[at].bytes += t.bytes;
    }
    return n_types;
}

static double mib(size_t bytes) {
    return (double)bytes / 1048576.0;
}

static void print_tensors(const ath_engine *e, bool all) {
    type_sum sums[MAX_TENSOR_TYPES];
    int n_types = sum_types(e, sums);
    printf("\ntensors: %lld\n", (long long)ath_engine_n_tensors(e));
    for (int i = 0; i < n_types; i++)
        printf("  %-8s %6lld  %10.2f MiB\n", sums[i].type, (long long)sums[i].n, mib(sums[i].bytes));
    if (!all) return;
    printf("\n");
    for (int64_t i = 0; i < ath_engine_n_tensors(e); i++) {
        ath_tensor_info t;
        ath_engine_tensor(e, i, &t);
        char shape[96];
        size_t at = 0;
        for (int d = 0; d < t.n_dims; d++)
            at +=
                (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", d ? " x " : "", (long long)t.ne[d]);
        printf("  %-40s %-8s %s\n", t.name, t.type, shape);
    }
}

static void add_tensors(cJSON *json, const ath_engine *e, bool all) {
    type_sum sums[MAX_TENSOR_TYPES];
    int n_types = sum_types(e, sums);
    cJSON_AddNumberToObject(json, "n_tensors", (double)ath_engine_n_tensors(e));
    cJSON *types = cJSON_AddObjectToObject(json, "tensor_types");
    for (int i = 0; i < n_types; i++) {
        cJSON *sum = cJSON_AddObjectToObject(types, sums[i].type);
        cJSON_AddNumberToObject(sum, "n", (double)sums[i].n);
        cJSON_AddNumberToObject(sum, "bytes", (double)sums[i].bytes);
    }
    if (!all) return;
    cJSON *list = cJSON_AddArrayToObject(json, "tensors");
    for (int64_t i = 0; i < ath_engine_n_tensors(e); i++) {
        ath_tensor_info t;
        ath_engine_tensor(e, i, &t);
        cJSON *tensor = cJSON_CreateObject(), *shape = cJSON_AddArrayToObject(tensor, "shape");
        cJSON_AddStringToObject(tensor, "name", t.name);
        cJSON_AddStringToObject(tensor, "type", t.type);
        cJSON_AddNumberToObject(tensor, "bytes", (double)t.bytes);
        for (int d = 0; d < t.n_dims; d++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t.ne[d]));
        cJSON_AddItemToArray(list, tensor);
    }
}

/* ---- cache */

static ath_status plan_cache(const ath_engine *e, const char *type, int64_t n_tokens, int entry_every,
                             ath_cache_plan *plan, ath_error *err) {
    ath_session_params p = ath_session_params_default();
    p.type_k = p.type_v = type;
    p.n_ctx = n_tokens;
    p.entry_every = entry_every;
    return ath_engine_plan_cache(e, &p, plan, err);
}

/* Why there is no cache table; NULL if there is one. */
static const char *no_cache(const ath_engine *e, ath_error *err) {
    ath_cache_plan plan;
    return plan_cache(e, "f16", 256, 0, &plan, err) == ATH_OK ? NULL : err->message;
}

/* Those that grow with the context. */
static int64_t values_per_token(const ath_engine *e, int n_layers) {
    int64_t values = 0;
    for (int il = 0; il < n_layers; il++) {
        ath_layer_info l = ath_engine_layer(e, il);
        if (l.cache == ATH_LAYER_FULL)
            values += (int64_t)l.n_kv_heads * (l.head_dim_k + (l.v_in_k ? 0 : l.head_dim_v));
    }
    return values;
}

static bool same_cache(const ath_layer_info *a, const ath_layer_info *b) {
    return a->cache == b->cache && a->n_kv_heads == b->n_kv_heads && a->head_dim_k == b->head_dim_k &&
           a->head_dim_v == b->head_dim_v && a->window == b->window && a->state_bytes == b->state_bytes;
}

/* A line for each kind and shape of cache. */
static void print_layers(const ath_engine *e, int n_layers) {
    for (int il = 0; il < n_layers; il++) {
        ath_layer_info l = ath_engine_layer(e, il);
        int n_before = 0, n = 0;
        for (int other = 0; other < n_layers; other++) {
            ath_layer_info o = ath_engine_layer(e, other);
            if (!same_cache(&l, &o)) continue;
            n++;
            n_before += other < il;
        }
        if (n_before) continue;
        printf("  %d layer%s ", n, n == 1 ? "" : "s");
        if (l.cache == ATH_LAYER_RECURRENT) {
            printf("with a recurrent state of %.1f KiB\n", (double)l.state_bytes / 1024);
            continue;
        }
        if (l.cache == ATH_LAYER_SHARED)
            printf("that read the K and V of earlier ones");
        else if (l.cache == ATH_LAYER_WINDOW)
            printf("with a window of %lld tokens", (long long)l.window);
        else
            printf("with a full cache");
        printf(": head_dim %d", l.head_dim_k);
        if (l.v_in_k)
            printf(" (one row for K and V, which is its first %d channels)", l.head_dim_v);
        else if (l.head_dim_v != l.head_dim_k)
            printf(" (K), %d (V)", l.head_dim_v);
        printf(", %d KV head%s\n", l.n_kv_heads, l.n_kv_heads == 1 ? "" : "s");
    }
}

static size_t total_bytes(const ath_cache_plan *plan) {
    return plan->bytes_pages + plan->bytes_recent + plan->bytes_state + plan->bytes_entries;
}

static bool has_states(const ath_engine *e, int n_layers) {
    for (int il = 0; il < n_layers; il++)
        if (ath_engine_layer(e, il).state_bytes) return true;
    return false;
}

/* Bits per value of everything that is held but recurrent states, of the values that an f16 cache of so many tokens holds. */
static double bits_in_all(const ath_engine *e, const ath_cache_plan *plan, int64_t n_tokens) {
    ath_cache_plan f16;
    if (plan_cache(e, "f16", n_tokens, 0, &f16, NULL) != ATH_OK || !f16.bytes_pages) return 0;
    return 16.0 * (double)(total_bytes(plan) - plan->bytes_state) / (double)f16.bytes_pages;
}

static void print_cache_row(const ath_engine *e, const char *type, int64_t values) {
    ath_cache_plan plan;
    ath_error err;
    printf("  %-12s", type);
    for (int i = 0; i < N_PLANS; i++) {
        if (plan_cache(e, type, plan_tokens[i], ATH_ENTRY_EVERY, &plan, &err) != ATH_OK) {
            printf(" refused: %s\n", err.message);
            return;
        }
        if (!i)
            printf(" %10.1f %6.3f ", plan.bytes_per_token,
                   values ? 8 * plan.bytes_per_token / (double)values : 0.0);
        if (plan.n_tokens < plan_tokens[i]) break; /* the model has no such positions */
        printf(" %9.2f %7.3f", mib(total_bytes(&plan)), bits_in_all(e, &plan, plan_tokens[i]));
    }
    printf("\n");
}

static void print_cache(const ath_engine *e, const ath_engine_info *info) {
    ath_error err;
    const char *why = no_cache(e, &err);
    if (why) {
        printf("\nno cache table: %s\n", why);
        return;
    }
    int64_t values = values_per_token(e, info->n_layers);
    printf("\ncache:\n");
    print_layers(e, info->n_layers);
    printf("  K and V of one type, one sequence: a closed page alone (codes, norms, means, scales); then MiB and bits per\n"
           "  value of all that is held at so many tokens, f16 pages, sinks and entry points (every %d pages) included%s\n",
           ATH_ENTRY_EVERY,
           has_states(e, info->n_layers) ? ",\n  recurrent states in the MiB" : "");
    printf("  type         bytes/token  bits      at 2K    bits     at 8K    bits    at 32K    bits   at 128K    bits\n");
    for (int i = 0; ath_cache_type_name(i); i++) print_cache_row(e, ath_cache_type_name(i), values);
}

static cJSON *cache_row_json(const ath_engine *e, const char *type, int64_t values) {
    ath_cache_plan plan;
    ath_error err;
    cJSON *row = cJSON_CreateObject(), *plans = NULL;
    for (int i = 0; i < N_PLANS; i++) {
        if (plan_cache(e, type, plan_tokens[i], ATH_ENTRY_EVERY, &plan, &err) != ATH_OK) {
            cJSON_AddStringToObject(row, "refused", err.message);
            break;
        }
        if (!i) {
            cJSON_AddNumberToObject(row, "bytes_per_token", plan.bytes_per_token);
            if (values)
                cJSON_AddNumberToObject(row, "bits_per_value", 8 * plan.bytes_per_token / (double)values);
            cJSON_AddStringToObject(row, "type_k", plan.type_k);
            cJSON_AddStringToObject(row, "type_v", plan.type_v);
            plans = cJSON_AddArrayToObject(row, "plans");
        }
        if (plan.n_tokens < plan_tokens[i]) break;
        cJSON *at = cJSON_CreateObject();
        cJSON_AddNumberToObject(at, "tokens", (double)plan_tokens[i]);
        cJSON_AddNumberToObject(at, "bytes_pages", (double)plan.bytes_pages);
        cJSON_AddNumberToObject(at, "bytes_recent", (double)plan.bytes_recent);
        cJSON_AddNumberToObject(at, "bytes_state", (double)plan.bytes_state);
        cJSON_AddNumberToObject(at, "bytes_entries", (double)plan.bytes_entries);
        cJSON_AddNumberToObject(at, "bits_per_value", bits_in_all(e, &plan, plan_tokens[i]));
        cJSON_AddItemToArray(plans, at);
    }
    return row;
}

static void add_cache(cJSON *json, const ath_engine *e, const ath_engine_info *info) {
    ath_error err;
    const char *why = no_cache(e, &err);
    if (why) {
        cJSON_AddStringToObject(json, "no_cache", why);
        return;
    }
    static const char *const kinds[] = {"full", "window", "shared", "recurrent"};
    int64_t values = values_per_token(e, info->n_layers);
    cJSON *layers = cJSON_AddArrayToObject(json, "layers"), *cache = cJSON_AddObjectToObject(json, "cache");
    for (int il = 0; il < info->n_layers; il++) {
        ath_layer_info l = ath_engine_layer(e, il);
        cJSON *layer = cJSON_CreateObject();
        cJSON_AddStringToObject(layer, "cache", kinds[l.cache]);
        cJSON_AddNumberToObject(layer, "n_heads", l.n_heads);
        cJSON_AddNumberToObject(layer, "n_kv_heads", l.n_kv_heads);
        cJSON_AddNumberToObject(layer, "head_dim_k", l.head_dim_k);
        cJSON_AddNumberToObject(layer, "head_dim_v", l.head_dim_v);
        cJSON_AddNumberToObject(layer, "window", (double)l.window);
        cJSON_AddNumberToObject(layer, "state_bytes", (double)l.state_bytes);
        cJSON_AddItemToArray(layers, layer);
    }
    for (int i = 0; ath_cache_type_name(i); i++)
        cJSON_AddItemToObject(cache, ath_cache_type_name(i),
                              cache_row_json(e, ath_cache_type_name(i), values));
}

/* ---- the whole */

static void print_text(const ath_engine *e, const ath_engine_info *info, bool all_tensors) {
    printf("%s\n", info->path);
    printf("  GGUF version %u, %d file%s, %.2f MiB\n", info->gguf_version, info->n_parts,
           info->n_parts == 1 ? "" : "s", mib(info->file_bytes));
    printf("  name %s, architecture %s, file type %s\n", *info->name ? info->name : "(none)",
           *info->arch ? info->arch : "(none)", *info->file_type ? info->file_type : "(none)");
    printf("  tokenizer %s %s, %lld tokens\n", *info->tokenizer ? info->tokenizer : "(none)",
           info->pre_tokenizer, (long long)info->n_vocab);
    if (info->n_layers)
        printf("  %d layers, %lld wide, %d heads, %d KV heads, feed-forward %lld, trained context %lld, %.1f "
               "M parameters\n",
               info->n_layers, (long long)info->n_embd, info->n_heads, info->n_kv_heads,
               (long long)info->n_ff, (long long)info->n_ctx_train, (double)info->n_params * 1e-6);
    print_metadata(e);
    print_tensors(e, all_tensors);
    print_cache(e, info);
}

static int print_json(const ath_engine *e, const ath_engine_info *info, bool all_tensors) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "path", info->path);
    cJSON_AddNumberToObject(json, "gguf_version", info->gguf_version);
    cJSON_AddNumberToObject(json, "n_parts", info->n_parts);
    cJSON_AddNumberToObject(json, "file_bytes", (double)info->file_bytes);
    cJSON_AddStringToObject(json, "name", info->name);
    cJSON_AddStringToObject(json, "architecture", info->arch);
    cJSON_AddStringToObject(json, "file_type", info->file_type);
    cJSON_AddStringToObject(json, "tokenizer", info->tokenizer);
    cJSON_AddStringToObject(json, "pre_tokenizer", info->pre_tokenizer);
    cJSON_AddNumberToObject(json, "n_vocab", (double)info->n_vocab);
    cJSON_AddNumberToObject(json, "n_ctx_train", (double)info->n_ctx_train);
    cJSON_AddNumberToObject(json, "n_embd", (double)info->n_embd);
    cJSON_AddNumberToObject(json, "n_ff", (double)info->n_ff);
    cJSON_AddNumberToObject(json, "n_layers", info->n_layers);
    cJSON_AddNumberToObject(json, "n_params", (double)info->n_params);
    cJSON_AddItemToObject(json, "metadata", metadata_json(e));
    add_tensors(json, e, all_tensors);
    add_cache(json, e, info);
    return ath_json_print(json, stdout);
}

static int inspect(const ath_args *args) {
    ath_engine_params params = ath_tool_metadata_params(args);
    if (args->positional) params.model_path = args->positional;
    if (args->positional && ATH_ARG_GIVEN(args, MODEL) && !args->values[ATH_FLAG_MODEL].from_env)
        return ath_tool_fail("two files were named: %s and %s", args->positional, ATH_ARG_TEXT(args, MODEL));
    ath_engine *engine;
    ath_error err;
    if (ath_engine_open(&engine, &params, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    int code = 0;
    if (ATH_ARG_ON(args, JSON))
        code = print_json(engine, &info, ATH_ARG_ON(args, TENSORS));
    else
        print_text(engine, &info, ATH_ARG_ON(args, TENSORS));
    ath_engine_close(&engine);
    return code ? code : ath_tool_flush();
}

int ath_tool_inspect(int argc, char **argv) {
    ath_args args;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = inspect(&args);
    ath_args_free(&args);
    return code;
}
