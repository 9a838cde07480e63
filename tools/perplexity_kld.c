/* llama-perplexity --kl-divergence: how far this run's distributions are from those that a base run wrote. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kld_file.h"
#include "perplexity.h"

typedef struct divergence {
    perplexity *p;
    FILE *file;
    const char *path;
    ath_kld_header header;
    uint16_t *row;
    float *base; /* [n_vocab] log-probabilities of the base */
    ath_token *window;
    float *kld, *p_diff; /* of every scored position */
    size_t n, done;      /* positions; windows */
    size_t n_same;
    bool cut;                                     /* the file ended early */
    size_t broken;                                /* position whose row is no distribution; 0: none */
    ath_moments nll, nll_base, both, kl, dp, dp2; /* both: nll * nll_base, for their covariance */
    ath_progress progress;
} divergence;

/* A value and its standard error. */
typedef struct estimate {
    double value, error;
} estimate;

static estimate mean_of(const ath_moments *m) {
    return (estimate){ath_mean_of(m), ath_error_of(m)};
}

static double covariance(const divergence *d) {
    if (d->nll.n < 2) return 0;
    return (ath_mean_of(&d->both) - ath_mean_of(&d->nll) * ath_mean_of(&d->nll_base)) /
           (double)(d->nll.n - 1);
}

static estimate log_ratio(const divergence *d) {
    double variance = ath_variance_of_mean(&d->nll) + ath_variance_of_mean(&d->nll_base) - 2 * covariance(d);
    return (estimate){ath_mean_of(&d->nll) - ath_mean_of(&d->nll_base), variance > 0 ? sqrt(variance) : 0};
}

/* exp of an estimate: the error is passed on to first order. */
static estimate exp_of(estimate x) {
    double value = exp(x.value);
    return (estimate){value, value * x.error};
}

static estimate rms_p_diff(const divergence *d) {
    double rms = sqrt(ath_mean_of(&d->dp2));
    return (estimate){rms, rms > 0 ? 0.5 / rms * ath_error_of(&d->dp2) : 0};
}

static estimate same_top(const divergence *d) {
    double share = d->n ? (double)d->n_same / (double)d->n : 0;
    return (estimate){share, d->n > 1 ? sqrt(share * (1 - share) / (double)(d->n - 1)) : 0};
}

/* ---- the run */

static void score_row(void *user, size_t i, const float *logits) {
    divergence *d = user;
    size_t words = ath_kld_row_words(d->header.n_vocab);
    if (d->cut || d->broken) return;
    d->cut = fread(d->row, sizeof *d->row, words, d->file) != words;
    if (!d->cut && !ath_kld_decode_row(d->row, (size_t)d->header.n_vocab, d->base)) d->broken = i;
    if (d->cut || d->broken) return;
    ath_score s;
    ath_score_row(logits, d->base, (size_t)d->header.n_vocab, d->window[i + 1], &s);
    ath_add(&d->nll, s.nll);
    ath_add(&d->nll_base, s.nll_base);
    ath_add(&d->both, s.nll * s.nll_base);
    ath_add(&d->kl, s.kld);
    ath_add(&d->dp, s.p_diff);
    ath_add(&d->dp2, s.p_diff * s.p_diff);
    d->n_same += s.same_top;
    d->kld[d->n] = (float)s.kld;
    d->p_diff[d->n++] = (float)s.p_diff;
    ath_progress_show(&d->progress, (double)d->done + (double)i / d->header.n_ctx);
}

static void print_window(const divergence *d) {
    estimate ppl = exp_of(mean_of(&d->nll)), ratio = log_ratio(d), kl = mean_of(&d->kl), rms = rms_p_diff(d),
             top = same_top(d);
    printf("%4zu    %9.4f ± %9.4f    %10.5f ± %10.5f    %10.5f ± %10.5f    %6.3f ± %6.3f %%    %6.3f ± %6.3f "
           "%%\n",
           d->done, ppl.value, ppl.error, ratio.value, ratio.error, kl.value, kl.error, 100 * rms.value,
           100 * rms.error, 100 * top.value, 100 * top.error);
    fflush(stdout);
}

static int run_windows(divergence *d, size_t n_windows) {
    perplexity *p = d->p;
    size_t n_ctx = (size_t)d->header.n_ctx;
    ath_error err;
    ath_progress_start(&d->progress, "KL divergence", (double)n_windows, true);
    puts("\nchunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp "
         "RMS"
         "            Same top p");
    while (d->done < n_windows && !ath_tool_interrupted) {
        memcpy(d->window, d->header.tokens + d->done * n_ctx, n_ctx * sizeof *d->window);
        if (p->adds_bos) d->window[0] = ath_token_bos(p->engine);
        ath_session_clear(p->session, 0);
        ath_status status =
            ath_tool_evaluate(p->session, d->window, n_ctx - 1, p->n_ubatch, n_ctx / 2, score_row, d, &err);
        if (status == ATH_ERR_CANCELLED) break;
        if (status != ATH_OK) return ath_tool_fail("%s", err.message);
        if (d->cut) return ath_tool_fail("%s ends within window %zu", d->path, d->done + 1);
        if (d->broken)
            return ath_tool_fail("%s: the row of window %zu, position %zu holds no log-probabilities",
                                 d->path, d->done + 1, d->broken);
        d->done++;
        print_window(d);
    }
    ath_progress_end(&d->progress);
    return -1;
}

/* ---- the three blocks at the end */

static void add(cJSON *json, const char *name, estimate e, const char *error_name) {
    if (!json) return;
    cJSON_AddNumberToObject(json, name, e.value);
    if (error_name) cJSON_AddNumberToObject(json, error_name, e.error);
}

static void print_perplexity(const divergence *d, cJSON *json) {
    estimate ppl = exp_of(mean_of(&d->nll)), base = exp_of(mean_of(&d->nll_base)), ln = log_ratio(d),
             ratio = exp_of(ln);
    double cov = covariance(d),
           variances = ath_variance_of_mean(&d->nll) * ath_variance_of_mean(&d->nll_base);
    double correlation = variances > 0 ? cov / sqrt(variances) : 1;
    double spread = ppl.error * ppl.error + base.error * base.error - 2 * ppl.value * base.value * cov;
    printf("\n====== Perplexity statistics ======\n");
    printf("Mean PPL(Q)                   : %10.6f ± %10.6f\n", ppl.value, ppl.error);
    printf("Mean PPL(base)                : %10.6f ± %10.6f\n", base.value, base.error);
    printf("Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%\n", 100 * correlation);
    printf("Mean ln(PPL(Q)/PPL(base))     : %10.6f ± %10.6f\n", ln.value, ln.error);
    printf("Mean PPL(Q)/PPL(base)         : %10.6f ± %10.6f\n", ratio.value, ratio.error);
    printf("Mean PPL(Q)-PPL(base)         : %10.6f ± %10.6f\n", ppl.value - base.value,
           spread > 0 ? sqrt(spread) : 0);
    add(json, "ppl", ppl, "ppl_err");
    add(json, "ppl_base", base, "ppl_base_err");
    add(json, "ppl_ratio", ratio, "ppl_ratio_err");
}

static const struct {
    double q;
    const char *kld_label, *p_label; /* NULL: the block has no such line */
} percentiles[] = {
    {1.0, "Maximum KLD: ", "Maximum Δp: "},  {0.999, "99.9%   KLD: ", "99.9%   Δp: "},
    {0.99, "99.0%   KLD: ", "99.0%   Δp: "}, {0.95, "95.0%   KLD: ", "95.0%   Δp: "},
    {0.90, "90.0%   KLD: ", "90.0%   Δp: "}, {0.75, NULL, "75.0%   Δp: "},
    {0.50, "Median  KLD: ", "Median  Δp: "}, {0.25, NULL, "25.0%   Δp: "},
    {0.10, "10.0%   KLD: ", "10.0%   Δp: "}, {0.05, " 5.0%   KLD: ", " 5.0%   Δp: "},
    {0.01, " 1.0%   KLD: ", " 1.0%   Δp: "}, {0.001, " 0.1%   KLD: ", " 0.1%   Δp: "},
    {0.0, "Minimum KLD: ", "Minimum Δp: "},
};
enum { N_PERCENTILES = sizeof percentiles / sizeof percentiles[0] };

static void print_divergence(divergence *d, cJSON *json) {
    estimate kl = mean_of(&d->kl);
    ath_sort_floats(d->kld, d->n);
    printf("\n====== KL divergence statistics ======\n");
    printf("Mean    KLD: %10.6f ± %10.6f\n", kl.value, kl.error);
    for (int i = 0; i < N_PERCENTILES; i++)
        if (percentiles[i].kld_label)
            printf("%s%10.6f\n", percentiles[i].kld_label, ath_percentile(d->kld, d->n, percentiles[i].q));
    add(json, "kld_mean", kl, "kld_se");
    add(json, "kld_median", (estimate){ath_percentile(d->kld, d->n, 0.5), 0}, NULL);
    add(json, "kld_p99", (estimate){ath_percentile(d->kld, d->n, 0.99), 0}, NULL);
    add(json, "kld_max", (estimate){ath_percentile(d->kld, d->n, 1), 0}, NULL);
}

static void print_probabilities(divergence *d, cJSON *json) {
    estimate dp = mean_of(&d->dp), rms = rms_p_diff(d), top = same_top(d);
    ath_sort_floats(d->p_diff, d->n);
    printf("\n====== Token probability statistics ======\n");
    printf("Mean    Δp: %6.3f ± %5.3f %%\n", 100 * dp.value, 100 * dp.error);
    for (int i = 0; i < N_PERCENTILES; i++)
        printf("%s%6.3f%%\n", percentiles[i].p_label,
               100 * ath_percentile(d->p_diff, d->n, percentiles[i].q));
    printf("RMS Δp    : %6.3f ± %5.3f %%\n", 100 * rms.value, 100 * rms.error);
    printf("Same top p: %6.3f ± %5.3f %%\n", 100 * top.value, 100 * top.error);
    add(json, "p_diff_mean", dp, "p_diff_mean_err");
    add(json, "p_diff_rms", rms, "p_diff_rms_err");
    add(json, "top1", top, "top1_err");
}

static int finish(divergence *d, size_t n_windows) {
    cJSON *json = d->p->json;
    if (json) {
        cJSON_AddStringToObject(json, "mode", "KL divergence");
        cJSON_AddNumberToObject(json, "n_ctx", d->header.n_ctx);
        cJSON_AddNumberToObject(json, "chunks", (double)d->done);
        cJSON_AddNumberToObject(json, "tokens", (double)d->n);
    }
    if (d->n) {
        print_perplexity(d, json);
        print_divergence(d, json);
        print_probabilities(d, json);
    }
    return d->done < n_windows ? ATH_EXIT_INTERRUPTED : -1;
}

/* ---- opening */

static int open_all(divergence *d) {
    perplexity *p = d->p;
    d->path = ATH_ARG_TEXT(p->args, KLD_BASE);
    if (!d->path)
        return ath_tool_fail("--kl-divergence needs the file of the base run: --kl-divergence-base FILE");
    d->file = fopen(d->path, "rb");
    if (!d->file) return ath_tool_fail("%s: %s", d->path, strerror(errno));
    int code = ath_kld_read_header(d->file, d->path, &d->header);
    if (code >= 0) return code;
    if ((size_t)d->header.n_vocab != p->n_vocab)
        return ath_tool_fail("%s is of a model with a vocabulary of %d tokens; this one has %zu", d->path,
                             d->header.n_vocab, p->n_vocab);
    if (ATH_ARG_GIVEN(p->args, X_CTX_SIZE) && ATH_ARG_INT(p->args, X_CTX_SIZE) &&
        ATH_ARG_INT(p->args, X_CTX_SIZE) < d->header.n_ctx)
        return ath_tool_fail("%s holds windows of %d tokens, more than -c %lld", d->path, d->header.n_ctx,
                             (long long)ATH_ARG_INT(p->args, X_CTX_SIZE));
    code = ath_perplexity_open_session(p, d->header.n_ctx);
    if (code >= 0) return code;
    size_t scored = (size_t)d->header.n_chunks * (size_t)(d->header.n_ctx - 1 - d->header.n_ctx / 2);
    d->row = malloc(ath_kld_row_words(d->header.n_vocab) * sizeof *d->row);
    d->base = malloc(p->n_vocab * sizeof *d->base);
    d->window = malloc((size_t)d->header.n_ctx * sizeof *d->window);
    d->kld = malloc(scored * sizeof *d->kld);
    d->p_diff = malloc(scored * sizeof *d->p_diff);
    return d->row && d->base && d->window && d->kld && d->p_diff ? -1 : ath_tool_fail("out of memory");
}

int ath_perplexity_divergence(perplexity *p) {
    divergence d = {.p = p};
    int code = open_all(&d);
    size_t n_windows = (size_t)d.header.n_chunks;
    int64_t wanted = ATH_ARG_INT(p->args, CHUNKS);
    if (wanted > 0 && (size_t)wanted < n_windows) n_windows = (size_t)wanted;
    if (code < 0) code = run_windows(&d, n_windows);
    if (code < 0) code = finish(&d, n_windows);
    if (d.file) fclose(d.file);
    free(d.header.tokens);
    free(d.row);
    free(d.base);
    free(d.window);
    free(d.kld);
    free(d.p_diff);
    return code;
}
