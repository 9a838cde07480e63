/* llama-perplexity: what its three files share. */
#ifndef ATH_TOOL_PERPLEXITY_H
#define ATH_TOOL_PERPLEXITY_H

#include <cjson/cJSON.h>

#include "evaluate.h"
#include "score.h"

typedef struct perplexity {
    const ath_args *args;
    ath_engine *engine;
    ath_session *session;
    ath_outfile json_file;
    cJSON *json; /* what goes there */
    size_t n_vocab, n_ubatch;
    size_t n_ctx; /* tokens of a window */
    bool adds_bos;
} perplexity;

/* Opens the session with a context of n_ctx tokens at least. -1, or an exit code. */
int ath_perplexity_open_session(perplexity *p, int64_t n_ctx);

/* Each returns -1 when all is done, or an exit code; 130 after Ctrl+C, with what was done printed. */
int ath_perplexity_divergence(perplexity *p); /* --kl-divergence */
int ath_perplexity_hellaswag(perplexity *p);
int ath_perplexity_winogrande(perplexity *p);
int ath_perplexity_multiple_choice(perplexity *p);

#endif
