/* Passes over given tokens, for the tools that score text, and how far they are. */
#include "evaluate.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct pass {
    ath_row_fn on_row;
    void *user;
    size_t start, first;
} pass;

static void give_row(void *user, int part, size_t row, const float *logits) {
    (void)part;
    const pass *p = user;
    if (p->start + row >= p->first) p->on_row(p->user, p->start + row, logits);
}

ath_status ath_tool_evaluate(ath_session *session, const ath_token *tokens, size_t n, size_t rows,
                             size_t first, ath_row_fn on_row, void *user, ath_error *err) {
    pass p = {on_row, user, 0, first};
    for (size_t take; p.start < n; p.start += take) {
        take = rows - (size_t)ath_session_length(session, 0) % rows;
        if (take > n - p.start) take = n - p.start;
        ath_batch_part part = {0, tokens + p.start, take};
        ath_batch batch = {
            .parts = &part, .n_parts = 1, .on_logits = p.start + take > first ? give_row : NULL, .user = &p};
        ath_status status = ath_session_eval(session, &batch, err);
        if (status != ATH_OK) return status;
    }
    return ATH_OK;
}

ath_token *ath_tool_tokens(const ath_engine *engine, const char *text, size_t size, size_t *n) {
    ath_token *tokens;
    ath_error err;
    if (ath_tokenize(engine, text, size, ATH_TOKENIZE_ADD_SPECIAL, &tokens, n, &err) == ATH_OK) return tokens;
    ath_tool_fail("%s", err.message);
    return NULL;
}

/* ---- progress */

enum { BAR_WIDTH = 30 };

void ath_format_seconds(char buf[32], double seconds) {
    int s = (int)(seconds + 0.5);
    if (s < 60)
        snprintf(buf, 32, "%d s", s);
    else if (s < 3600)
        snprintf(buf, 32, "%d m %02d s", s / 60, s % 60);
    else
        snprintf(buf, 32, "%d h %02d m", s / 3600, s / 60 % 60);
}

void ath_progress_start(ath_progress *p, const char *what, double total, bool stdout_too) {
    double now = ath_tool_now_ms();
    bool bar = isatty(STDERR_FILENO) && !(stdout_too && isatty(STDOUT_FILENO)) && ath_tool_logs(ATH_LOG_INFO);
    *p = (ath_progress){what, bar, total, now, now};
}

void ath_progress_show(ath_progress *p, double done) {
    double now = ath_tool_now_ms(), share = done / p->total;
    if (done <= 0 || now - p->shown_ms < (p->bar ? 200 : 15000)) return;
    p->shown_ms = now;
    char left[32];
    ath_format_seconds(left, (now - p->start_ms) * 1e-3 * (p->total - done) / done);
    if (!p->bar) {
        ath_tool_log(ATH_LOG_INFO, "%s: %.0f %%, %s left", p->what, 100 * share, left);
        return;
    }
    int full = (int)(share * BAR_WIDTH);
    fprintf(stderr, "\r\033[K%s [", p->what);
    for (int i = 0; i < BAR_WIDTH; i++) fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f %%, %s left", 100 * share, left);
    fflush(stderr);
}

void ath_progress_end(ath_progress *p) {
    if (p->bar) fputs("\r\033[K", stderr);
}
