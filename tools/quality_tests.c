/* athanor quality: windows of text side by side, records to be found again, a greedy continuation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quality.h"

/* ---- windows */

typedef struct pass {
    quality *q;
    quality_type *t;
    bool broken; /* row broken_at is the first with a NaN */
    size_t broken_at;
} pass;

static void check_number(pass *p, size_t i, double x) {
    if (!isnan(x) || p->broken) return;
    p->broken = true;
    p->broken_at = i;
}

static void keep_base(void *user, size_t i, const float *logits) {
    pass *p = user;
    quality *q = p->q;
    float *base = q->base + i * q->n_vocab;
    ath_log_probs(logits, q->n_vocab, base);
    check_number(p, i, (double)*base); /* one NaN makes all of them so */
}

static void score_row(void *user, size_t i, const float *logits) {
    pass *p = user;
    const quality *q = p->q;
    size_t at = q->n_scored + i, window = at / (q->n_ctx - 1), position = at % (q->n_ctx - 1);
    ath_score s;
    ath_score_row(logits, q->base + i * q->n_vocab, q->n_vocab, q->tokens[window * q->n_ctx + position + 1],
                  &s);
    check_number(p, i, s.kld + s.nll);
    p->t->kld[at] = s.kld > 0 ? (float)s.kld : 0; /* below is rounding */
    p->t->nll_ratio[at] = (float)(s.nll - s.nll_base);
    p->t->same_top[at] = s.same_top;
}

static void worked(quality *q, double rows) {
    q->done += rows;
    ath_progress_show(&q->progress, q->done);
}

static uint64_t rows_compressed(const quality_type *t) {
    ath_session_stats s;
    ath_session_get_stats(t->session, &s);
    return s.k_rows_compressed + s.v_rows_compressed;
}

/* The same rows, from position `at` of a window, through the reference and every type. */
static int run_pass(quality *q, const ath_token *tokens, size_t at, size_t n) {
    ath_error err;
    for (int i = -1; i < q->n_types && !ath_tool_interrupted; i++) {
        quality_type *t = i < 0 ? &q->f16 : &q->type[i];
        pass p = {.q = q, .t = t};
        uint64_t before = rows_compressed(t);
        ath_status status = ath_tool_evaluate(t->session, tokens + at, n, q->rows, 0,
                                              i < 0 ? keep_base : score_row, &p, &err);
        if (status == ATH_ERR_CANCELLED) return -1;
        if (status != ATH_OK) return ath_tool_fail("%s: %s", t->name, err.message);
        if (p.broken)
            return ath_tool_fail("%s: what the model gives at position %zu of window %zu is not a number",
                                 t->name, at + p.broken_at, q->n_scored / (q->n_ctx - 1) + 1);
        if (at + n > q->n_ctx / 2) t->rows_compressed += rows_compressed(t) - before;
        worked(q, (double)n);
    }
    if (!ath_tool_interrupted) q->n_scored += n;
    return -1;
}

int quality_run_windows(quality *q) {
    ath_token bos = ath_engine_adds_bos(q->engine) ? ath_token_bos(q->engine) : -1;
    for (size_t w = 0; w < q->n_windows; w++) {
        ath_token *tokens = q->tokens + w * q->n_ctx;
        if (bos >= 0) tokens[0] = bos;
        ath_session_clear(q->f16.session, 0);
        for (int i = 0; i < q->n_types; i++) ath_session_clear(q->type[i].session, 0);
        for (size_t at = 0, n; at < q->n_ctx - 1; at += n) {
            n = q->n_ctx - 1 - at < q->rows ? q->n_ctx - 1 - at : q->rows;
            int code = run_pass(q, tokens, at, n);
            if (code >= 0 || ath_tool_interrupted) return code;
        }
    }
    return -1;
}

/* ---- needles: records that differ in a name and three digits */

static const char *const names[64] = {
    "Adam",   "Alice",  "Anna",   "Arthur",  "Barbara", "Ben",   "Bruno",  "Carl",   "Clara",  "Daniel",
    "David",  "Diana",  "Edward", "Emma",    "Eric",    "Eva",   "Felix",  "Frank",  "George", "Grace",
    "Hannah", "Harry",  "Helen",  "Henry",   "Ida",     "Isaac", "Jack",   "James",  "Jane",   "Julia",
    "Karen",  "Kevin",  "Laura",  "Leo",     "Linda",   "Lucy",  "Maria",  "Mark",   "Martin", "Mary",
    "Max",    "Mike",   "Nina",   "Nora",    "Oliver",  "Oscar", "Paul",   "Peter",  "Rachel", "Robert",
    "Rosa",   "Ruth",   "Sam",    "Sarah",   "Simon",   "Sofia", "Stella", "Steven", "Susan",  "Thomas",
    "Tony",   "Victor", "Walter", "William",
};
enum { FILLER_TOKENS = 384 }; /* behind the records: none of them lies in an f16 page then */

typedef struct needle {
    char question[96], answer[16], record[128];
} needle;

static needle needle_of(int i) {
    /* 27 is coprime to 64, 137 to 900: every name once, no number twice */
    needle n;
    snprintf(n.answer, sizeof n.answer, " %d", 100 + (i * 137 + 42) % 900);
    snprintf(n.question, sizeof n.question, "The number of %s is", names[i * 27 % 64]);
    snprintf(n.record, sizeof n.record, "%s%s.\n", n.question, n.answer);
    return n;
}

/* Text to the list of tokens of a text that goes on; malloc'd. */
static ath_token *more_tokens(const quality *q, const char *text, size_t *n) {
    ath_token *tokens;
    ath_error err;
    if (ath_tokenize(q->engine, text, strlen(text), 0, &tokens, n, &err) == ATH_OK) return tokens;
    ath_tool_fail("%s", err.message);
    return NULL;
}

int quality_prepare_needles(quality *q) {
    char *text = malloc((size_t)q->n_needles * sizeof((needle *)0)->record + 64);
    if (!text) return ath_tool_fail("out of memory");
    size_t at = (size_t)sprintf(text, "A list of people and their numbers.\n");
    for (int i = 0; i < q->n_needles; i++) {
        needle item = needle_of(i);
        at += (size_t)sprintf(text + at, "%s", item.record);
    }
    size_t n, filler = q->n_tokens - 1 < FILLER_TOKENS ? q->n_tokens - 1 : FILLER_TOKENS;
    ath_token *tokens = ath_tool_tokens(q->engine, text, at, &n);
    free(text);
    if (!tokens) return 1;
    free(q->needle_head);
    q->needle_head = malloc((n + filler) * sizeof *tokens);
    if (q->needle_head) {
        memcpy(q->needle_head, tokens, n * sizeof *tokens);
        memcpy(q->needle_head + n, q->tokens + 1, filler * sizeof *tokens);
        q->n_needle_head = n + filler;
    }
    free(tokens);
    return q->needle_head ? -1 : ath_tool_fail("out of memory");
}

typedef struct retrieval {
    const quality *q;
    const ath_token *tokens;
    size_t n, n_right;
    ath_moments nll;
} retrieval;

static void check_row(void *user, size_t i, const float *logits) {
    retrieval *r = user;
    if (i + 1 >= r->n) return;
    size_t top;
    ath_add(&r->nll, ath_log_sum_exp(logits, r->q->n_vocab, &top) - (double)logits[r->tokens[i + 1]]);
    r->n_right += (ath_token)top == r->tokens[i + 1];
}

/* Back to the records, whatever the cache can keep of them. */
static ath_status rewind_to_head(const quality *q, quality_type *t, ath_error *err) {
    size_t kept = (size_t)ath_session_truncate(t->session, 0, (int64_t)q->n_needle_head);
    return ath_tool_evaluate(t->session, q->needle_head + kept, q->n_needle_head - kept, q->rows, SIZE_MAX,
                             NULL, NULL, err);
}

/* Asks for record i: found if every token of the answer is the likeliest one. */
static int ask(const quality *q, quality_type *t, int i, retrieval *r) {
    needle item = needle_of(i);
    char whole[128];
    snprintf(whole, sizeof whole, "\n%s", item.question);
    size_t n_question, n;
    ath_token *asked = more_tokens(q, whole, &n_question);
    strcat(whole, item.answer);
    ath_token *tokens = asked ? more_tokens(q, whole, &n) : NULL;
    ath_error err;
    int code = 1;
    if (tokens) {
        size_t same = 0;
        while (same < n_question && same + 1 < n && tokens[same] == asked[same]) same++;
        r->tokens = tokens;
        r->n = n;
        r->n_right = 0;
        size_t first = same ? same - 1 : 0;
        ath_status status = rewind_to_head(q, t, &err);
        if (status == ATH_OK)
            status = ath_tool_evaluate(t->session, tokens, n, q->rows, first, check_row, r, &err);
        code = status == ATH_OK || status == ATH_ERR_CANCELLED ? -1 : ath_tool_fail("%s", err.message);
        t->needles_found += status == ATH_OK && r->n_right == n - 1 - first;
    }
    free(asked);
    free(tokens);
    return code;
}

int quality_run_needles(quality *q, quality_type *t) {
    retrieval r = {.q = q};
    ath_session_clear(t->session, 0);
    for (int i = 0; i < q->n_needles; i++) {
        int code = ask(q, t, i, &r);
        if (code >= 0) return code;
        if (ath_tool_interrupted) return -1;
        worked(q, (i == 0 ? (double)q->n_needle_head : 0) + 30);
    }
    t->needle_nll = ath_mean_of(&r.nll);
    t->needles_done = true;
    return -1;
}

/* ---- greedy continuation */

/* The likeliest token that does not end the text. */
static ath_token best_token(const quality *q, const float *logits) {
    ath_token best = -1;
    for (size_t i = 0; i < q->n_vocab; i++)
        if ((best < 0 || logits[i] > logits[best]) && !ath_token_is_eog(q->engine, (ath_token)i))
            best = (ath_token)i;
    return best < 0 ? 0 : best;
}

int quality_run_greedy(quality *q, quality_type *t) {
    ath_error err;
    ath_session_clear(t->session, 0);
    ath_status status = ath_session_append(t->session, 0, q->tokens, q->n_prompt, &err);
    worked(q, (double)q->n_prompt);
    size_t n = 0;
    while (status == ATH_OK && n < q->n_greedy && !ath_tool_interrupted) {
        t->greedy[n] = best_token(q, ath_session_logits(t->session, 0));
        if (++n < q->n_greedy) status = ath_session_append(t->session, 0, &t->greedy[n - 1], 1, &err);
        worked(q, QUALITY_DECODE_COST);
    }
    if (status != ATH_OK && status != ATH_ERR_CANCELLED) return ath_tool_fail("%s: %s", t->name, err.message);
    t->n_greedy = n;
    return -1;
}
