/* Passes over given tokens, for the tools that score text. */
#ifndef ATH_TOOL_EVALUATE_H
#define ATH_TOOL_EVALUATE_H

#include "tool.h"

/* Logits [n_vocab] of row i of the tokens. */
typedef void (*ath_row_fn)(void *user, size_t i, const float *logits);

/* Appends n tokens to sequence 0 in passes that end at multiples of `rows` of the position, and hands over
 * the logits of rows first, first + 1 ... in order (first >= n: none). */
ath_status ath_tool_evaluate(ath_session *session, const ath_token *tokens, size_t n, size_t rows,
                             size_t first, ath_row_fn on_row, void *user, ath_error *err);

/* Tokens of a text with BOS and EOS as the model wants them; malloc'd. NULL after an error line. */
ath_token *ath_tool_tokens(const ath_engine *engine, const char *text, size_t size, size_t *n);

/* How far a long run is: a bar on a terminal, else a line every 15 seconds, in the log. */
typedef struct ath_progress {
    const char *what;
    bool bar;
    double total, start_ms, shown_ms;
} ath_progress;
/* stdout_too: results go to stdout meanwhile, so no bar if that is the same terminal. */
void ath_progress_start(ath_progress *p, const char *what, double total, bool stdout_too);
void ath_progress_show(ath_progress *p, double done);
void ath_progress_end(ath_progress *p);
/* "1 m 20 s" */
void ath_format_seconds(char buf[32], double seconds);

#endif
