/* llama-completion and llama-cli: continue a text. The text goes to stdout, everything else to stderr. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "auto_cache.h"
#include "report.h"
#include "sampling.h"
#include "stream.h"
#include "tool.h"

static const ath_program program = {ATH_PROGRAM_C, "-m MODEL -p TEXT [-n N] [flags]",
                                    "Continues a text: the text on stdout, everything else on stderr.",
                                    false};

enum { EXIT_READER_GONE = 141 }; /* as a shell reports SIGPIPE */

typedef struct completion {
    const ath_args *args;
    ath_engine *engine;
    ath_session *session;
    ath_sampler *sampler;
    ath_outfile stats;
    ath_stream stream;
    char *text; /* the prompt */
    size_t text_size;
    ath_token *prompt;
    size_t n_prompt;
    ath_token *context; /* [n_ctx + 1]: what is in the cache, and the token that comes next */
    size_t n_context, n_ctx;
    ath_token *ids; /* generated */
    size_t cap_ids;
    char *piece;
    size_t cap_piece;
    char **stops; /* -r, unescaped */
    size_t *stop_sizes;
    size_t n_stops;
    int64_t n_predict;
    ath_report report;
} completion;

static int out_of_memory(void) {
    return ath_tool_fail("out of memory");
}

/* Why writing to stdout failed, and the exit code. */
static int output_failed(void) {
    if (errno == EPIPE) return EXIT_READER_GONE;
    return ath_tool_fail("standard output can't be written: %s", strerror(errno));
}

/* ---- the prompt */

static int read_stops(completion *c) {
    size_t n = 0;
    while (ath_args_item(c->args, ATH_FLAG_REVERSE, n)) n++;
    if (!n) return -1;
    c->stops = calloc(n, sizeof *c->stops);
    c->stop_sizes = calloc(n, sizeof *c->stop_sizes);
    if (!c->stops || !c->stop_sizes) return out_of_memory();
    for (; c->n_stops < n; c->n_stops++) {
        char *text = strdup(ath_args_item(c->args, ATH_FLAG_REVERSE, c->n_stops));
        if (!text) return out_of_memory();
        c->stops[c->n_stops] = text;
        c->stop_sizes[c->n_stops] = strlen(text);
        if (ATH_ARG_ON(c->args, ESCAPE)) c->stop_sizes[c->n_stops] = ath_tool_unescape(text, strlen(text));
    }
    return -1;
}

static int tokenize_prompt(completion *c) {
    ath_error err;
    if (ath_tokenize(c->engine, c->text, c->text_size, ATH_TOKENIZE_ADD_SPECIAL | ATH_TOKENIZE_PARSE_SPECIAL,
                     &c->prompt, &c->n_prompt, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    if (!c->n_prompt)
        return ath_tool_fail(
            "there is no prompt, and this model has no token to start from: give one with -p or -f");
    for (size_t i = 0; ATH_ARG_ON(c->args, VERBOSE_PROMPT) && i < c->n_prompt; i++) {
        size_t size = ath_token_piece(c->engine, c->prompt[i], true, c->piece, c->cap_piece);
        ath_tool_log(ATH_LOG_INFO, "%6d -> '%.*s'", c->prompt[i], (int)size, c->piece);
    }
    return -1;
}

/* Before the cache is made: a prompt that can't fit is refused while that is cheap. */
static int check_prompt(const completion *c) {
    size_t room = c->n_ctx > 4 ? c->n_ctx - 4 : 0;
    if (c->n_prompt <= room) return -1;
    return ath_tool_fail(
        "the prompt has %zu tokens and a context of %zu takes prompts of up to %zu: raise -c", c->n_prompt,
        c->n_ctx, room);
}

/* ---- opening */

static int open_piece_buffer(completion *c) {
    ath_engine_info info;
    ath_engine_get_info(c->engine, &info);
    for (int64_t id = 0; id < info.n_vocab; id++) {
        size_t size = ath_token_piece(c->engine, (ath_token)id, true, NULL, 0);
        if (size > c->cap_piece) c->cap_piece = size;
    }
    c->piece = malloc(++c->cap_piece);
    size_t longest = 0;
    for (size_t i = 0; i < c->n_stops; i++)
        if (c->stop_sizes[i] > longest) longest = c->stop_sizes[i];
    return c->piece && ath_stream_init(&c->stream, stdout, longest + c->cap_piece) ? -1 : out_of_memory();
}

/* Without -c the trained context is wanted, but half of it, or a quarter, is better than none. */
static int open_session(completion *c) {
    ath_session_params p;
    ath_error err;
    int code = ath_tool_session_params(c->args, &p);
    if (code < 0) code = ath_auto_cache(c->args, c->engine, &p);
    if (code >= 0) return code;
    bool fit = ATH_ARG_ON(c->args, FIT) && !ATH_ARG_GIVEN(c->args, CTX_SIZE);
    ath_engine_info info;
    ath_engine_get_info(c->engine, &info);
    ath_status status = ath_session_open(&c->session, c->engine, &p, &err);
    for (int64_t n = info.n_ctx_train / 2; status == ATH_ERR_NOMEM && fit; n /= 2) {
        if (n < ATH_ARG_INT(c->args, FIT_CTX)) break;
        p.n_ctx = n;
        status = ath_session_open(&c->session, c->engine, &p, &err);
        if (status == ATH_OK)
            ath_tool_log(ATH_LOG_WARN,
                         "memory is short: a context of %lld instead of the trained %lld; -c N sets it",
                         (long long)ath_session_n_ctx(c->session), (long long)info.n_ctx_train);
    }
    if (status != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_tool_stop_on_interrupt(c->session);
    c->n_ctx = (size_t)ath_session_n_ctx(c->session);
    c->context = malloc((c->n_ctx + 1) * sizeof *c->context);
    return c->context ? -1 : out_of_memory();
}

static int open_stats(completion *c) {
    const char *path = ATH_ARG_TEXT(c->args, JSON_STATS);
    return !path || ath_outfile_open(&c->stats, path) == 0 ? -1 : 1;
}

static int open_all(completion *c) {
    ath_engine_params p;
    ath_error err;
    int code = ath_tool_engine_params(c->args, &p);
    if (code < 0) code = ath_tool_read_text(c->args, ATH_ARG_ON(c->args, ESCAPE), &c->text, &c->text_size);
    if (code < 0) code = read_stops(c);
    if (code < 0) code = open_stats(c);
    if (code >= 0) return code;
    if (ath_engine_open(&c->engine, &p, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    code = open_piece_buffer(c);
    if (code < 0) code = tokenize_prompt(c);
    if (code < 0) code = open_session(c);
    if (code < 0) code = check_prompt(c);
    if (code < 0)
        code = ath_tool_make_sampler(&c->sampler, c->args, c->engine, ath_session_n_ctx(c->session));
    return code;
}

/* ---- evaluation */

/* Appends what the context has beyond the cache, pass by pass, so that Ctrl+C is heard. */
static int evaluate(completion *c, double *ms, size_t *n_tokens) {
    ath_error err;
    ath_engine_info info;
    ath_engine_get_info(c->engine, &info);
    double start = ath_tool_now_ms();
    size_t at = (size_t)ath_session_length(c->session, 0), n_ubatch = (size_t)info.n_ubatch;
    while (at < c->n_context && !ath_tool_interrupted) {
        size_t end = (at / n_ubatch + 1) * n_ubatch;
        if (end > c->n_context) end = c->n_context;
        ath_status status = ath_session_append(c->session, 0, c->context + at, end - at, &err);
        if (status == ATH_ERR_CANCELLED) break;
        if (status != ATH_OK) return ath_tool_fail("%s", err.message);
        *n_tokens += end - at;
        at = end;
    }
    *ms += ath_tool_now_ms() - start;
    return -1;
}

/* Makes room in a full context: the kept tokens and the newer half of the others stay. The cache goes back to
 * the entry point before the first change; evaluate() does the rest. False if nothing can go. */
static bool shift_context(completion *c) {
    int64_t keep = ATH_ARG_INT(c->args, KEEP);
    size_t n_keep = keep < 0 || (size_t)keep > c->n_prompt ? c->n_prompt : (size_t)keep;
    if (ath_engine_adds_bos(c->engine) && !n_keep)
        n_keep = 1; /* a text without its start is no text to the model */
    size_t drop = n_keep < c->n_context ? (c->n_context - n_keep) / 2 : 0;
    if (!drop) return false;
    memmove(c->context + n_keep, c->context + n_keep + drop,
            (c->n_context - n_keep - drop) * sizeof *c->context);
    c->n_context -= drop;
    int64_t from = ath_session_truncate(c->session, 0, (int64_t)n_keep);
    ath_tool_log(ATH_LOG_INFO, "context full: %zu tokens kept, %zu dropped, %lld of %zu evaluated again",
                 n_keep, drop, (long long)c->n_context - from, c->n_context);
    c->report.n_shifts++;
    return true;
}

/* ---- generation */

static int remember_id(completion *c, ath_token id) {
    if (c->report.n_generated == c->cap_ids) {
        size_t cap = c->cap_ids ? 2 * c->cap_ids : 4096;
        ath_token *more = realloc(c->ids, cap * sizeof *more);
        if (!more) return out_of_memory();
        c->ids = more;
        c->cap_ids = cap;
    }
    c->ids[c->report.n_generated++] = id;
    return -1;
}

static int sample(completion *c, ath_token *id) {
    ath_error err;
    double start = ath_tool_now_ms();
    if (ath_sampler_sample(c->sampler, ath_session_logits(c->session, 0), id, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    ath_sampler_accept(c->sampler, *id);
    c->report.sample_ms += ath_tool_now_ms() - start;
    return remember_id(c, *id);
}

static bool stop_text_came(const completion *c, size_t new_bytes) {
    for (size_t i = 0; i < c->n_stops; i++)
        if (ath_stream_has(&c->stream, c->stops[i], c->stop_sizes[i], new_bytes)) return true;
    return false;
}

/* Writes one token and says whether the text ends with it (report.stop). */
static int write_token(completion *c, ath_token id) {
    size_t size = ath_token_piece(c->engine, id, ATH_ARG_ON(c->args, SPECIAL), c->piece, c->cap_piece);
    if (!ath_stream_put(&c->stream, c->piece, size)) return output_failed();
    if (ath_token_is_eog(c->engine, id)) {
        static const char end[] = " [end of text]\n";
        c->report.stop = "end of text";
        if (!ath_stream_end(&c->stream) || !ath_stream_put(&c->stream, end, sizeof end - 1))
            return output_failed();
    } else if (stop_text_came(c, size))
        c->report.stop = "reverse prompt";
    else if (c->n_predict >= 0 && c->report.n_generated >= (size_t)c->n_predict)
        c->report.stop = "limit";
    return -1;
}

/* Adds a token to the context, which may be full. */
static int extend(completion *c, ath_token id) {
    bool full = c->n_context == c->n_ctx;
    c->context[c->n_context++] = id;
    bool may_shift = ATH_ARG_ON(c->args, CONTEXT_SHIFT) && c->n_predict != -2;
    if (full && !(may_shift && shift_context(c))) {
        c->report.stop = "context full";
        ath_tool_log(ATH_LOG_WARN, "the context of %zu tokens is full, the text ends here%s", c->n_ctx,
                     c->n_predict == -2 ? ""
                     : may_shift        ? ": --keep leaves nothing to drop"
                                 : "; -c N takes more, --context-shift goes on without the older part");
        return -1;
    }
    return full ? evaluate(c, &c->report.prompt_ms, &c->report.n_prompt)
                : evaluate(c, &c->report.eval_ms, &c->report.n_eval);
}

static int generate(completion *c) {
    while (!c->report.stop) {
        ath_token id;
        if (ath_tool_interrupted) {
            c->report.stop = "interrupted";
            break;
        }
        int code = sample(c, &id);
        if (code < 0) code = write_token(c, id);
        if (code < 0 && !c->report.stop) code = extend(c, id);
        if (code >= 0) return code;
    }
    return ath_stream_end(&c->stream) ? -1 : output_failed();
}

static int run_prompt(completion *c) {
    if (ATH_ARG_ON(c->args, DISPLAY_PROMPT) && !ath_stream_put(&c->stream, c->text, c->text_size))
        return output_failed();
    memcpy(c->context, c->prompt, c->n_prompt * sizeof *c->context);
    c->n_context = c->n_prompt;
    for (size_t i = 0; i < c->n_prompt; i++) ath_sampler_accept(c->sampler, c->prompt[i]);
    int code = evaluate(c, &c->report.prompt_ms, &c->report.n_prompt);
    if (code >= 0 || ath_tool_interrupted) return code;
    ath_error err; /* a shift that keeps the whole prompt goes back to here */
    if (ATH_ARG_ON(c->args, CONTEXT_SHIFT) && ath_session_mark_entry(c->session, 0, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    if (c->n_predict == 0) c->report.stop = "limit";
    return -1;
}

static int finish(completion *c) {
    c->report.ids = c->ids;
    ath_report_saturated(c->session);
    if (c->stats.file && (ath_report_json(&c->report, c->stats.file) || ath_outfile_commit(&c->stats)))
        return 1;
    if (ATH_ARG_ON(c->args, PERF) && ATH_ARG_ON(c->args, SHOW_TIMINGS)) {
        if (!c->stream.newline) ath_tool_log(ATH_LOG_INFO, "%s", "");
        ath_report_times(&c->report);
    }
    return ath_tool_interrupted ? ATH_EXIT_INTERRUPTED : 0;
}

static int complete(completion *c) {
    c->n_predict = ATH_ARG_INT(c->args, PREDICT);
    if (c->n_predict < -2)
        return ath_tool_fail("-n expects a number of tokens, -1 or -2, but got %lld",
                             (long long)c->n_predict);
    c->report.args = c->args;
    c->report.start_ms = ath_tool_now_ms();
    int code = open_all(c);
    if (code >= 0) return code;
    char sampler[512];
    snprintf(sampler, sizeof sampler, "seed %u: %s", ath_sampler_seed(c->sampler),
             ath_sampler_chain(c->sampler));
    c->report.engine = c->engine;
    c->report.session = c->session;
    c->report.sampler = sampler;
    c->report.prompt = c->prompt;
    c->report.n_ids_prompt = c->n_prompt;
    ath_report_start(&c->report);
    ath_tool_catch_interrupt();
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is seen as EPIPE */
    code = run_prompt(c);
    if (code < 0) code = generate(c);
    return code < 0 ? finish(c) : code;
}

static void close_all(completion *c) {
    ath_outfile_abandon(&c->stats);
    ath_sampler_free(c->sampler);
    ath_session_close(&c->session);
    ath_engine_close(&c->engine);
    ath_stream_free(&c->stream);
    for (size_t i = 0; i < c->n_stops; i++) free(c->stops[i]);
    free(c->stops);
    free(c->stop_sizes);
    free(c->text);
    free(c->prompt);
    free(c->context);
    free(c->ids);
    free(c->piece);
}

int ath_tool_completion(int argc, char **argv) {
    ath_args args;
    completion c = {.args = &args};
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0 && ATH_ARG_ON(&args, LIST_DEVICES)) {
        puts("CPU");
        code = ath_tool_flush();
    }
    if (code < 0) code = complete(&c);
    close_all(&c);
    ath_args_free(&args);
    return code;
}
