/* A cache without a prefill: how fast a model is behind 100,000 tokens does not depend on which tokens they are, and
 * to evaluate them takes hours where to store something in their place takes seconds. */
#include <string.h>

#include "engine/engine_private.h"

/* splitmix64, uniform with mean 0 and variance 1. */
static float next_value(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return ((float)((z ^ z >> 31) >> 40) * 0x1p-24f - 0.5f) * 3.4641016f;
}

/* K and V of n_rows rows, as wide as the widest layer's; all layers and passes get the same ones. */
static void draw_rows(ath_session *s, int64_t n_rows) {
    int64_t width_k = 0, width_v = 0;
    for (int il = 0; il < s->engine->model->n_layers; il++) {
        ath_layer_info l = ath_engine_layer(s->engine, il);
        if ((int64_t)l.n_kv_heads * l.head_dim_k > width_k) width_k = (int64_t)l.n_kv_heads * l.head_dim_k;
        if ((int64_t)l.n_kv_heads * l.head_dim_v > width_v) width_v = (int64_t)l.n_kv_heads * l.head_dim_v;
    }
    uint64_t random = 20261202;
    for (int64_t i = 0; i < n_rows * width_k; i++) s->pass->k[i] = next_value(&random);
    for (int64_t i = 0; i < n_rows * width_v; i++) s->pass->v[i] = next_value(&random);
}

/* The state stays as it is. */
static void keep_state(ath_session *s, int il) {
    const ath_state_seq *seqs;
    int n_seqs = ath_kv_states(s->kv, il, &seqs);
    size_t bytes = ath_engine_layer(s->engine, il).state_bytes;
    for (int i = 0; i < n_seqs; i++) {
        for (int r = 0; r < seqs[i].n_runs; r++) {
            const ath_state_run *run = &seqs[i].runs[r];
            if (run->from)
                memcpy(run->to, run->from, bytes);
            else
                memset(run->to, 0, bytes);
        }
    }
}

static ath_status fill_pass(ath_session *s, int seq, int64_t n_rows, ath_error *err) {
    ATH_TRY(ath_kv_begin(s->kv, &(ath_kv_rows){seq, n_rows}, 1, err));
    for (int il = 0; il < s->engine->model->n_layers; il++) {
        ath_layer_cache cache = ath_engine_layer(s->engine, il).cache;
        if (cache == ATH_LAYER_RECURRENT)
            keep_state(s, il);
        else if (cache != ATH_LAYER_SHARED)
            ath_kv_append(s->kv, il, s->pass->k, s->pass->v);
    }
    return ath_kv_commit(s->kv, err);
}

ath_status ath_session_fill(ath_session *s, int seq, size_t n, ath_error *err) {
    ATH_TRY(ath_session_check_room(s, seq, n, err));
    int64_t n_ubatch = s->engine->n_ubatch, left = (int64_t)n;
    s->has_logits[seq] = false;
    ath_device_use_threads(s->engine->device, true);
    draw_rows(s, left < n_ubatch ? left : n_ubatch);
    for (int64_t take; left > 0; left -= take) {
        take = left < n_ubatch ? left : n_ubatch;
        ATH_TRY(fill_pass(s, seq, take, err));
    }
    return ATH_OK;
}
