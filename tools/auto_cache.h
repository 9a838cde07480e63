/* -ctk auto, -ctv auto: which cache types a context gets. The policy of all programs; docs/quality.md
 * describes it. */
#ifndef ATH_TOOL_AUTO_CACHE_H
#define ATH_TOOL_AUTO_CACHE_H

#include <cjson/cJSON.h>

#include "tool.h"

enum { ATH_MAX_CHOICES = 32 };

/* How much a cache type changes the model's output. */
typedef enum ath_quality_class {
    ATH_CLASS_EXACT, /* f16: the reference */
    ATH_CLASS_SAFE,
    ATH_CLASS_VISIBLE,
    ATH_CLASS_BAD,     /* "not recommended" */
    ATH_CLASS_UNKNOWN, /* neither in the table nor measured: never chosen */
} ath_quality_class;
const char *ath_class_name(ath_quality_class c);

typedef struct ath_choice {
    const char *type_k, *type_v; /* live as long as the program */
    ath_quality_class class;
    double kld;                   /* mean, measured on this model or the table's expectation; < 0: none */
    double expected;              /* kld of the table, or the measured one of a type that it doesn't hold */
    bool measured;                /* by athanor quality on this model */
    bool fits_heads;              /* the model's head size can be stored; the following are 0 if not */
    double bytes_per_token, bits; /* bits per value of closed pages, K and V averaged */
    uint64_t bytes;               /* at the wanted context, all sequences */
    int64_t largest;              /* context within the budget: a multiple of 256, at most 2^32; 0: none */
} ath_choice;

typedef struct ath_choices {
    ath_choice choice[ATH_MAX_CHOICES]; /* best first */
    int n, chosen;                      /* chosen: -1 if none may be taken */
    bool chosen_fits;                   /* false: nothing that is allowed fits, the smallest was chosen */
    uint64_t budget;
    bool budget_given;
    int64_t n_ctx;
    char why[256]; /* one line for people */
} ath_choices;

/* For a session of these parameters: type_k or type_v "auto" is chosen, the other one stands. `spare`: bytes of the free
 * memory that are spoken for (weights not loaded yet). -1, or 1 after an error line. */
int ath_make_choices(ath_choices *out, const ath_args *args, const ath_engine *engine, const ath_session_params *p,
                     uint64_t spare);

/* Replaces "auto" in the session's parameters and says in the log what was chosen and why; does nothing if
 * there is none. -1, or 1 after an error line. */
int ath_auto_cache(const ath_args *args, const ath_engine *engine, ath_session_params *params);

/* ---- verdicts of athanor quality, per model file */

/* Where they are kept: XDG_CACHE_HOME/athanor/verdicts/HASH.json. False if there is no such folder to be had.
 */
bool ath_verdict_path(const ath_engine *engine, char *buf, size_t cap);
/* What was stored; NULL: nothing that can be read. The caller deletes it. */
cJSON *ath_verdicts_load(const ath_engine *engine);
/* Adds the types of `report` (as quality's JSON) to what is stored. 0, or 1 after an error line. */
int ath_verdicts_store(const ath_engine *engine, const cJSON *report);

#endif
