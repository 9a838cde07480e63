/* Qwen3-Next. Qwen team 2025.
 *
 * The layers of qwen35.c with experts, except that value heads h = g n .. g n + n - 1 share key head g, where
 * n = n_v_heads / n_k_heads. */
#include "models/model.h"

static void qwen3next_load(ath_loader *in, ath_model *m) {
    ath_load_hybrid(in, m, true);
}

const ath_arch ath_arch_qwen3next = {qwen3next_load, ath_layer_hybrid, false};
