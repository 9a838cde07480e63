/* What a cache type does to vectors, for the public header. */
#include "codec/kv_distortion.h"

#include "engine/engine_private.h"

ath_status ath_cache_type_distortion(const char *type, int head_dim, const float *vectors, int64_t n, uint64_t seed,
                                     bool as_key, ath_distortion *out, ath_error *err) {
    ath_distortion_input in = {
        .head_dim = head_dim, .is_key = as_key, .vectors = vectors, .n_vectors = n, .seed = seed};
    ATH_TRY(ath_kv_type_parse(&in.type, type, err));
    ath_distortion_result r;
    ATH_TRY(ath_measure_distortion(&in, &r, err));
    *out = (ath_distortion){.bytes_per_value = r.bytes_per_value,
                            .codebook_mse = r.codebook_mse,
                            .mse = r.mse,
                            .snr_db = r.snr_db,
                            .worst_error = r.worst_error,
                            .worst_vector = r.worst_vector,
                            .inner_mean = r.inner_mean,
                            .inner_rms = r.inner_rms,
                            .sign_flips = r.sign_flips,
                            .saturated = r.saturated,
                            .n_vectors = r.n_vectors};
    return ATH_OK;
}
