/* What the files of the engine share; see include/athanor/athanor.h for the contracts. */
#ifndef ATH_ENGINE_PRIVATE_H
#define ATH_ENGINE_PRIVATE_H

#include "athanor/athanor.h"
#include "base/clock.h"
#include "base/log.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

struct ath_engine {
    ath_log log;
    ath_gguf *gguf;
    ath_device *device;       /* NULL if metadata_only */
    ath_model *model;         /* NULL if metadata_only and the file holds no model that is known */
    ath_error model_error;    /* why model is NULL */
    ath_tokenizer *tokenizer; /* NULL if the file's vocabulary can't be used */
    ath_error tokenizer_error;
    int n_threads, n_threads_batch, n_ubatch;
    double load_ms;
    char name[128], arch[64], file_type[64];
    const char *matmul_kernel;
};

struct ath_session {
    ath_engine *engine;
    ath_kv *kv;
    ath_pass *pass;
    int64_t n_ctx;
    int n_seqs;
    float *logits;     /* [n_seqs][n_vocab] of each sequence's last row */
    bool *has_logits;  /* [n_seqs] */
    float *chunk;      /* [LOGITS_CHUNK][n_vocab], taken when on_logits is first used */
    int32_t *tokens;   /* [n_ubatch] of the present pass */
    ath_kv_rows *rows; /* [n_seqs] */
    ath_session_stats stats;
    size_t bytes_at_ctx;
    float *k_bias; /* params.debug_k_bias; NULL: none */
};

static inline bool ath_session_has(const ath_session *s, int seq) { return seq >= 0 && seq < s->n_seqs; }

/* Refuses a sequence that doesn't exist (ATH_ERR_ARGUMENT), and n more tokens than it has room for (ATH_ERR_CONTEXT). */
ath_status ath_session_check_room(const ath_session *s, int seq, size_t n, ath_error *err);

/* Refuses numbers that are out of range (ATH_ERR_ARGUMENT). */
ath_status ath_session_params_check(const ath_session_params *params, ath_error *err);
/* Tokens of a session's sequences: n_ctx of its parameters, rounded up, or the model's own; where positions are learned
 * no more than there are. */
int64_t ath_session_tokens(const ath_model *model, int64_t n_ctx);

/* The cache of a session. Fills layers[n_layers], which *out points to, with the model's shapes and the wanted types,
 * per-layer overrides applied. */
ath_status ath_cache_params(const ath_engine *engine, const ath_session_params *params, ath_kv_layer *layers,
                            ath_kv_params *out, ath_error *err);
/* Reads whole numbers and ranges ("0-1,-1"; negative ones count from n) and the character `end` behind them: chosen[i] is
 * set for each. Moves *at behind `end`. */
bool ath_parse_numbers(const char **at, int n, char end, bool *chosen);
/* Refuses a cache of n_seqs sequences of n_ctx tokens that would not fit beside `other` bytes. */
ath_status ath_cache_check_memory(const ath_engine *engine, const ath_kv_params *params, size_t other, ath_error *err);
/* "turbo3", or "turbo3 + f16 x5" when layers differ, "none" without any. type(user, layer): ATH_KV_TYPE_COUNT if the
 * layer stores neither K nor V. */
void ath_cache_describe(char *buf, size_t cap, int n_layers, ath_kv_type (*type)(const void *user, int layer),
                        const void *user);

/* ath_session_params.debug_k_bias as a table [n_layers][*width], malloc'd. */
ath_status ath_k_bias_parse(float **out, int64_t *width, const ath_model *model, const char *spec, ath_error *err);

#endif
