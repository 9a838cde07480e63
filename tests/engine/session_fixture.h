/* What the session tests share: golden models as engines, seeded token sequences, and evaluation that must succeed. */
#ifndef ATH_TESTS_SESSION_FIXTURE_H
#define ATH_TESTS_SESSION_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "athanor/athanor.h"

enum { N_VOCAB = 320, N_TEXTS = 4, TEXT_TOKENS = 2048, N_UBATCH = 1024 }; /* N_VOCAB: of all golden models */

/* Model file below data/golden, or a whole path, and the type of both sides of the cache. */
typedef struct test_case {
    const char *model, *type;
} test_case;

static ath_token text[N_TEXTS][TEXT_TOKENS]; /* token sequences, no two alike */

static inline void fill_texts(void) {
    uint64_t random = 12345;
    for (int i = 0; i < N_TEXTS * TEXT_TOKENS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        text[i / TEXT_TOKENS][i % TEXT_TOKENS] = (ath_token)(3 + (random >> 33) % (N_VOCAB - 3));
    }
}

static inline const char *golden_folder(void) {
    static char path[512];
    const char *shared = getenv("ATH_SHARED");
    snprintf(path, sizeof path, "%s/data/golden", shared ? shared : "../shared");
    return path;
}

static inline void need_golden(void) {
    if (access(golden_folder(), R_OK) == 0) return;
    print_message("no golden models in %s\n", golden_folder());
    skip();
}

#define MUST(call)                                                                                  \
    do {                                                                                            \
        ath_error must_err = {0};                                                                   \
        ath_error *err = &must_err;                                                                 \
        if ((call) != ATH_OK) fail_msg("%s: %s", #call, must_err.message);                          \
    } while (0)

/* The call fails with this status, and its sentence holds this word. */
#define MUST_FAIL(call, status, word)                                                               \
    do {                                                                                            \
        ath_error must_err = {0};                                                                   \
        ath_error *err = &must_err;                                                                 \
        assert_int_equal((call), (status));                                                         \
        if (!strstr(must_err.message, (word))) fail_msg("\"%s\" lacks \"%s\"", must_err.message, (word)); \
    } while (0)

static inline ath_engine *open_engine_at(const char *path, int n_threads, int n_ubatch) {
    ath_engine_params p = ath_engine_params_default();
    p.model_path = path;
    p.n_threads = n_threads;
    p.n_ubatch = n_ubatch;
    ath_engine *engine = NULL;
    MUST(ath_engine_open(&engine, &p, err));
    return engine;
}

static inline ath_engine *open_engine(const char *model) {
    if (model[0] == '/') return open_engine_at(model, 2, N_UBATCH);
    need_golden();
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", golden_folder(), model);
    return open_engine_at(path, 2, N_UBATCH);
}

static inline ath_session *open_session(ath_engine *engine, const char *type, int64_t n_ctx, int n_seqs) {
    ath_session_params p = ath_session_params_default();
    p.n_ctx = n_ctx;
    p.n_seqs = n_seqs;
    p.type_k = p.type_v = type;
    p.entry_every = 4;
    ath_session *session = NULL;
    MUST(ath_session_open(&session, engine, &p, err));
    return session;
}

static inline void append(ath_session *s, int seq, const ath_token *tokens, size_t n) {
    MUST(ath_session_append(s, seq, tokens, n, err));
}

/* The sequence goes on with tokens [from, to) of a text, one pass each. */
static inline void decode(ath_session *s, int seq, const ath_token *tokens, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) append(s, seq, tokens + i, 1);
}

static inline void assert_same_logits(const float *a, const float *b, const char *what, int64_t where) {
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < N_VOCAB; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, at %lld: logit %d is %.9g, expected %.9g", what, (long long)where, i, (double)a[i], (double)b[i]);
}

static inline void save_logits(float out[N_VOCAB], const ath_session *s, int seq) {
    const float *logits = ath_session_logits(s, seq);
    assert_non_null(logits);
    memcpy(out, logits, N_VOCAB * sizeof *out);
}

/* Logits after tokens [0, n_prefill) in one append and then [n_prefill, n) one by one, in a session of its own. */
static inline void cold_logits(float out[N_VOCAB], ath_engine *engine, const char *type, const ath_token *tokens,
                               size_t n_prefill, size_t n) {
    ath_session *s = open_session(engine, type, TEXT_TOKENS, 1);
    append(s, 0, tokens, n_prefill);
    decode(s, 0, tokens, n_prefill, n);
    save_logits(out, s, 0);
    ath_session_close(&s);
}

#endif
