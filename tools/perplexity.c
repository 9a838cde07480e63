/* llama-perplexity: how well a model, with its cache as it is stored, predicts a text. Windows of the text
 * run one after another, each from an empty cache; the second half of each is scored. */
#include "perplexity.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "auto_cache.h"
#include "json.h"
#include "kld_file.h"
#include "report.h"

static const ath_program program = {
    ATH_PROGRAM_X, "-m MODEL -f TEXT [-c N] [flags]",
    "Perplexity of a text, KL divergence from another run, HellaSwag, Winogrande, multiple choice.", false};

enum { MOST_TOKENS = 1 << 28 }; /* of a window */

int ath_perplexity_open_session(perplexity *p, int64_t n_ctx) {
    ath_session_params sp;
    ath_error err;
    int code = ath_tool_session_params(p->args, &sp);
    sp.n_ctx = n_ctx;
    sp.entry_every = 0;
    if (code < 0) code = ath_auto_cache(p->args, p->engine, &sp);
    if (code >= 0) return code;
    if (ath_session_open(&p->session, p->engine, &sp, &err) != ATH_OK)
        return ath_tool_fail("%s", err.message);
    ath_tool_stop_on_interrupt(p->session);
    ath_session_stats s;
    ath_session_get_stats(p->session, &s);
    ath_tool_log(ATH_LOG_INFO, "cache      K %s, V %s; %.1f bytes per token (f16: %.1f)", s.type_k, s.type_v,
                 s.bytes_per_token, s.bytes_per_token_f16);
    if (p->json) {
        cJSON_AddStringToObject(p->json, "type_k", s.type_k);
        cJSON_AddStringToObject(p->json, "type_v", s.type_v);
    }
    return -1;
}

/* ---- windows of a text */

typedef struct windows {
    perplexity *p;
    ath_token *tokens, *window;              /* the text; [n_ctx] the present window */
    size_t n_tokens, n_windows, step, first; /* rows first .. n_ctx - 2 of a window are scored */
    size_t at, done;                         /* present window; windows that are finished */
    uint16_t *row;                           /* of the base file, where one is written */
    ath_outfile base;
    ath_moments nll;
    ath_progress progress;
} windows;

static void score_row(void *user, size_t i, const float *logits) {
    windows *w = user;
    size_t n_vocab = w->p->n_vocab;
    ath_add(&w->nll, ath_log_sum_exp(logits, n_vocab, NULL) - (double)logits[w->window[i + 1]]);
    if (w->base.file) {
        ath_kld_encode_row(logits, n_vocab, w->row);
        fwrite(w->row, sizeof *w->row, ath_kld_row_words((int32_t)n_vocab), w->base.file);
    }
    ath_progress_show(&w->progress, (double)w->done + (double)i / (double)w->p->n_ctx);
}

static void print_window(const windows *w) {
    double mean = ath_mean_of(&w->nll);
    if (ATH_ARG_INT(w->p->args, PPL_OUTPUT) == 0)
        printf("[%zu]%.4f,", w->done, exp(mean));
    else if (w->step == w->p->n_ctx)
        printf("%8zu  %.4f  %.6f  %.6f\n", w->at, exp(mean), mean, ath_error_of(&w->nll));
    else
        printf("%8zu  %.4f\n", w->at, exp(mean));
    fflush(stdout);
}

static int run_windows(windows *w) {
    perplexity *p = w->p;
    ath_error err;
    double start = ath_tool_now_ms();
    ath_progress_start(&w->progress, "perplexity", (double)w->n_windows, true);
    while (w->done < w->n_windows && !ath_tool_interrupted) {
        w->at = w->done * w->step;
        memcpy(w->window, w->tokens + w->at, p->n_ctx * sizeof *w->window);
        if (p->adds_bos) w->window[0] = ath_token_bos(p->engine);
        ath_session_clear(p->session, 0);
        ath_status status =
            ath_tool_evaluate(p->session, w->window, p->n_ctx - 1, p->n_ubatch, w->first, score_row, w, &err);
        if (status == ATH_ERR_CANCELLED) break;
        if (status != ATH_OK) return ath_tool_fail("%s", err.message);
        w->done++;
        print_window(w);
        double seconds = (ath_tool_now_ms() - start) * 1e-3;
        if (w->done == 1)
            ath_tool_log(ATH_LOG_INFO, "perplexity: %.2f seconds per pass - ETA %.2f minutes", seconds,
                         seconds * (double)(w->n_windows - 1) / 60);
    }
    ath_progress_end(&w->progress);
    putchar('\n');
    return -1;
}

/* n_windows, step, first from the flags and the length of the text. */
static int plan_windows(windows *w, int64_t stride) {
    perplexity *p = w->p;
    if (stride) {
        w->step = (size_t)stride;
        w->first = p->n_ctx - (size_t)stride - 1;
        if (w->n_tokens <= p->n_ctx)
            return ath_tool_fail(
                "the text has %zu tokens, and windows of %zu need more: give a longer one, or a "
                "smaller -c",
                w->n_tokens, p->n_ctx);
        w->n_windows = (w->n_tokens - p->n_ctx + w->step - 1) / w->step;
    } else {
        w->step = p->n_ctx;
        w->first = p->n_ctx / 2;
        if (w->n_tokens < 2 * p->n_ctx)
            return ath_tool_fail(
                "the text has %zu tokens, and at least %zu are needed for windows of %zu: give a "
                "longer one, or a smaller -c",
                w->n_tokens, 2 * p->n_ctx, p->n_ctx);
        w->n_windows = w->n_tokens / p->n_ctx;
    }
    int64_t wanted = ATH_ARG_INT(p->args, CHUNKS);
    if (wanted >= 0 && (size_t)wanted < w->n_windows) w->n_windows = (size_t)wanted;
    return w->n_windows ? -1 : ath_tool_fail("--chunks 0 leaves nothing to do");
}

static int open_base(windows *w) {
    perplexity *p = w->p;
    const char *path = ATH_ARG_TEXT(p->args, KLD_BASE);
    if (!path) return -1;
    if (w->step != p->n_ctx)
        return ath_tool_fail("--kl-divergence-base and --ppl-stride at once: give one of them");
    w->row = malloc(ath_kld_row_words((int32_t)p->n_vocab) * sizeof *w->row);
    if (!w->row) return ath_tool_fail("out of memory");
    if (ath_outfile_open(&w->base, path)) return 1;
    ath_kld_write_header(w->base.file, &(ath_kld_header){(int32_t)p->n_ctx, (int32_t)p->n_vocab,
                                                         (int32_t)w->n_windows, w->tokens});
    return -1;
}

static int open_windows(windows *w) {
    perplexity *p = w->p;
    int64_t stride = ATH_ARG_INT(p->args, PPL_STRIDE);
    int64_t n_ctx = ATH_ARG_INT(p->args, X_CTX_SIZE);
    if (n_ctx < 0 || n_ctx > MOST_TOKENS) return ath_tool_fail("-c %lld is out of range", (long long)n_ctx);
    if (stride < 0 || stride > MOST_TOKENS) return ath_tool_fail("--ppl-stride expects 0 or more, below -c");
    char *text;
    size_t size;
    int code = ath_tool_read_text(p->args, ATH_ARG_ON(p->args, X_ESCAPE), &text, &size);
    if (code >= 0) return code;
    w->tokens = ath_tool_tokens(p->engine, text, size, &w->n_tokens);
    free(text);
    if (!w->tokens) return 1;
    code = ath_perplexity_open_session(p, n_ctx ? n_ctx + stride / 2 : 0);
    if (code >= 0) return code;
    p->n_ctx = (size_t)ath_session_n_ctx(p->session);
    if ((size_t)stride >= p->n_ctx)
        return ath_tool_fail("--ppl-stride %lld must be smaller than the context of %zu", (long long)stride,
                             p->n_ctx);
    code = plan_windows(w, stride);
    if (code >= 0) return code;
    w->window = malloc(p->n_ctx * sizeof *w->window);
    return w->window ? open_base(w) : ath_tool_fail("out of memory");
}

static int finish_windows(windows *w) {
    perplexity *p = w->p;
    double ppl = exp(ath_mean_of(&w->nll));
    if (w->nll.n) printf("Final estimate: PPL = %.4f +/- %.5f\n", ppl, ath_error_of(&w->nll) * ppl);
    if (p->json) {
        cJSON_AddStringToObject(p->json, "mode", w->step == p->n_ctx ? "perplexity" : "strided perplexity");
        cJSON_AddNumberToObject(p->json, "n_ctx", (double)p->n_ctx);
        cJSON_AddNumberToObject(p->json, "chunks", (double)w->done);
        cJSON_AddNumberToObject(p->json, "tokens", (double)w->nll.n);
    }
    if (p->json && w->nll.n) {
        cJSON_AddNumberToObject(p->json, "ppl", ppl);
        cJSON_AddNumberToObject(p->json, "ppl_err", ath_error_of(&w->nll) * ppl);
    }
    if (w->done < w->n_windows) return ATH_EXIT_INTERRUPTED;
    return w->base.file && ath_outfile_commit(&w->base) ? 1 : -1;
}

static int run_perplexity(perplexity *p) {
    windows w = {.p = p};
    int code = open_windows(&w);
    if (code < 0) {
        ath_tool_log(ATH_LOG_INFO, "perplexity: %zu windows of %zu tokens, %zu scored in each", w.n_windows,
                     p->n_ctx, p->n_ctx - 1 - w.first);
        code = run_windows(&w);
    }
    if (code < 0) code = finish_windows(&w);
    ath_outfile_abandon(&w.base);
    free(w.tokens);
    free(w.window);
    free(w.row);
    return code;
}

/* ---- the program */

static int run_mode(perplexity *p) {
    const ath_args *args = p->args;
    if (ATH_ARG_ON(args, HELLASWAG)) return ath_perplexity_hellaswag(p);
    if (ATH_ARG_ON(args, WINOGRANDE)) return ath_perplexity_winogrande(p);
    if (ATH_ARG_ON(args, MULTIPLE_CHOICE)) return ath_perplexity_multiple_choice(p);
    return ATH_ARG_ON(args, KLD) ? ath_perplexity_divergence(p) : run_perplexity(p);
}

static int open_all(perplexity *p) {
    const char *path = ATH_ARG_TEXT(p->args, JSON_FILE);
    ath_engine_params ep;
    ath_error err;
    int64_t type = ATH_ARG_INT(p->args, PPL_OUTPUT);
    if (type != 0 && type != 1)
        return ath_tool_fail("--ppl-output-type expects 0 or 1, but got %lld", (long long)type);
    int code = ath_tool_engine_params(p->args, &ep);
    if (code < 0 && path) code = ath_outfile_open(&p->json_file, path) ? 1 : -1;
    if (code >= 0) return code;
    if (ath_engine_open(&p->engine, &ep, &err) != ATH_OK) return ath_tool_fail("%s", err.message);
    ath_engine_info info;
    ath_engine_get_info(p->engine, &info);
    p->n_vocab = (size_t)info.n_vocab;
    p->n_ubatch = (size_t)info.n_ubatch;
    p->adds_bos = ath_engine_adds_bos(p->engine) && ath_token_bos(p->engine) >= 0;
    if (path) {
        p->json = cJSON_CreateObject();
        cJSON_AddStringToObject(p->json, "model", info.path);
    }
    return -1;
}

int ath_tool_perplexity(int argc, char **argv) {
    ath_args args;
    perplexity p = {.args = &args};
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = open_all(&p);
    ath_tool_catch_interrupt();
    if (code < 0) code = run_mode(&p);
    if (p.session) ath_report_saturated(p.session);
    bool done = code < 0 || code == ATH_EXIT_INTERRUPTED;
    if (done && ath_tool_flush()) code = 1;
    if (done && p.json) {
        bool failed = ath_json_print(p.json, p.json_file.file) || ath_outfile_commit(&p.json_file);
        p.json = NULL;
        if (failed) code = 1;
    }
    cJSON_Delete(p.json);
    ath_outfile_abandon(&p.json_file);
    ath_session_close(&p.session);
    ath_engine_close(&p.engine);
    ath_args_free(&args);
    return code < 0 ? 0 : code;
}
