#include "kernels/attention.h"

#include "kernels/cpu_flags.h"

void ath_attn_kernels_init(ath_attn_kernels *k, uint32_t flags) {
    ath_attn_kernels_init_c(k);
    (void)flags;
}
