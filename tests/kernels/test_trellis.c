/* Trellis encoders of the instruction sets against the reference, symbol for symbol, also where costs are at
 * their ends. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec/trellis.h"
#include "kernels/trellis_arm.h"
#include "kernels/trellis_x86.h"
#include "kernels/versions.h"

enum { SEED = 20266, MAX_LANES = 32, KINDS = 6 };

static uint64_t seed_state = SEED;

static uint32_t bits(void) {
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed_state >> 32);
}

static float normal(void) {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += (float)bits() * 0x1p-32f;
    return sum;
}

/* A value of one of several kinds of input: normal ones; small, large; only the limits; spikes; all the same.
 */
static int16_t value(const ath_turbo_code *code, int kind, int lane) {
    float limit = (float)code->limit, x = normal() * code->target_scale;
    if (kind == 1) x *= 0.02f;
    if (kind == 2) x *= 3;
    if (kind == 3) x = bits() % 2 ? limit : -limit;
    if (kind == 4) x = bits() % 9 ? 0 : bits() % 2 ? limit : -limit;
    if (kind == 5) x = (float)(lane * 17 - 270);
    return (int16_t)rintf(x > limit ? limit : x < -limit ? -limit : x);
}

static void compare_lane(const ath_turbo_code *code, const int16_t *x, int lanes, int lane, int n,
                         const uint16_t *words, int32_t squares) {
    int16_t column[128];
    uint8_t want[128];
    int32_t sum = 0;
    for (int i = 0; i < n; i++) column[i] = x[i * lanes + lane];
    ath_trellis_encode(code, column, n, want);
    for (int i = 0; i < n; i++) {
        unsigned symbol = 0;
        for (int j = 0; j < code->k; j++) {
            int bit = code->k * i + j;
            symbol |= (unsigned)(words[bit / 16 * lanes + lane] >> bit % 16 & 1) << j;
        }
        if (symbol != want[i])
            fail_msg("%d bits, %d values, lane %d of %d: symbol %d", code->k, n, lane, lanes, i);
        int v = code->table[ath_turbo_index(code, ath_turbo_state(code, want, n, i))];
        sum += v * v;
    }
    assert_int_equal(squares, sum);
}

/* A strip by the version with so many lanes. */
static void encode_strip(int lanes, const ath_turbo_code *code, const void *x, int n, void *words,
                         int32_t *squares) {
#if defined(__x86_64__)
    if (lanes == ATH_TRELLIS_LANES_AVX512)
        ath_trellis_strip_avx512(code, x, n, words, squares);
    else
        ath_trellis_strip_avx2(code, x, n, words, squares);
#elif defined(__aarch64__)
    assert_int_equal(lanes, ATH_TRELLIS_LANES_NEON);
    ath_trellis_strip_neon(code, x, n, words, squares);
#else
    fail_msg("no version with %d lanes: %p %p %d %p %p", lanes, (const void *)code, x, n, words,
             (void *)squares);
#endif
}

static void check(int lanes) {
    static int16_t x[128 * MAX_LANES];
    static uint16_t words[128 * 4 / 16 * MAX_LANES];
    int32_t squares[MAX_LANES];
    for (ath_kv_type type = ATH_KV_TURBO4_TCQ; type <= ATH_KV_TURBO2_TCQ; type++)
        for (int n = 16; n <= 128; n *= 2)
            for (int kind = 0; kind < KINDS; kind++) {
                const ath_turbo_code *code = ath_turbo_code_of(type);
                for (int i = 0; i < n * lanes; i++) x[i] = value(code, kind, i % lanes);
                encode_strip(lanes, code, x, n, words, squares);
                for (int lane = 0; lane < lanes; lane++)
                    compare_lane(code, x, lanes, lane, n, words, squares[lane]);
            }
}

static void test_avx2(void **state) {
    (void)state;
    if (!(ath_cpu_flags(~0u) & ATH_CPU_AVX2)) skip();
    check(ATH_TRELLIS_LANES_AVX2);
}

static void test_avx512(void **state) {
    (void)state;
    if ((ath_cpu_flags(~0u) & ATH_CPU_AVX512_ALL) != ATH_CPU_AVX512_ALL) skip();
    check(ATH_TRELLIS_LANES_AVX512);
}

static void test_neon(void **state) {
    (void)state;
    if (!(ath_cpu_flags(~0u) & ATH_CPU_NEON)) skip();
    check(ATH_TRELLIS_LANES_NEON);
}

int main(void) {
    print_seed_and_cpu(SEED);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_avx2), cmocka_unit_test(test_avx512),
                                       cmocka_unit_test(test_neon)};
    return cmocka_run_group_tests_name("trellis encoders", tests, NULL, NULL);
}
