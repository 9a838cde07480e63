/* sample: the generator against known values, every step against distributions worked out by hand, the
 * chain's determinism and frequencies, and what it refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "athanor/athanor_sample.h"
#include "sample/sampler_steps.h"

enum { MAX = 64 };

/* Candidates with the given probabilities as logits (log p), ids 0, 1, 2 ... */
typedef struct fixture {
    ath_candidate data[MAX];
    ath_candidates c;
} fixture;

static ath_candidates *make(fixture *f, int n, const float *p) {
    for (int i = 0; i < n; i++) f->data[i] = (ath_candidate){.id = i, .logit = logf(p[i])};
    f->c = (ath_candidates){f->data, n, 0};
    return &f->c;
}

#define MAKE(f, ...)                                                                                         \
    make(&(f), (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (const float[]){__VA_ARGS__})

static void check_ids(const ath_candidates *c, int n, const int *ids) {
    assert_int_equal(c->size, n);
    for (int i = 0; i < n; i++) assert_int_equal(c->data[i].id, ids[i]);
    assert_true(c->n_sorted == 0 || c->n_sorted == c->size);
}

#define CHECK_IDS(c, ...)                                                                                    \
    check_ids((c), (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})

static void check_near(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.9g is not %.9g", a, b);
}

static ath_sampler *create(const ath_sampler_params *p, int n_vocab) {
    ath_sampler *s;
    ath_error err = {0};
    if (ath_sampler_create(&s, p, n_vocab, NULL, 0, &err) != ATH_OK) fail_msg("%s", err.message);
    return s;
}

/* Only what a test switches on has an effect. */
static ath_sampler_params plain_params(uint32_t seed) {
    ath_sampler_params p = ath_sampler_default_params();
    p.seed = seed;
    p.temp = 1;
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
    return p;
}

static int32_t sample(ath_sampler *s, const float *logits) {
    int32_t token = -1;
    ath_error err = {0};
    if (ath_sampler_sample(s, logits, &token, &err) != ATH_OK) fail_msg("%s", err.message);
    return token;
}

/* Known values: the C++ standard fixes the 10,000th number of mt19937 with its default seed. */
static void rng_has_the_known_values(void **state) {
    (void)state;
    ath_rng rng;
    ath_rng_seed(&rng, 5489);
    assert_int_equal(ath_rng_next(&rng), 3499211612u);
    assert_int_equal(ath_rng_next(&rng), 581869302u);
    for (int i = 3; i < 10000; i++) ath_rng_next(&rng);
    assert_int_equal(ath_rng_next(&rng), 4123659995u);
}

/* The state behind an output: the four steps of tempering, backwards. */
static uint32_t untemper(uint32_t y) {
    y ^= y >> 18;
    y ^= (y << 15) & 0xefc60000u;
    uint32_t x = y;
    for (int i = 0; i < 5; i++) x = y ^ ((x << 7) & 0x9d2c5680u);
    y = x;
    for (int i = 0; i < 3; i++) x = y ^ (x >> 11);
    return x;
}

static void rng_makes_uniform_numbers_of_its_draws(void **state) {
    (void)state;
    ath_rng rng;
    ath_rng_seed(&rng, 5489);
    double expected = (3499211612.0 + 581869302.0 * 4294967296.0) / 18446744073709551616.0;
    assert_true(ath_rng_double(&rng) == expected);
    ath_rng_seed(&rng, 5489);
    assert_true(ath_rng_float(&rng) == (float)3499211612u / 4294967296.0f);
    for (int i = 0; i < 624; i++) rng.state[i] = untemper(0xffffffffu);
    rng.next = 0; /* the greatest draws would round up to 1, which is outside */
    assert_true(ath_rng_double(&rng) == 1 - 0x1p-53);
    assert_true(ath_rng_float(&rng) == 1 - 0x1p-24f);
}

static void sort_is_descending_and_stable(void **state) {
    (void)state;
    ath_rng rng;
    ath_rng_seed(&rng, 11);
    for (int round = 0; round < 300; round++) {
        fixture f;
        float p[MAX];
        int n = 1 + round % MAX;
        for (int i = 0; i < n; i++) p[i] = (float)(1 + ath_rng_next(&rng) % 9); /* many equals */
        ath_candidates *c = make(&f, n, p);
        int k = 1 + (int)(ath_rng_next(&rng) % (uint32_t)n);
        if (round % 2)
            ath_candidates_sort(c);
        else
            ath_step_top_k(c, k);
        assert_int_equal(c->size, round % 2 ? n : k);
        assert_int_equal(c->n_sorted, c->size);
        for (int i = 0; i < c->size; i++) {
            int rank = 0, id = c->data[i].id;
            for (int j = 0; j < n; j++) rank += p[j] > p[id] || (p[j] == p[id] && j < id);
            assert_int_equal(rank, i);
            assert_true(c->data[i].logit == logf(p[id]));
        }
    }
}

static void top_k_keeps_k(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_k(c, 2);
    CHECK_IDS(c, 3, 2);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_k(c, 0);
    CHECK_IDS(c, 0, 1, 2, 3);
    ath_step_top_k(c, 9);
    CHECK_IDS(c, 3, 2, 1, 0);
}

static void top_p_keeps_the_nucleus(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_p(c, 0.69f, 0);
    CHECK_IDS(c, 3, 2);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_p(c, 0.71f, 0);
    CHECK_IDS(c, 3, 2, 1);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_p(c, 0, 0);
    CHECK_IDS(c, 3);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_p(c, 0.1f, 3);
    CHECK_IDS(c, 3, 2, 1);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_top_k(c, 4);
    ath_step_top_p(c, 0.8f, 0);
    CHECK_IDS(c, 3, 2, 1);
    c = MAKE(f, 0.1f, 0.2f);
    ath_step_top_p(c, 1, 0);
    CHECK_IDS(c, 0, 1);
}

static void min_p_keeps_the_order(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_min_p(c, 0.49f, 0);
    CHECK_IDS(c, 1, 2, 3);
    ath_step_min_p(c, 0.51f, 0);
    CHECK_IDS(c, 2, 3);
    ath_step_min_p(c, 1, 0);
    CHECK_IDS(c, 3);
    c = MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f);
    ath_step_min_p(c, 0.9f, 2);
    CHECK_IDS(c, 3, 2);
    c = MAKE(f, 0.1f, 0.4f);
    ath_step_min_p(c, 0, 0);
    CHECK_IDS(c, 0, 1);
}

/* Entropy of (0.5, 0.25, 0.15, 0.1) is 1.208; the surprises are 0.693, 1.386, 1.897, 2.303, so their
 * distances from it are 0.515, 0.178, 0.689, 1.095. */
static void typical_orders_by_surprise(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 0.1f, 0.5f, 0.15f, 0.25f);
    ath_step_typical(c, 0.2f, 0);
    CHECK_IDS(c, 3);
    c = MAKE(f, 0.1f, 0.5f, 0.15f, 0.25f);
    ath_step_typical(c, 0.8f, 0);
    CHECK_IDS(c, 3, 1, 2);
    c = MAKE(f, 0.1f, 0.5f, 0.15f, 0.25f);
    ath_step_typical(c, 0.2f, 4);
    CHECK_IDS(c, 3, 1, 2, 0);
    c = MAKE(f, 0, 0.5f, 0.5f, 0); /* the banned don't make the entropy NaN */
    ath_step_typical(c, 0.9f, 0);
    CHECK_IDS(c, 1, 2);
}

/* Logits 0, 0, 0, 4: mean 1, standard deviation sqrt(3). */
static void top_n_sigma_bans_by_deviation(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 1, 1, 1, 1, 0);
    c->data[3].logit = 4;
    ath_step_top_n_sigma(c, 2.32f); /* 4 - 2.32 * 1.732 < 0 */
    for (int i = 0; i < 4; i++) assert_true(isfinite(c->data[i].logit));
    ath_step_top_n_sigma(c, 2.30f);
    for (int i = 0; i < 5; i++) assert_int_equal(isfinite(c->data[i].logit) != 0, i == 3);
    assert_int_equal(c->size, 5);
}

/* The first float of seed 1 is 0.417, that of seed 5489 is 0.815. */
static void xtc_leaves_the_least_likely_of_the_top(void **state) {
    (void)state;
    fixture f;
    ath_rng rng;
    ath_candidates *c = MAKE(f, 0.05f, 0.4f, 0.3f, 0.25f);
    ath_rng_seed(&rng, 1);
    ath_step_xtc(c, 0.5f, 0.2f, 0, &rng);
    CHECK_IDS(c, 3, 0);
    c = MAKE(f, 0.05f, 0.4f, 0.3f, 0.25f);
    ath_rng_seed(&rng, 5489);
    ath_step_xtc(c, 0.5f, 0.2f, 0, &rng);
    CHECK_IDS(c, 0, 1, 2, 3);
    assert_int_equal(ath_rng_next(&rng), 581869302u); /* one number was taken */
    ath_rng_seed(&rng, 1);
    ath_step_xtc(c, 1, 0.5f, 0, &rng); /* nobody but the first reaches a half */
    CHECK_IDS(c, 1, 2, 3, 0);
    ath_step_xtc(c, 1, 0.2f, 3, &rng); /* would leave two */
    CHECK_IDS(c, 1, 2, 3, 0);
    ath_rng_seed(&rng, 5489);
    ath_step_xtc(c, 1, 0.51f, 0, &rng);
    ath_step_xtc(c, 0, 0.1f, 0, &rng);
    assert_int_equal(ath_rng_next(&rng), 3499211612u); /* switched off: none was taken */
}

/* In the chain its generator has the chain's seed, but is not the one of the final draw. */
static void xtc_has_its_own_generator(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= 5489; seed += 5488) {
        ath_sampler_params p = plain_params(seed);
        p.temp = 0;
        p.xtc_probability = 0.5f;
        ath_sampler *s = create(&p, 2);
        ath_rng rng;
        for (int round = 0; round < 2; round++) {
            ath_rng_seed(&rng, seed);
            for (int i = 0; i < 20; i++)
                assert_int_equal(sample(s, (float[]){1, 0}), ath_rng_float(&rng) <= 0.5f ? 1 : 0);
            ath_sampler_reset(s);
        }
        ath_sampler_free(s);
    }
}

static void temperature_divides(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 0.2f, 0.8f);
    ath_step_temperature(c, 0.5f);
    ath_candidates_softmax(c); /* p^2: 0.04 and 0.64 */
    check_near(c->data[0].p, 0.04 / 0.68, 1e-6);
    c = MAKE(f, 0.2f, 0.8f, 0.8f);
    ath_step_temperature(c, 1e-38f); /* 88 / 1e-38 would overflow */
    for (int i = 0; i < 3; i++) c->data[i].logit = i ? 88 : 80;
    ath_step_temperature(c, 1e-38f);
    ath_candidates_softmax(c);
    assert_true(c->data[0].p == 0 && c->data[1].p == 0.5f && c->data[2].p == 0.5f);
    c = MAKE(f, 0.2f, 0.4f, 0.4f);
    ath_step_temperature(c, 0);
    CHECK_IDS(c, 1);
    c = MAKE(f, 0.2f, 0.4f, 0.1f);
    ath_step_temperature(c, -1);
    CHECK_IDS(c, 1);
}

/* A flat distribution has the greatest entropy and gets temp + range, a certain one temp - range. */
static void dynamic_temperature_follows_the_entropy(void **state) {
    (void)state;
    fixture f;
    ath_candidates *c = MAKE(f, 3, 3, 3);
    ath_step_dynamic_temperature(c, 1, 0.5f, 1);
    for (int i = 0; i < 3; i++) check_near(c->data[i].logit, logf(3) / 1.5, 1e-6);
    c = MAKE(f, 1, 1e-30f);
    ath_step_dynamic_temperature(c, 1, 0.5f, 1);
    check_near(c->data[1].logit, logf(1e-30f) / 0.5, 1e-3);
    c = MAKE(f, 0.5f, 0.25f, 0.25f); /* entropy 1.0397 of 1.0986: share 0.9464, squared 0.8957 */
    ath_step_dynamic_temperature(c, 1, 0.5f, 2);
    check_near(c->data[1].logit, logf(0.25f) / (0.5 + 0.8956512), 1e-5);
}

static void penalties_count_in_their_window(void **state) {
    (void)state;
    int32_t tokens[5], counts[4] = {0};
    ath_history h = {tokens, 5, 0, 0}; /* longer than the penalties' window, as when DRY needs it */
    ath_penalties penalties = {counts, 4, 3, 2, 0.25f, 0.5f};
    const int32_t text[] = {0, 1, 1, 3, -1, 99, 1, 2, 2};
    for (int i = 0; i < 9; i++) {
        ath_history_accept(&h, &penalties, text[i]);
        for (int t = 0; t < 4; t++) {
            int expected = 0;
            for (int k = i - 2 < 0 ? 0 : i - 2; k <= i; k++) expected += text[k] == t;
            assert_int_equal(counts[t], expected);
        }
        for (int k = 0; k < h.n; k++) assert_int_equal(ath_history_at(&h, k), text[i - k]);
    }
    assert_int_equal(h.n, 5);
    fixture f;
    ath_candidates *c = MAKE(f, 1, 1, 1, 1);
    const float logits[] = {1, 4, -3, 0};
    for (int i = 0; i < 4; i++) c->data[i].logit = logits[i];
    ath_step_penalties(c, &penalties); /* 1 once, 2 twice in the last three */
    check_near(c->data[0].logit, 1, 0);
    check_near(c->data[1].logit, 4.0 / 2 - 0.25 - 0.5, 1e-6);
    check_near(c->data[2].logit, -3.0 * 2 - 0.5 - 0.5, 1e-6);
    check_near(c->data[3].logit, 0, 0);
}

/* What DRY takes from each of 8 equal logits after a text, found by arg-max against a handicap: the penalty
 * of token t exceeds x if t loses to a rival that is x lower. */
static void check_dry(const ath_sampler_params *base, const int32_t *text, int n, int32_t token,
                      double penalty) {
    for (int side = -1; side <= 1; side += 2) {
        ath_sampler_params p = *base;
        p.temp = 0;
        ath_sampler *s = create(&p, 8);
        for (int i = 0; i < n; i++) ath_sampler_accept(s, text[i]);
        float logits[8];
        for (int i = 0; i < 8; i++) logits[i] = -1000;
        logits[token] = 0;
        logits[7] = (float)(-penalty + side * 1e-3); /* 7 is in no text */
        for (int again = 0; again < 2; again++) assert_int_equal(sample(s, logits), side < 0 ? token : 7);
        ath_sampler_free(s);
    }
}

static void dry_punishes_repetitions(void **state) {
    (void)state;
    ath_sampler_params p = plain_params(1);
    p.dry_multiplier = 0.5f;
    p.dry_base = 2;
    p.dry_allowed_length = 2;
    p.dry_penalty_last_n = 64;
    const int32_t text[] = {1, 2, 3, 4, 5, 1, 2, 3};
    check_dry(&p, text, 8, 4, 0.5 * 2); /* three equal: 0.5 * 2^(3-2) */
    check_dry(&p, text, 8, 5, 0);
    check_dry(&p, text, 7, 3, 0.5); /* two equal: 0.5 * 2^0 */
    check_dry(&p, text, 6, 2, 0);   /* one equal is allowed */
    p.dry_penalty_last_n = 6;       /* 3 4 5 1 2 3: one equal */
    check_dry(&p, text, 8, 4, 0);
    p.dry_penalty_last_n = 7;
    check_dry(&p, text, 8, 4, 0.5);
    p.dry_penalty_last_n = 64;
    const int32_t ones[] = {1, 1, 1, 1, 1}; /* overlapping: four equal */
    check_dry(&p, ones, 5, 1, 0.5 * 4);
    const int32_t two[] = {1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3}; /* the longer one counts for each */
    check_dry(&p, two, 11, 4, 0.5 * 2);
    check_dry(&p, two, 11, 5, 0.5);
}

static void dry_forgets(void **state) {
    (void)state;
    ath_sampler_params p = plain_params(1);
    p.dry_multiplier = 5;
    p.temp = 0;
    const int32_t text[] = {1, 2, 3, 4, 5, 1, 2, 3};
    const float logits[8] = {0, 0, 0, 0, 1, 0, 0, 0};
    ath_sampler *s = create(&p, 8);
    for (int i = 0; i < 8; i++) ath_sampler_accept(s, text[i]);
    assert_int_equal(sample(s, logits), 0);
    ath_sampler_accept(s, 7);
    assert_int_equal(sample(s, logits), 4);
    for (int i = 1; i < 4; i++) ath_sampler_accept(s, i);
    assert_int_equal(sample(s, logits), 0);
    ath_sampler_reset(s);
    for (int i = 0; i < 3; i++) ath_sampler_accept(s, 6); /* 6 6 6: 6 is punished, 4 is not */
    assert_int_equal(sample(s, logits), 4);
    ath_sampler_free(s);
}

static void dry_stops_at_breakers(void **state) {
    (void)state;
    ath_sampler_params p = plain_params(1);
    p.dry_multiplier = 0.5f;
    p.dry_base = 2;
    const int32_t one[] = {1}, pair[] = {1, 2}, other[] = {1, 5, 6};
    const int32_t text[] = {1, 2, 3, 4, 6, 5, 1, 2, 3, 4}; /* next would be 6, four equal */
    check_dry(&p, text, 10, 6, 0.5 * 4);
    ath_dry_breaker breakers[] = {{other, 3}, {one, 1}};
    p.dry_breakers = breakers;
    p.n_dry_breakers = 2;
    check_dry(&p, text, 10, 6, 0.5 * 2); /* three since the 1 */
    breakers[1] = (ath_dry_breaker){pair, 2};
    check_dry(&p, text, 10, 6, 0.5); /* two since 1 2 */
    breakers[0] = breakers[1];
    breakers[1] = (ath_dry_breaker){one, 1};
    check_dry(&p, text, 10, 6, 0.5); /* the longer of two that begin alike */
    const int32_t cut[] = {1, 0}, end[] = {4, 5, 1, 6, 4, 5, 1};
    breakers[0] = breakers[1] = (ath_dry_breaker){cut, 2};
    check_dry(&p, end, 7, 6, 0.5 * 2); /* the text ends within a breaker: that is none */
    const int32_t six[] = {6};
    breakers[1] = (ath_dry_breaker){six, 1};
    check_dry(&p, text, 10, 6, 0); /* a breaker itself is never punished */
}

/* Mirostat 2 with a certain first token: its surprise is 0, so mu rises by eta * tau a token; with a flat
 * distribution the surprise is log2 n. */
static void mirostat_steers_mu(void **state) {
    (void)state;
    fixture f;
    ath_rng rng;
    ath_rng_seed(&rng, 3);
    ath_mirostat m = {.tau = 2, .eta = 0.1f, .mu = 4, .n_vocab = 4};
    assert_int_equal(ath_draw_mirostat2(MAKE(f, 0, 1, 0, 0), &m, &rng), 0);
    assert_int_equal(f.c.data[0].id, 1);
    check_near(m.mu, 4.2, 1e-6);
    ath_draw_mirostat2(MAKE(f, 1, 1, 1, 1), &m, &rng);
    check_near(m.mu, 4.2, 1e-6); /* surprise 2 = tau */
    m.mu = 1.5f;                 /* 0.4: 1.32 bits; 0.3: 1.74 bits */
    ath_draw_mirostat2(MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f), &m, &rng);
    CHECK_IDS(&f.c, 3);
    m.mu = 0.1f; /* below everything: one stays */
    ath_draw_mirostat2(MAKE(f, 0.1f, 0.2f, 0.3f, 0.4f), &m, &rng);
    CHECK_IDS(&f.c, 3);
}

/* p ~ 1/rank^s with s = 2 exactly: k = ((s-1) 2^mu / (1 - n^(1-s)))^(1/s). */
static void mirostat1_finds_zipfs_exponent(void **state) {
    (void)state;
    float p[MAX];
    for (int i = 0; i < MAX; i++) p[i] = 1 / (float)((i + 1) * (i + 1));
    for (int mu = 1; mu <= 9; mu += 2) {
        fixture f;
        ath_rng rng;
        ath_rng_seed(&rng, 3);
        ath_mirostat m = {.tau = 2, .eta = 0, .mu = (float)mu, .n_vocab = MAX};
        assert_in_range(ath_draw_mirostat1(make(&f, MAX, p), &m, &rng), 0, MAX - 1);
        int k = (int)sqrt(pow(2, mu) / (1 - 1.0 / MAX));
        assert_int_equal(f.c.size, k);
    }
    fixture f;
    ath_rng rng;
    ath_rng_seed(&rng, 3);
    ath_mirostat m = {.tau = 2, .eta = 0.1f, .mu = 1e30f, .n_vocab = MAX};
    assert_in_range(ath_draw_mirostat1(make(&f, MAX, p), &m, &rng), 0, MAX - 1); /* k is infinite: all */
    assert_int_equal(f.c.size, MAX);
}

static void adaptive_prefers_the_target(void **state) {
    (void)state;
    fixture f;
    ath_rng rng;
    ath_rng_seed(&rng, 3);
    ath_adaptive a = {.target = 0.3f, .decay = 0.9f};
    ath_adaptive_reset(&a);
    ath_adaptive_accept(&a, 0); /* nothing was drawn yet */
    check_near(a.total_weight, 10, 1e-5);
    int32_t i = ath_draw_adaptive(MAKE(f, 0.1f, 0.3f, 0.6f), &a, &rng);
    check_near(f.c.data[1].logit, 5, 1e-5);
    check_near(f.c.data[0].logit, 5 - 10 * (4.0 / 9) / (5.0 / 3), 1e-4); /* distance 0.2 / 0.3 */
    check_near(f.c.data[2].logit, 5 - 10 * 1 / 2.0, 1e-4);               /* distance 1 */
    const float p[] = {0.1f, 0.3f, 0.6f};
    int32_t drawn = f.c.data[i].id;
    ath_adaptive_accept(&a, drawn);
    check_near(a.weighted_sum, p[drawn] + 0.9 * 3, 1e-5);
    check_near(a.total_weight, 1 + 0.9 * 10, 1e-5);
    ath_adaptive_accept(&a, drawn); /* counted once */
    check_near(a.total_weight, 1 + 0.9 * 10, 1e-5);
}

/* Chi-square of n draws against p: the 99.9% point of 7 degrees of freedom is 24.32. */
static void check_frequencies(ath_sampler *s, const float *logits, const double *p, int n) {
    int counts[8] = {0};
    double chi = 0;
    for (int i = 0; i < n; i++) {
        int32_t token = sample(s, logits);
        assert_in_range(token, 0, 7);
        counts[token]++;
    }
    for (int t = 0; t < 8; t++) {
        double expected = p[t] * n;
        if (p[t] == 0)
            assert_int_equal(counts[t], 0);
        else
            chi += (counts[t] - expected) * (counts[t] - expected) / expected;
    }
    print_message("%s, seed %u: chi-square %.2f\n", ath_sampler_chain(s), ath_sampler_seed(s), chi);
    assert_true(chi < 24.32);
}

static void draws_follow_the_probabilities(void **state) {
    (void)state;
    const double p[] = {0.05, 0.3, 0.02, 0.13, 0.2, 0.1, 0.15, 0.05};
    float logits[8];
    for (int t = 0; t < 8; t++) logits[t] = (float)log(p[t]) + 3;
    ath_sampler_params params = plain_params(20260101);
    ath_sampler *s = create(&params, 8);
    check_frequencies(s, logits, p, 20000);
    ath_sampler_free(s);
    params.top_k = 4; /* tokens 1, 4, 6, 3: 0.78 */
    double kept[8] = {0};
    for (int t = 0; t < 8; t++) kept[t] = p[t] >= 0.13 ? p[t] / 0.78 : 0;
    s = create(&params, 8);
    check_frequencies(s, logits, kept, 20000);
    ath_sampler_free(s);
    params.top_k = 0;
    params.mirostat = 2; /* eta 0 and a large tau: the plain distribution through the other draw */
    params.mirostat_tau = 100;
    params.mirostat_eta = 0;
    s = create(&params, 8);
    check_frequencies(s, logits, p, 20000);
    ath_sampler_free(s);
}

/* A generator that gives 0 all the time. */
static void the_impossible_is_never_drawn(void **state) {
    (void)state;
    ath_rng zero = {.next = 0};
    fixture f;
    ath_candidates *c = MAKE(f, 0, 1, 2);
    assert_int_equal(ath_draw_dist(c, &zero), 1);
    ath_candidates_softmax(c);
    assert_int_equal(ath_draw_discrete(c, &zero), 1);
}

static void random_logits(ath_rng *rng, float *logits, int n) {
    for (int i = 0; i < n; i++) logits[i] = 8 * ath_rng_float(rng) - 4;
}

static void seed_decides_the_text(void **state) {
    (void)state;
    enum { N = 200, STEPS = 120 };
    ath_sampler_params p = ath_sampler_default_params();
    p.seed = 1234;
    p.repeat_penalty = 1.1f;
    p.dry_multiplier = 0.8f;
    p.xtc_probability = 0.5f;
    p.dry_penalty_last_n = -1;
    p.n_ctx = 100;
    ath_sampler *a = create(&p, N), *b = create(&p, N);
    p.seed = 1235;
    ath_sampler *c = create(&p, N);
    int32_t text[STEPS], differ = 0;
    for (int round = 0; round < 2; round++) {
        ath_rng rng;
        ath_rng_seed(&rng, 5);
        for (int i = 0; i < STEPS; i++) {
            float logits[N];
            random_logits(&rng, logits, N);
            int32_t token = sample(a, logits);
            if (round == 0) {
                text[i] = token;
                assert_int_equal(sample(b, logits), token);
                ath_sampler_accept(b, token);
                differ += sample(c, logits) != token;
                ath_sampler_accept(c, token);
            } else {
                assert_int_equal(token, text[i]);
            }
            ath_sampler_accept(a, token);
        }
        ath_sampler_reset(a);
    }
    assert_true(differ > STEPS / 2);
    assert_int_equal(ath_sampler_seed(a), 1234);
    ath_sampler_free(a);
    ath_sampler_free(b);
    ath_sampler_free(c);
}

static void random_seed_can_be_used_again(void **state) {
    (void)state;
    ath_sampler_params p = plain_params(ATH_SEED_RANDOM);
    ath_sampler *a = create(&p, 100), *other = create(&p, 100);
    assert_true(ath_sampler_seed(a) != ATH_SEED_RANDOM);
    assert_true(ath_sampler_seed(a) != ath_sampler_seed(other));
    p.seed = ath_sampler_seed(a);
    ath_sampler *b = create(&p, 100);
    float logits[100] = {0};
    for (int i = 0; i < 50; i++) assert_int_equal(sample(a, logits), sample(b, logits));
    ath_sampler_free(a);
    ath_sampler_free(b);
    ath_sampler_free(other);
}

static void greedy_is_the_first_of_the_greatest(void **state) {
    (void)state;
    const char *chains[] = {"edskypmxt", "", "kpt", "ktp", "t"};
    ath_rng rng;
    ath_rng_seed(&rng, 77);
    for (int k = 0; k < 5; k++) {
        ath_sampler_params p = ath_sampler_default_params();
        p.temp = k % 2 ? -1.0f : 0.0f;
        p.top_n_sigma = 1;
        assert_int_equal(ath_sampler_parse_letters(&p, chains[k], NULL), ATH_OK);
        ath_sampler *s = create(&p, 500);
        assert_string_equal(ath_sampler_chain(s), "greedy");
        for (int round = 0; round < 100; round++) {
            float logits[500];
            random_logits(&rng, logits, 500);
            for (int i = 0; i < 500; i++) logits[i] = roundf(logits[i]); /* many equals */
            int best = 0;
            for (int i = 1; i < 500; i++)
                if (logits[i] > logits[best]) best = i;
            assert_int_equal(sample(s, logits), best);
        }
        ath_sampler_free(s);
    }
}

static void chain_is_described(void **state) {
    (void)state;
    ath_sampler_params p = ath_sampler_default_params();
    p.seed = 1;
    ath_sampler *s = create(&p, 10);
    assert_string_equal(ath_sampler_chain(s),
                        "top_k 40 -> top_p 0.95 -> min_p 0.05 -> temperature 0.8 -> dist");
    ath_sampler_free(s);
    p.temp = 0;
    p.xtc_probability = 0.5f;
    p.repeat_penalty = 1.5f;
    p.repeat_last_n = -1;
    p.n_ctx = 512;
    s = create(&p, 10);
    assert_string_equal(ath_sampler_chain(s),
                        "penalties repeat 1.5 frequency 0 presence 0 last 512 -> top_k 40 -> top_p 0.95 -> "
                        "min_p 0.05 -> xtc 0.5 threshold 0.1 -> greedy");
    ath_sampler_free(s);
    p = plain_params(1);
    p.mirostat = 2;
    s = create(&p, 10);
    assert_string_equal(ath_sampler_chain(s), "mirostat 2 entropy 5 rate 0.1");
    ath_sampler_free(s);
    p = plain_params(1);
    p.adaptive_target = 0.5f;
    s = create(&p, 10);
    assert_string_equal(ath_sampler_chain(s), "adaptive_p 0.5 decay 0.9");
    ath_sampler_free(s);
    ath_sampler_free(NULL);
}

static void step_lists_are_parsed(void **state) {
    (void)state;
    ath_sampler_params p = ath_sampler_default_params(), q = p;
    ath_error err;
    assert_int_equal(ath_sampler_parse_names(
                         &p, "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", &err),
                     ATH_OK);
    assert_memory_equal(p.steps, q.steps, sizeof p.steps);
    assert_int_equal(ath_sampler_parse_letters(&p, "edskypmxt", &err), ATH_OK);
    assert_memory_equal(p.steps, q.steps, sizeof p.steps);
    assert_int_equal(ath_sampler_parse_names(&p, "temp;top-k", &err), ATH_OK);
    assert_int_equal(p.n_steps, 2);
    assert_int_equal(p.steps[0], ATH_STEP_TEMPERATURE);
    assert_int_equal(p.steps[1], ATH_STEP_TOP_K);
    assert_int_equal(ath_sampler_parse_names(&p, "top_k;top_q", &err), ATH_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "--samplers: no sampler is called \"top_q\""));
    assert_non_null(strstr(err.message, "temperature (t)"));
    assert_int_equal(ath_sampler_parse_letters(&p, "kz", &err), ATH_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "--sampler-seq"));
    assert_int_equal(p.n_steps, 2);
    assert_int_equal(ath_sampler_parse_letters(&p, "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", &err),
                     ATH_ERR_ARGUMENT);
    assert_int_equal(ath_sampler_parse_names(&p, "", &err), ATH_OK);
    assert_int_equal(p.n_steps, 0);
}

static void check_refused(const ath_sampler_params *p, const char *flag) {
    ath_sampler *s;
    ath_error err = {0};
    assert_int_equal(ath_sampler_create(&s, p, 10, NULL, 0, &err), ATH_ERR_ARGUMENT);
    assert_null(s);
    if (!strstr(err.message, flag)) fail_msg("\"%s\" does not name %s", err.message, flag);
}

#define REFUSED(field, value, flag)                                                                          \
    do {                                                                                                     \
        ath_sampler_params p_ = ath_sampler_default_params();                                                \
        p_.field = (value);                                                                                  \
        check_refused(&p_, flag);                                                                            \
    } while (0)

static void bad_parameters_name_their_flag(void **state) {
    (void)state;
    REFUSED(temp, NAN, "--temp");
    REFUSED(temp, INFINITY, "--temp");
    REFUSED(dynatemp_range, -1, "--dynatemp-range");
    REFUSED(dynatemp_exponent, NAN, "--dynatemp-exp");
    REFUSED(top_p, 1.5f, "--top-p");
    REFUSED(top_p, NAN, "--top-p");
    REFUSED(min_p, -0.1f, "--min-p");
    REFUSED(typical_p, 2, "--typical");
    REFUSED(top_n_sigma, NAN, "--top-nsigma");
    REFUSED(xtc_probability, 1.1f, "--xtc-probability");
    REFUSED(xtc_threshold, -1, "--xtc-threshold");
    REFUSED(repeat_penalty, 0, "--repeat-penalty");
    REFUSED(repeat_last_n, -2, "--repeat-last-n");
    REFUSED(repeat_last_n, -1, "--repeat-last-n"); /* n_ctx is not known */
    REFUSED(repeat_last_n, 1 << 30, "--repeat-last-n");
    REFUSED(frequency_penalty, INFINITY, "--frequency-penalty");
    REFUSED(presence_penalty, NAN, "--presence-penalty");
    REFUSED(dry_multiplier, -1, "--dry-multiplier");
    REFUSED(dry_base, 0.5f, "--dry-base");
    REFUSED(dry_allowed_length, -1, "--dry-allowed-length");
    REFUSED(dry_penalty_last_n, -5, "--dry-penalty-last-n");
    REFUSED(mirostat, 3, "--mirostat");
    REFUSED(mirostat_tau, -1, "--mirostat-ent");
    REFUSED(mirostat_eta, NAN, "--mirostat-lr");
    REFUSED(adaptive_target, 1.5f, "--adaptive-target");
    REFUSED(adaptive_decay, 1, "--adaptive-decay");
    REFUSED(min_keep, -1, "min_keep");
    REFUSED(n_steps, ATH_SAMPLER_STEPS_MAX + 1, "--samplers");
    REFUSED(steps[3], ATH_STEP_COUNT, "--samplers");
    REFUSED(n_logit_bias, 1, "list"); /* and no list */
    const ath_logit_bias outside = {10, 1}, infinite = {1, INFINITY};
    const int32_t tokens[] = {3, 10};
    ath_dry_breaker breaker = {tokens, 2};
    ath_sampler_params p = ath_sampler_default_params();
    p.n_logit_bias = 1;
    p.logit_bias = &outside;
    check_refused(&p, "--logit-bias: token 10");
    p.logit_bias = &infinite;
    check_refused(&p, "--logit-bias");
    p.n_logit_bias = 0;
    p.n_dry_breakers = 1;
    p.dry_breakers = &breaker;
    check_refused(&p, "--dry-sequence-breaker");
    breaker.n_tokens = 0;
    check_refused(&p, "--dry-sequence-breaker");
    ath_sampler *s;
    p = ath_sampler_default_params();
    assert_int_equal(ath_sampler_create(&s, &p, 0, NULL, 0, NULL), ATH_ERR_ARGUMENT);
    assert_int_equal(ath_sampler_create(&s, &p, 10, tokens, 2, NULL), ATH_ERR_ARGUMENT);
}

static void bad_logits_are_an_error(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        ath_sampler_params p = ath_sampler_default_params();
        p.seed = 1;
        p.temp = k & 1 ? 0.0f : 0.8f;
        p.mirostat = k & 2 ? 2 : 0;
        ath_sampler *s = create(&p, 5);
        ath_error err;
        int32_t token;
        assert_int_equal(ath_sampler_sample(s, (float[]){0, 1, 2, NAN, 0}, &token, &err), ATH_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "token 3 is NaN"));
        assert_int_equal(ath_sampler_sample(s, (float[]){0, INFINITY, 2, 0, 0}, &token, &err),
                         ATH_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "token 1 is infinite"));
        const float none[] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        assert_int_equal(ath_sampler_sample(s, none, &token, &err), ATH_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "banned"));
        float one[] = {-INFINITY, -INFINITY, 3e38f, -INFINITY, -3e38f};
        assert_int_equal(sample(s, one), 2);
        ath_sampler_free(s);
    }
}

/* Valid one by one, but together the parameters leave no number: an error, not a crash. */
static void overflow_is_an_error(void **state) {
    (void)state;
    const char *chains[] = {"edskypmxt", "e", "ekt", "et"};
    for (int k = 0; k < 32; k++) {
        ath_sampler_params p = ath_sampler_default_params();
        p.seed = 1;
        p.temp = k & 1 ? 0.0f : 0.8f;
        p.top_n_sigma = 1;
        p.typical_p = 0.5f;
        p.xtc_probability = 1;
        p.dynatemp_range = k & 2 ? 0.5f : 0;
        p.adaptive_target = k < 16 ? -1 : 0.5f;
        p.repeat_penalty = 1e-37f;
        assert_int_equal(ath_sampler_parse_letters(&p, chains[k / 4 % 4], NULL), ATH_OK);
        ath_sampler *s = create(&p, 5);
        int32_t token;
        ath_error err = {0};
        for (int i = 0; i < 5; i++) ath_sampler_accept(s, i);
        assert_int_equal(ath_sampler_sample(s, (float[]){100, 2, 50, 200, 90}, &token, &err),
                         ATH_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "out of range"));
        ath_sampler_free(s);
    }
}

static void bias_and_bans_come_first(void **state) {
    (void)state;
    const ath_logit_bias bias[] = {{2, 5}, {2, 5}, {0, -INFINITY}};
    const int32_t eog[] = {3, 4};
    ath_sampler_params p = ath_sampler_default_params();
    p.temp = 0;
    p.logit_bias = bias;
    p.n_logit_bias = 3;
    p.ignore_eos = true;
    ath_sampler *s;
    assert_int_equal(ath_sampler_create(&s, &p, 5, eog, 2, NULL), ATH_OK);
    assert_string_equal(ath_sampler_chain(s), "logit_bias 5 -> greedy");
    assert_int_equal(sample(s, (float[]){50, 9.5f, 0, 60, 70}), 2);
    assert_int_equal(sample(s, (float[]){50, 10.5f, 0, 60, 70}), 1);
    ath_sampler_free(s);
    p.ignore_eos = false;
    assert_int_equal(ath_sampler_create(&s, &p, 5, eog, 2, NULL), ATH_OK);
    assert_int_equal(sample(s, (float[]){50, 9.5f, 0, 60, 70}), 4);
    ath_sampler_free(s);
}

static void one_token_is_enough(void **state) {
    (void)state;
    for (int mirostat = 0; mirostat <= 2; mirostat++) {
        ath_sampler_params p = ath_sampler_default_params();
        p.seed = 1;
        p.mirostat = mirostat;
        p.repeat_penalty = 1.1f;
        p.dry_multiplier = 1;
        p.typical_p = 0.5f;
        p.top_n_sigma = 1;
        p.xtc_probability = 1;
        p.dynatemp_range = 0.5f;
        ath_sampler *s = create(&p, 1);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(sample(s, (float[]){-2.5f}), 0);
            ath_sampler_accept(s, 0);
        }
        ath_sampler_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rng_has_the_known_values),
        cmocka_unit_test(rng_makes_uniform_numbers_of_its_draws),
        cmocka_unit_test(sort_is_descending_and_stable),
        cmocka_unit_test(top_k_keeps_k),
        cmocka_unit_test(top_p_keeps_the_nucleus),
        cmocka_unit_test(min_p_keeps_the_order),
        cmocka_unit_test(typical_orders_by_surprise),
        cmocka_unit_test(top_n_sigma_bans_by_deviation),
        cmocka_unit_test(xtc_leaves_the_least_likely_of_the_top),
        cmocka_unit_test(xtc_has_its_own_generator),
        cmocka_unit_test(temperature_divides),
        cmocka_unit_test(dynamic_temperature_follows_the_entropy),
        cmocka_unit_test(penalties_count_in_their_window),
        cmocka_unit_test(dry_punishes_repetitions),
        cmocka_unit_test(dry_forgets),
        cmocka_unit_test(dry_stops_at_breakers),
        cmocka_unit_test(mirostat_steers_mu),
        cmocka_unit_test(mirostat1_finds_zipfs_exponent),
        cmocka_unit_test(adaptive_prefers_the_target),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(the_impossible_is_never_drawn),
        cmocka_unit_test(seed_decides_the_text),
        cmocka_unit_test(random_seed_can_be_used_again),
        cmocka_unit_test(greedy_is_the_first_of_the_greatest),
        cmocka_unit_test(chain_is_described),
        cmocka_unit_test(step_lists_are_parsed),
        cmocka_unit_test(bad_parameters_name_their_flag),
        cmocka_unit_test(bad_logits_are_an_error),
        cmocka_unit_test(overflow_is_an_error),
        cmocka_unit_test(bias_and_bans_come_first),
        cmocka_unit_test(one_token_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
