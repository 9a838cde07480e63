/* What a cache type does to vectors: the measurement behind `athanor distortion`.
 *
 * The vectors are rounded to f16, as a cache's rows are, put into pages of 128 in their order, encoded and
 * decoded; every figure compares with the vectors as they were given. By default they go the way of V: a
 * rotation and codes. As K they also pass the page mean and the equalisation. */
#ifndef ATH_CODEC_KV_DISTORTION_H
#define ATH_CODEC_KV_DISTORTION_H

#include <stdbool.h>
#include <stdint.h>

#include "codec/kv_page.h"

typedef struct ath_distortion_input {
    ath_kv_type type;
    int head_dim;
    bool is_key;
    const float *vectors; /* [n_vectors][head_dim], finite; NULL: normal ones, mean 0, variance 1 */
    int64_t n_vectors;    /* at least 1; the last page is filled up by repeating its vectors */
    uint64_t seed;        /* of the normal vectors and of the queries */
} ath_distortion_input;

/* "Relative" without more: a sum of squared errors over the sum of squares of the values. */
typedef struct ath_distortion_result {
    int64_t n_vectors;
    double bytes_per_value; /* all sections of a full page */
    double codebook_mse;    /* of the codebook alone on N(0,1), without a norm, exact; 0 if it has none */
    double mse;             /* relative, over all vectors */
    double snr_db;          /* -10 log10(mse); infinite if nothing was lost */
    int64_t worst_vector;   /* the one with the largest relative error, the first of equals */
    double worst_error;     /* its root: |decoded - x| / |x| */
    double inner_mean;      /* error of <q, x> in units of |q| |x|, over normal queries, one per vector */
    double inner_rms;
    double sign_flips; /* share of the values other than 0 that came back with another sign */
    int64_t saturated; /* values beyond +-65504, stored as that */
} ath_distortion_result;

/* ATH_ERR_ARGUMENT: no vectors, or one that is not finite (named); ATH_ERR_UNSUPPORTED as ath_kv_layout_init;
 * ATH_ERR_NOMEM. Takes scratch of a few pages while it runs. Safe from any thread. */
ath_status ath_measure_distortion(const ath_distortion_input *in, ath_distortion_result *out, ath_error *err);

#endif
