/* codec: KV pages: layout, rotation, codes, side data, input at the edges; and the distortion measurement.
 *
 * test_turbo_reference.py compares with an independent decoder and with stored pages; it uses this program as
 *   test_kv_page --layout TYPE k|v HEAD_DIM             bytes codes_at norms_at mean_at eq_at, part sizes
 *   test_kv_page --encode TYPE k|v HEAD_DIM IN OUT      plain f16 tile to page
 *   test_kv_page --decode TYPE k|v HEAD_DIM IN OUT      page to plain f32 tile */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/half.h"
#include "codec/kv_distortion.h"
#include "codec/kv_page.h"
#include "codec/quant_legacy.h"
#include "codec/tensor_type.h"
#include "codec/trellis.h"

enum { T = ATH_PAGE_TOKENS, SEED = 20263 };

static uint64_t random_state = SEED;

static uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float random_normal(void) {
    double u = (random_bits() + 0.5) / 4294967296.0, v = random_bits() / 4294967296.0;
    return (float)(sqrt(-2 * log(u)) * cos(2 * acos(-1) * v));
}

static ath_kv_layout make_layout(ath_kv_type type, int head_dim, bool is_key) {
    ath_kv_layout layout;
    ath_error err = {0};
    if (ath_kv_layout_init(&layout, type, head_dim, is_key, &err)) fail_msg("%s", err.message);
    return layout;
}

/* Everything a page needs; buffers of exactly the promised sizes, so that sanitizers see a step outside. */
typedef struct page_case {
    ath_kv_layout layout;
    size_t n; /* values */
    uint16_t *tile;
    uint8_t *page;
    float *scratch, *decoded;
} page_case;

static page_case make_case(ath_kv_type type, int head_dim, bool is_key) {
    page_case p = {.layout = make_layout(type, head_dim, is_key), .n = (size_t)head_dim * T};
    p.tile = calloc(p.n, sizeof *p.tile);
    p.page = malloc(p.layout.bytes + ATH_PAGE_SLACK);
    p.scratch = malloc(p.n * sizeof(float));
    p.decoded = malloc(p.n * sizeof(float));
    memset(p.page, 0xa5, p.layout.bytes + ATH_PAGE_SLACK);
    return p;
}

static void free_case(page_case *p) {
    free(p->tile);
    free(p->page);
    free(p->scratch);
    free(p->decoded);
}

static size_t at(const page_case *p, int token, int channel) {
    return p->layout.is_key ? (size_t)channel * T + (size_t)token
                            : (size_t)token * (size_t)p->layout.head_dim + (size_t)channel;
}

static void encode_and_decode(page_case *p) {
    ath_kv_encode_page(&p->layout, p->tile, p->page, p->scratch);
    for (int i = 0; i < ATH_PAGE_SLACK; i++) assert_int_equal(p->page[p->layout.bytes + (size_t)i], 0xa5);
    ath_kv_decode_page(&p->layout, p->page, p->decoded);
}

static uint16_t get_u16(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Sum of squared errors of one channel, or of all (-1). */
static double squared_error(const page_case *p, int only) {
    double sum = 0;
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < p->layout.head_dim; c++) {
            if (only >= 0 && c != only) continue;
            double d = (double)p->decoded[at(p, t, c)] - (double)ath_f16_to_f32(p->tile[at(p, t, c)]);
            sum += d * d;
        }
    }
    return sum;
}

static double tile_energy(const page_case *p) {
    double sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        double x = (double)ath_f16_to_f32(p->tile[i]);
        sum += x * x;
    }
    return sum;
}

static void fill_normal(page_case *p, float scale) {
    for (size_t i = 0; i < p->n; i++) p->tile[i] = ath_f32_to_f16(scale * random_normal());
}

/* ---- names and layout ---- */

static void test_names(void **state) {
    (void)state;
    ath_kv_type type;
    for (int t = 0; t < ATH_KV_TYPE_COUNT; t++) {
        assert_int_equal(ath_kv_type_parse(&type, ath_kv_type_name((ath_kv_type)t), NULL), ATH_OK);
        assert_int_equal(type, t);
    }
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_TURBO4), 4);
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_TURBO2), 2);
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_TURBO4_TCQ), 4);
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_TURBO2_TCQ), 2);
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_TURBO3_PLAIN), 3);
    assert_int_equal(ath_kv_turbo_bits(ATH_KV_IQ4_NL), 0);
    ath_error err = {0};
    assert_int_equal(ath_kv_type_parse(&type, "turbo5", &err), ATH_ERR_ARGUMENT);
    assert_string_equal(
        err.message, "there is no cache type 'turbo5'; the types are f32, f16, bf16, q8_0, q5_1, "
                     "q5_0, q4_1, q4_0, iq4_nl, turbo4, turbo3, turbo2, turbo4_tcq, turbo3_tcq, turbo2_tcq, "
                     "turbo4:plain, turbo3:plain, turbo2:plain");
    assert_int_equal(ath_kv_type_parse(&type, "", &err), ATH_ERR_ARGUMENT);
    assert_int_equal(ath_kv_type_parse(&type, "turbo", &err), ATH_ERR_ARGUMENT);
}

static void check_parts(int head_dim, int n, const int *sizes) {
    ath_kv_layout layout = make_layout(ATH_KV_TURBO3, head_dim, false);
    assert_int_equal(layout.n_parts, n);
    for (int i = 0, start = 0; i < n; start += sizes[i++]) {
        assert_int_equal(layout.part_dim[i], sizes[i]);
        assert_int_equal(layout.part_start[i], start);
    }
}

static void test_parts(void **state) {
    (void)state;
    check_parts(16, 1, (int[]){16});
    check_parts(64, 1, (int[]){64});
    check_parts(80, 2, (int[]){64, 16});
    check_parts(96, 2, (int[]){64, 32});
    check_parts(112, 3, (int[]){64, 32, 16});
    check_parts(128, 1, (int[]){128});
    check_parts(256, 2, (int[]){128, 128});
    check_parts(576, 5, (int[]){128, 128, 128, 128, 64});
    check_parts(1008, 10, (int[]){128, 128, 128, 128, 128, 128, 128, 64, 32, 16});
}

static void test_layout_sizes(void **state) {
    (void)state;
    static const struct {
        ath_kv_type type;
        int head_dim;
        bool is_key;
        size_t norms, mean, eq, bytes;
    } expected[] = {
        {ATH_KV_TURBO3, 16, false, 768, 1024, 1024, 1024},
        {ATH_KV_TURBO3, 64, false, 3072, 3328, 3328, 3328},
        {ATH_KV_TURBO3, 64, true, 3072, 3328, 3456, 3520},
        {ATH_KV_TURBO3, 128, true, 6144, 6400, 6656, 6784},
        {ATH_KV_TURBO2, 80, true, 2560, 3072, 3232, 3312},
        {ATH_KV_TURBO4, 256, true, 16384, 16896, 17408, 17664},
        {ATH_KV_TURBO4, 576, false, 36864, 38144, 38144, 38144},
        {ATH_KV_TURBO3_TCQ, 128, true, 6144, 6400, 6656, 6784},
        {ATH_KV_TURBO2_TCQ, 80, true, 2560, 3072, 3232, 3312},
        {ATH_KV_TURBO4_TCQ, 576, false, 36864, 38144, 38144, 38144},
        {ATH_KV_TURBO3_PLAIN, 64, true, 3072, 3328, 3328, 3328},
        {ATH_KV_Q8_0, 64, true, 8704, 8704, 8832, 8896},
        {ATH_KV_Q4_0, 96, false, 6912, 6912, 6912, 6912},
        {ATH_KV_Q4_1, 64, false, 5120, 5120, 5120, 5120},
        {ATH_KV_F16, 80, true, 20480, 20480, 20480, 20480},
        {ATH_KV_F32, 80, false, 40960, 40960, 40960, 40960},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        ath_kv_layout l = make_layout(expected[i].type, expected[i].head_dim, expected[i].is_key);
        assert_int_equal(l.codes_at, 0);
        assert_int_equal(l.norms_at, expected[i].norms);
        assert_int_equal(l.mean_at, expected[i].mean);
        assert_int_equal(l.eq_at, expected[i].eq);
        assert_int_equal(l.bytes, expected[i].bytes);
    }
    for (int type = 0; type < ATH_KV_TYPE_COUNT; type++) {
        for (int hd = 32; hd <= ATH_MAX_HEAD_DIM; hd += 32) {
            ath_kv_layout l = make_layout((ath_kv_type)type, hd, true);
            assert_int_equal((l.norms_at | l.mean_at | l.eq_at | l.bytes) % 16, 0);
            assert_int_equal(l.part_start[l.n_parts - 1] + l.part_dim[l.n_parts - 1], hd);
        }
    }
}

static void test_layout_refusals(void **state) {
    (void)state;
    ath_kv_layout l;
    ath_error err = {0};
    assert_int_equal(ath_kv_layout_init(&l, ATH_KV_TURBO3, 72, true, &err), ATH_ERR_UNSUPPORTED);
    assert_string_equal(
        err.message, "head_dim 72 can't be stored as turbo3 (needs a multiple of 16), but as f32, f16, bf16");
    assert_int_equal(ath_kv_layout_init(&l, ATH_KV_Q8_0, 80, true, &err), ATH_ERR_UNSUPPORTED);
    assert_string_equal(err.message,
                        "head_dim 80 can't be stored as q8_0 (needs a multiple of 32), but as f32, "
                        "f16, bf16, turbo4, turbo3, turbo2, turbo4_tcq, turbo3_tcq, turbo2_tcq, turbo4:plain, turbo3:plain, turbo2:plain");
    const int bad[] = {0, -16, -2147483647, 1040, 2147483647};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ath_kv_layout_init(&l, ATH_KV_F16, bad[i], true, &err), ATH_ERR_UNSUPPORTED);
        assert_int_equal(ath_kv_layout_init(&l, ATH_KV_TURBO2, bad[i], false, &err), ATH_ERR_UNSUPPORTED);
    }
    assert_int_equal(ath_kv_layout_init(&l, ATH_KV_TYPE_COUNT, 64, true, &err), ATH_ERR_ARGUMENT);
    assert_int_equal(ath_kv_layout_init(&l, (ath_kv_type)-1, 64, true, &err), ATH_ERR_ARGUMENT);
    assert_int_equal(ath_kv_layout_init(&l, ATH_KV_F16, 72, true, &err), ATH_OK);
}

/* ---- rotation ---- */

static void test_signs(void **state) {
    (void)state;
    const float *signs = ath_rotation_signs();
    uint64_t seed = 0x417468616e6f7231; /* "Athanor1" */
    int minus = 0;
    for (int word = 0; word < ATH_MAX_HEAD_DIM / 64; word++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        z ^= z >> 31;
        for (int bit = 0; bit < 64; bit++) {
            assert_true(signs[64 * word + bit] == (z >> bit & 1 ? -1.0f : 1.0f));
            minus += z >> bit & 1;
        }
    }
    assert_in_range(minus, 450, 574);
}

/* Against the definition, in double. */
static void check_rotation(int head_dim) {
    ath_kv_layout l = make_layout(ATH_KV_TURBO3, head_dim, false);
    float x[ATH_MAX_HEAD_DIM], y[ATH_MAX_HEAD_DIM], lanes[3 * ATH_MAX_HEAD_DIM];
    for (int c = 0; c < head_dim; c++) x[c] = y[c] = random_normal();
    for (int c = 0; c < head_dim; c++) lanes[3 * c] = lanes[3 * c + 1] = lanes[3 * c + 2] = x[c];
    ath_rotate(&l, y);
    for (int p = 0; p < l.n_parts; p++) {
        int start = l.part_start[p], n = l.part_dim[p];
        for (int row = 0; row < n; row++) {
            double sum = 0;
            for (int c = 0; c < n; c++) {
                double sign = ath_rotation_signs()[start + c];
                sum += sign * x[start + c] * (__builtin_popcount((unsigned)(row & c)) % 2 ? -1 : 1);
            }
            assert_true(fabs(sum / sqrt(n) - y[start + row]) < 3e-6);
        }
    }
    ath_rotate_lanes(&l, lanes, 3);
    for (int i = 0; i < 3 * head_dim; i++) assert_true(lanes[i] == y[i / 3]);
    ath_unrotate(&l, y);
    ath_unrotate_lanes(&l, lanes, 3);
    for (int c = 0; c < head_dim; c++) {
        assert_true(fabsf(y[c] - x[c]) < 3e-6f);
        assert_true(lanes[3 * c + 2] == y[c]);
    }
}

static void test_rotation(void **state) {
    (void)state;
    const int dims[] = {16, 32, 64, 80, 96, 112, 128, 256, 576, 1024};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) check_rotation(dims[i]);
    for (int n = 1; n <= 128; n *= 2) assert_true(ath_rotation_scale(n) == (float)(1 / sqrt(n)));
}

/* ---- codes and side data ---- */

/* Byte b of a token's stream, as docs/turbo_format.md says. */
static size_t stream_byte(const ath_kv_layout *l, int token, int b) {
    int size = l->head_dim * ath_kv_turbo_bits(l->type) / 8, group = l->is_key ? 16 : 4;
    return (size_t)(token / group * group * size + b * group + token % group);
}

/* Fills the codes with random bytes, decodes, and finds the values again by walking the streams bit by bit.
 */
static void check_code_places(ath_kv_type type, int head_dim, bool is_key) {
    static const int state_bits[] = {4, 3, 2, 8, 7, 6, 4, 3, 2}, index_bits[] = {4, 3, 2, 6, 4, 4, 4, 3, 2};
    page_case p = make_case(type, head_dim, is_key);
    int k = ath_kv_turbo_bits(type), L = state_bits[type - ATH_KV_TURBO4],
        w = index_bits[type - ATH_KV_TURBO4];
    for (size_t i = 0; i < p.layout.norms_at; i++) p.page[i] = (uint8_t)random_bits();
    for (int i = 0; i < p.layout.n_parts * T; i++) { /* norm 1, or 2 for odd tokens of odd parts */
        uint16_t norm = i / T % 2 && i % 2 ? 0x4000 : 0x3f80;
        memcpy(p.page + p.layout.norms_at + 2 * i, &norm, 2);
    }
    memset(p.page + p.layout.mean_at, 0, p.layout.bytes - p.layout.mean_at);
    if (p.layout.eq_at < p.layout.bytes) memset(p.page + p.layout.eq_at, 128, (size_t)head_dim);
    ath_kv_decode_page(&p.layout, p.page, p.decoded);
    for (int t = 0; t < T; t++) {
        float x[ATH_MAX_HEAD_DIM];
        for (int c = 0; c < head_dim; c++) x[c] = p.decoded[at(&p, t, c)];
        ath_rotate(&p.layout, x);
        for (int part = 0; part < p.layout.n_parts; part++) {
            int start = p.layout.part_start[part], n = p.layout.part_dim[part],
                norm = part % 2 && t % 2 ? 2 : 1;
            for (int i = 0; i < n; i++) {
                int state = 0;
                for (int j = 0; j < L; j++) {
                    int bit = start * k + (i * k + j) % (n * k);
                    state |= (p.page[stream_byte(&p.layout, t, bit / 8)] >> bit % 8 & 1) << j;
                }
                int index = L > k ? (state ^ state >> w) % (1 << w) : state;
                assert_int_equal(lroundf(x[start + i]), norm * ath_turbo_code_of(type)->table[index]);
            }
        }
    }
    free_case(&p);
}

static void test_code_places(void **state) {
    (void)state;
    const int dims[] = {16, 80, 128, 256};
    for (int type = ATH_KV_TURBO4; type < ATH_KV_TURBO4_PLAIN; type++) {
        for (int i = 0; i < 4; i++) {
            check_code_places((ath_kv_type)type, dims[i], true);
            check_code_places((ath_kv_type)type, dims[i], false);
        }
    }
}

/* The best closed path through x by trying all states at the seam, free of what the encoder does to be quick.
 */
static int64_t least_cost(const ath_turbo_code *code, const int16_t *x, int n, const uint8_t *symbols,
                          int64_t *cost) {
    int n_states = 1 << code->L, groups = n_states >> code->k;
    int64_t best = INT64_MAX;
    int32_t branch[128][256];
    for (int i = 0; i < n; i++) {
        for (int s = 0; s < n_states; s++) {
            int d = abs(x[i] - code->targets[ath_turbo_index(code, (unsigned)s)]);
            if (d > ATH_TRELLIS_CLIP) d = ATH_TRELLIS_CLIP;
            branch[i][s] = d * d & -(1 << code->k);
        }
    }
    *cost = 0;
    for (int i = 0; i < n; i++) *cost += branch[i][ath_turbo_state(code, symbols, n, i)];
    for (int seam = 0; seam < n_states; seam++) {
        int32_t at[256], least[256];
        for (int s = 0; s < n_states; s++) at[s] = s == seam ? 0 : INT32_MAX / 2;
        for (int i = n - 1; i >= 0; i--) {
            memcpy(least, at, sizeof least);
            for (int s = groups; s < n_states; s++) {
                if (at[s] < least[s % groups]) least[s % groups] = at[s];
            }
            for (int s = 0; s < n_states; s++) at[s] = least[s >> code->k] + branch[i][s];
        }
        if (at[seam] < best) best = at[seam];
    }
    return best;
}

/* Paths are near the best closed one for values like the codes' own, and for any; and all of them are closed.
 */
static void test_trellis_paths(void **state) {
    (void)state;
    for (int type = ATH_KV_TURBO4_TCQ; type <= ATH_KV_TURBO2_TCQ; type++) {
        const ath_turbo_code *code = ath_turbo_code_of((ath_kv_type)type);
        for (int n = 16; n <= 128; n *= 2) {
            int64_t sum = 0, best_sum = 0;
            int rounds = 512 / n;
            for (int round = 0; round <= rounds; round++) {
                int16_t x[128];
                uint8_t symbols[128];
                for (int i = 0; i < n; i++) {
                    float v = roundf(code->target_scale * random_normal());
                    if (round == rounds) v = random_bits() % 2 ? 1e6f : -1e6f;
                    x[i] = (int16_t)fmaxf(-(float)code->limit, fminf((float)code->limit, v));
                }
                ath_trellis_encode(code, x, n, symbols);
                int64_t cost, best = least_cost(code, x, n, symbols, &cost);
                assert_true(cost >= best);
                sum += round < rounds ? cost : 0, best_sum += round < rounds ? best : 0;
                if (round == rounds) assert_true(cost <= best + best / 10);
            }
            double ratio = (double)sum / (double)best_sum;
            double allowed = n == 16 ? 1.2 : 1.04; /* the way around is short for a choice at the seam */
            if (ratio > allowed) fail_msg("%s, %d: %f", ath_kv_type_name(type), n, ratio);
        }
    }
}

/* The decoded vector has the norm of the original, up to bf16. */
static void test_norms_match(void **state) {
    (void)state;
    page_case p = make_case(ATH_KV_TURBO2, 112, false);
    fill_normal(&p, 3);
    encode_and_decode(&p);
    for (int t = 0; t < T; t++) {
        for (int part = 0; part < p.layout.n_parts; part++) {
            double a = 0, b = 0;
            for (int i = 0; i < p.layout.part_dim[part]; i++) {
                size_t k = at(&p, t, p.layout.part_start[part] + i);
                a += pow((double)ath_f16_to_f32(p.tile[k]), 2);
                b += pow((double)p.decoded[k], 2);
            }
            assert_true(fabs(sqrt(b / a) - 1) < 1.0 / 255); /* half a unit of bf16 is 1/256 */
        }
    }
    free_case(&p);
}

/* 16 sums of every 16th token, folded by halves: +-65504 must meet before the small value is added to one of
 * them, where it would be lost. And sums start at +0. */
static void test_mean_order(void **state) {
    (void)state;
    static const struct {
        int plus, minus, small;
        bool kept;
    } cases[] = {
        {0, 32, 1, true},   /* other lane */
        {0, 32, 16, false}, /* same lane, between */
        {0, 32, 48, true},  /* same lane, after */
        {3, 11, 4, true},   /* folded by 8 first: 3 meets 11 */
        {3, 4, 11, false},  /* 3 meets 11 before 4 */
        {2, 6, 5, true},    /* then by 4 */
        {2, 4, 6, false},   /* 2 meets 6 before 4 */
        {1, 3, 2, true},    /* then by 2; 1 meets 3 before the other pair */
    };
    page_case p = make_case(ATH_KV_TURBO4, 16, true);
    for (size_t k = 0; k < p.n; k++) p.tile[k] = 0x8000;
    for (int i = 0; i < 8; i++) {
        p.tile[at(&p, cases[i].plus, i)] = 0x7bff;
        p.tile[at(&p, cases[i].minus, i)] = 0xfbff;
        p.tile[at(&p, cases[i].small, i)] = ath_f32_to_f16(0x1p-10f);
    }
    encode_and_decode(&p);
    for (int c = 0; c < 16; c++) {
        int expected = c < 8 && cases[c].kept ? ath_f32_to_f16(0x1p-17f) : 0;
        assert_int_equal(get_u16(p.page + p.layout.mean_at + 2 * c), expected);
    }
    free_case(&p);
}

/* Channels that alternate between +-amplitude: their mean is 0 and their rms the amplitude. */
static void test_equalisation_bytes(void **state) {
    (void)state;
    page_case p = make_case(ATH_KV_TURBO3, 64, true);
    for (int round = 0; round < 20; round++) {
        double root[64], average = 0;
        for (int c = 0; c < 64; c++) {
            float amplitude = c == 5 ? 0 : ath_f16_to_f32(ath_f32_to_f16(expf(3 * random_normal())));
            if (c == 6) amplitude = 60000;
            root[c] = sqrt(amplitude);
            average += root[c] / 64;
            for (int t = 0; t < T; t++) {
                p.tile[at(&p, t, c)] = ath_f32_to_f16(t % 2 ? amplitude : -amplitude);
            }
        }
        encode_and_decode(&p);
        for (int c = 0; c < 64; c++) {
            double steps = c == 5 ? 0 : 4 * log2(root[c] / average);
            steps = steps < -16 ? -16 : steps > 16 ? 16 : steps;
            if (fabs(steps - floor(steps) - 0.5) < 1e-4) continue; /* on the edge: the golden pages decide */
            assert_int_equal(p.page[p.layout.eq_at + (size_t)c], 128 + lround(steps));
            assert_int_equal(get_u16(p.page + p.layout.mean_at + 2 * (size_t)c), 0);
        }
    }
    free_case(&p);
    for (int e = 112; e <= 144; e++) assert_true(ath_eq_scale((uint8_t)e) == (float)pow(2, (e - 128) / 4.0));
    assert_true(ath_eq_scale(0) == 0.0625f && ath_eq_scale(255) == 16);
}

/* ---- input at the edges ---- */

static void test_zero_page(void **state) {
    (void)state;
    for (int i = 0; i < 2 * ATH_KV_TYPE_COUNT; i++) {
        page_case p = make_case((ath_kv_type)(i / 2), 96, i % 2);
        encode_and_decode(&p);
        for (size_t k = 0; k < p.n; k++) assert_true(p.decoded[k] == 0);
        bool turbo = ath_kv_type_has_code(p.layout.type);
        for (size_t k = 0; turbo && k < p.layout.mean_at; k++) assert_int_equal(p.page[k], 0);
        for (size_t k = p.layout.eq_at; k < p.layout.bytes; k++) assert_int_equal(p.page[k], 128);
        free_case(&p);
    }
}

/* What is constant over the page is in the mean, so it costs nothing. */
static void test_constant_key(void **state) {
    (void)state;
    page_case p = make_case(ATH_KV_TURBO2, 64, true);
    for (size_t k = 0; k < p.n; k++) p.tile[k] = ath_f32_to_f16((float)(k / T) * 1.37f - 40);
    encode_and_decode(&p);
    for (size_t k = 0; k < p.n; k++) assert_true(p.decoded[k] == ath_f16_to_f32(p.tile[k]));
    free_case(&p);
}

static void test_key_bias(void **state) {
    (void)state;
    for (int type = ATH_KV_Q8_0; type < ATH_KV_TURBO4_PLAIN; type++) {
        page_case p = make_case((ath_kv_type)type, 128, true);
        fill_normal(&p, 1);
        encode_and_decode(&p);
        double unbiased = squared_error(&p, -1);
        for (int c = 3; c < 128; c += 40) {
            for (int t = 0; t < T; t++) {
                size_t k = at(&p, t, c);
                p.tile[k] = ath_f32_to_f16(ath_f16_to_f32(p.tile[k]) + (c % 16 ? 50.0f : -50.0f));
            }
        }
        encode_and_decode(&p);
        double ratio = squared_error(&p, -1) / unbiased;
        if (ratio < 0.97 || ratio > 1.03) fail_msg("%s: %f", ath_kv_type_name((ath_kv_type)type), ratio);
        free_case(&p);
    }
}

/* A token of a plain page depends on nothing else in it: rows that come later, or are garbage, change no byte of it. */
static void test_plain_tokens_are_independent(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        check_code_places((ath_kv_type)(ATH_KV_TURBO4_PLAIN + i / 2), 80, i % 2);
        page_case p = make_case((ath_kv_type)(ATH_KV_TURBO4_PLAIN + i / 2), 80, i % 2);
        fill_normal(&p, 2);
        encode_and_decode(&p);
        float *whole = malloc(p.n * sizeof *whole);
        memcpy(whole, p.decoded, p.n * sizeof *whole);
        for (int t = 50; t < T; t++)
            for (int c = 0; c < 80; c++) p.tile[at(&p, t, c)] = t % 3 ? 0x7e00 : 0x7bff;
        encode_and_decode(&p);
        for (int t = 0; t < 50; t++)
            for (int c = 0; c < 80; c++) assert_true(p.decoded[at(&p, t, c)] == whole[at(&p, t, c)]);
        free(whole);
        free_case(&p);
    }
}

/* Relative error of turbo pages stays what it is for any scale of f16, denormals included. */
static void test_scales(void **state) {
    (void)state;
    static const double expected[6] = {0.0092, 0.0339, 0.1190, 0.0060, 0.0229, 0.0804};
    static const float scales[] = {15000, 1, 1e-3f, 3e-6f};
    for (int i = 0; i < 12; i++) {
        page_case p = make_case((ath_kv_type)(ATH_KV_TURBO4 + i / 2), 128, i % 2);
        for (int s = 0; s < 4; s++) {
            fill_normal(&p, scales[s]);
            encode_and_decode(&p);
            double relative = squared_error(&p, -1) / tile_energy(&p) / expected[i / 2];
            if (relative < 0.95 || relative > 1.05) fail_msg("scale %g: %f", (double)scales[s], relative);
        }
        free_case(&p);
    }
}

static void test_extremes_stay_finite(void **state) {
    (void)state;
    for (int i = 2 * ATH_KV_Q8_0; i < 2 * ATH_KV_TURBO4_PLAIN; i++) {
        page_case p = make_case((ath_kv_type)(i / 2), 128, i % 2);
        for (int kind = 0; kind < 4; kind++) {
            for (size_t k = 0; k < p.n; k++) {
                uint16_t sign = (uint16_t)(random_bits() & 0x8000);
                uint16_t values[] = {0x7bff, (uint16_t)(sign | 0x7bff), (uint16_t)(sign | 1),
                                     random_bits() % 3 ? sign : (uint16_t)(sign | 0x7bff)};
                p.tile[k] = values[kind];
            }
            encode_and_decode(&p);
            for (size_t k = 0; k < p.n; k++) assert_true(isfinite(p.decoded[k]));
            bool exact = kind == 0 && p.layout.eq_at < p.layout.bytes; /* a constant K with a mean */
            double limit = exact ? 0 : 0.15;
            bool checked = ath_kv_type_has_code(p.layout.type);
            if (checked) assert_true(squared_error(&p, -1) <= limit * tile_energy(&p));
        }
        free_case(&p);
    }
}

/* One channel a thousand times the others: equalisation keeps their error near what it is without it. */
static void test_huge_channel(void **state) {
    (void)state;
    page_case p = make_case(ATH_KV_TURBO3, 128, true);
    fill_normal(&p, 1);
    for (int t = 0; t < T; t++) p.tile[at(&p, t, 77)] = ath_f32_to_f16(1000 * random_normal());
    encode_and_decode(&p);
    assert_int_equal(p.page[p.layout.eq_at + 77], 144);
    double huge = squared_error(&p, 77) / T, others = (squared_error(&p, -1) - huge * T) / T / 127;
    assert_true(huge < 0.2 * 1000 * 1000);
    assert_true(others < 4); /* without equalisation: .034 * 1e6 / 128 = 260 */
    free_case(&p);
}

/* ---- block and raw types ---- */

static void test_block_pages(void **state) {
    (void)state;
    page_case p = make_case(ATH_KV_Q5_1, 96, false);
    fill_normal(&p, 2);
    encode_and_decode(&p);
    for (int t = 0; t < T; t++) {
        float x[96];
        uint8_t blocks[3 * 24];
        for (int c = 0; c < 96; c++) x[c] = ath_f16_to_f32(p.tile[t * 96 + c]);
        ath_rotate(&p.layout, x);
        ath_quantize_q5_1(x, blocks, 96);
        assert_memory_equal(p.page + t * (int)sizeof blocks, blocks, sizeof blocks);
        ath_tensor_type_get(ATH_TYPE_Q5_1)->dequantize(blocks, x, 96);
        ath_unrotate(&p.layout, x);
        assert_memory_equal(p.decoded + t * 96, x, sizeof x);
    }
    free_case(&p);
}

static void test_block_errors(void **state) {
    (void)state;
    static const double limits[][2] = {{2.5e-5, 3.5e-5}, {.0013, .0016}, {.0017, .0020},
                                       {.0058, .0065},   {.0070, .0078}, {.0058, .0065}};
    for (int i = 0; i < 12; i++) {
        page_case p = make_case((ath_kv_type)(ATH_KV_Q8_0 + i / 2), 128, i % 2);
        fill_normal(&p, 0.5f);
        encode_and_decode(&p);
        double relative = squared_error(&p, -1) / tile_energy(&p);
        if (relative < limits[i / 2][0] || relative > limits[i / 2][1]) {
            fail_msg("%s: %g", ath_kv_type_name(p.layout.type), relative);
        }
        free_case(&p);
    }
}

static void test_raw_pages(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        page_case p = make_case((ath_kv_type)(i / 2), 24, i % 2);
        fill_normal(&p, 1);
        encode_and_decode(&p);
        for (size_t k = 0; k < p.n; k++) {
            float x = ath_f16_to_f32(p.tile[k]);
            if (p.layout.type == ATH_KV_BF16) x = ath_bf16_to_f32(ath_f32_to_bf16(x));
            assert_true(p.decoded[k] == x);
        }
        free_case(&p);
    }
}

/* ---- distortion ---- */

static ath_distortion_result measure(ath_distortion_input in) {
    ath_distortion_result r;
    ath_error err = {0};
    if (ath_measure_distortion(&in, &r, &err)) fail_msg("%s", err.message);
    return r;
}

static void assert_near(double value, double expected, double tolerance, const char *what) {
    if (fabs(value / expected - 1) > tolerance) fail_msg("%s: %g instead of %g", what, value, expected);
}

static void test_distortion_of_normal_vectors(void **state) {
    (void)state;
    static const double codebook[] = {0.0095, 0.0345, 0.1175},
                        stored[] = {0.0092, 0.0339, 0.1190, 0.0060, 0.0229, 0.0804};
    for (int i = 0; i < 6; i++) {
        ath_kv_type type = (ath_kv_type)(ATH_KV_TURBO4 + i);
        ath_distortion_result r =
            measure((ath_distortion_input){.type = type, .head_dim = 128, .n_vectors = 20000, .seed = SEED});
        if (i < 3)
            assert_near(r.codebook_mse, codebook[i], 0.01, "codebook");
        else
            assert_true(r.codebook_mse == 0);
        assert_near(r.mse, stored[i], 0.015, "stored blocks");
        assert_near(r.bytes_per_value, (4 - i % 3) / 8.0 + 2.0 / 128, 1e-12, "bytes per value");
        assert_near(r.snr_db, -10 * log10(r.mse), 1e-12, "SNR");
        /* The error of an inner product with a random direction has variance mse / head_dim. */
        assert_near(r.inner_rms, sqrt(r.mse / 128), 0.03, "inner products");
        assert_true(fabs(r.inner_mean) < 4 * r.inner_rms / sqrt(20000));
        /* If x and its decoded value were jointly normal: acos(correlation) / pi. The codes are not: a bit
         * less. */
        double angle = acos(1 - r.mse / 2) / acos(-1);
        assert_true(r.sign_flips > 0.9 * angle && r.sign_flips < 1.1 * angle);
        assert_true(r.worst_error > sqrt(r.mse) && r.worst_error < 2.5 * sqrt(r.mse));
        assert_int_equal(r.n_vectors, 20000);
        assert_int_equal(r.saturated, 0);
    }
}

/* One that is hard to store among ones that are stored exactly (a rotated spike has equal magnitudes). */
static void test_distortion_of_given_vectors(void **state) {
    (void)state;
    enum { N = 200, D = 64, HARD = 131 };
    float *x = calloc(N * D, sizeof *x);
    for (int v = 0; v < N; v++) x[v * D + v % D] = 8;
    ath_distortion_input in = {.type = ATH_KV_TURBO2, .head_dim = D, .vectors = x, .n_vectors = N, .seed = 1};
    ath_distortion_result r = measure(in);
    assert_true(r.worst_error < 1.0 / 250);
    for (int c = 0; c < D; c++) x[HARD * D + c] = random_normal();
    r = measure(in);
    assert_int_equal(r.worst_vector, HARD);
    assert_true(r.worst_error > 0.2 && r.worst_error < 0.6);
    in.n_vectors = HARD;
    assert_true(measure(in).worst_error < 1.0 / 250);
    x[7] = -1e9f;
    assert_int_equal(measure(in).saturated, 1);
    x[2 * D + 9] = NAN;
    ath_error err = {0};
    assert_int_equal(ath_measure_distortion(&in, &r, &err), ATH_ERR_ARGUMENT);
    assert_string_equal(err.message, "value 9 of vector 2 is no finite number");
    in.n_vectors = 0;
    assert_int_equal(ath_measure_distortion(&in, &r, &err), ATH_ERR_ARGUMENT);
    in.n_vectors = N;
    in.head_dim = 72;
    assert_int_equal(ath_measure_distortion(&in, &r, &err), ATH_ERR_UNSUPPORTED);
    free(x);
}

static void test_distortion_as_key(void **state) {
    (void)state;
    enum { N = 256, D = 64 };
    float *x = malloc(N * D * sizeof *x);
    for (int i = 0; i < N * D; i++) x[i] = random_normal() + (i % D == 11 ? 60.0f : 0);
    ath_distortion_input in = {.type = ATH_KV_TURBO3, .head_dim = D, .vectors = x, .n_vectors = N, .seed = 1};
    ath_distortion_result as_value = measure(in);
    in.is_key = true;
    ath_distortion_result as_key = measure(in);
    assert_true(as_key.mse < as_value.mse / 20);
    assert_near(as_key.bytes_per_value - as_value.bytes_per_value, 3.0 / T, 1e-9, "mean and eq");
    in.type = ATH_KV_F32;
    assert_true(isinf(measure(in).snr_db));
    in.type = ATH_KV_BF16;
    assert_true(measure(in).mse > 1e-6 && measure(in).mse < 4e-6);
    in.type = ATH_KV_F16;
    assert_true(measure(in).mse > 1e-8 && measure(in).mse < 6e-8);
    free(x);
}

/* ---- for test_turbo_reference.py ---- */

static int print_layout(const ath_kv_layout *l) {
    printf("%zu %zu %zu %zu %zu", l->bytes, l->codes_at, l->norms_at, l->mean_at, l->eq_at);
    for (int p = 0; p < l->n_parts; p++) printf(" %d", l->part_dim[p]);
    return printf("\n") < 0;
}

static int convert(const char *option, const ath_kv_layout *layout, const char *source, const char *target) {
    page_case p = make_case(layout->type, layout->head_dim, layout->is_key);
    bool encode = !strcmp(option, "--encode");
    size_t in_size = encode ? p.n * 2 : layout->bytes,
           out_size = encode ? layout->bytes : p.n * sizeof(float);
    FILE *in = fopen(source, "rb"), *out = fopen(target, "wb");
    bool ok = in && out && fread(encode ? (void *)p.tile : p.page, 1, in_size, in) == in_size;
    if (ok && encode) ath_kv_encode_page(layout, p.tile, p.page, p.scratch);
    if (ok && !encode) ath_kv_decode_page(layout, p.page, p.decoded);
    ok = ok && fwrite(encode ? p.page : (void *)p.decoded, 1, out_size, out) == out_size;
    if (in) fclose(in);
    if (out && fclose(out)) ok = false;
    free_case(&p);
    return !ok;
}

static int run_option(int argc, char **argv) {
    ath_kv_type type;
    ath_kv_layout layout;
    if (argc < 5 || ath_kv_type_parse(&type, argv[2], NULL)) return 2;
    if (ath_kv_layout_init(&layout, type, atoi(argv[4]), argv[3][0] == 'k', NULL)) return 2;
    if (!strcmp(argv[1], "--layout")) return print_layout(&layout);
    return argc == 7 ? convert(argv[1], &layout, argv[5], argv[6]) : 2;
}

int main(int argc, char **argv) {
    if (argc > 1) return run_option(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_layout_sizes),
        cmocka_unit_test(test_layout_refusals),
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_code_places),
        cmocka_unit_test(test_trellis_paths),
        cmocka_unit_test(test_norms_match),
        cmocka_unit_test(test_mean_order),
        cmocka_unit_test(test_equalisation_bytes),
        cmocka_unit_test(test_zero_page),
        cmocka_unit_test(test_constant_key),
        cmocka_unit_test(test_key_bias),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_extremes_stay_finite),
        cmocka_unit_test(test_huge_channel),
        cmocka_unit_test(test_block_pages),
        cmocka_unit_test(test_block_errors),
        cmocka_unit_test(test_raw_pages),
        cmocka_unit_test(test_distortion_of_normal_vectors),
        cmocka_unit_test(test_distortion_of_given_vectors),
        cmocka_unit_test(test_distortion_as_key),
        cmocka_unit_test(test_plain_tokens_are_independent),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests_name("kv_page", tests, NULL, NULL);
}
