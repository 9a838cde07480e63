/* athanor bench: what its files share. A case is one line of the results; a runner holds the engine and session that
 * cases run on, and keeps them, and the filled depth, from one case to the next where their settings agree. */
#ifndef ATH_TOOL_BENCH_H
#define ATH_TOOL_BENCH_H

#include "tool.h"

typedef struct bench_case {
    const char *model, *type_k, *type_v;
    int n_batch, n_ubatch;             /* -ub is cut at -b when the engine is opened */
    int n_threads;                     /* 0: the engine's choice */
    int64_t n_prompt, n_gen, n_depth;  /* n_gen tokens one by one after a prompt, on top of a filled depth */
} bench_case;

/* ---- lists of values (bench_list.c) */

typedef struct bench_list {
    int64_t *values;
    size_t n;
} bench_list;

/* All numbers of a LIST flag, or of its default: "1,2", ranges "first-last", "first-last+step", "first-last*factor".
 * -1, or 1 after an error line (also where a number is below `low` or above 2^31 - 1). The caller frees values. */
int bench_numbers(const ath_args *args, ath_flag_id id, int64_t low, bench_list *list);
/* The words of a LIST flag, separated by commas, or of its default; *words is malloc'd, and so is each. NULL-terminated. */
int bench_words(const ath_args *args, ath_flag_id id, char ***words);
void bench_free_words(char **words);

/* All combinations that the flags ask for, in the order in which they run. *cases is malloc'd; its strings belong
 * to *strings, NULL-terminated lists to be freed with bench_free_words. */
enum { BENCH_WORD_LISTS = 3 };
int bench_make_cases(const ath_args *args, bench_case **cases, size_t *n, char **strings[BENCH_WORD_LISTS]);
/* Everything but the test itself: they can share engine and session. */
bool bench_same_settings(const bench_case *a, const bench_case *b);
/* Room for case `at` and those behind it that share its settings. */
int64_t bench_shared_context(const bench_case *cases, size_t n, size_t at);

/* ---- running (bench_run.c) */

typedef struct bench_runner {
    const ath_args *args;
    ath_engine *engine;
    ath_session *session;
    ath_engine_info info;
    bench_case opened;  /* settings of both */
    ath_token *tokens;  /* [n_ctx] what stands at each position */
    int64_t n_ctx;
    bool fill;          /* depth is made of random K and V, not of evaluated tokens */
    char isa[64];       /* "avx512 vnni vbmi" */
} bench_runner;

/* Opens what the case's settings need, if they are others than before, with room for n_ctx tokens, and warms up unless
 * --no-warmup was given. */
int bench_open(bench_runner *r, const bench_case *c, int64_t n_ctx);
void bench_close(bench_runner *r);
/* Sequence 0 holds exactly the first `depth` tokens: goes on from what it holds, or back to an entry point. */
int bench_set_depth(bench_runner *r, int64_t depth);
/* Evaluates n tokens, as a prompt or one by one, and adds up the time; steps (may be NULL): [n] of the single ones. */
int bench_prompt(bench_runner *r, int64_t n, uint64_t *ns);
int bench_generate(bench_runner *r, int64_t n, uint64_t *ns, uint64_t *steps);

/* Rows that attention read, K and V, summed over layers. */
typedef struct bench_rows {
    double compressed, all;
} bench_rows;
/* Adds what was read between two looks at the statistics. */
void bench_add_rows(bench_rows *sum, const ath_session_stats *before, const ath_session_stats *after);
double bench_share(const bench_rows *rows);

/* Bytes of weights that one decode step reads, from the file's tensors: all of the experts that are used, all of the
 * other matrices, of the embedding a row. */
double bench_weight_bytes(const ath_engine *engine);
/* "llama 8B Q4_K - Medium": architecture, size, file type. */
void bench_model_type(const ath_engine *engine, char *text, size_t cap);
/* The processor's name; "unknown CPU". */
void bench_cpu_name(char *text, size_t cap);

/* ---- results (bench_print.c) */

typedef struct bench_result {
    bench_case test;
    const bench_runner *runner;
    size_t n;             /* repetitions that were done */
    uint64_t *ns;         /* [n] */
    uint64_t *steps;      /* [n][n_gen], NULL unless asked for */
    bench_rows rows;      /* read in them */
    ath_session_stats stats; /* after the last one */
    char time[32];        /* when it started, UTC, RFC 3339 */
} bench_result;

void bench_test_name(const bench_case *c, char *text, size_t cap);
double bench_mean(const double *values, size_t n);

typedef struct bench_writer bench_writer;
typedef struct bench_format {
    const char *name;
    void (*begin)(bench_writer *w);
    int (*row)(bench_writer *w, const bench_result *result); /* 0, or 1 after an error line */
    void (*end)(bench_writer *w);
} bench_format;

enum { BENCH_MD_COLUMNS = 4 };
struct bench_writer {
    const bench_format *format;
    FILE *file;
    bool extra_columns[BENCH_MD_COLUMNS]; /* md: settings that several cases differ in, or that aren't the default */
    size_t n_rows;
};
/* The format of a -o value; none for "none". */
bench_writer bench_writer_open(const char *format, FILE *file, const bench_case *cases, size_t n);
bool bench_writer_has_steps(const bench_writer *w);

/* ---- other modes; each returns the exit code */

int bench_memory(const ath_args *args);
/* GB/s (10^9 bytes) that n_threads read from --memory-size of memory, the best of several passes. -1, or 1 after an
 * error line. */
int bench_read_bandwidth(const ath_args *args, int n_threads, double *speed);
int bench_curve(const ath_args *args);
/* Does what lines of standard input ask for, and answers each with a line of JSON. */
int bench_commands(const ath_args *args);

#endif
