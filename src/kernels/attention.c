/* Which attention kernels run: C first, then what the CPU has. */
#include "kernels/attention.h"

#include "kernels/cpu_flags.h"

void ath_attn_kernels_init(ath_attn_kernels *k, uint32_t flags) {
    ath_attn_kernels_init_c(k);
#if defined(__x86_64__)
    if (flags & ATH_CPU_AVX2) ath_attn_kernels_init_avx2(k);
    if ((flags & ATH_CPU_AVX512_ALL) == ATH_CPU_AVX512_ALL) ath_attn_kernels_init_avx512(k);
    if (flags & ATH_CPU_AMX) ath_attn_kernels_init_amx(k);
#elif defined(__aarch64__)
    if (flags & ATH_CPU_NEON) ath_attn_kernels_init_neon(k);
    if (flags & ATH_CPU_DOTPROD) ath_attn_kernels_init_dotprod(k);
#else
    (void)flags;
#endif
}
