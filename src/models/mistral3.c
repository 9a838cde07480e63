/* Ministral 3 and relatives: Llama's layer at contexts far beyond the original one.
 *
 * YaRN's frequencies, but its factor on cos and sin cancels (rope.scaling.yarn_log_multiplier); instead a
 * query at position p is multiplied by 1 + beta ln(1 + floor(p / original context)), so that attention stays
 * sharp over many keys. */
#include "models/model.h"

static void mistral3_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, 0);
    m->attn_scale = ath_load_f32(in, "attention.scale", 0);
    m->attn_temperature = ath_load_f32(in, "attention.temperature_scale", 0);
    uint32_t original = ath_load_u32(in, "rope.scaling.original_context_length", (uint32_t)m->n_ctx_train);
    m->attn_temperature_len = ath_load_u32(in, "attention.temperature_length", original);
    if (m->attn_temperature != 0 && m->attn_temperature_len < 1)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.attention.temperature_length is zero", in->arch);
    for (int il = 0; il < m->n_layers; il++) ath_load_layer(in, &m->layers[il], il);
}

const ath_arch ath_arch_mistral3 = {mistral3_load, ath_layer_sequential, false};
