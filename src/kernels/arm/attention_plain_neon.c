/* Attention on plain tiles with NEON, and all attention kernels of this instruction set. */
#include "kernels/attention_neon.h"
#include "kernels/attention_plain_lanes.h"

void ath_attn_kernels_init_neon(ath_attn_kernels *k) {
    k->isa = "neon";
    plain_kernels(k);
    ath_attn_turbo_init_neon(k);
    ath_attn_pages_init_neon(k);
}
