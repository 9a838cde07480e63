/* What the x86 kernels on pages of blocks share. */
#ifndef ATH_KERNELS_ATTENTION_BLOCKS_X86_H
#define ATH_KERNELS_ATTENTION_BLOCKS_X86_H

#include "kernels/attention_x86.h"

/* body(kind) for the kind of a block type, a constant in each call: inner loops are compiled for it. */
#define ATH_BLOCK_DISPATCH(type, body)                                                                       \
    do {                                                                                                     \
        if ((type) == ATH_KV_Q8_0)                                                                           \
            body(((ath_block_kind)ATH_BLOCK_KIND_Q8_0));                                                     \
        else if ((type) == ATH_KV_Q5_1)                                                                      \
            body(((ath_block_kind)ATH_BLOCK_KIND_Q5_1));                                                     \
        else if ((type) == ATH_KV_Q5_0)                                                                      \
            body(((ath_block_kind)ATH_BLOCK_KIND_Q5_0));                                                     \
        else if ((type) == ATH_KV_Q4_1)                                                                      \
            body(((ath_block_kind)ATH_BLOCK_KIND_Q4_1));                                                     \
        else if ((type) == ATH_KV_Q4_0)                                                                      \
            body(((ath_block_kind)ATH_BLOCK_KIND_Q4_0));                                                     \
        else                                                                                                 \
            body(((ath_block_kind)ATH_BLOCK_KIND_IQ4_NL));                                                   \
    } while (0)

/* Bytes of a token's blocks. */
ATH_INLINE int64_t ath_block_row_bytes(const ath_kv_layout *layout, const ath_block_kind kind) {
    return (int64_t)(layout->head_dim / ATH_KV_BLOCK) * kind.bytes;
}

/* Fetches bytes [begin, end) of the page that is read next, if there is one. */
ATH_INLINE void ath_block_fetch(const uint8_t *next, int64_t begin, int64_t end) {
    if (!next) return;
    for (int64_t i = begin; i < end; i += 64) __builtin_prefetch(next + i);
}

void ath_attn_blocks_init_avx512(ath_attn_kernels *k);
void ath_attn_blocks_init_avx2(ath_attn_kernels *k);

#endif
