/* Athanor: run GGUF language models with a compressed KV cache.
 *
 * Two objects. An *engine* is a loaded model: weights, tokenizer, device; read-only once open. A *session* is a KV
 * cache over an engine with one or more sequences of tokens that grow by evaluation.
 *
 *     ath_engine_params ep = ath_engine_params_default();
 *     ep.model_path = "model.gguf";
 *     ath_engine *engine;
 *     ath_error err;
 *     if (ath_engine_open(&engine, &ep, &err) != ATH_OK) { puts(err.message); return 1; }
 *     ath_session_params sp = ath_session_params_default();
 *     sp.n_ctx = 4096; sp.type_k = sp.type_v = "turbo3";
 *     ath_session *session;
 *     ath_session_open(&session, engine, &sp, &err);
 *     ath_tokenize(engine, "Hello", 5, ATH_TOKENIZE_ADD_SPECIAL, &tokens, &n, &err);
 *     ath_session_append(session, 0, tokens, n, &err);
 *     const float *logits = ath_session_logits(session, 0);      // of the last token
 *
 * Threads: an engine may be shared by any number of sessions, but only one call that evaluates may run on an engine at
 * a time (they share the device's threads). Errors: athanor_error.h. Strings are UTF-8. Handles are opaque; *_close
 * takes the address of the handle, accepts NULL, and clears it. Sampling: athanor_sample.h. */
#ifndef ATHANOR_H
#define ATHANOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "athanor/athanor_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATHANOR_VERSION "0.1.0"

typedef int32_t ath_token;
typedef struct ath_engine ath_engine;
typedef struct ath_session ath_session;

/* ---------------------------------------------------------------- logging */

typedef enum ath_log_level { ATH_LOG_ERROR = 1, ATH_LOG_WARN = 2, ATH_LOG_INFO = 3, ATH_LOG_DEBUG = 5 } ath_log_level;
/* One line, no newline. Called from the thread that called the library. */
typedef void (*ath_log_fn)(void *user, ath_log_level level, const char *line);

/* ---------------------------------------------------------------- engine */

typedef struct ath_adapter_params {
    const char *path; /* GGUF file of a low-rank adapter (LoRA) */
    float scale;      /* 1: as trained */
} ath_adapter_params;

/* Where threads run, and how. {.poll = 50} is the default. */
typedef struct ath_placement {
    uint64_t cpus[16]; /* bit i % 64 of word i / 64: CPU i may be used; all 0: every one the process may use */
    bool strict;       /* thread i on the i-th of these CPUs alone, counting round */
    int priority;      /* 0 usual, -1 below others, 1 to 3 real-time (what the system refuses becomes a warning) */
    int poll;          /* how long idle threads spin before they sleep, 0 to 100 */
} ath_placement;

typedef struct ath_engine_params {
    const char *model_path;
    int n_threads;       /* decode; 0: physical cores */
    int n_threads_batch; /* prefill; 0: n_threads */
    ath_placement placement, placement_batch; /* of decode's and prefill's threads; the calling thread is one of them */
    int n_ubatch;        /* most rows of one pass through the model; default 512 */
    bool repack;         /* copy weights into the fastest layout at load (default) */
    bool exact_activations; /* products with quantised weights take activations in F32 instead of rounding them to 8
                               bits: several times slower, and what a change of the cache does shows without that noise */
    bool metadata_only;  /* no weights, no device: for inspection and tokenizing */
    bool check_tensors;  /* refuse NaN and infinity in weights */
    uint32_t cpu_mask;   /* CPU features that may be used, ~0u: all (see --isa) */
    const char *kv_overrides; /* metadata in place of the file's: "KEY=TYPE:VALUE,...", TYPE int, float, bool, str; NULL: none */
    bool closest_pre;         /* for a pre-tokenizer that is not known the known one that fits the vocabulary, with a warning */
    const ath_adapter_params *adapters; /* [n_adapters]; added up; may be NULL */
    int n_adapters;
    ath_log_fn log;      /* NULL: silent */
    void *log_user;
    /* Rotary overrides; 0 or NULL: the model's. */
    const char *rope_scaling;    /* "none", "linear", "yarn" */
    float rope_freq_base, rope_freq_scale, rope_scale;
    int yarn_orig_ctx;
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow; /* < 0: the model's */
} ath_engine_params;

ath_engine_params ath_engine_params_default(void);
ath_status ath_engine_open(ath_engine **out, const ath_engine_params *params, ath_error *err);
void ath_engine_close(ath_engine **engine);

typedef enum ath_layer_cache { /* what a layer keeps of the tokens */
    ATH_LAYER_FULL,            /* K and V of all of them */
    ATH_LAYER_WINDOW,          /* K and V of those that its window reaches */
    ATH_LAYER_SHARED,          /* nothing: it reads K and V of an earlier layer */
    ATH_LAYER_RECURRENT,       /* a state of one size, whatever their number */
} ath_layer_cache;

typedef struct ath_layer_info {
    ath_layer_cache cache;
    int n_heads, n_kv_heads; /* 0 without attention, as the next two */
    int head_dim_k, head_dim_v;
    bool v_in_k;    /* V is the first head_dim_v channels of K, and isn't kept by itself */
    int64_t window; /* sliding window in tokens, own included; 0: full attention */
    size_t state_bytes; /* of one state of one sequence; 0 unless recurrent */
} ath_layer_info;

typedef struct ath_engine_info {
    const char *path, *name, *arch, *file_type, *tokenizer, *pre_tokenizer; /* never NULL; "" if the file has none */
    const char *device;       /* "CPU, avx512 vnni vbmi, 2 threads"; "" if metadata_only */
    const char *matmul_kernel; /* of the type that holds most weights */
    uint32_t gguf_version;
    int n_parts;              /* files */
    int n_threads, n_threads_batch, n_ubatch;
    int64_t n_vocab, n_ctx_train, n_embd, n_ff;
    int64_t n_ctx_max;        /* learned positions end here, and so does every session; 0: no such limit */
    int n_layers, n_heads, n_kv_heads; /* heads: of the first layer with attention */
    uint64_t n_params;
    size_t file_bytes;        /* all parts */
    size_t weight_bytes;      /* resident: repacked copies, and what stays mapped */
    double load_ms;
} ath_engine_info;

/* Strings live as long as the engine. */
void ath_engine_get_info(const ath_engine *engine, ath_engine_info *info);
ath_layer_info ath_engine_layer(const ath_engine *engine, int layer);
/* Names of the architectures this build runs, space separated. */
const char *ath_known_architectures(void);

/* Metadata and tensors as text, for inspection. i in [0, count). Returns the bytes that the whole text needs; buf
 * gets at most cap - 1 of them and a NUL. */
int64_t ath_engine_n_metadata(const ath_engine *engine);
size_t ath_engine_metadata_key(const ath_engine *engine, int64_t i, char *buf, size_t cap);
size_t ath_engine_metadata_value(const ath_engine *engine, int64_t i, char *buf, size_t cap);
/* Value of a key that is a number (or bool, 0 or 1); false if it isn't there or is none. */
bool ath_engine_metadata_number(const ath_engine *engine, const char *key, double *out);
/* Text of a key that is a string, cut to cap - 1 bytes; false if it isn't there or is none. */
bool ath_engine_metadata_string(const ath_engine *engine, const char *key, char *buf, size_t cap);
typedef struct ath_tensor_info {
    char name[64];
    const char *type;
    int n_dims;
    int64_t ne[4];
    size_t bytes;
} ath_tensor_info;
int64_t ath_engine_n_tensors(const ath_engine *engine);
void ath_engine_tensor(const ath_engine *engine, int64_t i, ath_tensor_info *info);

/* ---------------------------------------------------------------- tokens */

enum {
    ATH_TOKENIZE_ADD_SPECIAL = 1,   /* BOS in front and EOS behind, where the model wants them */
    ATH_TOKENIZE_PARSE_SPECIAL = 2, /* the text of a control token means the token, e.g. "<|im_end|>" */
};

/* *tokens is malloc'd, the caller frees it. Any bytes are text; broken UTF-8 becomes byte tokens. Thread-safe. */
ath_status ath_tokenize(const ath_engine *engine, const char *text, size_t size, unsigned flags, ath_token **tokens,
                        size_t *n, ath_error *err);
/* Bytes of one token (control tokens are empty unless special). Returns the size needed. Thread-safe. */
size_t ath_token_piece(const ath_engine *engine, ath_token token, bool special, char *buf, size_t cap);
bool ath_token_is_eog(const ath_engine *engine, ath_token token);
/* -1 if the model has none. */
ath_token ath_token_bos(const ath_engine *engine);
ath_token ath_token_eos(const ath_engine *engine);
bool ath_engine_adds_bos(const ath_engine *engine);

/* ---------------------------------------------------------------- cache types */

/* Name of cache type i, NULL past the last one. */
const char *ath_cache_type_name(int i);

typedef struct ath_cache_plan {
    int64_t n_tokens;             /* of a sequence: n_ctx rounded as a session's, at most the positions the model has */
    char type_k[32], type_v[32];  /* effective; "turbo3" or "turbo3 (5 layers f16)" when layers differ */
    double bytes_per_token;       /* closed pages, all layers whose cache grows with the context */
    double bytes_per_token_f16;   /* the same layers in f16 */
    size_t bytes_pages;           /* one sequence of n_tokens */
    size_t bytes_recent;          /* f16 pages and sinks */
    size_t bytes_state;           /* states of recurrent layers */
    size_t bytes_entries;         /* entry points */
} ath_cache_plan;
enum { ATH_ENTRY_EVERY = 64 }; /* pages of 128 tokens between automatic entry points, unless a session says otherwise */

/* ---------------------------------------------------------------- session */

typedef struct ath_session_params {
    int64_t n_ctx;         /* tokens per sequence; 0: the model's training context. Rounded up to 256 */
    int n_seqs;            /* sequences, default 1 */
    const char *type_k;    /* cache types, default "f16" */
    const char *type_v;
    const char *kv_layers; /* per-layer overrides "0-1,-1:k=q8_0;3:v=f16,k=f16"; NULL: none */
    int entry_every;       /* pages of 128 tokens between automatic entry points; default ATH_ENTRY_EVERY, 0: none */
    bool swa_full;         /* sliding-window layers keep the whole context */
    const char *debug_k_bias; /* a constant on channels of K after its rotation, to test what a cache makes of it:
                                 "LAYERS:CHANNELS=VALUE[;...]", channels of every head, "0-1,-1:28,62-63=450"; NULL: none */
} ath_session_params;

ath_session_params ath_session_params_default(void);

/* What one full sequence of a session of these parameters takes; debug_k_bias isn't looked at. Takes microseconds, whatever
 * n_ctx is. ATH_ERR_UNSUPPORTED if the model's head size can't hold a type: the message names the head size and the types
 * that fit; ATH_ERR_ARGUMENT for what a session refuses. Works on metadata_only engines. Thread-safe. */
ath_status ath_engine_plan_cache(const ath_engine *engine, const ath_session_params *params, ath_cache_plan *plan,
                                 ath_error *err);

/* Bytes of memory that this process may still take; UINT64_MAX if the system doesn't say. */
uint64_t ath_available_memory(void);

/* Refuses (ATH_ERR_NOMEM, needed and available MiB, largest n_ctx that fits per cache type) a context whose cache
 * would not fit into memory. */
ath_status ath_session_open(ath_session **out, ath_engine *engine, const ath_session_params *params, ath_error *err);
void ath_session_close(ath_session **session);

/* Appends tokens to one sequence and evaluates them in passes of at most n_ubatch rows. On failure the sequence holds
 * the passes that were done. Afterwards ath_session_logits(session, seq) are those of the last token. */
ath_status ath_session_append(ath_session *session, int seq, const ath_token *tokens, size_t n, ath_error *err);

/* For measurements of speed and memory: appends n positions whose K and V are random values with variance 1 and evaluates
 * nothing; states of recurrent layers stay as they are. The sequence then holds no text, and has no logits. Errors as
 * above. */
ath_status ath_session_fill(ath_session *session, int seq, size_t n, ath_error *err);

/* One pass over rows of several sequences. */
typedef struct ath_batch_part {
    int seq;
    const ath_token *tokens; /* appended after the sequence's present tokens */
    size_t n;
} ath_batch_part;
/* Called with the logits [n_vocab] of row i of part p, in order. */
typedef void (*ath_logits_fn)(void *user, int part, size_t row, const float *logits);
typedef struct ath_batch {
    const ath_batch_part *parts; /* a sequence appears at most once; rows in all <= n_ubatch */
    int n_parts;
    ath_logits_fn on_logits; /* NULL: only the last row of each part gets logits */
    void *user;
} ath_batch;
ath_status ath_session_eval(ath_session *session, const ath_batch *batch, ath_error *err);

/* cancelled is asked from the calling thread before each layer and between pieces of logits (NULL: never). When it says
 * true the call fails with ATH_ERR_CANCELLED: a pass whose layers were not all done is undone; one that was giving
 * logits to on_logits stays in the sequence, and gives no more. */
void ath_session_set_cancel(ath_session *session, bool (*cancelled)(void *user), void *user);

/* [n_vocab] logits of the sequence's last evaluated row; NULL before the first. Valid until the next evaluation. */
const float *ath_session_logits(const ath_session *session, int seq);

int64_t ath_session_length(const ath_session *session, int seq);
int64_t ath_session_n_ctx(const ath_session *session);
/* Keeps the first n tokens at most: exact within the last 128 tokens (in models with recurrent layers: at the multiple
 * of 128 before n); else goes back to the nearest entry point. Returns the new length: what is missing up to n must be
 * evaluated again, and then gives the same bits as a cold run. */
int64_t ath_session_truncate(ath_session *session, int seq, int64_t n);
/* Where truncate(n) would land, without doing it. */
int64_t ath_session_entry_before(const ath_session *session, int seq, int64_t n);
/* dst starts as a copy of src's first tokens up to the nearest entry point <= n, sharing pages. Returns its length. */
int64_t ath_session_fork(ath_session *session, int dst, int src, int64_t n);
/* Stores an entry point at the last page boundary: call it at the end of a prompt and of a turn. */
ath_status ath_session_mark_entry(ath_session *session, int seq, ath_error *err);
void ath_session_clear(ath_session *session, int seq);

/* ---- a sequence as bytes, to go on with it later: here, in another session, or after the process has ended. The bytes
 * hold the cache of its tokens, not the tokens and not their logits; they are as many as the sequence has pages (with
 * what entry points keep), whatever n_ctx is. */
size_t ath_session_state_size(const ath_session *session, int seq);
/* Writes ath_session_state_size bytes into buf. ATH_ERR_ARGUMENT if cap is less than that. */
ath_status ath_session_state_save(const ath_session *session, int seq, void *buf, size_t cap, ath_error *err);
/* The sequence becomes the saved one: tokens that are appended get the bits that they would have had there. Needs the
 * same model, cache types and build; what doesn't fit, or is damaged (checksums), is refused with the reason, and the
 * sequence is empty then. */
ath_status ath_session_state_load(ath_session *session, int seq, const void *buf, size_t size, ath_error *err);

typedef struct ath_session_stats {
    char type_k[32], type_v[32];       /* effective */
    const char *attention_kernel;      /* "pages of 128, int8 codes, avx512 vbmi" */
    double bytes_per_token, bytes_per_token_f16;
    size_t cache_bytes;                /* now: pages, f16 pages and sinks, entry points of all sequences */
    size_t cache_bytes_at_ctx;         /* the same for one sequence of n_ctx tokens */
    size_t scratch_bytes;
    uint64_t k_rows_compressed, k_rows_f16; /* (query, position) pairs read, per form, summed over layers */
    uint64_t v_rows_compressed, v_rows_f16;
    uint64_t saturated;                /* values outside +-65504 that were clamped */
    uint64_t tokens_prefill, tokens_decode; /* evaluated: in passes of several rows, of one row */
    double prefill_ms, decode_ms;
    /* Of these: to encode full cache pages; to convert and store K and V of new tokens. */
    double prefill_encode_ms, decode_encode_ms, prefill_store_ms, decode_store_ms;
} ath_session_stats;
void ath_session_get_stats(const ath_session *session, ath_session_stats *stats);
/* Counters of one layer: k compressed, k f16, v compressed, v f16. */
void ath_session_layer_rows(const ath_session *session, int layer, uint64_t rows[4]);

/* What encoding loses, by layer and KV head. From ath_session_measure on, every page that is encoded is decoded again
 * and compared with its f16 values (a few percent of the time of prefill). */
ath_status ath_session_measure(ath_session *session, ath_error *err);
typedef struct ath_cache_error {
    double k, v; /* root of squared errors over squares of the values; 0 where nothing was encoded */
    double norm_k, norm_v; /* root of the mean square of the vectors' norms */
} ath_cache_error;
/* head -1: all heads of the layer. */
ath_cache_error ath_session_cache_error(const ath_session *session, int layer, int head);

/* ---------------------------------------------------------------- codec figures */

/* "Relative": a sum of squared errors over the sum of squares of the values. */
typedef struct ath_distortion {
    double bytes_per_value; /* of a full page, all its parts */
    double codebook_mse;    /* of the codebook alone on N(0,1); 0 for types without one */
    double mse, snr_db;     /* relative, over all vectors; infinite dB if nothing was lost */
    double worst_error;     /* |decoded - x| / |x| of vector worst_vector */
    int64_t worst_vector;
    double inner_mean, inner_rms; /* error of <q, x> in units of |q| |x|, over normal queries q, one per vector */
    double sign_flips;            /* share of the values that came back with another sign */
    int64_t saturated;            /* values outside +-65504 */
    int64_t n_vectors;
} ath_distortion;
/* Encodes and decodes vectors [n][head_dim] (NULL: n normal ones from seed) in cache type `type` as V is stored, or as
 * K is (page mean and equalisation) if as_key. ATH_ERR_ARGUMENT for an unknown type and for values that aren't finite,
 * ATH_ERR_UNSUPPORTED for a head size that the type can't hold. */
ath_status ath_cache_type_distortion(const char *type, int head_dim, const float *vectors, int64_t n, uint64_t seed,
                                     bool as_key, ath_distortion *out, ath_error *err);

#ifdef __cplusplus
}
#endif
#endif
