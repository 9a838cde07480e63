/* What the x86 attention kernels share. */
#ifndef ATH_KERNELS_ATTENTION_X86_H
#define ATH_KERNELS_ATTENTION_X86_H

#include "kernels/attention.h"
#include "kernels/unroll.h"

void ath_attn_turbo_init_avx512(ath_attn_kernels *k);
void ath_attn_turbo_init_avx2(ath_attn_kernels *k);
void ath_attn_pages_init_avx512(ath_attn_kernels *k);
void ath_attn_pages_init_avx2(ath_attn_kernels *k);

#endif
