/* Cache types as people write them, and the memory they will take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/engine_private.h"

const char *ath_cache_type_name(int i) {
    return i >= 0 && i < ATH_KV_TYPE_COUNT ? ath_kv_type_name((ath_kv_type)i) : NULL;
}

/* ---- per-layer overrides: "0-1,-1:k=q8_0;3:v=f16,k=f16" */

static ath_status bad_override(const char *spec, ath_error *err) {
    return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                    "--kv-layers \"%s\": expected LAYERS:k=TYPE,v=TYPE[;...] with LAYERS such as 0-1,-1", spec);
}

/* A number of 0 .. n - 1, or -n .. -1 counted from the end. Moves *at behind it. */
static bool parse_number(const char **at, int n_all, int *number) {
    char *end;
    long n = strtol(*at, &end, 10);
    if (end == *at) return false;
    if (n < 0) n += n_all;
    *at = end;
    *number = (int)n;
    return n >= 0 && n < n_all;
}

bool ath_parse_numbers(const char **at, int n, char end, bool *chosen) {
    do {
        int first, last;
        if (!parse_number(at, n, &first)) return false;
        last = first;
        if (**at == '-') {
            ++*at;
            if (!parse_number(at, n, &last) || last < first) return false;
        }
        for (int i = first; i <= last; i++) chosen[i] = true;
    } while (*(*at)++ == ',');
    return (*at)[-1] == end;
}

static ath_status parse_assignments(const char **at, const char *spec, int n_layers, const bool *chosen,
                                    ath_kv_layer *layers, ath_error *err) {
    do {
        char side = **at, name[32];
        if ((side != 'k' && side != 'v') || (*at)[1] != '=') return bad_override(spec, err);
        *at += 2;
        size_t size = strcspn(*at, ",;");
        snprintf(name, sizeof name, "%.*s", (int)size, *at);
        *at += size;
        ath_kv_type type;
        ATH_TRY(ath_kv_type_parse(&type, name, err));
        for (int il = 0; il < n_layers; il++)
            if (chosen[il]) *(side == 'k' ? &layers[il].type_k : &layers[il].type_v) = type;
    } while (**at == ',' && ++*at);
    return ATH_OK;
}

static ath_status apply_overrides(const char *spec, int n_layers, ath_kv_layer *layers, ath_error *err) {
    bool *chosen = malloc((size_t)n_layers);
    if (!chosen) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %d layers", n_layers);
    ath_status status = ATH_OK;
    const char *at = spec;
    while (status == ATH_OK && *at) {
        memset(chosen, 0, (size_t)n_layers);
        status = ath_parse_numbers(&at, n_layers, ':', chosen) ? parse_assignments(&at, spec, n_layers, chosen, layers, err)
                                                     : bad_override(spec, err);
        if (status == ATH_OK && *at && *at++ != ';') status = bad_override(spec, err);
    }
    free(chosen);
    return status;
}

int64_t ath_session_tokens(const ath_model *m, int64_t n_ctx) {
    int64_t n = ((n_ctx ? n_ctx : m->n_ctx_train) + 255) / 256 * 256;
    return m->n_ctx_max && n > m->n_ctx_max ? m->n_ctx_max : n;
}

ath_status ath_cache_params(const ath_engine *e, const ath_session_params *p, ath_kv_layer *layers, ath_kv_params *out,
                            ath_error *err) {
    ath_kv_type k, v;
    ATH_TRY(ath_kv_type_parse(&k, p->type_k, err));
    ATH_TRY(ath_kv_type_parse(&v, p->type_v, err));
    ath_model_kv_layers(e->model, layers);
    for (int il = 0; il < e->model->n_layers; il++) layers[il].type_k = k, layers[il].type_v = v;
    *out = (ath_kv_params){.layers = layers,
                           .n_layers = e->model->n_layers,
                           .n_ctx = ath_session_tokens(e->model, p->n_ctx),
                           .n_seqs = p->n_seqs,
                           .n_ubatch = e->n_ubatch,
                           .entry_every = p->entry_every,
                           .swa_full = p->swa_full};
    return p->kv_layers ? apply_overrides(p->kv_layers, e->model->n_layers, layers, err) : ATH_OK;
}

/* ---- memory */

uint64_t ath_available_memory(void) { return ath_memory_available(); }

static size_t plan_total(const ath_kv_plan *plan) {
    return plan->bytes_pages + plan->bytes_recent + plan->bytes_state + plan->bytes_entries;
}

/* Largest multiple of 256 tokens whose cache in one type fits into `bytes`; 0 if the type can't hold the heads. */
static int64_t largest_context(const ath_engine *e, const ath_kv_params *wanted, ath_kv_type type, uint64_t bytes) {
    int n = wanted->n_layers;
    ath_kv_layer *layers = malloc((size_t)n * sizeof *layers);
    if (!layers) return 0;
    for (int il = 0; il < n; il++) {
        layers[il] = wanted->layers[il];
        layers[il].type_k = layers[il].type_v = type;
    }
    ath_kv_params params = *wanted;
    params.layers = layers;
    int64_t low = 0, high = (wanted->n_ctx > e->model->n_ctx_train ? wanted->n_ctx : e->model->n_ctx_train) / 256;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        ath_kv_plan plan;
        params.n_ctx = middle * 256;
        bool fits = ath_kv_plan_init(&plan, &params, middle * 256, NULL) == ATH_OK &&
                    plan_total(&plan) * (size_t)wanted->n_seqs <= bytes;
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    free(layers);
    return low * 256;
}

ath_status ath_cache_check_memory(const ath_engine *e, const ath_kv_params *params, size_t other, ath_error *err) {
    ath_kv_plan plan;
    ATH_TRY(ath_kv_plan_init(&plan, params, params->n_ctx, err));
    uint64_t available = ath_memory_available(), needed = plan_total(&plan) * (uint64_t)params->n_seqs + other;
    if (needed <= available) return ATH_OK;
    char fits[320] = "";
    size_t at = 0;
    for (int type = ATH_KV_F16; type < ATH_KV_TYPE_COUNT && at < sizeof fits; type++) {
        int64_t n = largest_context(e, params, (ath_kv_type)type, available > other ? available - other : 0);
        if (n) at += (size_t)snprintf(fits + at, sizeof fits - at, " %s %lld,", ath_kv_type_name(type), (long long)n);
    }
    if (at && at < sizeof fits) fits[at - 1] = 0;
    return ATH_FAIL(err, ATH_ERR_NOMEM,
                    "a context of %lld tokens needs %llu MiB for the cache and %llu MiB are available; largest -c per "
                    "cache type:%s",
                    (long long)params->n_ctx, (unsigned long long)(needed >> 20), (unsigned long long)(available >> 20),
                    at ? fits : " none fits");
}

void ath_cache_describe(char *buf, size_t cap, int n_layers, ath_kv_type (*type)(const void *user, int layer),
                        const void *user) {
    int count[ATH_KV_TYPE_COUNT + 1] = {0}, main_type = 0; /* the last one: layers without K and V */
    for (int il = 0; il < n_layers; il++) count[type(user, il)]++;
    for (int t = 1; t < ATH_KV_TYPE_COUNT; t++)
        if (count[t] > count[main_type]) main_type = t;
    if (count[ATH_KV_TYPE_COUNT] == n_layers) {
        snprintf(buf, cap, "none");
        return;
    }
    size_t at = (size_t)snprintf(buf, cap, "%s", ath_kv_type_name((ath_kv_type)main_type));
    for (int t = 0; t < ATH_KV_TYPE_COUNT; t++)
        if (t != main_type && count[t] && at < cap)
            at += (size_t)snprintf(buf + at, cap - at, " + %s x%d", ath_kv_type_name((ath_kv_type)t), count[t]);
}

static ath_kv_type stored_k(const void *layers, int il) {
    const ath_kv_layer *l = (const ath_kv_layer *)layers + il;
    return l->store == ATH_KV_RECURRENT ? ATH_KV_TYPE_COUNT : ath_kv_stored_type(l->type_k, l->window);
}

static ath_kv_type stored_v(const void *layers, int il) {
    const ath_kv_layer *l = (const ath_kv_layer *)layers + il;
    return l->store == ATH_KV_RECURRENT ? ATH_KV_TYPE_COUNT : ath_kv_stored_type(l->type_v, l->window);
}

ath_status ath_engine_plan_cache(const ath_engine *e, const ath_session_params *p, ath_cache_plan *out, ath_error *err) {
    if (!e->model) {
        if (err) *err = e->model_error;
        return e->model_error.code;
    }
    ATH_TRY(ath_session_params_check(p, err));
    int n = e->model->n_layers;
    ath_kv_layer *layers = calloc((size_t)n, sizeof *layers);
    if (!layers) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for %d layers", n);
    ath_kv_params params;
    ath_kv_plan plan;
    ath_status status = ath_cache_params(e, p, layers, &params, err);
    if (status == ATH_OK) status = ath_kv_plan_init(&plan, &params, params.n_ctx, err);
    if (status == ATH_OK) {
        *out = (ath_cache_plan){.n_tokens = params.n_ctx,
                                .bytes_per_token = plan.bytes_per_token,
                                .bytes_per_token_f16 = plan.bytes_per_token_f16,
                                .bytes_pages = plan.bytes_pages,
                                .bytes_recent = plan.bytes_recent,
                                .bytes_state = plan.bytes_state,
                                .bytes_entries = plan.bytes_entries};
        ath_cache_describe(out->type_k, sizeof out->type_k, n, stored_k, layers);
        ath_cache_describe(out->type_v, sizeof out->type_v, n, stored_v, layers);
    }
    free(layers);
    return status;
}
