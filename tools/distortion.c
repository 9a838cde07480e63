/* athanor distortion: what a cache type does to vectors, in figures that can be held against papers. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "tool.h"

static const ath_program program = {
    ATH_PROGRAM_D, "--type T [--head-dim D] [--input X.f32] [--seed S] [flags]",
    "Encodes and decodes vectors in a cache type and measures what is lost.", false};

/* Vectors of a file of little-endian float32; *n becomes their number. NULL after an error line. */
static float *read_vectors(const char *path, int64_t head_dim, int64_t *n) {
    size_t size, stride = (size_t)head_dim * sizeof(float);
    char *data = ath_tool_read_file(path, &size);
    if (!data) return NULL;
    if (!size || size % stride) {
        ath_tool_fail("%s: %zu bytes are no whole number of vectors of %lld float32", path, size,
                      (long long)head_dim);
        free(data);
        return NULL;
    }
    *n = (int64_t)(size / stride);
    return (float *)data;
}

static void print_text(const char *type, int head_dim, bool key, const ath_distortion *d) {
    printf("type             %s, as %s, head_dim %d, %lld vectors\n", type, key ? "K" : "V", head_dim,
           (long long)d->n_vectors);
    printf("bytes per value  %.5f (%.3f bits)\n", d->bytes_per_value, 8 * d->bytes_per_value);
    if (d->codebook_mse > 0) printf("MSE of codebook  %.6f\n", d->codebook_mse);
    printf("MSE              %.6g of the variance\n", d->mse);
    printf("SNR              %.2f dB\n", d->snr_db);
    printf("worst vector     %.5f (number %lld)\n", d->worst_error, (long long)d->worst_vector);
    printf("inner product    mean %.3g, rms %.6f of |q||x|\n", d->inner_mean, d->inner_rms);
    printf("sign flips       %.4f %%\n", 100 * d->sign_flips);
    if (d->saturated) printf("saturated        %lld values beyond 65504\n", (long long)d->saturated);
}

static int print_json(const char *type, int head_dim, bool key, const ath_distortion *d) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", type);
    cJSON_AddStringToObject(json, "side", key ? "k" : "v");
    cJSON_AddNumberToObject(json, "head_dim", head_dim);
    cJSON_AddNumberToObject(json, "n_vectors", (double)d->n_vectors);
    cJSON_AddNumberToObject(json, "bytes_per_value", d->bytes_per_value);
    cJSON_AddNumberToObject(json, "codebook_mse", d->codebook_mse);
    cJSON_AddNumberToObject(json, "mse", d->mse);
    cJSON_AddNumberToObject(json, "snr_db", d->snr_db); /* null where nothing was lost */
    cJSON_AddNumberToObject(json, "worst_error", d->worst_error);
    cJSON_AddNumberToObject(json, "worst_vector", (double)d->worst_vector);
    cJSON_AddNumberToObject(json, "inner_mean", d->inner_mean);
    cJSON_AddNumberToObject(json, "inner_rms", d->inner_rms);
    cJSON_AddNumberToObject(json, "sign_flips", d->sign_flips);
    cJSON_AddNumberToObject(json, "saturated", (double)d->saturated);
    return ath_json_print(json, stdout);
}

static int measure(const ath_args *args) {
    const char *type = ATH_ARG_TEXT(args, TYPE), *path = ATH_ARG_TEXT(args, INPUT);
    int64_t head_dim = ATH_ARG_INT(args, HEAD_DIM), n = ATH_ARG_INT(args, N_VECTORS);
    if (!type) return ath_tool_fail("no cache type was named (--type T)");
    if (head_dim < 1 || head_dim > 65536) return ath_tool_fail("--head-dim expects 1 to 65536");
    if (n < 1 || n > INT_MAX) return ath_tool_fail("--n expects 1 or more");
    float *vectors = path ? read_vectors(path, head_dim, &n) : NULL;
    if (path && !vectors) return 1;
    ath_distortion d;
    ath_error err;
    bool key = ATH_ARG_ON(args, KEY);
    ath_status status = ath_cache_type_distortion(type, (int)head_dim, vectors, n,
                                                  (uint64_t)ATH_ARG_INT(args, D_SEED), key, &d, &err);
    free(vectors);
    if (status != ATH_OK) return ath_tool_fail("%s", err.message);
    if (ATH_ARG_ON(args, JSON)) return print_json(type, (int)head_dim, key, &d) ? 1 : ath_tool_flush();
    print_text(type, (int)head_dim, key, &d);
    return ath_tool_flush();
}

int ath_tool_distortion(int argc, char **argv) {
    ath_args args;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = measure(&args);
    ath_args_free(&args);
    return code;
}
