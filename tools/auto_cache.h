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
    ATH_CLASS_UNKNOWN, /* neither in the table nor measured */
} ath_quality_class;
const char *ath_class_name(ath_quality_class c);

typedef struct ath_rating {
    ath_quality_class class;
    double kld;    /* mean, measured or the table's expectation; nothing if UNKNOWN */
    bool measured; /* by athanor quality on this model */
} ath_rating;

typedef struct ath_choice {
    const char *type_k, *type_v; /* live as long as the program; one that was given as long as its parameters */
    ath_rating pair;
    ath_rating own;               /* what auto answers for: without its other side's, if that was given and the pair itself
                                     was never rated. Never worse than visible in what is chosen */
    bool fits_heads;              /* the model's head size can be stored; the following are 0 if not */
    double bytes_per_token, bits; /* bits per value of closed pages, K and V averaged */
    uint64_t bytes;               /* at the wanted context, all sequences */
} ath_choice;

typedef struct ath_choices {
    ath_choice choice[ATH_MAX_CHOICES]; /* best first */
    int n, chosen;                      /* chosen: -1 if none may be taken */
    bool chosen_fits;                   /* false: nothing that is allowed fits, the smallest was chosen */
    uint64_t budget;
    bool budget_given;
    int64_t n_ctx;
    char why[320]; /* one line for people */
} ath_choices;

/* For a session of these parameters, all of which count that change its cache: type_k or type_v "auto" is chosen, the
 * other one stands. `spare`: bytes of the free memory that are spoken for (weights not loaded yet). -1, or 1 after an error
 * line. */
int ath_make_choices(ath_choices *out, const ath_args *args, const ath_engine *engine, const ath_session_params *p,
                     uint64_t spare);

/* Tokens that fit into the budget: a multiple of 256, at most 2^32, or all positions that the model has; 0: none. */
int64_t ath_largest_context(const ath_engine *engine, const ath_choice *c, const ath_session_params *p, uint64_t budget);

/* Replaces "auto" in the session's parameters and says in the log what was chosen and why; does nothing if
 * there is none. -1, or 1 after an error line. */
int ath_auto_cache(const ath_args *args, const ath_engine *engine, ath_session_params *params);

/* ---- verdicts of athanor quality, per model file */

typedef struct ath_verdict {
    const char *type;        /* "turbo3", or "q8_0/turbo3"; of any build. Belongs to the entry */
    ath_quality_class class; /* safe, visible or not recommended */
    double kld;              /* mean; finite, 0 or more */
    double context;          /* tokens of a window */
} ath_verdict;
/* An entry of "types". False if it makes no sense. */
bool ath_verdict_read(const cJSON *entry, ath_verdict *out);

/* What is stored in XDG_CACHE_HOME/athanor/verdicts/HASH.json: an object with "types", whose entries make sense (others
 * are left out, and the log says so). NULL: nothing that can be read. The caller deletes it. */
cJSON *ath_verdicts_load(const ath_engine *engine);
/* Adds the types of `report` (as quality's JSON) to what is stored, but for those that were measured on longer windows. A
 * file that can't be read stays, as FILE.bad. 0, or 1 after an error line. */
int ath_verdicts_store(const ath_engine *engine, const cJSON *report);

#endif
