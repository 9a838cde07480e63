/* What ran and how long it took: the start-up block, the times at the end, and both as JSON. */
#ifndef ATH_TOOL_REPORT_H
#define ATH_TOOL_REPORT_H

#include "tool.h"

typedef struct ath_report {
    const ath_args *args;
    const ath_engine *engine;
    const ath_session *session;
    const char *sampler;     /* its chain; NULL: none */
    const char *stop;        /* why generation ended; NULL: it has not */
    size_t n_prompt, n_eval; /* tokens evaluated in prefill; one by one */
    size_t n_generated, n_shifts;
    double start_ms, prompt_ms, eval_ms, sample_ms;
    const ath_token *prompt, *ids; /* [n_ids_prompt], [n_generated] */
    size_t n_ids_prompt;
} ath_report;

void ath_report_start(const ath_report *report);
void ath_report_times(const ath_report *report);
/* Writes --json-stats into the open file. 0, or 1 after an error line. */
int ath_report_json(const ath_report *report, FILE *file);
/* A warning if values of K or V were too large for the cache and clamped. */
void ath_report_saturated(const ath_session *session);
/* Share of the rows that attention read in compressed form, 0 to 1. */
double ath_report_share(const ath_session_stats *stats);

#endif
