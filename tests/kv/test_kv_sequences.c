/* Sequences, pages, entry points: whatever is done with them, a query reads what its sequence's tokens say. */
#include "kv/kv_world.h"

/* Full, windowed, shared and latent, encoded and raw, K unlike V, different heads and sizes. */
static const ath_kv_layer mixed_layers[] = {
    {.n_kv_heads = 2, .head_dim_k = 16, .head_dim_v = 32, .type_k = ATH_KV_TURBO3, .type_v = ATH_KV_Q8_0},
    {.n_kv_heads = 1,
     .head_dim_k = 32,
     .head_dim_v = 16,
     .window = 300,
     .type_k = ATH_KV_Q4_0,
     .type_v = ATH_KV_TURBO2},
    {.n_kv_heads = 3, .head_dim_k = 16, .head_dim_v = 16, .type_k = ATH_KV_F32, .type_v = ATH_KV_TURBO4},
    {.n_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 16, .window = 300, .store = ATH_KV_SHARED, .source = 1},
    {.n_kv_heads = 2, .head_dim_k = 16, .head_dim_v = 32, .store = ATH_KV_SHARED, .source = 0},
    {.n_kv_heads = 1,
     .head_dim_k = 48,
     .head_dim_v = 32,
     .type_k = ATH_KV_TURBO3,
     .type_v = ATH_KV_TURBO3,
     .store = ATH_KV_LATENT},
    {.n_kv_heads = 1,
     .head_dim_k = 16,
     .head_dim_v = 16,
     .window = 16,
     .type_k = ATH_KV_TURBO3,
     .type_v = ATH_KV_BF16},
    {.n_kv_heads = 1,
     .head_dim_k = 16,
     .head_dim_v = 16,
     .window = 130,
     .type_k = ATH_KV_F16,
     .type_v = ATH_KV_TURBO3},
};
enum { N_MIXED = sizeof mixed_layers / sizeof *mixed_layers };

/* ---- tests */
static void effective_types_are_told(void **state) {
    (void)state;
    static const int64_t windows[] = {0, 1, 128, 129, 130};
    for (int i = 0; i < 5; i++) {
        ath_kv_layer layers[2] = {{1, 32, 32, windows[i], ATH_KV_TURBO3, ATH_KV_Q4_0, ATH_KV_OWN, 0, 0},
                                  {1, 32, 32, windows[i], ATH_KV_F32, ATH_KV_BF16, ATH_KV_OWN, 0, 0}};
        world *w = world_new(layers, 2, 256, 0, 64);
        bool f16 = windows[i] > 0 && windows[i] <= 129;
        assert_int_equal(ath_kv_effective_k(w->kv, 0), f16 ? ATH_KV_F16 : ATH_KV_TURBO3);
        assert_int_equal(ath_kv_effective_v(w->kv, 0), f16 ? ATH_KV_F16 : ATH_KV_Q4_0);
        assert_int_equal(ath_kv_effective_k(w->kv, 1), ATH_KV_F32);
        assert_int_equal(ath_kv_effective_v(w->kv, 1), ATH_KV_BF16);
        world_free(w);
    }
}

static void chunks_of_any_size(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 7, 64, 200, 512};
    for (int i = 0; i < 5; i++) {
        int64_t n = chunks[i] == 1 ? 520 : 1300;
        world *w = world_new(mixed_layers, N_MIXED, 2000, 2, 512);
        w->check_all_pages = chunks[i] >= 64;
        for (int64_t done = 0; done < n; done += chunks[i]) append(w, 0, chunks[i]);
        assert_in_range(w->compared, 10000, UINT64_MAX);
        assert_no_pages(w);
        world_free(w);
    }
}

static const ath_kv_layer encoded_layers[] = {
    {.n_kv_heads = 2, .head_dim_k = 16, .head_dim_v = 16, .type_k = ATH_KV_TURBO3, .type_v = ATH_KV_TURBO2},
    {.n_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16, .type_k = ATH_KV_F16, .type_v = ATH_KV_TURBO4},
};

/* Tokens that come one by one: a page that they fill is encoded in the course of the next 128, about as much of it with
 * each, and is there when it is needed, which the device checks. */
static void full_pages_are_encoded_little_by_little(void **state) {
    (void)state;
    enum { JOBS = 5 };
    world *w = world_new(encoded_layers, 2, 1000, 0, 512);
    append(w, 0, 250);
    int64_t at_start = (int64_t)ath_kv_get_work(w->kv).encoded, before = at_start;
    assert_int_equal(at_start, JOBS);
    for (int64_t n = 251; n <= 560; n++) {
        append(w, 0, 1);
        int64_t now = (int64_t)ath_kv_get_work(w->kv).encoded, pages = n / 128 - 2, rows = n % 128;
        assert_in_range(now - before, 0, 1);
        if (n >= 256) assert_int_equal(now - at_start, JOBS * pages + (JOBS * rows + 127) / 128);
        before = now;
    }
    fork_to(w, 1, 0, 512); /* ends what was left of the page that ended there: 48 of 128 were done */
    assert_int_equal((int64_t)ath_kv_get_work(w->kv).encoded - at_start, 3 * JOBS);
    append(w, 1, 150);
    append(w, 0, 150);
    world_free(w);
}

/* Going back drops what a page that is no longer full was owed, and keeps what one that still is was. */
static void pending_pages_survive_going_back(void **state) {
    (void)state;
    world *w = world_new(encoded_layers, 2, 2000, 4, 512);
    append(w, 0, 640);
    for (int i = 0; i < 20; i++) append(w, 0, 7); /* 780: the page that ends at 768 is pending */
    for (int64_t back = 1; back < 128; back += 9) {
        int64_t n = 780 - back;
        assert_int_equal(ath_kv_truncate(w->kv, 0, n), n);
        append(w, 0, 780 - n - 1);
        append(w, 0, 1);
    }
    append(w, 0, 100);
    append(w, 0, 400);
    world_free(w);
}

static void rollback_of_128_is_exact(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 2000, 0, 512);
    for (int64_t back = 1; back <= 128; back += back < 8 || back > 120 ? 1 : 9) {
        ath_kv_clear(w->kv, 0);
        append(w, 0, 600 + back * 3);
        int64_t n = ath_kv_length(w->kv, 0) - back;
        assert_int_equal(ath_kv_entry_before(w->kv, 0, n), n);
        assert_int_equal(ath_kv_truncate(w->kv, 0, n), n);
        append(w, 0, 1);
        append(w, 0, 300); /* new tokens: pages that were full are encoded again */
        append(w, 0, 1);
    }
    /* again and again, by small steps: never deeper than what is kept */
    ath_kv_clear(w->kv, 0);
    append(w, 0, 1000);
    for (int64_t n = 999; n >= 872; n--) assert_int_equal(ath_kv_truncate(w->kv, 0, n), n);
    append(w, 0, 200);
    assert_no_pages(w);
    world_free(w);
}

static void truncate_goes_back_to_an_entry_point(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 2000, 3, 512);
    w->check_all_pages = true;
    append(w, 0, 1700);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 1800), 1700);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 1371), 1152);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 1300), 1152);
    append(w, 0, 1);
    append(w, 0, 511);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 1000), 768);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 767), 384);
    append(w, 0, 2);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 383), 0);
    append(w, 0, 100);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 2), 2);
    append(w, 0, 300);
    assert_int_equal(ath_kv_truncate(w->kv, 0, -5), 0);
    assert_no_pages(w);
    world_free(w);
}

static void marks_are_entry_points(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 3000, 0, 512);
    append(w, 0, 100);
    assert_int_equal(ath_kv_mark_entry(w->kv, 0, NULL), ATH_OK); /* no boundary yet */
    append(w, 0, 200);
    assert_int_equal(ath_kv_mark_entry(w->kv, 0, NULL), ATH_OK);
    assert_int_equal(ath_kv_mark_entry(w->kv, 0, NULL), ATH_OK); /* twice is once */
    append(w, 0, 900);
    assert_int_equal(fork_to(w, 1, 0, 1000), 256);
    append(w, 1, 400);
    append(w, 0, 1);
    assert_int_equal(ath_kv_mark_entry(w->kv, 9, NULL), ATH_ERR_ARGUMENT);
    /* the oldest marks make room */
    ath_kv_clear(w->kv, 1);
    for (int i = 0; i < ATH_KV_MAX_MARKS; i++) {
        append(w, 0, 128);
        assert_int_equal(ath_kv_mark_entry(w->kv, 0, NULL), ATH_OK);
    }
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 1000), 0);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 1280), 1280);
    assert_no_pages(w);
    world_free(w);
}

static void forks_share_pages_and_copy_on_write(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 2000, 2, 512);
    w->check_all_pages = true;
    append(w, 0, 1000);
    assert_int_equal(fork_to(w, 1, 0, 768), 768);
    assert_int_equal(stats_of(w).pages_shared[0], 6);
    assert_int_equal(stats_of(w).pages_in_use[0], 8);
    append(w, 1, 300);
    assert_int_equal(stats_of(w).pages_in_use[0], 8 + 3);
    append(w, 0, 10);
    /* inside the last 128 tokens: the own page is shared until one of them writes */
    assert_int_equal(fork_to(w, 2, 0, 1005), 1005);
    assert_int_equal(stats_of(w).pages_in_use[0], 11);
    append(w, 2, 5);
    assert_int_equal(stats_of(w).pages_in_use[0], 12);
    append(w, 0, 200);
    append(w, 2, 200);
    assert_int_equal(ath_kv_truncate(w->kv, 2, 1100), 1100);
    append(w, 2, 100);
    append(w, 0, 1);
    /* rollback into a page that a fork holds */
    assert_int_equal(fork_to(w, 3, 0, 5000), 1211);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 1100), 1100);
    append(w, 0, 150);
    append(w, 3, 3);
    /* a fork outlives its source, and onto itself it is a truncation */
    ath_kv_clear(w->kv, 0);
    append(w, 1, 100);
    append(w, 3, 100);
    assert_int_equal(fork_to(w, 3, 3, 500), 256);
    append(w, 3, 300);
    assert_int_equal(fork_to(w, 1, 0, 500), 0); /* an empty one */
    assert_no_pages(w);
    world_free(w);
}

static void early_tokens_are_copied_on_write_too(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 1000, 0, 512);
    append(w, 0, 2);
    assert_int_equal(fork_to(w, 1, 0, 2), 2);
    append(w, 1, 400);
    append(w, 0, 400);
    append(w, 1, 1);
    assert_int_equal(fork_to(w, 2, 0, 1), 0); /* out of reach */
    world_free(w);
}

static void sequences_in_one_batch(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 2000, 2, 512);
    static const int64_t pattern[][MAX_SEQS] = {
        {1, 200, 1, 60}, {200, 1, 1, 1}, {7, 100, 0, 250}, {1, 1, 1, 1}};
    for (int i = 0; i < 24; i++) {
        ath_kv_rows rows[MAX_SEQS];
        int n = 0;
        for (int s = 0; s < MAX_SEQS; s++) { /* in another order each time */
            int seq = (s + i) % MAX_SEQS;
            if (pattern[i % 4][seq] > 0) rows[n++] = (ath_kv_rows){seq, pattern[i % 4][seq]};
        }
        assert_int_equal(run_layers(w, rows, n, RUN_ALL, 0, NULL), ATH_OK);
        assert_int_equal(ath_kv_commit(w->kv, NULL), ATH_OK);
    }
    assert_int_equal(ath_kv_length(w->kv, 0), 6 * 209);
    assert_int_equal(ath_kv_length(w->kv, 2), 6 * 3);
    assert_no_pages(w);
    world_free(w);
}

static void windows_give_pages_back(void **state) {
    (void)state;
    static const int64_t windows[] = {16, 128, 129, 130, 300};
    for (int i = 0; i < 5; i++) {
        ath_kv_layer layer = {1, 16, 32, windows[i], ATH_KV_TURBO3, ATH_KV_Q8_0, ATH_KV_OWN, 0, 0};
        world *w = world_new(&layer, 1, 2000, 0, 100);
        w->check_all_pages = true;
        while (ath_kv_length(w->kv, 0) < 1500) {
            append(w, 0, ath_kv_length(w->kv, 0) % 3 ? 1 : 31);
            int64_t n = ath_kv_length(w->kv, 0), first = n - 128 - windows[i] + 1;
            int64_t first_page = first > 0 ? first / 128 : 0;
            assert_int_equal(stats_of(w).pages_in_use[1], ath_kv_pages_for(n) - first_page);
            assert_int_equal(stats_of(w).pages_in_use[0], 0);
        }
        int64_t back = ath_kv_length(w->kv, 0) - 128;
        assert_int_equal(ath_kv_truncate(w->kv, 0, back), back);
        append(w, 0, 100);
        assert_no_pages(w);
        world_free(w);

        /* swa_full: all pages stay, and count as pages that grow with the context */
        ath_kv_plan plan;
        w = world_new(&layer, 1, 2000, 0, 100);
        ath_kv_free(w->kv);
        w->params.swa_full = true;
        assert_int_equal(ath_kv_create(&w->kv, NULL, &w->params, NULL), ATH_OK);
        append(w, 0, 1500);
        assert_int_equal(stats_of(w).pages_in_use[0], 12);
        assert_int_equal(ath_kv_plan_init(&plan, &w->params, 1500, NULL), ATH_OK);
        assert_true(plan.bytes_per_token > 0 && plan.bytes_per_token_f16 == 2 * (16 + 32));
        world_free(w);
    }
}

static void plan_is_what_is_used(void **state) {
    (void)state;
    static const int64_t lengths[] = {0,   1,   3,    127,  128,  129,  255, 256,
                                      257, 600, 1151, 1152, 1153, 1700, 2000};
    for (int every = 0; every < 4; every++) {
        for (int shape = 0; shape < 4; shape++) {
            ath_kv_layer raw = {2, 16, 16, 0, ATH_KV_F16, ATH_KV_F32, ATH_KV_OWN, 0, 0};
            const ath_kv_layer *layers = shape == 0 ? &raw : shape == 1 ? mixed_layers + 1 : mixed_layers;
            world *w = world_new(layers,
                                 shape == 0   ? 1
                                 : shape == 1 ? 1
                                 : shape == 2 ? 3
                                              : N_MIXED,
                                 2000, every, 512);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                append(w, 0, lengths[i] - ath_kv_length(w->kv, 0));
                ath_kv_plan plan;
                assert_int_equal(ath_kv_plan_init(&plan, &w->params, lengths[i], NULL), ATH_OK);
                ath_kv_stats stats = stats_of(w);
                assert_int_equal(stats.bytes_pages, plan.bytes_pages);
                assert_int_equal(stats.bytes_recent, plan.bytes_recent);
                assert_int_equal(stats.bytes_entries, plan.bytes_entries);
            }
            assert_no_pages(w);
            world_free(w);
        }
    }
    /* bytes per token by hand: turbo3, head_dim 64: 24 + 2 bytes a value and 3 per channel and page of K */
    ath_kv_layer smol = {3, 64, 64, 0, ATH_KV_TURBO3, ATH_KV_TURBO3, ATH_KV_OWN, 0, 0};
    ath_kv_params params = {.layers = &smol, .n_layers = 1, .n_ctx = 1024, .n_seqs = 1, .n_ubatch = 1};
    ath_kv_plan plan;
    assert_int_equal(ath_kv_plan_init(&plan, &params, 1024, NULL), ATH_OK);
    assert_true(fabs(plan.bytes_per_token - 3 * (26 + 26 + 3 * 64 / 128.0)) < 1e-9);
    assert_true(plan.bytes_per_token_f16 == 3 * 2 * 128);
    assert_int_equal(ath_kv_plan_init(&plan, &params, 1025, NULL), ATH_ERR_ARGUMENT);
}

static void refusals_leave_everything_as_it_was(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 700, 1, 512);
    ath_error err;
    append(w, 0, 500);
    append(w, 1, 300);
    ath_kv_stats before = stats_of(w), after;
    static const struct {
        ath_kv_rows rows[2];
        int n;
        ath_status status;
    } cases[] = {
        {{{0, 201}}, 1, ATH_ERR_CONTEXT},        {{{1, 3}, {0, 201}}, 2, ATH_ERR_CONTEXT},
        {{{0, 0}}, 1, ATH_ERR_ARGUMENT},         {{{0, 513}}, 1, ATH_ERR_ARGUMENT},
        {{{0, 1}, {0, 1}}, 2, ATH_ERR_ARGUMENT}, {{{MAX_SEQS, 1}}, 1, ATH_ERR_ARGUMENT},
        {{{-1, 1}}, 1, ATH_ERR_ARGUMENT},        {{{0, 200}, {1, 313}}, 2, ATH_ERR_ARGUMENT},
        {{{0, INT64_MAX}}, 1, ATH_ERR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ath_kv_begin(w->kv, cases[i].rows, cases[i].n, &err), cases[i].status);
        after = stats_of(w);
        assert_memory_equal(&before, &after, sizeof before);
    }
    assert_int_equal(ath_kv_begin(w->kv, cases[0].rows, 1, &err), ATH_ERR_CONTEXT);
    assert_non_null(strstr(err.message, "500 of 700"));
    assert_int_equal(ath_kv_commit(w->kv, &err), ATH_ERR_ARGUMENT);
    append(w, 0, 200);
    world_free(w);
}

static void out_of_memory_is_undone(void **state) {
    (void)state;
    for (int kind = 0; kind < ATH_KV_KINDS; kind++)
        if (kind != ATH_KV_STATE) run_out_of_pages(mixed_layers, N_MIXED, kind);
}

static void nan_is_refused_and_the_batch_undone(void **state) {
    (void)state;
    static const float poisons[] = {NAN, INFINITY, -INFINITY};
    for (int layers = 1; layers <= N_MIXED; layers++) {
        if (mixed_layers[layers - 1].store == ATH_KV_SHARED) continue; /* nothing is appended to it */
        world *w = world_new(mixed_layers, N_MIXED, 2000, 2, 512);
        append(w, 0, 400);
        assert_int_equal(fork_to(w, 1, 0, 395), 395);
        ath_kv_rows rows[] = {{0, 300}, {1, 1}, {2, 140}};
        ath_error err;
        ath_kv_stats before = stats_of(w), after;
        assert_int_equal(run_layers(w, rows, 3, layers, poisons[layers % 3], &err), ATH_OK);
        assert_int_equal(ath_kv_commit(w->kv, &err), ATH_ERR_FORMAT);
        char name[32];
        snprintf(name, sizeof name, "layer %d: 1 ", layers - 1);
        assert_non_null(strstr(err.message, name));
        after = stats_of(w);
        assert_memory_equal(&before, &after, sizeof before);
        assert_int_equal(ath_kv_length(w->kv, 0), 400);
        assert_int_equal(ath_kv_truncate(w->kv, 0, 300), 300);
        append(w, 0, 300);
        append(w, 1, 300);
        append(w, 2, 300);
        world_free(w);
    }
}

static void large_values_saturate_and_are_counted(void **state) {
    (void)state;
    ath_kv_layer layer = {1, 16, 16, 0, ATH_KV_TURBO3, ATH_KV_F16, ATH_KV_OWN, 0, 0};
    world *w = world_new(&layer, 1, 500, 0, 64);
    float k[16] = {1e5f, -1e5f, 65504, -65504, 65505, 1}, v[16] = {-3e38f, 3e38f, 1e-30f};
    ath_kv_rows rows = {0, 1};
    for (int aborts = 1; aborts >= 0; aborts--) {
        assert_int_equal(ath_kv_begin(w->kv, &rows, 1, NULL), ATH_OK);
        ath_kv_append(w->kv, 0, k, v);
        if (aborts)
            ath_kv_abort(w->kv);
        else
            assert_int_equal(ath_kv_commit(w->kv, NULL), ATH_OK);
        assert_int_equal(stats_of(w).saturated, aborts ? 0 : 5);
    }
    const uint16_t *tile = (const uint16_t *)w->kv->seqs[0].page[ATH_KV_RECENT][0]->mem;
    static const uint16_t expected[] = {0x7bff, 0xfbff, 0x7bff, 0xfbff, 0x7bff, 0x3c00};
    for (int c = 0; c < 6; c++) assert_int_equal(tile[c * ATH_PAGE_TOKENS], expected[c]);
    const uint16_t *sinks = (const uint16_t *)w->kv->seqs[0].page[ATH_KV_SINKS][0]->mem;
    assert_memory_equal(sinks, expected, sizeof expected);
    const uint16_t *values =
        (const uint16_t *)(w->kv->seqs[0].mem[0][0] + w->kv->shape.layers[0].side[1].attn.offset);
    assert_int_equal(values[0], 0xfbff);
    assert_int_equal(values[1], 0x7bff);
    assert_int_equal(values[2], 0);
    world_free(w);

    layer.type_k = ATH_KV_BF16;
    w = world_new(&layer, 1, 500, 0, 64);
    float most[16] = {3.4028235e38f, -3.4028235e38f, 3.3e38f};
    assert_int_equal(ath_kv_begin(w->kv, &rows, 1, NULL), ATH_OK);
    ath_kv_append(w->kv, 0, most, (float[16]){0});
    assert_int_equal(ath_kv_commit(w->kv, NULL), ATH_OK);
    assert_int_equal(stats_of(w).saturated, 2);
    const uint16_t *keys = (const uint16_t *)w->kv->seqs[0].mem[0][0];
    assert_int_equal(keys[0], 0x7f7f);
    assert_int_equal(keys[ATH_PAGE_TOKENS], 0xff7f);
    world_free(w);
}

static void aborted_batches_leave_no_trace(void **state) {
    (void)state;
    world *w = world_new(mixed_layers, N_MIXED, 2500, 2, 512);
    w->check_all_pages = true;
    static const int64_t chunks[] = {1, 3, 60, 129, 500, 512};
    for (int i = 0; i < 18; i++) {
        ath_kv_rows rows = {0, chunks[i % 6]};
        ath_kv_stats before = stats_of(w), after;
        int64_t n = ath_kv_length(w->kv, 0), back = n < 128 ? n : 128;
        uint32_t kept[MAX_TOKENS];
        memcpy(kept, w->tokens[0], sizeof kept);
        assert_int_equal(run_layers(w, &rows, 1, 1 + i % N_MIXED, 0, NULL), ATH_OK);
        ath_kv_abort(w->kv);
        memcpy(w->tokens[0], kept, sizeof kept);
        after = stats_of(w);
        assert_memory_equal(&before, &after, sizeof before);
        assert_int_equal(ath_kv_entry_before(w->kv, 0, n - back), n - back);
        append(w, 0, 1 + i * 7);
    }
    ath_kv_abort(w->kv); /* no batch: nothing */
    assert_no_pages(w);
    world_free(w);
}

static void bad_parameters_are_refused(void **state) {
    (void)state;
    ath_kv_layer good = {1, 16, 16, 0, ATH_KV_TURBO3, ATH_KV_TURBO3, ATH_KV_OWN, 0, 0}, layer = good;
    ath_kv_params params = {.layers = &layer, .n_layers = 1, .n_ctx = 100, .n_seqs = 1, .n_ubatch = 8};
    ath_kv_params bad[8];
    for (int i = 0; i < 8; i++) bad[i] = params;
    bad[0].n_layers = 0;
    bad[1].n_ctx = 0;
    bad[2].n_ctx = INT64_MAX;
    bad[3].n_seqs = 0;
    bad[4].n_ubatch = 0;
    bad[5].entry_every = -1;
    bad[6].n_seqs = INT32_MAX;
    bad[7].n_ubatch = INT64_MAX;
    ath_kv *kv;
    ath_error err;
    for (int i = 0; i < 8; i++) assert_int_equal(ath_kv_create(&kv, NULL, &bad[i], &err), ATH_ERR_ARGUMENT);
    layer.n_kv_heads = 0;
    assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_ARGUMENT);
    layer = good;
    layer.window = -1;
    assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_ARGUMENT);
    layer = good;
    layer.head_dim_k = 24;
    assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_UNSUPPORTED);
    /* One row for K and V has one type, and room for V. */
    layer = good;
    layer.store = ATH_KV_LATENT;
    layer.type_v = ATH_KV_F16;
    assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "-ctk and -ctv the same (turbo3 and f16 differ)"));
    layer.type_v = ATH_KV_TURBO3;
    layer.head_dim_v = 32;
    assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_ARGUMENT);
    /* A layer shares with an earlier one of its shape that has rows. */
    static const ath_kv_layer others[] = {{1, 16, 16, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, -1, 0},
                                          {1, 16, 16, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 1, 0},
                                          {1, 16, 16, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 2, 0},
                                          {2, 16, 16, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 0, 0},
                                          {1, 32, 16, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 0, 0},
                                          {1, 16, 32, 0, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 0, 0},
                                          {1, 16, 16, 200, ATH_KV_F16, ATH_KV_F16, ATH_KV_SHARED, 0, 0}};
    ath_kv_layer both[3] = {good, good, good};
    params.layers = both;
    params.n_layers = 3;
    for (int i = 0; i < 7; i++) {
        both[1] = others[i];
        assert_int_equal(ath_kv_create(&kv, NULL, &params, &err), ATH_ERR_ARGUMENT);
    }
    assert_null(kv);
    ath_kv_free(NULL);
}

static void random_operations(void **state) {
    (void)state;
    static const ath_kv_layer layers[] = {{1, 16, 16, 0, ATH_KV_TURBO3, ATH_KV_F16, ATH_KV_OWN, 0, 0},
                                          {1, 16, 16, 200, ATH_KV_TURBO2, ATH_KV_TURBO3, ATH_KV_OWN, 0, 0},
                                          {1, 16, 16, 20, ATH_KV_F16, ATH_KV_F16, ATH_KV_OWN, 0, 0}};
    operate_at_random(layers, 3, 3000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(effective_types_are_told),
        cmocka_unit_test(chunks_of_any_size),
        cmocka_unit_test(full_pages_are_encoded_little_by_little),
        cmocka_unit_test(pending_pages_survive_going_back),
        cmocka_unit_test(rollback_of_128_is_exact),
        cmocka_unit_test(truncate_goes_back_to_an_entry_point),
        cmocka_unit_test(marks_are_entry_points),
        cmocka_unit_test(forks_share_pages_and_copy_on_write),
        cmocka_unit_test(early_tokens_are_copied_on_write_too),
        cmocka_unit_test(sequences_in_one_batch),
        cmocka_unit_test(windows_give_pages_back),
        cmocka_unit_test(plan_is_what_is_used),
        cmocka_unit_test(refusals_leave_everything_as_it_was),
        cmocka_unit_test(out_of_memory_is_undone),
        cmocka_unit_test(nan_is_refused_and_the_batch_undone),
        cmocka_unit_test(large_values_saturate_and_are_counted),
        cmocka_unit_test(aborted_batches_leave_no_trace),
        cmocka_unit_test(bad_parameters_are_refused),
        cmocka_unit_test(random_operations),
    };
    return cmocka_run_group_tests_name("kv_sequences", tests, NULL, NULL);
}
