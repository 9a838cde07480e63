/* A session: a KV cache over an engine, the passes that fill it, and the logits they leave. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_private.h"

enum { LOGITS_CHUNK = 64 }; /* rows of logits computed at once for on_logits: weights that are expanded are so for all of them */

ath_session_params ath_session_params_default(void) {
    return (ath_session_params){.n_seqs = 1, .type_k = "f16", .type_v = "f16", .entry_every = ATH_ENTRY_EVERY};
}

ath_status ath_session_params_check(const ath_session_params *p, ath_error *err) {
    if (p->n_seqs < 1 || p->n_seqs > 4096)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%d sequences: between 1 and 4096 are possible", p->n_seqs);
    if (p->n_ctx < 0 || p->n_ctx > (int64_t)1 << 32)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "-c %lld is out of range", (long long)p->n_ctx);
    if (p->entry_every < 0)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "entry points every %d pages make no sense", p->entry_every);
    return ATH_OK;
}

static ath_status create_buffers(ath_session *s, const ath_session_params *p, ath_error *err) {
    const ath_engine *e = s->engine;
    size_t n_vocab = (size_t)e->model->n_vocab, n_seqs = (size_t)s->n_seqs;
    s->logits = malloc(n_seqs * n_vocab * sizeof *s->logits);
    s->has_logits = calloc(n_seqs, sizeof *s->has_logits);
    s->tokens = malloc((size_t)e->n_ubatch * sizeof *s->tokens);
    s->rows = malloc(n_seqs * sizeof *s->rows);
    if (!s->logits || !s->has_logits || !s->tokens || !s->rows)
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for the logits of %d sequences", s->n_seqs);
    ATH_TRY(ath_pass_create(&s->pass, e->model, s->kv, s->n_ctx, e->n_ubatch, err));
    if (!p->debug_k_bias) return ATH_OK;
    ATH_TRY(ath_k_bias_parse(&s->k_bias, &s->pass->k_width, e->model, p->debug_k_bias, err));
    s->pass->k_bias = s->k_bias;
    return ATH_OK;
}

static ath_status create_cache(ath_session *s, const ath_session_params *p, ath_kv_layer *layers, ath_error *err) {
    ath_engine *e = s->engine;
    ath_kv_params kp;
    ATH_TRY(ath_cache_params(e, p, layers, &kp, err));
    size_t other = ath_pass_bytes(e->model, e->n_ubatch) +
                   (size_t)s->n_seqs * (size_t)e->model->n_vocab * sizeof(float);
    ATH_TRY(ath_cache_check_memory(e, &kp, other, err));
    ath_kv_plan plan;
    ATH_TRY(ath_kv_plan_init(&plan, &kp, s->n_ctx, err));
    s->bytes_at_ctx = plan.bytes_pages + plan.bytes_recent + plan.bytes_state + plan.bytes_entries;
    s->stats.bytes_per_token = plan.bytes_per_token;
    s->stats.bytes_per_token_f16 = plan.bytes_per_token_f16;
    return ath_kv_create(&s->kv, e->device, &kp, err);
}

static ath_kv_type effective_k(const void *kv, int il) { return ath_kv_effective_k(kv, il); }
static ath_kv_type effective_v(const void *kv, int il) { return ath_kv_effective_v(kv, il); }

static void warn_of_length(const ath_session *s, int64_t wanted) {
    const ath_log *log = &s->engine->log;
    long long trained = s->engine->model->n_ctx_train, n_ctx = s->n_ctx;
    if (wanted > n_ctx)
        ath_log_line(log, ATH_LOG_WARN, "the model has learned %lld positions: the context ends there", n_ctx);
    else if (wanted > trained)
        ath_log_line(log, ATH_LOG_WARN,
                     "a context of %lld is more than the %lld positions that the model was trained on: expect worse text behind them",
                     (long long)wanted, trained);
}

ath_status ath_session_open(ath_session **out, ath_engine *e, const ath_session_params *p, ath_error *err) {
    *out = NULL;
    if (!e->device) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "the engine was opened for metadata only");
    ATH_TRY(ath_session_params_check(p, err));
    ath_session *s = calloc(1, sizeof *s);
    ath_kv_layer *layers = calloc((size_t)e->model->n_layers, sizeof *layers);
    if (!s || !layers) {
        free(s);
        free(layers);
        return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a session");
    }
    s->engine = e;
    s->n_seqs = p->n_seqs;
    s->n_ctx = ath_session_tokens(e->model, p->n_ctx);
    ath_status status = create_cache(s, p, layers, err);
    free(layers);
    if (status == ATH_OK) status = create_buffers(s, p, err);
    if (status != ATH_OK) {
        ath_session_close(&s);
        return status;
    }
    ath_cache_describe(s->stats.type_k, sizeof s->stats.type_k, e->model->n_layers, effective_k, s->kv);
    ath_cache_describe(s->stats.type_v, sizeof s->stats.type_v, e->model->n_layers, effective_v, s->kv);
    warn_of_length(s, p->n_ctx);
    *out = s;
    return ATH_OK;
}

void ath_session_close(ath_session **session) {
    if (!session || !*session) return;
    ath_session *s = *session;
    ath_pass_free(s->pass);
    ath_kv_free(s->kv);
    free(s->logits);
    free(s->has_logits);
    free(s->chunk);
    free(s->tokens);
    free(s->rows);
    free(s->k_bias);
    free(s);
    *session = NULL;
}

/* ---- evaluation */

static ath_status check_batch(const ath_session *s, const ath_batch *b, int64_t *n_rows, ath_error *err) {
    *n_rows = 0;
    if (b->n_parts < 1 || b->n_parts > s->n_seqs)
        return ATH_FAIL(err, ATH_ERR_ARGUMENT, "%d parts in a batch over %d sequences", b->n_parts, s->n_seqs);
    for (int i = 0; i < b->n_parts; i++) {
        const ath_batch_part *part = &b->parts[i];
        if (part->seq < 0 || part->seq >= s->n_seqs)
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d does not exist", part->seq);
        for (int j = 0; j < i; j++)
            if (b->parts[j].seq == part->seq)
                return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d appears twice in a batch", part->seq);
        if (part->n < 1 || part->n > (size_t)(s->engine->n_ubatch - *n_rows))
            return ATH_FAIL(err, ATH_ERR_ARGUMENT, "a batch has 1 to %d rows, and none of its parts is empty",
                            s->engine->n_ubatch);
        *n_rows += (int64_t)part->n;
        for (size_t t = 0; t < part->n; t++)
            if (part->tokens[t] < 0 || part->tokens[t] >= s->engine->model->n_vocab)
                return ATH_FAIL(err, ATH_ERR_ARGUMENT, "token id %d is not in the vocabulary of %lld", part->tokens[t],
                                (long long)s->engine->model->n_vocab);
    }
    return ATH_OK;
}

static void fill_pass(ath_session *s, const ath_batch *b, int64_t n_rows) {
    ath_pass *p = s->pass;
    p->rows = n_rows;
    int64_t row = 0;
    for (int i = 0; i < b->n_parts; i++) {
        const ath_batch_part *part = &b->parts[i];
        int64_t pos = ath_kv_length(s->kv, part->seq);
        s->rows[i] = (ath_kv_rows){part->seq, (int64_t)part->n};
        for (size_t t = 0; t < part->n; t++, row++) {
            s->tokens[row] = part->tokens[t];
            p->pos[row] = pos + (int64_t)t;
        }
    }
}

static float *last_logits(ath_session *s, int seq) { return s->logits + (size_t)seq * (size_t)s->engine->model->n_vocab; }

static ath_status cancelled(ath_error *err) { return ATH_FAIL(err, ATH_ERR_CANCELLED, "cancelled by the caller"); }

/* Logits of all rows of a part, in chunks, to the caller; the last row's stay with the sequence. */
static ath_status give_all_logits(ath_session *s, const ath_batch *b, int part, int64_t row0, ath_error *err) {
    int64_t n = (int64_t)b->parts[part].n, n_vocab = s->engine->model->n_vocab;
    for (int64_t at = 0; at < n; at += LOGITS_CHUNK) {
        int64_t take = n - at < LOGITS_CHUNK ? n - at : LOGITS_CHUNK;
        if (s->pass->cancelled && s->pass->cancelled(s->pass->cancel_user)) return cancelled(err);
        ath_model_logits(s->engine->model, s->pass, row0 + at, take, s->chunk);
        for (int64_t i = 0; i < take; i++) b->on_logits(b->user, part, (size_t)(at + i), s->chunk + i * n_vocab);
        if (at + take == n)
            memcpy(last_logits(s, b->parts[part].seq), s->chunk + (take - 1) * n_vocab, (size_t)n_vocab * sizeof(float));
    }
    s->has_logits[b->parts[part].seq] = true;
    return ATH_OK;
}

static void give_last_logits(ath_session *s, const ath_batch *b, int part, int64_t row0) {
    int seq = b->parts[part].seq;
    ath_model_logits(s->engine->model, s->pass, row0 + (int64_t)b->parts[part].n - 1, 1, last_logits(s, seq));
    s->has_logits[seq] = true;
}

/* want_last: parts without on_logits still leave the logits of their last row. */
static ath_status run_pass(ath_session *s, const ath_batch *b, bool want_last, ath_error *err) {
    int64_t n_rows;
    ATH_TRY(check_batch(s, b, &n_rows, err));
    const ath_model *m = s->engine->model;
    if (b->on_logits && !s->chunk) s->chunk = malloc(LOGITS_CHUNK * (size_t)m->n_vocab * sizeof *s->chunk);
    if (b->on_logits && !s->chunk) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for logits");
    double start = ath_now_ms();
    ath_kv_work before = ath_kv_get_work(s->kv);
    bool prefill = n_rows > b->n_parts;
    ath_device_use_threads(s->engine->device, prefill);
    fill_pass(s, b, n_rows);
    ATH_TRY(ath_kv_begin(s->kv, s->rows, b->n_parts, err));
    if (!ath_model_forward(m, s->pass, s->tokens)) {
        ath_kv_abort(s->kv);
        return cancelled(err);
    }
    ATH_TRY(ath_kv_commit(s->kv, err));
    for (int i = 0; i < b->n_parts; i++) s->has_logits[b->parts[i].seq] = false;
    int64_t row = 0;
    for (int i = 0; i < b->n_parts; i++) {
        if (b->on_logits)
            ATH_TRY(give_all_logits(s, b, i, row, err));
        else if (want_last)
            give_last_logits(s, b, i, row);
        row += (int64_t)b->parts[i].n;
    }
    ath_kv_work after = ath_kv_get_work(s->kv);
    *(prefill ? &s->stats.prefill_ms : &s->stats.decode_ms) += ath_now_ms() - start;
    *(prefill ? &s->stats.prefill_encode_ms : &s->stats.decode_encode_ms) += after.encode_ms - before.encode_ms;
    *(prefill ? &s->stats.prefill_store_ms : &s->stats.decode_store_ms) += after.store_ms - before.store_ms;
    *(prefill ? &s->stats.tokens_prefill : &s->stats.tokens_decode) += (uint64_t)n_rows;
    return ATH_OK;
}

ath_status ath_session_eval(ath_session *s, const ath_batch *batch, ath_error *err) {
    return run_pass(s, batch, true, err);
}

ath_status ath_session_check_room(const ath_session *s, int seq, size_t n, ath_error *err) {
    if (!ath_session_has(s, seq)) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d does not exist", seq);
    int64_t pos = ath_kv_length(s->kv, seq);
    if ((int64_t)n <= s->n_ctx - pos) return ATH_OK;
    return ATH_FAIL(err, ATH_ERR_CONTEXT, "%zu tokens do not fit: the context holds %lld, %lld are in use", n,
                    (long long)s->n_ctx, (long long)pos);
}

/* Passes end at multiples of n_ubatch of the position, so that a sequence entered at a page boundary is cut like a cold
 * one, and every row is computed by the same kernels in both. */
ath_status ath_session_append(ath_session *s, int seq, const ath_token *tokens, size_t n, ath_error *err) {
    ATH_TRY(ath_session_check_room(s, seq, n, err));
    int64_t pos = ath_kv_length(s->kv, seq), n_ubatch = s->engine->n_ubatch;
    while (n > 0) {
        size_t take = (size_t)(n_ubatch - pos % n_ubatch);
        if (take > n) take = n;
        ath_batch_part part = {seq, tokens, take};
        ATH_TRY(run_pass(s, &(ath_batch){.parts = &part, .n_parts = 1}, take == n, err));
        tokens += take;
        n -= take;
        pos += (int64_t)take;
    }
    return ATH_OK;
}

void ath_session_set_cancel(ath_session *s, bool (*cancelled)(void *user), void *user) {
    s->pass->cancelled = cancelled;
    s->pass->cancel_user = user;
}

const float *ath_session_logits(const ath_session *s, int seq) {
    if (seq < 0 || seq >= s->n_seqs || !s->has_logits[seq]) return NULL;
    return s->logits + (size_t)seq * (size_t)s->engine->model->n_vocab;
}

/* ---- sequences */

int64_t ath_session_length(const ath_session *s, int seq) { return ath_session_has(s, seq) ? ath_kv_length(s->kv, seq) : 0; }
int64_t ath_session_n_ctx(const ath_session *s) { return s->n_ctx; }

int64_t ath_session_truncate(ath_session *s, int seq, int64_t n) {
    if (!ath_session_has(s, seq)) return 0;
    if (n < ath_kv_length(s->kv, seq)) s->has_logits[seq] = false;
    return ath_kv_truncate(s->kv, seq, n);
}

int64_t ath_session_entry_before(const ath_session *s, int seq, int64_t n) {
    return ath_session_has(s, seq) ? ath_kv_entry_before(s->kv, seq, n) : 0;
}

int64_t ath_session_fork(ath_session *s, int dst, int src, int64_t n) {
    if (!ath_session_has(s, dst) || !ath_session_has(s, src)) return 0;
    s->has_logits[dst] = false;
    return ath_kv_fork(s->kv, dst, src, n);
}

ath_status ath_session_mark_entry(ath_session *s, int seq, ath_error *err) {
    if (!ath_session_has(s, seq)) return ATH_FAIL(err, ATH_ERR_ARGUMENT, "sequence %d does not exist", seq);
    return ath_kv_mark_entry(s->kv, seq, err);
}

void ath_session_clear(ath_session *s, int seq) {
    if (!ath_session_has(s, seq)) return;
    s->has_logits[seq] = false;
    ath_kv_clear(s->kv, seq);
}

/* ---- statistics */

ath_status ath_session_measure(ath_session *s, ath_error *err) { return ath_kv_measure(s->kv, err); }

static ath_kv_loss loss_of(const ath_session *s, int layer, int head, int side) {
    ath_kv_loss sum = {0, 0, 0};
    int n_heads = ath_engine_layer(s->engine, layer).n_kv_heads;
    for (int h = head < 0 ? 0 : head; h < (head < 0 ? n_heads : head + 1); h++) {
        ath_kv_loss loss = ath_kv_loss_of(s->kv, layer, h, side);
        sum.error2 += loss.error2;
        sum.norm2 += loss.norm2;
        sum.n += loss.n;
    }
    return sum;
}

ath_cache_error ath_session_cache_error(const ath_session *s, int layer, int head) {
    double error[2], norm[2];
    for (int side = 0; side < 2; side++) {
        ath_kv_loss loss = loss_of(s, layer, head, side);
        error[side] = loss.norm2 > 0 ? sqrt(loss.error2 / loss.norm2) : 0;
        norm[side] = loss.n > 0 ? sqrt(loss.norm2 / (double)loss.n) : 0;
    }
    return (ath_cache_error){error[0], error[1], norm[0], norm[1]};
}

void ath_session_layer_rows(const ath_session *s, int layer, uint64_t rows[4]) {
    const ath_attn_counters *c = ath_kv_counters(s->kv, layer);
    rows[0] = c->k_compressed;
    rows[1] = c->k_plain;
    rows[2] = c->v_compressed;
    rows[3] = c->v_plain;
}

void ath_session_get_stats(const ath_session *s, ath_session_stats *stats) {
    *stats = s->stats;
    ath_kv_stats kv;
    ath_kv_get_stats(s->kv, &kv);
    stats->attention_kernel = ath_device_attention_kernel(s->engine->device);
    stats->cache_bytes = kv.bytes_pages + kv.bytes_recent + kv.bytes_state + kv.bytes_entries;
    stats->cache_bytes_at_ctx = s->bytes_at_ctx;
    stats->scratch_bytes = kv.bytes_scratch + ath_pass_bytes(s->engine->model, s->engine->n_ubatch);
    stats->saturated = kv.saturated;
    for (int il = 0; il < s->engine->model->n_layers; il++) {
        uint64_t rows[4];
        ath_session_layer_rows(s, il, rows);
        stats->k_rows_compressed += rows[0];
        stats->k_rows_f16 += rows[1];
        stats->v_rows_compressed += rows[2];
        stats->v_rows_f16 += rows[3];
    }
}
