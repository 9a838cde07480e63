/* athanor logits: token ids in, raw logits out, so that the engine can be checked from outside. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "auto_cache.h"
#include "report.h"
#include "tool.h"

static const ath_program program = {
    ATH_PROGRAM_L, "-m MODEL (--ids \"1 2 3\" | -f IDS.txt) -o OUT.f32 [flags]",
    "Evaluates token ids and writes their logits: rows of n_vocab little-endian float32.", false};

typedef struct logits_run {
    ath_engine *engine;
    ath_session *session;
    ath_outfile out, stats;
    double start_ms;
    ath_token *ids;
    size_t n_ids, first_row; /* rows [first_row, n_ids) are wanted */
    size_t n_vocab, n_ubatch, n_seqs, decode_from;
    size_t shift; /* sequence i holds the ids from the i * shift-th on; not 0: the rows of all are wanted */
    size_t pass_start; /* position of the present pass */
    size_t n_written;  /* rows */
    bool argmax;       /* ids of the largest logits instead of the logits */
} logits_run;

/* ---- ids: whole numbers with spaces, commas, newlines, brackets around them */

static int parse_ids(logits_run *run, const char *text) {
    static const char between[] = " \t\r\n,[]";
    size_t cap = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT_MAX || (*end && !strchr(between, *end)))
            return ath_tool_fail("token ids are whole numbers, but there is \"%.20s\"", text);
        if (run->n_ids == cap) {
            ath_token *more = realloc(run->ids, (cap = cap ? 2 * cap : 256) * sizeof *more);
            if (!more) return ath_tool_fail("out of memory");
            run->ids = more;
        }
        run->ids[run->n_ids++] = (ath_token)id;
        text = end;
    }
    return run->n_ids ? -1 : ath_tool_fail("there are no token ids: give them with --ids or -f");
}

static int read_ids(logits_run *run, const ath_args *args) {
    const char *text = ATH_ARG_TEXT(args, IDS), *path = ATH_ARG_TEXT(args, FILE);
    if (text && path) return ath_tool_fail("--ids and -f at once: give one of them");
    if (!path) return parse_ids(run, text ? text : "");
    size_t size;
    char *data = ath_tool_read_file(path, &size);
    if (!data) return 1;
    int code = strlen(data) == size ? parse_ids(run, data)
                                    : ath_tool_fail("%s: a file of token ids holds no zero bytes", path);
    free(data);
    return code;
}

/* ---- evaluation */

static size_t seq_ids(const logits_run *run, size_t seq) {
    return run->n_ids - seq * run->shift;
}

/* The rows of one sequence lie behind those of the one before. */
static void go_to_row(const logits_run *run, size_t seq, size_t row) {
    size_t before = seq * run->n_ids - run->shift * (seq * (seq - (seq > 0)) / 2);
    fseeko(run->out.file, (off_t)((before + row) * run->n_vocab * sizeof(float)), SEEK_SET);
}

static void write_logits(const logits_run *run, const float *logits) {
    if (!run->argmax) {
        fwrite(logits, sizeof *logits, run->n_vocab, run->out.file);
        return;
    }
    size_t best = 0;
    for (size_t i = 1; i < run->n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    fprintf(run->out.file, "%zu\n", best);
}

static void write_row(void *user, int part, size_t row, const float *logits) {
    logits_run *run = user;
    if (run->shift) go_to_row(run, (size_t)part, run->pass_start + row);
    if (!run->shift && (part || run->pass_start + row < run->first_row)) return;
    write_logits(run, logits);
    run->n_written++;
}

/* Rows of the pass that starts at `at`: as many as the sequences share, cut at multiples of that, so that the
 * passes are those of ath_session_append; one by one where decoding is wanted. */
static size_t pass_rows(const logits_run *run, size_t at) {
    if (at >= run->decode_from) return 1;
    size_t rows = run->n_ubatch / run->n_seqs, end = (at / rows + 1) * rows;
    if (end > run->n_ids) end = run->n_ids;
    if (end > run->decode_from) end = run->decode_from;
    return end - at;
}

static ath_status evaluate(logits_run *run, ath_batch_part *parts, ath_error *err) {
    for (size_t at = 0; at < run->n_ids;) {
        size_t n = pass_rows(run, at);
        int n_parts = 0; /* sequences that have ended are the last ones */
        for (size_t seq = 0; seq < run->n_seqs && seq_ids(run, seq) > at; seq++) {
            size_t left = seq_ids(run, seq) - at;
            parts[n_parts++] =
                (ath_batch_part){(int)seq, run->ids + seq * run->shift + at, n < left ? n : left};
        }
        run->pass_start = at;
        ath_batch batch = {.parts = parts,
                           .n_parts = n_parts,
                           .on_logits = at + n > run->first_row ? write_row : NULL,
                           .user = run};
        ath_status status = ath_session_eval(run->session, &batch, err);
        if (status != ATH_OK) return status;
        at += n;
    }
    return ATH_OK;
}

static int run_all(logits_run *run) {
    ath_error err;
    ath_batch_part *parts = calloc(run->n_seqs, sizeof *parts);
    if (!parts) return ath_tool_fail("out of memory");
    ath_status status = evaluate(run, parts, &err);
    free(parts);
    if (status == ATH_ERR_CANCELLED) return ATH_EXIT_INTERRUPTED;
    if (status != ATH_OK) return ath_tool_fail("%s", err.message);
    return ath_outfile_commit(&run->out) ? 1 : -1;
}

/* Sequences and rows, by flags; the ids were read. */
static int read_what_is_wanted(logits_run *run, const ath_args *args, int n_ubatch) {
    int64_t n_seqs = ATH_ARG_INT(args, SEQS), last = ATH_ARG_INT(args, LAST);
    if (n_seqs < 1 || n_seqs > n_ubatch)
        return ath_tool_fail("--seqs expects 1 to %d (-ub), but got %lld", n_ubatch, (long long)n_seqs);
    if (ATH_ARG_GIVEN(args, LAST) && last < 1) return ath_tool_fail("--last expects 1 or more");
    if (ATH_ARG_INT(args, DECODE_FROM) < 0) return ath_tool_fail("--decode-from expects 0 or more");
    int64_t shift = ATH_ARG_INT(args, SHIFT);
    if (shift < 0 || (n_seqs > 1 && shift > ((int64_t)run->n_ids - 1) / (n_seqs - 1)))
        return ath_tool_fail("--shift %lld leaves the last of %lld sequences no ids", (long long)shift,
                             (long long)n_seqs);
    if (shift && (last || ATH_ARG_ON(args, ARGMAX)))
        return ath_tool_fail(
            "--shift writes all logits of all sequences: it goes without --last and --argmax");
    run->shift = (size_t)shift;
    run->argmax = ATH_ARG_ON(args, ARGMAX);
    run->n_seqs = (size_t)n_seqs;
    run->n_ubatch = (size_t)n_ubatch;
    run->first_row = last && (size_t)last < run->n_ids ? run->n_ids - (size_t)last : 0;
    run->decode_from = ATH_ARG_GIVEN(args, DECODE_FROM) ? (size_t)ATH_ARG_INT(args, DECODE_FROM) : SIZE_MAX;
    return -1;
}

static int open_all(logits_run *run, const ath_args *args) {
    ath_engine_params ep;
    ath_session_params sp;
    ath_error err;
    int code = ath_tool_engine_params(args, &ep);
    if (code < 0) code = ath_tool_session_params(args, &sp);
    if (code >= 0) return code;
    code = read_what_is_wanted(run, args, ep.n_ubatch);
    if (code >= 0) return code;
    if (!ATH_ARG_GIVEN(args, CTX_SIZE)) sp.n_ctx = (int64_t)run->n_ids;
    sp.n_seqs = (int)run->n_seqs;
    if (ath_engine_open(&run->engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    code = ath_auto_cache(args, run->engine, &sp);
    if (code >= 0) return code;
    if (ath_session_open(&run->session, run->engine, &sp, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    ath_tool_stop_on_interrupt(run->session);
    if ((int64_t)run->n_ids > ath_session_n_ctx(run->session))
        return ath_tool_fail("%zu tokens do not fit into a context of %lld (-c)", run->n_ids,
                             (long long)ath_session_n_ctx(run->session));
    ath_engine_info info;
    ath_engine_get_info(run->engine, &info);
    run->n_vocab = (size_t)info.n_vocab;
    return -1;
}

static void print_summary(const logits_run *run) {
    ath_session_stats s;
    ath_session_get_stats(run->session, &s);
    ath_tool_log(ATH_LOG_INFO, "%zu rows of %zu logits; K %s, V %s; %.1f %% of the rows read were compressed",
                 run->n_written, run->n_vocab, s.type_k, s.type_v, 100 * ath_report_share(&s));
    ath_report_saturated(run->session);
}

static int write_stats(logits_run *run, const ath_args *args) {
    if (!run->stats.file) return 0;
    ath_session_stats s;
    ath_session_get_stats(run->session, &s);
    ath_report report = {.args = args,
                         .engine = run->engine,
                         .session = run->session,
                         .start_ms = run->start_ms,
                         .n_prompt = s.tokens_prefill,
                         .n_eval = s.tokens_decode,
                         .prompt_ms = s.prefill_ms,
                         .eval_ms = s.decode_ms};
    return ath_report_json(&report, run->stats.file) || ath_outfile_commit(&run->stats);
}

static int run_logits(logits_run *run, const ath_args *args) {
    const char *path = ATH_ARG_TEXT(args, OUT), *stats = ATH_ARG_TEXT(args, JSON_STATS);
    run->start_ms = ath_tool_now_ms();
    if (!path) return ath_tool_fail("no file for the logits was named (-o OUT.f32)");
    int code = read_ids(run, args);
    if (code < 0) code = open_all(run, args);
    if (code < 0) code = ath_outfile_open(&run->out, path) ? 1 : -1;
    if (code < 0 && stats) code = ath_outfile_open(&run->stats, stats) ? 1 : -1;
    ath_tool_catch_interrupt();
    if (code < 0) code = run_all(run);
    if (code == ATH_EXIT_INTERRUPTED)
        ath_tool_log(ATH_LOG_WARN, "interrupted after %zu rows: %s was not written", run->n_written, path);
    if (code >= 0 && code != ATH_EXIT_INTERRUPTED) return code;
    print_summary(run);
    int stats_code = write_stats(run, args);
    return stats_code ? stats_code : code < 0 ? 0 : code;
}

int ath_tool_logits(int argc, char **argv) {
    ath_args args;
    logits_run run = {0};
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = run_logits(&run, &args);
    ath_outfile_abandon(&run.out);
    ath_outfile_abandon(&run.stats);
    ath_session_close(&run.session);
    ath_engine_close(&run.engine);
    free(run.ids);
    ath_args_free(&args);
    return code;
}
