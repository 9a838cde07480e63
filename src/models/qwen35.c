/* Qwen 3.5, dense and mixture of experts ("qwen35moe"). Qwen team 2026.
 *
 *     x += mixer(norm(x));   x += feed_forward(norm(x))
 *
 * Three of four layers mix tokens by a gated DeltaNet (delta_net.c), each fourth by attention with normed heads, a
 * rotation of their first channels, and a gate on the output. The file holds value heads in such an order that head
 * h has key head h mod n_k_heads. Rotary sections are for pictures: with text alone all are the position. */
#include "models/model.h"

static void qwen35_load(ath_loader *in, ath_model *m) {
    ath_load_hybrid(in, m, false);
}

const ath_arch ath_arch_qwen35 = {qwen35_load, ath_layer_hybrid, false};
