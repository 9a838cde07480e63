/* athanor quality: what its files share. */
#ifndef ATH_TOOL_QUALITY_H
#define ATH_TOOL_QUALITY_H

#include <cjson/cJSON.h>

#include "evaluate.h"
#include "score.h"

enum { QUALITY_MAX_TYPES = 32, QUALITY_QUARTERS = 4, QUALITY_BINS = 32 };

/* What one cache did; the reference is f16. */
typedef struct quality_type {
    char name[64]; /* as it was asked for: "turbo3", or "q8_0/turbo3" for K and V */
    char type_k[32], type_v[32];
    ath_session *session;
    double bytes_per_token, bits;
    float *kld;       /* by scored position, window after window */
    float *nll_ratio; /* -ln p of the token that came, minus that of f16 */
    float *same_top;  /* 1 or 0 */
    uint64_t rows_compressed; /* read by the passes that hold scored positions of second halves */
    bool needles_done;
    int needles_found;
    double needle_nll; /* mean, of the answers' tokens */
    ath_token *greedy; /* [n_greedy] */
    size_t n_greedy;   /* 0: not run */
} quality_type;

typedef struct quality {
    const ath_args *args;
    ath_engine *engine;
    ath_engine_info info;
    size_t n_vocab, n_ctx, n_windows;
    size_t rows; /* of a pass: as many as the reference's log-probabilities have memory for */
    ath_token *tokens;
    size_t n_tokens;
    quality_type f16, type[QUALITY_MAX_TYPES];
    int n_types;
    size_t n_scored; /* positions that all types have; n_ctx - 1 of each full window */
    float *base;     /* [rows][n_vocab] log-probabilities of the reference */
    ath_token *needle_head;
    size_t n_needle_head;
    int n_needles;
    size_t n_prompt, n_greedy; /* wanted */
    bool test_failed;          /* needles or a continuation, after an error line */
    ath_progress progress;
    double done; /* in rows of prefill */
    ath_outfile json, plot;
    char logged[256]; /* the engine's last line */
} quality;

enum {
    QUALITY_DECODE_COST = 4, /* a token one by one, in rows of prefill: for the time left */
    QUALITY_QUESTION = 128,  /* tokens that a question about a record takes at most, with its answer */
};

/* Each returns -1, or 1 after an error line; they stop early when ath_tool_interrupted is set. */
int quality_run_windows(quality *q);
/* needle_head, of n_needles records; before the sessions are opened. */
int quality_prepare_needles(quality *q);
int quality_run_needles(quality *q, quality_type *t);
int quality_run_greedy(quality *q, quality_type *t);

/* ---- results */

typedef struct quality_result {
    size_t n; /* scored positions in second halves */
    double kld_mean, kld_median, kld_p99, kld_max;
    ath_block_errors kld_error;
    double quarter[QUALITY_QUARTERS]; /* mean KLD by position; NAN if nothing was scored there */
    double top1, top1_error, ppl_ratio, ppl_ratio_error;
    int64_t first_difference; /* in the greedy continuation; -1: none */
    double repetition;        /* share of its runs of four tokens that came before */
    const char *verdict;
    char reasons[256]; /* what kept it from a better one */
} quality_result;

/* The K or V head whose encoding loses most; value 0 if nothing was encoded. */
typedef struct quality_worst {
    int layer, head;
    double value;
} quality_worst;
quality_worst quality_worst_head(const quality *q, const quality_type *t, bool is_value);

/* Mean KLD of equal stretches of the window, and its error from blocks of positions (0: fewer than two blocks). */
void quality_bins(const quality *q, const quality_type *t, double mean[QUALITY_BINS], double error[QUALITY_BINS]);
/* False if out of memory. */
bool quality_summarize(const quality *q, const quality_type *t, quality_result *out);
void quality_print(const quality *q, const quality_result *results);
/* known: without the types whose verdict is "unknown". */
cJSON *quality_json(const quality *q, const quality_result *results, bool known);
/* KLD by position, a line per type. */
void quality_plot(const quality *q, FILE *file);

#endif
