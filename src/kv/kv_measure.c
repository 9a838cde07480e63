/* What encoding loses: pages are decoded again right after they were encoded, and compared with their f16
 * tiles. One thread does it: decoding is cheap beside the pass that filled the page. */
#include <stdlib.h>

#include "base/half.h"
#include "kv/kv_private.h"

ath_status ath_kv_measure(ath_kv *kv, ath_error *err) {
    const ath_kv_shape *shape = &kv->shape;
    if (kv->losses) return ATH_OK;
    size_t most = 1;
    for (int il = 0; il < shape->n_layers; il++)
        for (int side = 0; side < 2; side++) {
            size_t dim = (size_t)shape->layers[il].side[side].attn.layout.head_dim;
            if (dim > most) most = dim;
        }
    kv->losses = calloc((size_t)shape->n_layers * (size_t)shape->max_kv_heads * 2, sizeof *kv->losses);
    kv->decoded = malloc(most * ATH_PAGE_TOKENS * sizeof *kv->decoded);
    if (kv->losses && kv->decoded) return ATH_OK;
    ath_kv_measure_free(kv);
    return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory to measure what encoding loses");
}

void ath_kv_measure_free(ath_kv *kv) {
    free(kv->losses);
    free(kv->decoded);
    kv->losses = NULL;
    kv->decoded = NULL;
}

static ath_kv_loss *loss_of(const ath_kv *kv, int layer, int head, int side) {
    return &kv->losses[((size_t)layer * (size_t)kv->shape.max_kv_heads + (size_t)head) * 2 + (size_t)side];
}

/* Jobs come in groups of a layer's heads. */
void ath_kv_measure_jobs(ath_kv *kv, int layer, int64_t n_jobs) {
    int n_heads = kv->shape.layers[layer].n_kv_heads;
    for (int64_t j = 0; j < n_jobs; j++) {
        const ath_encode_job *job = &kv->batch.jobs[j];
        ath_kv_loss *loss = loss_of(kv, layer, (int)(j % n_heads), !job->layout->is_key);
        size_t n = (size_t)job->layout->head_dim * ATH_PAGE_TOKENS;
        ath_kv_decode_page(job->layout, job->out, kv->decoded);
        loss->n += ATH_PAGE_TOKENS;
        for (size_t i = 0; i < n; i++) {
            double x = (double)ath_f16_to_f32(job->tile[i]), d = (double)kv->decoded[i] - x;
            loss->error2 += d * d;
            loss->norm2 += x * x;
        }
    }
}

ath_kv_loss ath_kv_loss_of(const ath_kv *kv, int layer, int head, int side) {
    bool known = kv->losses && layer >= 0 && layer < kv->shape.n_layers && head >= 0 &&
                 head < kv->shape.layers[layer].n_kv_heads && (side == 0 || side == 1);
    return known ? *loss_of(kv, layer, head, side) : (ath_kv_loss){0, 0, 0};
}
