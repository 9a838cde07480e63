/* Attention on plain tiles with AVX-512, and all attention kernels of this instruction set. */
#include "kernels/attention_blocks_x86.h"
#include "kernels/attention_plain_lanes.h"
#include "kernels/attention_x86.h"

void ath_attn_kernels_init_avx512(ath_attn_kernels *k) {
    k->isa = "avx512";
    plain_kernels(k);
    ath_attn_turbo_init_avx512(k);
    ath_attn_blocks_init_avx512(k);
    ath_attn_pages_init_avx512(k);
}
