/* The matrix product and element-wise kernels: every version against C bit for bit, C against double.
 * With --bench [TYPE]: speed of each version on one thread. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include <cmocka.h>

#include "base/memory.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/peak.h"
#include "kernels/vector_math.h"
#include "kernels/versions.h"
#include "kernels/weights.h"

enum { SEED = 20240607, ROWS = ATH_PANEL_ROWS, COLS = ATH_TILE_MAX };

static ath_tensor_type type_of(int format) {
    if (format < ATH_PANEL_QUANTISED) return ath_panel_infos[format].type;
    return format == ATH_PANEL_F32 ? ATH_TYPE_F32 : format == ATH_PANEL_F16 ? ATH_TYPE_F16 : ATH_TYPE_BF16;
}

static bool is_quantised(int format) {
    return format < ATH_PANEL_QUANTISED;
}

/* A panel and columns to multiply it with. Buffers have their exact size, so that a sanitizer sees a read
 * past them. */
typedef struct problem {
    int format, n_rows, n_cols, width;
    int64_t n_in;
    uint8_t *rows, *panel, *act, *codes;
    float *x[COLS];
    float out[COLS][ROWS], *out_at[COLS];
} problem;

static void make_problem(problem *p, int format, int64_t n_in, int n_rows, int n_cols, uint64_t *state) {
    *p = (problem){
        .format = format, .n_rows = n_rows, .n_cols = n_cols, .width = ath_tile_width(n_cols), .n_in = n_in};
    ath_tensor_type type = type_of(format);
    size_t row_bytes = ath_tensor_type_row_bytes((int)type, n_in),
           act_bytes = ath_tile_bytes(is_quantised(format), p->width, n_in);
    p->rows = malloc(row_bytes * (size_t)n_rows);
    p->panel = aligned_alloc(64, ath_panel_bytes(format, n_in));
    p->act = malloc(act_bytes);
    p->codes = aligned_alloc(64, (size_t)(n_in + 31) / 32 * 32 * ROWS);
    assert_true(p->rows && p->panel && p->act && p->codes);
    test_rows(type, -1, p->rows, n_in, n_rows, state);
    ath_panel_pack(format, p->rows, row_bytes, n_rows, n_in, p->panel);
    for (int c = 0; c < n_cols; c++) {
        p->x[c] = malloc((size_t)n_in * sizeof(float));
        assert_non_null(p->x[c]);
        for (int64_t k = 0; k < n_in; k++) p->x[c][k] = test_uniform(state) * (float)(c + 1);
    }
}

static void free_problem(problem *p) {
    free(p->rows);
    free(p->panel);
    free(p->act);
    free(p->codes);
    for (int c = 0; c < COLS; c++) free(p->x[c]);
}

static bool has_wide(const problem *p, const ath_matmul_kernels *k) {
    return is_quantised(p->format) && k->expand[p->format] && p->width == k->columns[1];
}

/* With the kernel for packed codes, or the one for expanded ones. */
static void multiply(problem *p, const ath_matmul_kernels *k, bool wide) {
    for (int c = 0; c < COLS; c++) {
        p->out_at[c] = p->out[c];
        for (int r = 0; r < ROWS; r++) p->out[c][r] = 1234.0f;
    }
    ath_matmul_tile tile = {(ath_panel_format)p->format,
                            p->panel,
                            p->codes,
                            p->act,
                            p->out_at,
                            p->n_in,
                            p->width,
                            p->n_cols,
                            p->n_rows};
    if (!wide) {
        k->tile[p->format][ath_tile_width_log2(p->width)](&tile);
        return;
    }
    if (k->enter) k->enter();
    k->expand[p->format](p->panel, p->n_in, p->codes);
    k->wide[p->format](&tile);
    if (k->leave) k->leave();
}

/* Makes the tile, fills its unused columns with NaN and large codes, and multiplies. */
static void run_problem(problem *p, const ath_matmul_kernels *k) {
    bool quantised = is_quantised(p->format);
    (quantised ? k->quantise : k->interleave)((const float *const *)p->x, p->n_cols, p->width, p->n_in,
                                              p->act);
    int64_t units = quantised ? p->n_in / 32 * 11 : p->n_in;
    for (int64_t u = 0; u < units; u++) {
        for (int c = p->n_cols; c < p->width; c++) {
            int64_t at = (u * p->width + c) * 4; /* 8 groups of q come before the scales */
            if (quantised && u % 11 < 8)
                at = u / 11 * 44 * p->width + ath_tile_q_at(p->width, c, (int)(u % 11) * 4);
            memset(p->act + at, 0x7f, 4), p->act[at + 2] = 0xff;
        }
    }
    multiply(p, k, has_wide(p, k));
}

/* p against C with every set of CPU flags. */
static void compare_versions(problem *p) {
    ath_matmul_kernels k;
    ath_matmul_kernels_init(&k, 0);
    run_problem(p, &k);
    float expected[COLS][ROWS];
    memcpy(expected, p->out, sizeof expected);
    for (int m = 0; m < N_PRODUCT_MASKS; m++) {
        ath_matmul_kernels_init(&k, ath_cpu_flags(product_masks[m]));
        run_problem(p, &k);
        bool same = memcmp(expected, p->out, sizeof expected) == 0;
        if (has_wide(p, &k)) {
            multiply(p, &k, false);
            same &= memcmp(expected, p->out, sizeof expected) == 0;
        }
        if (same) continue;
        fail_msg("%s of %s differs from C: n_in %d, %d rows, %d columns",
                 ath_tensor_type_get((int)type_of(p->format))->name, k.isa, (int)p->n_in, p->n_rows,
                 p->n_cols);
    }
}

static void check_versions(int format, int64_t n_in, int n_rows, int n_cols, uint64_t *state) {
    problem p;
    make_problem(&p, format, n_in, n_rows, n_cols, state);
    compare_versions(&p);
    for (int i = 0; i < COLS; i++) {
        for (int r = 0; r < ROWS; r++) {
            if (i >= n_cols || r >= n_rows)
                assert_true(p.out[i][r] == 1234.0f);
            else
                assert_true(isfinite(p.out[i][r]));
        }
    }
    free_problem(&p);
}

/* All codes and activations at their ends: whatever can saturate does. */
static void test_extremes(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    const int fills[] = {0x00, 0xff, 0x7f, 0x80, 0xf0, 0x55};
    for (int format = 0; format < ATH_PANEL_QUANTISED; format++) {
        for (int i = 0; i < 12; i++) {
            problem p;
            make_problem(&p, format, 512, 16, 4, &state);
            size_t row_bytes = ath_tensor_type_row_bytes((int)type_of(format), p.n_in);
            test_rows(type_of(format), fills[i % 6], p.rows, p.n_in, 16, &state);
            ath_panel_pack(format, p.rows, row_bytes, 16, p.n_in, p.panel);
            for (int c = 0; c < 4; c++) {
                for (int64_t k = 0; k < p.n_in; k++) p.x[c][k] = i < 6 ? 1.0f : -1.0f;
            }
            compare_versions(&p);
            free_problem(&p);
        }
    }
}

static void test_versions_agree(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    for (int format = 0; format < ATH_PANEL_COUNT; format++) {
        int64_t block = is_quantised(format) ? ath_tensor_type_get((int)type_of(format))->block_size : 13;
        for (int n_cols = 1; n_cols <= COLS; n_cols += n_cols < 8 ? 1 : 4) {
            for (int64_t n = 1; n <= 11; n += n_cols % 2 ? 1 : 3)
                check_versions(format, n * block, 16, n_cols, &state);
            for (int n_rows = 1; n_rows < 16; n_rows += 3)
                check_versions(format, 3 * block, n_rows, n_cols, &state);
        }
    }
}

/* The bits of a column depend on nothing else in the tile. */
static void test_widths_agree(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    for (int m = 0; m < N_PRODUCT_MASKS; m++) {
        ath_matmul_kernels k;
        ath_matmul_kernels_init(&k, ath_cpu_flags(product_masks[m]));
        for (int format = 0; format < ATH_PANEL_COUNT; format++) {
            problem p;
            make_problem(&p, format, 512, 16, COLS, &state);
            run_problem(&p, &k);
            float expected[COLS][ROWS];
            memcpy(expected, p.out, sizeof expected);
            for (; p.n_cols > 0; p.n_cols--) {
                p.width = ath_tile_width(p.n_cols);
                run_problem(&p, &k);
                assert_memory_equal(expected, p.out, (size_t)p.n_cols * sizeof expected[0]);
            }
            p.n_cols = COLS;
            free_problem(&p);
        }
    }
}

/* The activation that the kernels see: x in 8 bits, times its scale. */
static double seen_activation(const problem *p, int64_t k, int c) {
    if (!is_quantised(p->format)) return p->x[c][k];
    const uint8_t *block = p->act + k / 32 * 44 * p->width;
    float dx;
    memcpy(&dx, block + 32 * p->width + 4 * c, 4);
    return (double)(int8_t)block[ath_tile_q_at(p->width, c, (int)(k % 32))] * (double)dx;
}

/* Each product of a block (at most two) and each sum is rounded once: 2^-24 of the sum of magnitudes, as
 * often as there are roundings. With a minimum, code and minimum parts may each be as large as the largest
 * weight. */
static void check_against_double(int format, int64_t n_in, uint64_t *state) {
    ath_matmul_kernels k;
    ath_matmul_kernels_init(&k, 0);
    problem p;
    make_problem(&p, format, n_in, 16, is_quantised(format) ? 5 : 3, state);
    run_problem(&p, &k);
    ath_tensor_type type = type_of(format);
    float *w = malloc((size_t)n_in * sizeof *w);
    assert_non_null(w);
    double steps = is_quantised(format) ? (double)(n_in / 32 * 2 + 8)
                                        : (double)(ATH_FLOAT_BLOCK + n_in / ATH_FLOAT_BLOCK);
    for (int r = 0; r < 16; r++) {
        ath_tensor_type_get((int)type)->dequantize(
            p.rows + (size_t)r * ath_tensor_type_row_bytes((int)type, n_in), w, n_in);
        double largest = 0;
        for (int64_t i = 0; i < n_in && is_quantised(format); i++)
            if (2 * fabs((double)w[i]) > largest) largest = 2 * fabs((double)w[i]);
        for (int c = 0; c < p.n_cols; c++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < n_in; i++) {
                double x = seen_activation(&p, i, c);
                sum += (double)w[i] * x;
                size += (fabs((double)w[i]) + largest) * fabs(x);
            }
            if (fabs(sum - (double)p.out[c][r]) > steps * 0x1p-24 * size)
                fail_msg("%s: row %d column %d is %.9g, not %.9g", ath_tensor_type_get((int)type)->name, r, c,
                         (double)p.out[c][r], sum);
        }
    }
    free(w);
    free_problem(&p);
}

static void test_c_against_double(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    for (int format = 0; format < ATH_PANEL_COUNT; format++) {
        check_against_double(format, 256, &state);
        check_against_double(format, 1536, &state);
    }
}

static void test_quantise(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { N = 32 * 12 };
    float x[2][N];
    const float *rows[2] = {x[0], x[1]};
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < N; i++) x[c][i] = test_uniform(&state) * 3;
        for (int i = 0; i < 32; i++) x[c][i] = 0;                       /* zero block */
        for (int i = 32; i < 64; i++) x[c][i] = (float)(i - 32) - 0.5f; /* ties, once 127 is the largest */
        x[c][63] = 127;
        for (int i = 64; i < 96; i++) x[c][i] *= 0x1p-110f;
        for (int i = 96; i < 128; i++) x[c][i] *= 0x1p-140f;
        for (int i = 128; i < 160; i++) x[c][i] *= 0x1p125f;
        x[c][170] = INFINITY;
        x[c][200] = NAN;
        x[c][230] = -NAN;
        x[c][231] = -INFINITY;
    }
    uint8_t expected[N / 32 * 88], got[N / 32 * 88];
    ath_matmul_kernels k;
    ath_matmul_kernels_init(&k, 0);
    k.quantise(rows, 2, 2, N, expected);
    for (int i = 0; i < 32; i++)
        assert_int_equal(expected[88 + i / 4 * 8 + i % 4], i == 31 ? 127 : (int)rintf(x[0][32 + i]));
    for (int b = 5; b < 8; b++) {
        float dx;
        memcpy(&dx, expected + b * 88 + 64, 4);
        assert_false(isfinite(dx));
    }
    for (int m = 0; m < N_PRODUCT_MASKS; m++) {
        ath_matmul_kernels_init(&k, ath_cpu_flags(product_masks[m]));
        k.quantise(rows, 2, 2, N, got);
        assert_memory_equal(expected, got, sizeof got);
    }
}

static ath_gate_fn gate_of(const ath_elementwise_kernels *k, int kind) {
    return kind == 0 ? k->gate_silu : kind == 1 ? k->gate_gelu : kind == 2 ? k->gate_swiglu_oai : k->gate_sigmoid;
}

static void test_gates(void **unused) {
    (void)unused;
    uint64_t state = SEED;
    enum { N = 1000 };
    static float x[N], up[N], expected[N], got[N];
    for (int i = 0; i < N; i++)
        x[i] = test_uniform(&state) * (i % 3 ? 8.0f : 120.0f), up[i] = test_uniform(&state) * 9;
    const float special[] = {0,      -0.0f,   INFINITY, -INFINITY, 1e-30f, 87.5f, -87.5f,
                             88.75f, -88.75f, 103.9f,   -104.5f,   3e38f,  -3e38f};
    memcpy(x, special, sizeof special);
    for (int kind = 0; kind < 4; kind++) {
        for (int n = N; n > N - 17; n--) {
            ath_elementwise_kernels k;
            ath_elementwise_kernels_init(&k, 0);
            memcpy(expected, x, sizeof x);
            gate_of(&k, kind)(expected, up, n);
            for (int m = 0; m < N_MASKS; m++) {
                ath_elementwise_kernels_init(&k, ath_cpu_flags(masks[m]));
                memcpy(got, x, sizeof x);
                gate_of(&k, kind)(got, up, n);
                for (int i = 0; i < N; i++)
                    assert_true(memcmp(&got[i], &expected[i], 4) == 0 ||
                                (isnan(got[i]) && isnan(expected[i])));
            }
        }
        for (int i = 20; i < N - 16; i++) { /* as far as the shortest run went */
            double v = x[i], y = (double)up[i], exponent = v;
            if (kind == 1) exponent = 2 * 0.7978845608028654 * (v + 0.044715 * v * v * v);
            if (kind == 2) v = fmin(v, 7), exponent = 1.702 * v, y = fmax(-7, fmin(y, 7)) + 1;
            double truth = (kind == 3 ? 1 : v) / (1 + exp(-exponent)) * y;
            /* the exponent's rounding is an error relative to its size; what is left of e^-88 is lost */
            double rounding = 4e-7 * (1 + fabs(exponent));
            assert_true(fabs((double)expected[i] - truth) <= rounding * fabs(truth) + 1e-35);
        }
    }
}

static void test_exp(void **unused) {
    (void)unused;
    double worst = 0;
    for (double x = -87.3; x < 88.7; x += 0.0017)
        worst = fmax(worst, fabs((double)ath_expf((float)x) / exp((double)(float)x) - 1));
    assert_true(worst < 3e-7);
    assert_true(ath_expf(-INFINITY) == 0 && ath_expf(-105) == 0 && ath_expf(0) == 1);
    assert_true(isinf(ath_expf(89)) && isnan(ath_expf(NAN)));
}

static void test_cpu_mask(void **unused) {
    (void)unused;
    assert_int_equal(ath_cpu_flags(0), 0);
    assert_int_equal(ath_cpu_flags(ATH_CPU_AVX512_ALL & ~(uint32_t)ATH_CPU_AVX2), 0);
    assert_int_equal(ath_cpu_flags(ATH_CPU_AVX2) & ~(uint32_t)ATH_CPU_AVX2, 0);
    assert_int_equal(ath_cpu_flags(~0u & ~(uint32_t)ATH_CPU_AVX512) & ATH_CPU_AVX512_ALL & ~(uint32_t)ATH_CPU_AVX2, 0);
    assert_int_equal(ath_cpu_flags(~0u & ~(uint32_t)ATH_CPU_AVX512_VNNI) & ATH_CPU_AMX, 0);
    assert_int_equal(ath_cpu_flags(ATH_CPU_DOTPROD | ATH_CPU_I8MM), 0);
    assert_int_equal(ath_cpu_flags(~0u & ~(uint32_t)ATH_CPU_DOTPROD) & (ATH_CPU_DOTPROD | ATH_CPU_I8MM), 0);
    char text[64];
    ath_cpu_flags_describe(0, text, sizeof text);
    assert_string_equal(text, "plain C");
    ath_cpu_flags_describe(ATH_CPU_AVX512_ALL, text, sizeof text);
    assert_string_equal(text, "avx2 avx512 vnni vbmi");
    ath_cpu_flags_describe(ATH_CPU_AVX512_ALL | ATH_CPU_AMX, text, sizeof text);
    assert_string_equal(text, "avx2 avx512 vnni vbmi amx");
    ath_cpu_flags_describe(ATH_CPU_NEON | ATH_CPU_I8MM, text, sizeof text);
    assert_string_equal(text, "neon i8mm");
    ath_cpu_flags_describe(ATH_CPU_AVX512_ALL, text, 7);
    assert_string_equal(text, "avx2 a");
}

/* ---- speed */

/* Decode reads more than the caches hold. */
enum { BENCH_IN = 2048, BENCH_BYTES = 512 << 20, BENCH_COLUMNS = 512, BENCH_PIECE = 2 << 20 };

/* Seconds for n_panels panels against n_tiles tiles of one width. */
static double bench_run(const ath_matmul_kernels *k, problem *p, const uint8_t *panels, int64_t n_panels,
                        const uint8_t *act, int64_t n_tiles, int width) {
    bool wide = width > 1 && has_wide(p, k);
    size_t panel_bytes = ath_panel_bytes(p->format, BENCH_IN),
           act_bytes = ath_tile_bytes(is_quantised(p->format), width, BENCH_IN);
    double start = peak_now();
    if (wide && k->enter) k->enter();
    for (int64_t i = 0; i < n_panels * n_tiles; i++) {
        const uint8_t *panel = panels + (size_t)(i / n_tiles) * panel_bytes;
        ath_matmul_tile tile = {(ath_panel_format)p->format,
                                panel,
                                p->codes,
                                act + (size_t)(i % n_tiles) * act_bytes,
                                p->out_at,
                                BENCH_IN,
                                width,
                                width,
                                ROWS};
        if (wide && i % n_tiles == 0) k->expand[p->format](panel, BENCH_IN, p->codes);
        (wide ? k->wide[p->format] : k->tile[p->format][ath_tile_width_log2(width)])(&tile);
    }
    if (wide && k->leave) k->leave();
    return peak_now() - start;
}

/* A line of figures; a percentage where there is something to compare with. */
static void bench_print(const problem *p, const ath_matmul_kernels *k, double decode, double bandwidth,
                        double prefill, double peak) {
    printf("%-8s %-12s %8.2f %5.0f %10.1f", ath_tensor_type_get((int)type_of(p->format))->name, k->isa,
           decode, 100 * decode / bandwidth, prefill);
    if (peak > 0) printf(" %5.0f", 100 * prefill / peak);
    printf("\n");
    fflush(stdout);
}

static void bench_format(const ath_matmul_kernels *k, uint32_t flags, int format, uint8_t *panels,
                         uint8_t *act, double bandwidth) {
    uint64_t state = SEED;
    size_t panel_bytes = ath_panel_bytes(format, BENCH_IN);
    problem p;
    make_problem(&p, format, BENCH_IN, ROWS, k->columns[is_quantised(format)], &state);
    run_problem(&p, k);
    bool c = flags == 0;
    /* Short pieces, the fastest counts: a piece is seldom interrupted. Decode's pieces are all different
     * memory. */
    int64_t n_decode = c ? 4 : BENCH_PIECE / (int64_t)panel_bytes,
            n_pieces = c ? 1 : (int64_t)(BENCH_BYTES / panel_bytes) / n_decode;
    int64_t n_columns = c ? p.width : BENCH_COLUMNS, n_tiles = n_columns / p.width;
    for (int64_t i = 0; i < n_pieces * n_decode; i++)
        memcpy(panels + (size_t)i * panel_bytes, p.panel, panel_bytes);
    size_t act_bytes = ath_tile_bytes(is_quantised(format), p.width, BENCH_IN);
    for (int64_t i = 0; i < n_tiles; i++) memcpy(act + (size_t)i * act_bytes, p.act, act_bytes);
    double decode = 1e9, prefill = 1e9;
    for (int64_t i = 0; i < n_pieces; i++) {
        const uint8_t *piece = panels + (size_t)(i * n_decode) * panel_bytes;
        decode = fmin(decode, bench_run(k, &p, piece, n_decode, act, 1, 1));
    }
    for (int64_t i = 0; i < (c ? 2 : 60); i++)
        prefill = fmin(prefill, bench_run(k, &p, panels, 1, act, n_tiles, p.width));
    bench_print(&p, k, (double)n_decode * (double)panel_bytes / decode * 1e-9, bandwidth,
                (double)(ROWS * BENCH_IN * n_columns) / prefill * 1e-9,
                is_quantised(format) ? peak_int8(flags) : peak_f32(flags));
    free_problem(&p);
}

/* Of one weight type, or of all. */
static int bench(const char *type) {
    uint8_t *panels = ath_memory_map(BENCH_BYTES),
            *act = aligned_alloc(64, BENCH_COLUMNS * BENCH_IN * sizeof(float));
    if (!panels || !act) return 1;
    memset(panels, 1, BENCH_BYTES);
    double bandwidth = peak_read(panels, BENCH_BYTES, BENCH_PIECE);
    printf("one thread, which reads %.1f GB/s; GB/s of weights with one column, and percent of that; GMAC/s "
           "with %d columns, and\n"
           "percent of what products in registers reach, in bytes or floats as the type has it; %d inputs\n",
           bandwidth, BENCH_COLUMNS, BENCH_IN);
    printf("%-8s %-12s %8s %5s %10s %5s\n", "type", "version", "GB/s", "%", "GMAC/s", "%");
    for (int format = 0; format < ATH_PANEL_COUNT; format++) {
        if (type && strcasecmp(type, ath_tensor_type_get((int)type_of(format))->name) != 0) continue;
        for (int m = -1; m < N_PRODUCT_MASKS; m++) {
            uint32_t flags = m < 0 ? 0 : ath_cpu_flags(product_masks[m]);
            ath_matmul_kernels k;
            ath_matmul_kernels_init(&k, flags);
            bench_format(&k, flags, format, panels, act, bandwidth);
        }
    }
    ath_memory_unmap(panels, BENCH_BYTES);
    free(act);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench(argc > 2 ? argv[2] : NULL);
    print_seed_and_cpu(SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_agree),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_widths_agree),
        cmocka_unit_test(test_c_against_double),
        cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_cpu_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
