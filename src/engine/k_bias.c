/* A constant on channels of K, as models with a bias on it have: what a cache makes of that can be tested on any model
 * (ath_session_params.debug_k_bias). It is added after the rotation, so that every position gets the same and the
 * scores of a query move by one number: the model without a compressed cache doesn't notice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_private.h"

enum { MAX_CHANNELS = ATH_MAX_HEAD_DIM };

static ath_status bad_spec(const char *spec, ath_error *err) {
    return ATH_FAIL(err, ATH_ERR_ARGUMENT,
                    "--debug-k-bias \"%s\": expected LAYERS:CHANNELS=VALUE[;...], such as 0-1,-1:28,62-63=450", spec);
}

/* Channels and value behind the layers, into every head of those. */
static ath_status add_bias(const char **at, const char *spec, const ath_model *m, const bool *layers, float *table,
                           int64_t width, ath_error *err) {
    const char *start = *at;
    for (int il = 0; il < m->n_layers; il++) {
        const ath_layer *l = &m->layers[il];
        bool channels[MAX_CHANNELS] = {false};
        if (!layers[il]) continue;
        *at = start;
        if (!ath_parse_numbers(at, l->head_dim_k, '=', channels)) return bad_spec(spec, err);
        char *end;
        float value = strtof(*at, &end);
        if (end == *at || !isfinite(value)) return bad_spec(spec, err);
        *at = end;
        for (int i = 0; i < l->n_kv_heads * l->head_dim_k; i++)
            if (channels[i % l->head_dim_k]) table[il * width + i] += value;
    }
    return ATH_OK;
}

static ath_status parse(const char *spec, const ath_model *m, bool *layers, float *table, int64_t width, ath_error *err) {
    const char *at = spec;
    do {
        memset(layers, 0, (size_t)m->n_layers * sizeof *layers);
        if (!ath_parse_numbers(&at, m->n_layers, ':', layers)) return bad_spec(spec, err);
        ATH_TRY(add_bias(&at, spec, m, layers, table, width, err));
    } while (*at == ';' && *++at);
    return *at ? bad_spec(spec, err) : ATH_OK;
}

ath_status ath_k_bias_parse(float **out, int64_t *width, const ath_model *m, const char *spec, ath_error *err) {
    *width = 0;
    for (int il = 0; il < m->n_layers; il++) {
        int64_t n = (int64_t)m->layers[il].n_kv_heads * m->layers[il].head_dim_k;
        if (n > *width) *width = n;
    }
    bool *layers = malloc((size_t)m->n_layers * sizeof *layers);
    *out = calloc((size_t)(m->n_layers * *width), sizeof **out);
    ath_status status = layers && *out ? parse(spec, m, layers, *out, *width, err)
                                       : ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a bias of K");
    free(layers);
    return status;
}
