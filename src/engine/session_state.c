/* Sequences as bytes: which model and which cache types they are of, then the cache's own form (kv/kv_save.c). */
#include <string.h>

#include "engine/engine_private.h"

#define STATE_MAGIC 0x3165746174736e61ull

typedef struct state_header {
    uint64_t magic, model;
    char type_k[32], type_v[32];
} state_header;

static uint64_t hash(uint64_t h, const void *bytes, size_t size) { /* FNV-1a */
    for (size_t i = 0; i < size; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
    return h;
}

/* Names, types, shapes and first bytes of all tensors: two fine-tunings of a model differ in it. */
static uint64_t model_hash(const ath_engine *e) {
    uint64_t h = hash(0xcbf29ce484222325ull, e->arch, strlen(e->arch));
    for (int64_t i = 0; i < ath_gguf_n_tensors(e->gguf); i++) {
        const ath_gguf_tensor *t = ath_gguf_tensor_at(e->gguf, i);
        h = hash(h, t->name.data, t->name.size);
        h = hash(h, &t->type, sizeof t->type);
        h = hash(h, t->ne, sizeof t->ne);
        h = hash(h, t->data, t->size < 256 ? t->size : 256);
    }
    return h;
}

static state_header header_of(const ath_session *s) {
    state_header header = {.magic = STATE_MAGIC, .model = model_hash(s->engine)};
    memcpy(header.type_k, s->stats.type_k, sizeof header.type_k);
    memcpy(header.type_v, s->stats.type_v, sizeof header.type_v);
    return header;
}

size_t ath_session_state_size(const ath_session *s, int seq) {
    return ath_session_has(s, seq) ? sizeof(state_header) + ath_kv_save_size(s->kv, seq) : 0;
}

ath_status ath_session_state_save(const ath_session *s, int seq, void *buf, size_t cap, ath_error *err) {
    size_t size = ath_session_state_size(s, seq);
    if (!ath_session_has(s, seq)) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d does not exist", seq);
    if (cap < size)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d takes %zu bytes, and there is room for %zu", seq, size, cap);
    state_header header = header_of(s);
    memcpy(buf, &header, sizeof header);
    ath_kv_save(s->kv, seq, (uint8_t *)buf + sizeof header);
    return ATH_OK;
}

static ath_status check_header(const ath_session *s, const void *buf, size_t size, ath_error *err) {
    state_header is = header_of(s), saved;
    if (size < sizeof saved) return ATH_FAIL(err, ATH_ERR_FORMAT, "the saved sequence is cut off");
    memcpy(&saved, buf, sizeof saved);
    if (saved.magic != is.magic)
        return ATH_FAIL(err, ATH_ERR_FORMAT, "this is no saved sequence, or another version has saved it");
    if (saved.model != is.model) return ATH_FAIL(err, ATH_ERR_FORMAT, "the saved sequence is of another model");
    if (memcmp(saved.type_k, is.type_k, sizeof is.type_k) != 0 || memcmp(saved.type_v, is.type_v, sizeof is.type_v) != 0)
        return ATH_FAIL(err, ATH_ERR_FORMAT, "the saved sequence is of other cache types than %s for K and %s for V",
                        is.type_k, is.type_v);
    return ATH_OK;
}

ath_status ath_session_state_load(ath_session *s, int seq, const void *buf, size_t size, ath_error *err) {
    if (!ath_session_has(s, seq)) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d does not exist", seq);
    ath_session_clear(s, seq);
    ATH_TRY(check_header(s, buf, size, err));
    return ath_kv_load(s->kv, seq, (const uint8_t *)buf + sizeof(state_header), size - sizeof(state_header), err);
}
