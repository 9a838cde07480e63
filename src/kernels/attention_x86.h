/* What the x86 attention kernels share. */
#ifndef ATH_KERNELS_ATTENTION_X86_H
#define ATH_KERNELS_ATTENTION_X86_H

#include "kernels/attention.h"
#include "kernels/unroll.h"

void ath_attn_turbo_init_avx512(ath_attn_kernels *k);
void ath_attn_turbo_init_avx2(ath_attn_kernels *k);
void ath_attn_pages_init_avx512(ath_attn_kernels *k);
void ath_attn_pages_init_avx2(ath_attn_kernels *k);
void ath_kv_encode_avx512(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch);
void ath_kv_encode_avx2(const ath_kv_layout *layout, const uint16_t *tile, uint8_t *out, float *scratch);

#endif
