/* Recurrent layers beside others: states that a sequence comes back to, shares, saves, and gives back; saved bytes. */
#include "kv/kv_world.h"

static const ath_kv_layer hybrid_layers[] = {
    {.store = ATH_KV_RECURRENT, .n_state = 100},
    {.n_kv_heads = 2, .head_dim_k = 16, .head_dim_v = 32, .type_k = ATH_KV_TURBO3, .type_v = ATH_KV_Q8_0},
    {.store = ATH_KV_RECURRENT, .n_state = 7},
    {.n_kv_heads = 1, .head_dim_k = 16, .head_dim_v = 16, .window = 300, .type_k = ATH_KV_F16, .type_v = ATH_KV_TURBO2},
    {.store = ATH_KV_RECURRENT, .n_state = 1},
};
enum { N_HYBRID = sizeof hybrid_layers / sizeof *hybrid_layers };

static void chunks_of_any_size(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 7, 64, 200, 512};
    for (int i = 0; i < 5; i++) {
        world *w = world_new(hybrid_layers, N_HYBRID, 2000, 2, 512);
        for (int64_t done = 0; done < (chunks[i] == 1 ? 400 : 1300); done += chunks[i]) {
            append(w, 0, chunks[i]);
            assert_in_range(w->kv->pool[ATH_KV_STATE].n_pages * (int64_t)w->kv->shape.page_bytes[ATH_KV_STATE], 1,
                            (1 << 20) + 64);
        }
        assert_in_range(w->compared, 1000, UINT64_MAX);
        assert_no_pages(w);
        world_free(w);
    }
}

/* A rollback of up to 128 tokens lands on the page boundary before it, wherever the sequence was cut into batches. */
static void rollback_lands_on_a_boundary(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 2000, 0, 512);
    for (int64_t back = 1; back <= 128; back += back < 8 || back > 120 ? 1 : 9) {
        ath_kv_clear(w->kv, 0);
        append(w, 0, 600 + back * 3);
        append(w, 0, 3);
        int64_t n = ath_kv_length(w->kv, 0) - back, boundary = n / 128 * 128;
        assert_int_equal(ath_kv_entry_before(w->kv, 0, n), boundary);
        assert_int_equal(ath_kv_truncate(w->kv, 0, n), boundary);
        append(w, 0, 1);
        append(w, 0, 300);
        append(w, 0, 1);
    }
    assert_no_pages(w);
    world_free(w);
}

static void a_sequence_has_three_states(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 2000, 0, 512);
    for (int i = 0; i < 300; i++) {
        append(w, 0, 1 + i % 11);
        int64_t n = ath_kv_length(w->kv, 0), kept = n / 128 < 2 ? n / 128 + (n % 128 > 0) : 2 + (n % 128 > 0);
        assert_int_equal(w->kv->pool[ATH_KV_STATE].n_in_use, kept);
        if (n > 1900) break;
    }
    assert_no_pages(w);
    world_free(w);
}

static void entry_points_keep_states(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 4000, 3, 512);
    append(w, 0, 1700);
    assert_int_equal(ath_kv_truncate(w->kv, 0, 1300), 1152);
    append(w, 0, 512);
    assert_int_equal(fork_to(w, 1, 0, 1000), 768);
    append(w, 1, 300);
    assert_int_equal(fork_to(w, 2, 0, 5000), 1664); /* the state of the end is shared until one of them goes on */
    append(w, 2, 3);
    append(w, 0, 1);
    ath_kv_clear(w->kv, 0);
    append(w, 2, 200);
    append(w, 1, 70);
    assert_int_equal(ath_kv_mark_entry(w->kv, 1, NULL), ATH_OK);
    append(w, 1, 500);
    assert_int_equal(fork_to(w, 3, 1, 1150), 1024);
    append(w, 3, 5);
    assert_no_pages(w);
    world_free(w);
}

/* More than 8 automatic entry points: every second one goes, unless it was asked for. */
static void entry_points_thin_out(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 4000, 1, 512);
    append(w, 0, 3 * 128 + 1);
    assert_int_equal(ath_kv_mark_entry(w->kv, 0, NULL), ATH_OK);
    append(w, 0, 5 * 128);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 5 * 128), 5 * 128);
    append(w, 0, 128);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 5 * 128), 4 * 128);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 4 * 128 - 1), 3 * 128); /* the mark */
    append(w, 0, 20 * 128);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 24 * 128), 24 * 128);
    assert_int_equal(ath_kv_entry_before(w->kv, 0, 23 * 128), 20 * 128);
    assert_int_equal(fork_to(w, 1, 0, 23 * 128), 20 * 128);
    append(w, 1, 300);
    assert_no_pages(w);
    world_free(w);
}

static void sequences_in_one_batch(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 2000, 2, 512);
    static const int64_t pattern[][MAX_SEQS] = {{1, 200, 1, 60}, {200, 1, 1, 1}, {7, 100, 0, 250}, {1, 1, 1, 1}};
    for (int i = 0; i < 24; i++) {
        ath_kv_rows rows[MAX_SEQS];
        int n = 0;
        for (int s = 0; s < MAX_SEQS; s++) {
            int seq = (s + i) % MAX_SEQS;
            if (pattern[i % 4][seq] > 0) rows[n++] = (ath_kv_rows){seq, pattern[i % 4][seq]};
        }
        assert_int_equal(run_layers(w, rows, n, RUN_ALL, 0, NULL), ATH_OK);
        assert_int_equal(ath_kv_commit(w->kv, NULL), ATH_OK);
    }
    assert_no_pages(w);
    world_free(w);
}

static void plan_is_what_is_used(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 127, 128, 129, 255, 256, 257, 383, 384, 385, 1151, 1152, 1153, 1700, 3000};
    for (int every = 0; every < 4; every++) {
        world *w = world_new(hybrid_layers, N_HYBRID, 3000, every, 512);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            append(w, 0, lengths[i] - ath_kv_length(w->kv, 0));
            ath_kv_plan plan;
            assert_int_equal(ath_kv_plan_init(&plan, &w->params, lengths[i], NULL), ATH_OK);
            ath_kv_stats stats = stats_of(w);
            assert_int_equal(stats.bytes_pages, plan.bytes_pages);
            assert_int_equal(stats.bytes_recent, plan.bytes_recent);
            assert_int_equal(stats.bytes_state, plan.bytes_state);
            assert_int_equal(stats.bytes_entries, plan.bytes_entries);
        }
        assert_no_pages(w);
        world_free(w);
    }
}

/* Own pages and those of entry points of one kind: every page is asked for. */
static void walk(const ath_kv_shape *shape, int kind, int64_t n, size_t *own, size_t *entries) {
    ath_kv_keeper keeper = ath_kv_keeper_init(shape, kind, n);
    int64_t own_from = keeper.first;
    for (int64_t i = ath_kv_pages_for(n) - 1; i >= 0; i--) {
        bool entry_after = ath_kv_entry_is_due(shape, i + 1, n) && (i + 1) * ATH_PAGE_TOKENS <= n;
        if (ath_kv_keeps(&keeper, i, entry_after)) *(i >= own_from ? own : entries) += shape->page_bytes[kind];
    }
}

/* The plan's formula counts what the walk over all pages counts. */
static void plan_counts_pages(void **state) {
    (void)state;
    static const int64_t windows[] = {1, 2, 127, 128, 129, 130, 256, 257, 300, 385, 4096, 100000};
    static const int everies[] = {0, 1, 2, 3, 5, 7, 33, 64, 1000};
    ath_kv_layer layers[N_HYBRID];
    memcpy(layers, hybrid_layers, sizeof layers);
    for (int i = 0; i < (int)(sizeof windows / sizeof *windows * sizeof everies / sizeof *everies * 2); i++) {
        layers[3].window = windows[i / 2 % 12];
        ath_kv_layer stateless[] = {layers[1], layers[3]};
        ath_kv_params params = {.layers = i % 2 ? layers : stateless, .n_layers = i % 2 ? N_HYBRID : 2, .n_ctx = 1 << 20,
                                .n_seqs = 1, .n_ubatch = 512, .entry_every = everies[i / 24]};
        ath_kv_shape shape;
        assert_int_equal(ath_kv_shape_init(&shape, &params, NULL), ATH_OK);
        for (int64_t n = 0; n < 150000; n += 1 + (n > 300 ? n / 9 : n % 64 > 1 ? 31 : 0)) {
            size_t pages = 0, recent = 0, kept = 0, entries = 0, none = 0;
            walk(&shape, ATH_KV_FULL, n, &pages, &none);
            walk(&shape, ATH_KV_WINDOWED, n, &pages, &entries);
            walk(&shape, ATH_KV_RECENT, n, &recent, &entries);
            walk(&shape, ATH_KV_STATE, n, &kept, &entries);
            ath_kv_plan plan;
            assert_int_equal(ath_kv_plan_init(&plan, &params, n, NULL), ATH_OK);
            assert_int_equal(none, 0);
            assert_int_equal(plan.bytes_pages, pages);
            assert_int_equal(plan.bytes_recent, recent + (n ? shape.page_bytes[ATH_KV_SINKS] : 0));
            assert_int_equal(plan.bytes_state, kept + (n ? shape.page_bytes[ATH_KV_STATE] : 0));
            assert_int_equal(plan.bytes_entries, entries);
        }
        ath_kv_shape_free(&shape);
    }
}

static void failures_are_undone(void **state) {
    (void)state;
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) run_out_of_pages(hybrid_layers, N_HYBRID, kind);
    for (int layers = 1; layers <= N_HYBRID; layers++) {
        world *w = world_new(hybrid_layers, N_HYBRID, 2000, 2, 512);
        append(w, 0, 400);
        fork_to(w, 1, 0, 400);
        ath_kv_rows rows[] = {{0, 300}, {1, 1}, {2, 140}};
        ath_error err;
        ath_kv_stats before = stats_of(w), after;
        assert_int_equal(run_layers(w, rows, 3, layers, NAN, &err), ATH_OK);
        assert_int_equal(ath_kv_commit(w->kv, &err), ATH_ERR_FORMAT);
        char name[32];
        snprintf(name, sizeof name, "layer %d: 1 ", layers - 1);
        assert_non_null(strstr(err.message, name));
        after = stats_of(w);
        assert_memory_equal(&before, &after, sizeof before);
        for (int s = 0; s < 3; s++) append(w, s, 300);
        assert_no_pages(w);
        world_free(w);
    }
}

static void bad_states_are_refused(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, -1, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        ath_kv_layer layer = {.store = ATH_KV_RECURRENT, .n_state = sizes[i]};
        ath_kv_params params = {.layers = &layer, .n_layers = 1, .n_ctx = 100, .n_seqs = 1, .n_ubatch = 8};
        ath_kv *kv;
        assert_int_equal(ath_kv_create(&kv, NULL, &params, NULL), ATH_ERR_ARGUMENT);
    }
}

static void random_operations(void **state) {
    (void)state;
    operate_at_random(hybrid_layers, N_HYBRID, 2000);
    operate_at_random(hybrid_layers, 1, 1000); /* nothing but states */
}

/* ---- saved bytes */
static uint8_t *save(const world *w, int seq, size_t *size) {
    *size = ath_kv_save_size(w->kv, seq);
    uint8_t *bytes = malloc(*size);
    ath_kv_save(w->kv, seq, bytes);
    return bytes;
}

/* What was saved goes on in another sequence and in another cache, with its entry points and its way back. */
static void saved_sequences_go_on(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 3, 127, 128, 129, 500, 1300};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        world *w = world_new(hybrid_layers, N_HYBRID, 2000, 2, 512);
        append(w, 0, lengths[i]);
        size_t size;
        uint8_t *bytes = save(w, 0, &size);
        world *other = world_new(hybrid_layers, N_HYBRID, 2500, 2, 512);
        append(other, 1, 200);
        assert_int_equal(ath_kv_load(other->kv, 1, bytes, size, NULL), ATH_OK);
        memcpy(other->tokens[1], w->tokens[0], sizeof w->tokens[0]);
        assert_int_equal(ath_kv_length(other->kv, 1), lengths[i]);
        for (int64_t n = 0; n <= lengths[i]; n += 50)
            assert_int_equal(ath_kv_entry_before(other->kv, 1, n), ath_kv_entry_before(w->kv, 0, n));
        check_references(other);
        other->check_all_pages = true;
        append(other, 1, 300);
        fork_to(other, 0, 1, 700);
        append(other, 0, 10);
        assert_no_pages(other);
        world_free(other);
        world_free(w);
        free(bytes);
    }
}

static void assert_load_fails(world *w, const uint8_t *bytes, size_t size, ath_status status, const char *word) {
    ath_error err;
    append(w, 2, 5);
    assert_int_equal(ath_kv_load(w->kv, 2, bytes, size, &err), status);
    if (!strstr(err.message, word)) fail_msg("\"%s\" lacks \"%s\"", err.message, word);
    assert_int_equal(ath_kv_length(w->kv, 2), 0);
}

static void damaged_bytes_are_refused(void **state) {
    (void)state;
    world *w = world_new(hybrid_layers, N_HYBRID, 2000, 2, 512);
    append(w, 0, 700);
    size_t size;
    uint8_t *bytes = save(w, 0, &size);
    for (size_t cut = 0; cut < size; cut += cut < 200 ? 7 : 5003) assert_load_fails(w, bytes, cut, ATH_ERR_FORMAT, "saved");
    for (size_t at = 0; at < size; at += at < 200 ? 1 : 4001) { /* any bit, but for the padding of marks */
        bytes[at] ^= 0x10;
        ath_status status = ath_kv_load(w->kv, 1, bytes, size, NULL);
        if (status == ATH_OK) fail_msg("byte %zu was changed", at);
        assert_int_equal(ath_kv_length(w->kv, 1), 0);
        bytes[at] ^= 0x10;
    }
    uint8_t *longer = calloc(1, size + 64);
    memcpy(longer, bytes, size);
    assert_load_fails(w, longer, size + 64, ATH_ERR_FORMAT, "too many");
    free(longer);
    ath_kv_layer others[N_HYBRID];
    memcpy(others, hybrid_layers, sizeof others);
    others[1].type_k = ATH_KV_TURBO4;
    world *other = world_new(others, N_HYBRID, 2000, 2, 512);
    assert_load_fails(other, bytes, size, ATH_ERR_FORMAT, "cache types");
    world_free(other);
    other = world_new(hybrid_layers, N_HYBRID, 600, 2, 512);
    assert_load_fails(other, bytes, size, ATH_ERR_CONTEXT, "700");
    world_free(other);
    the_world = w;
    assert_int_equal(ath_kv_load(w->kv, 1, bytes, size, NULL), ATH_OK);
    assert_no_pages(w);
    world_free(w);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_any_size),        cmocka_unit_test(rollback_lands_on_a_boundary),
        cmocka_unit_test(a_sequence_has_three_states), cmocka_unit_test(entry_points_keep_states),
        cmocka_unit_test(entry_points_thin_out),     cmocka_unit_test(sequences_in_one_batch),
        cmocka_unit_test(plan_is_what_is_used),      cmocka_unit_test(plan_counts_pages),
        cmocka_unit_test(failures_are_undone),
        cmocka_unit_test(bad_states_are_refused),    cmocka_unit_test(random_operations),
        cmocka_unit_test(saved_sequences_go_on),     cmocka_unit_test(damaged_bytes_are_refused),
    };
    return cmocka_run_group_tests_name("kv_recurrent", tests, NULL, NULL);
}
