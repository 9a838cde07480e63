/* OLMo 2 and OLMo 3. OLMo team 2024 (arXiv 2501.00656), 2025.
 *
 *     x += norm(Wo attend(rope(norm(Wq x)), rope(norm(Wk x)), Wv x))
 *     x += norm(Wd (silu(Wg x) * Wu x))
 *
 * Norms after the blocks only; those of Q and K run over the whole projection, not per head. OLMo 3 is the
 * same with a sliding window in three of four layers, which rotate without YaRN. */
#include "models/model.h"

static void olmo2_load(ath_loader *in, ath_model *m) {
    ath_load_rope(in, ATH_LOAD_NEOX);
    ath_load_windows(in, 4);
    ath_load_window_rope(in, ath_load_f32(in, "rope.freq_base", 10000));
    m->qk_norm_whole = true;
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        ath_load_attention(in, l, il);
        ath_load_head_norms(in, l, il);
        ath_load_ffn(in, l, il);
        ath_load_post_norms(in, l, il);
    }
}

const ath_arch ath_arch_olmo2 = {olmo2_load, ath_layer_sequential, false};
