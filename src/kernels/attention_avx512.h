/* What the AVX-512 kernels on cache pages share. Only files compiled for AVX-512 include it. */
#ifndef ATH_KERNELS_ATTENTION_AVX512_H
#define ATH_KERNELS_ATTENTION_AVX512_H

#include <immintrin.h>

#include "codec/turbo_tables.h"
#include "kernels/attention_x86.h"
#include "kernels/lanes.h"

/* Operations of lanes.h for kernels that are written for AVX-512 alone. */
#define ath_load_f16_avx512  vf_load_f16
#define ath_load_bf16_avx512 vf_load_bf16
/* Lanes of the page's 16-token group g that lie in [lo, hi). */
ATH_INLINE __mmask16 ath_visible_avx512(int g, int lo, int hi) {
    return vf_between(16 * g, lo, hi);
}
ATH_INLINE float ath_sum_lanes_avx512(__m512 x) {
    return vf_sum_16(&x);
}

/* sum += four products of unsigned with signed bytes, per lane of 32 bits. In assembly, because gcc 12 copies
 * the sums around the intrinsic, and keeps them in memory where there are many. */
ATH_INLINE void ath_dot_avx512(__m512i *sum, __m512i unsigned_bytes, __m512i signed_bytes) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/* ath_eq_scale of 16 bytes: 2^((e - 128) / 4) is a root of 2, which the low two bits of e choose, and an
 * exponent. */
ATH_INLINE __m512 ath_eq_scales_avx512(const uint8_t *bytes) {
    __m128i e = _mm_max_epu8(_mm_loadu_si128((const __m128i *)(const void *)bytes), _mm_set1_epi8(112));
    __m512i i = _mm512_cvtepu8_epi32(_mm_min_epu8(e, _mm_set1_epi8((char)144)));
    __m128 roots = _mm_loadu_ps(ath_eq_scales + ATH_EQ_STEPS); /* 2^(0/4) to 2^(3/4) */
    __m512 root = _mm512_permutevar_ps(_mm512_broadcast_f32x4(roots), i);
    __m512i exponent = _mm512_sub_epi32(_mm512_srli_epi32(i, 2), _mm512_set1_epi32(128 / 4));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(root), _mm512_slli_epi32(exponent, 23)));
}

/* Butterflies between registers `half` apart; n and half are constants where it is called, so that x stays in
 * registers. */
ATH_INLINE void ath_butterflies_avx512(__m512 *x, const int n, const int half) {
    for (int i = 0; i < n; i++) {
        if (i & half) continue;
        __m512 a = x[i], b = x[i + half];
        x[i] = _mm512_add_ps(a, b);
        x[i + half] = _mm512_sub_ps(a, b);
    }
}

/* One butterfly inside a register: partner is x shuffled, lanes of `upper` are its second halves. The product
 * with +-1 is exact, so this is an addition or a subtraction. */
ATH_INLINE __m512 ath_butterfly_avx512(__m512 x, __m512 partner, __mmask16 upper) {
    __m512 sign = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), upper, _mm512_set1_ps(-1.0f));
    return _mm512_fmadd_ps(x, sign, partner);
}

/* Unnormalised Walsh-Hadamard transform of 16 * n_regs values in registers, butterflies ascending. */
ATH_INLINE void ath_hadamard_avx512(__m512 *x, const int n_regs) {
    for (int i = 0; i < n_regs; i++) {
        x[i] = ath_butterfly_avx512(x[i], _mm512_permute_ps(x[i], 0xb1), 0xaaaa);
        x[i] = ath_butterfly_avx512(x[i], _mm512_permute_ps(x[i], 0x4e), 0xcccc);
        x[i] = ath_butterfly_avx512(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0xb1), 0xf0f0);
        x[i] = ath_butterfly_avx512(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0x4e), 0xff00);
    }
    if (n_regs > 1) ath_butterflies_avx512(x, n_regs, 1);
    if (n_regs > 2) ath_butterflies_avx512(x, n_regs, 2);
    if (n_regs > 4) ath_butterflies_avx512(x, n_regs, 4);
}

/* How 64 symbols become 64 table values. A window is a load of 64 bytes of planes, shuffled so that every
 * quadword has the bits of its 8 states; a multishift makes each state a byte; the fold of a trellis state is
 * a linear map of its bits, one instruction; then the look-up, which ignores bits above the index because the
 * table is repeated. At a part's end the stream goes on at the part's start. */
typedef struct ath_unpack_avx512 {
    __m512i gather,
        gather_end; /* of a window; of a part's last one, which takes the rest from the part's first bytes */
    __m512i shift[2]; /* of states, for the (up to) two times 64 symbols of a window */
    __m512i fold;     /* matrix of bits, for gf2p8affine */
    __m512i table;
} ath_unpack_avx512;

/* What of a code the inner loops are compiled for. */
typedef struct ath_unpack_kind {
    bool trellis;
    int quads; /* times 4 channels in a window of K: as many as fit 32 bits */
    bool wide; /* do 4 channels fit 16 bits, so that a window of V may hold 32 channels? */
} ath_unpack_kind;
#define ATH_UNPACK_SCALAR    ((ath_unpack_kind){false, 2, true})
#define ATH_UNPACK_TRELLIS   ((ath_unpack_kind){true, 2, false})
#define ATH_UNPACK_TRELLIS_4 ((ath_unpack_kind){true, 1, false})

/* body(kind) for the kind of a code, a constant in each call. */
#define ATH_UNPACK_DISPATCH(code, body)                                                                      \
    do {                                                                                                     \
        if ((code)->thresholds)                                                                              \
            body(ATH_UNPACK_SCALAR);                                                                         \
        else if ((code)->k < 4)                                                                              \
            body(ATH_UNPACK_TRELLIS);                                                                        \
        else                                                                                                 \
            body(ATH_UNPACK_TRELLIS_4);                                                                      \
    } while (0)

/* The table plus offset, modulo 256, and the matrix of the fold. */
ATH_INLINE void ath_unpack_table_avx512(ath_unpack_avx512 *u, const ath_turbo_code *code, int8_t offset) {
    const void *table = code->table;
    if (code->w == 6)
        u->table = _mm512_loadu_si512(table);
    else if (code->w == 4)
        u->table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    else if (code->w == 3)
        u->table = _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)table));
    else
        u->table = _mm512_broadcastd_epi32(_mm_loadu_si32(table));
    u->table = _mm512_add_epi8(u->table, _mm512_set1_epi8(offset));
    uint64_t rows = 0; /* row of index bit i in byte 7 - i: the state's bits i and, if there is one, i + w */
    for (int i = 0; i < code->w; i++) {
        uint64_t bits = 1u << i | (i + code->w < code->L ? 1u << (i + code->w) : 0);
        rows |= bits << 8 * (7 - i);
    }
    u->fold = _mm512_set1_epi64((int64_t)rows);
}

/* K: a window is 4 planes of 16 tokens; its dwords are 32 bits of a token's stream; a dword of values is 4
 * channels. */
ATH_INLINE ath_unpack_avx512 ath_unpack_keys_avx512(const ath_turbo_code *code, ath_unpack_kind kind,
                                                    int8_t offset) {
    ath_unpack_avx512 u;
    const int64_t ones = 0x0101010101010101;
    __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    token = _mm512_mullo_epi32(token, _mm512_set1_epi32(0x01010101));
    u.gather = _mm512_add_epi32(token, _mm512_set1_epi32(0x30201000));
    int bytes = code->k * kind.quads / 2, end = 0; /* of a window, without what its last states look ahead */
    for (int i = 3; i >= 0; i--) end = end << 8 | (i < bytes ? 16 * i : 64 + 16 * (i - bytes));
    u.gather_end = _mm512_add_epi32(token, _mm512_set1_epi32(end));
    int64_t channels = (0x03020100LL | 0x03020100LL << 32) * code->k + (0x20202020LL << 32);
    u.shift[0] = _mm512_set1_epi64(channels);
    u.shift[1] = _mm512_set1_epi64(channels + 4 * code->k * ones);
    ath_unpack_table_avx512(&u, code, offset);
    return u;
}

/* V: a window is 16 or 32 channels of 4 tokens; its quadwords are 16 bits of each of them, for 2 or 4
 * channels; a dword of values is 4 tokens. Of 32 channels c, the first 64 values are those with c % 4 < 2,
 * the second the others. */
ATH_INLINE ath_unpack_avx512 ath_unpack_values_avx512(const ath_turbo_code *code, const int channels) {
    ath_unpack_avx512 u;
    const int64_t ones = 0x0101010101010101;
    __m512i bit = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
                                     _mm512_set1_epi64(channels / 8 * code->k));
    __m512i first = _mm512_mullo_epi64(_mm512_srli_epi64(bit, 3), _mm512_set1_epi64(4 * ones));
    u.gather = _mm512_add_epi8(first, _mm512_set1_epi64(0x0703060205010400));
    int size = channels / 2 * code->k; /* what is at or behind it comes from the start */
    __mmask64 around = _mm512_cmpge_epu8_mask(u.gather, _mm512_set1_epi8((char)size));
    u.gather_end = _mm512_mask_add_epi8(u.gather, around, u.gather, _mm512_set1_epi8((char)(64 - size)));
    __m512i odd = _mm512_mullo_epi64(_mm512_and_si512(bit, _mm512_set1_epi64(7)), _mm512_set1_epi64(ones));
    int64_t tokens = 0x3020100030201000 + (0x01010101LL << 32) * code->k;
    u.shift[0] = _mm512_add_epi8(odd, _mm512_set1_epi64(tokens));
    u.shift[1] = _mm512_add_epi8(u.shift[0], _mm512_set1_epi8((char)(2 * code->k)));
    ath_unpack_table_avx512(&u, code, 0);
    return u;
}

/* Both read 64 bytes at a time. start: of the part. */
ATH_INLINE __m512i ath_unpack_window_avx512(const ath_unpack_avx512 *u, const uint8_t *at) {
    return _mm512_permutexvar_epi8(u->gather, _mm512_loadu_si512(at));
}
ATH_INLINE __m512i ath_unpack_window_end_avx512(const ath_unpack_avx512 *u, const uint8_t *at,
                                                const uint8_t *start) {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(at), u->gather_end, _mm512_loadu_si512(start));
}

/* The i-th 64 values of a window. */
ATH_INLINE __m512i ath_unpack_avx512_look_up(const ath_unpack_avx512 *u, const ath_unpack_kind kind,
                                             __m512i window, int i) {
    __m512i state = _mm512_multishift_epi64_epi8(u->shift[i], window);
    if (kind.trellis) state = _mm512_gf2p8affine_epi64_epi8(state, u->fold, 0);
    return _mm512_permutexvar_epi8(state, u->table);
}

#endif
