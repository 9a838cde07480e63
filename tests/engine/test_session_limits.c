/* Sessions: what is refused, what a failed pass leaves behind, and whether plans, counters and figures are true. */
#include <math.h>

#include "engine/session_fixture.h"
#include "gguf/gguf.h"

static int fill(void **state) {
    (void)state;
    fill_texts();
    return 0;
}

/* ---- refusals */

static void test_full_context(void **state) {
    (void)state;
    static float before[N_VOCAB];
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session *s = open_session(engine, "turbo3", 300, 2); /* rounded up */
    assert_int_equal(ath_session_n_ctx(s), 512);
    append(s, 0, text[0], 500);
    save_logits(before, s, 0);
    MUST_FAIL(ath_session_append(s, 0, text[1], 13, err), ATH_ERR_CONTEXT, "512");
    ath_batch_part parts[2] = {{1, text[1], 5}, {0, text[1], 13}};
    MUST_FAIL(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = 2}, err), ATH_ERR_CONTEXT, "512");
    assert_int_equal(ath_session_length(s, 0), 500);
    assert_int_equal(ath_session_length(s, 1), 0);
    assert_same_logits(ath_session_logits(s, 0), before, "after a refusal", 500);
    append(s, 0, text[0] + 500, 12);
    assert_int_equal(ath_session_length(s, 0), 512);
    MUST_FAIL(ath_session_append(s, 0, text[1], 1, err), ATH_ERR_CONTEXT, "512");
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static void refuse_batch(ath_session *s, const ath_batch_part *parts, int n_parts, const char *word) {
    MUST_FAIL(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = n_parts}, err), ATH_ERR_ARGUMENT, word);
    for (int i = 0; i < 2; i++) assert_int_equal(ath_session_length(s, i), 0);
}

static void test_batches_that_make_no_sense(void **state) {
    (void)state;
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session *s = open_session(engine, "f16", 2048, 2);
    ath_batch_part good = {0, text[0], 3};
    static const ath_token bad_ids[2][2] = {{5, -1}, {5, N_VOCAB}};
    refuse_batch(s, &good, 0, "parts");
    refuse_batch(s, &(ath_batch_part){2, text[0], 3}, 1, "sequence 2");
    refuse_batch(s, &(ath_batch_part){-1, text[0], 3}, 1, "sequence -1");
    refuse_batch(s, (ath_batch_part[]){good, good}, 2, "twice");
    refuse_batch(s, (ath_batch_part[]){good, {1, text[0], 1}, {1, text[0], 1}}, 3, "parts");
    refuse_batch(s, (ath_batch_part[]){good, {1, text[0], 0}}, 2, "empty");
    refuse_batch(s, (ath_batch_part[]){good, {1, text[0], N_UBATCH - 2}}, 2, "rows");
    refuse_batch(s, &(ath_batch_part){0, text[0], SIZE_MAX}, 1, "rows");
    refuse_batch(s, (ath_batch_part[]){good, {1, bad_ids[0], 2}}, 2, "-1");
    refuse_batch(s, &(ath_batch_part){0, bad_ids[1], 2}, 1, "320");
    MUST_FAIL(ath_session_append(s, 7, text[0], 1, err), ATH_ERR_ARGUMENT, "sequence 7");
    MUST_FAIL(ath_session_append(s, 0, bad_ids[1], 2, err), ATH_ERR_ARGUMENT, "320");
    MUST(ath_session_append(s, 0, text[0], 0, err));
    assert_int_equal(ath_session_length(s, 0), 0);
    assert_int_equal(ath_session_length(s, 9), 0);
    assert_int_equal(ath_session_truncate(s, -1, 3), 0);
    assert_int_equal(ath_session_fork(s, 0, 2, 3), 0);
    assert_int_equal(ath_session_entry_before(s, 3, 3), 0);
    assert_null(ath_session_logits(s, 2));
    ath_session_clear(s, 5);
    ath_session_close(&s);
    ath_session_close(&s); /* closing nothing is fine */
    ath_session_close(NULL);
    ath_engine_close(&engine);
}

static void refuse_session(ath_engine *engine, const ath_session_params *p, ath_status status, const char *word) {
    ath_session *s = (ath_session *)1;
    MUST_FAIL(ath_session_open(&s, engine, p, err), status, word);
    assert_null(s);
}

static void test_sessions_that_make_no_sense(void **state) {
    (void)state;
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session_params p, good = ath_session_params_default();
    p = good, p.n_seqs = 0;
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "0 sequences");
    p = good, p.n_seqs = 5000;
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "5000 sequences");
    p = good, p.n_ctx = -1;
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "-1");
    p = good, p.n_ctx = INT64_MAX;
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "range");
    p = good, p.entry_every = -2;
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "-2");
    p = good, p.type_k = "turbo5";
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "turbo3");
    p = good, p.type_v = "";
    refuse_session(engine, &p, ATH_ERR_ARGUMENT, "turbo3");
    static const char *const overrides[] = {"0", "0:k", "0:k=turbo9", "7:k=f16", "1-0:k=f16", "0:x=f16", "-3:k=f16", "0:k=f16;;", ","};
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        p = good, p.kv_layers = overrides[i];
        refuse_session(engine, &p, ATH_ERR_ARGUMENT, "");
    }
    p = good, p.n_ctx = (int64_t)1 << 32; /* 16 TiB */
    refuse_session(engine, &p, ATH_ERR_NOMEM, "turbo2");
    ath_engine_close(&engine);
}

static void test_engines_that_make_no_sense(void **state) {
    (void)state;
    need_golden();
    ath_engine *engine = NULL;
    ath_engine_params p = ath_engine_params_default();
    MUST_FAIL(ath_engine_open(&engine, &p, err), ATH_ERR_ARGUMENT, "-m");
    char path[1024];
    snprintf(path, sizeof path, "%s/llama/model.gguf", golden_folder());
    p.model_path = path;
    p.n_ubatch = 0;
    MUST_FAIL(ath_engine_open(&engine, &p, err), ATH_ERR_ARGUMENT, "ubatch");
    assert_null(engine);
    p.n_ubatch = 512;
    p.metadata_only = true;
    MUST(ath_engine_open(&engine, &p, err));
    ath_session_params sp = ath_session_params_default();
    refuse_session(engine, &sp, ATH_ERR_ARGUMENT, "metadata");
    ath_cache_plan plan;
    sp.type_k = "turbo3";
    sp.n_ctx = 4000;
    MUST(ath_engine_plan_cache(engine, &sp, &plan, err));
    assert_int_equal(plan.n_tokens, 4096);
    assert_string_equal(plan.type_k, "turbo3");
    assert_string_equal(plan.type_v, "f16");
    sp.type_v = "f17";
    MUST_FAIL(ath_engine_plan_cache(engine, &sp, &plan, err), ATH_ERR_ARGUMENT, "turbo3");
    sp.type_v = "f16", sp.n_ctx = INT64_MAX;
    MUST_FAIL(ath_engine_plan_cache(engine, &sp, &plan, err), ATH_ERR_ARGUMENT, "-c ");
    sp.n_ctx = 256, sp.kv_layers = "0:k=turbo9";
    MUST_FAIL(ath_engine_plan_cache(engine, &sp, &plan, err), ATH_ERR_ARGUMENT, "turbo9");
    ath_engine_close(&engine);
    ath_engine_close(&engine);
    ath_engine_close(NULL);
}

/* ---- a pass that fails */

/* A copy of a golden model whose embedding of one token is not a number. */
static void write_poisoned(const char *path, ath_token poisoned) {
    char clean[1024];
    snprintf(clean, sizeof clean, "%s/llama/model.gguf", golden_folder());
    FILE *file = fopen(clean, "rb");
    assert_non_null(file);
    static uint8_t bytes[8 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(size > 0 && size < sizeof bytes);
    ath_gguf *gguf;
    MUST(ath_gguf_open_memory(&gguf, bytes, size, "copy", err));
    const ath_gguf_tensor *embd = ath_gguf_find_tensor(gguf, "token_embd.weight");
    size_t at = (size_t)(embd->data - bytes) + (size_t)poisoned * (size_t)embd->ne[0] * sizeof(float);
    ath_gguf_close(gguf);
    float not_a_number = NAN;
    memcpy(bytes + at, &not_a_number, sizeof not_a_number);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* NaN in K or V is refused with the layer's number; the pass is undone for every sequence, and all go on as if it had
 * not been. */
static void test_not_a_number(void **state) {
    (void)state;
    need_golden();
    enum { POISONED = 1 }; /* no text holds it */
    static const ath_token bad[3] = {9, POISONED, 9};
    static float clean[N_VOCAB];
    char path[] = "/tmp/athanor-session-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_poisoned(path, POISONED);
    ath_engine *engine = open_engine_at(path, 2, N_UBATCH);
    unlink(path);
    cold_logits(clean, engine, "turbo3", text[0], 383, 390);
    ath_session *s = open_session(engine, "turbo3", 1024, 2);
    append(s, 0, text[0], 383); /* the bad pass would have closed this page */
    append(s, 1, text[1], 100);
    ath_batch_part parts[2] = {{1, text[1] + 100, 40}, {0, bad, 3}};
    MUST_FAIL(ath_session_eval(s, &(ath_batch){.parts = parts, .n_parts = 2}, err), ATH_ERR_FORMAT, "layer 0");
    assert_int_equal(ath_session_length(s, 0), 383);
    assert_int_equal(ath_session_length(s, 1), 100);
    MUST_FAIL(ath_session_append(s, 1, bad + 1, 1, err), ATH_ERR_FORMAT, "layer 0");
    assert_int_equal(ath_session_length(s, 1), 100);
    decode(s, 0, text[0], 383, 390);
    assert_same_logits(ath_session_logits(s, 0), clean, "after a failed pass", 390);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* ---- figures */

/* Rows that a query at position p reads compressed: all pages but its own and the one before, without the sinks. */
static uint64_t rows_compressed(int64_t n) {
    uint64_t sum = 0;
    for (int64_t p = 0; p < n; p++) {
        int64_t end = (p / 128 - 1) * 128;
        sum += end > 4 ? (uint64_t)(end - 4) : 0;
    }
    return sum;
}

static void test_counters(void **state) {
    (void)state;
    enum { N = 1000 };
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_session_params p = ath_session_params_default();
    p.n_ctx = 1024;
    p.type_k = "turbo3";
    p.type_v = "q4_0";
    p.kv_layers = "-1:v=f16";
    ath_session *s = NULL;
    MUST(ath_session_open(&s, engine, &p, err));
    append(s, 0, text[0], N - 10);
    decode(s, 0, text[0], N - 10, N);
    ath_session_stats stats;
    ath_session_get_stats(s, &stats);
    uint64_t all = (uint64_t)N * (N + 1) / 2, compressed = rows_compressed(N);
    assert_true(2 * compressed >= all);
    assert_string_equal(stats.type_k, "turbo3");
    assert_non_null(strstr(stats.type_v, "q4_0"));
    assert_non_null(strstr(stats.type_v, "f16"));
    assert_true(stats.attention_kernel && *stats.attention_kernel);
    assert_int_equal(stats.k_rows_compressed, 2 * compressed);
    assert_int_equal(stats.k_rows_f16, 2 * (all - compressed));
    assert_int_equal(stats.v_rows_compressed, compressed);
    assert_int_equal(stats.v_rows_f16, 2 * all - compressed);
    uint64_t first[4], last[4];
    ath_session_layer_rows(s, 0, first);
    ath_session_layer_rows(s, 1, last);
    assert_int_equal(first[2], compressed);
    assert_int_equal(last[2], 0);
    assert_int_equal(last[3], all);
    assert_int_equal(stats.tokens_prefill, N - 10);
    assert_int_equal(stats.tokens_decode, 10);
    assert_true(stats.prefill_ms > 0 && stats.decode_ms > 0);
    assert_int_equal(stats.saturated, 0);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static uint64_t compressed_in_windows(ath_engine *engine, const char *type) {
    ath_session *s = open_session(engine, type, 1024, 1);
    append(s, 0, text[0], 1000);
    uint64_t sum = 0;
    for (int layer = 0; layer < 7; layer++) {
        uint64_t rows[4];
        ath_session_layer_rows(s, layer, rows);
        if (ath_engine_layer(engine, layer).window) sum += rows[0] + rows[2];
    }
    ath_session_close(&s);
    return sum;
}

/* gemma3 has windows of 16 in all layers but one: those stay f16, and say so. */
static void test_windowed_layers_stay_f16(void **state) {
    (void)state;
    ath_engine *engine = open_engine("gemma3/model.gguf");
    assert_int_equal(ath_engine_layer(engine, 0).window, 16);
    assert_int_equal(ath_engine_layer(engine, 5).window, 0);
    assert_int_equal(compressed_in_windows(engine, "turbo3"), 0);
    ath_session *s = open_session(engine, "turbo3", 1024, 1);
    ath_session_stats stats;
    ath_session_get_stats(s, &stats);
    assert_non_null(strstr(stats.type_k, "f16"));
    assert_non_null(strstr(stats.type_k, "turbo3"));
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* The plan is what a session of these parameters holds once its context is full; on the way there never more. */
static void test_plan_is_kept(void **state) {
    (void)state;
    enum { N = 1024 };
    ath_engine *engine = open_engine("llama/model.gguf");
    for (int i = 0; ath_cache_type_name(i); i++) {
        const char *type = ath_cache_type_name(i);
        ath_cache_plan plan;
        ath_session_params p = ath_session_params_default();
        p.n_ctx = N;
        p.type_k = p.type_v = type;
        MUST(ath_engine_plan_cache(engine, &p, &plan, err));
        size_t planned = plan.bytes_pages + plan.bytes_recent + plan.bytes_entries;
        ath_session *s = NULL;
        MUST(ath_session_open(&s, engine, &p, err));
        ath_session_stats stats;
        for (size_t at = 0; at < N; at += 512) {
            append(s, 0, text[0] + at, 512);
            ath_session_get_stats(s, &stats);
            assert_true(stats.cache_bytes <= planned);
        }
        assert_int_equal(stats.cache_bytes_at_ctx, planned);
        assert_true(stats.cache_bytes > planned * 9 / 10);
        assert_true(fabs(stats.bytes_per_token - plan.bytes_per_token) < 1e-9);
        assert_true(fabs(stats.bytes_per_token_f16 - 2 * 2 * 2 * 2 * 128) < 1e-9); /* layers, K and V, heads, bytes */
        ath_session_close(&s);
    }
    ath_engine_close(&engine);
}

/* What changes the size of a session's cache changes its plan: overrides of layers, windows that are kept whole, entry points. */
static void test_plan_follows_the_parameters(void **state) {
    (void)state;
    ath_engine *engine = open_engine("gemma3/model.gguf");
    ath_session_params p = ath_session_params_default();
    p.n_ctx = 4096;
    p.type_k = p.type_v = "turbo3";
    size_t last = 0;
    for (int i = 0; i < 4; i++) {
        if (i == 1) p.swa_full = true;
        if (i == 2) p.kv_layers = "0-1:k=f32";
        if (i == 3) p.entry_every = 1;
        ath_cache_plan plan;
        MUST(ath_engine_plan_cache(engine, &p, &plan, err));
        ath_session *s = NULL;
        MUST(ath_session_open(&s, engine, &p, err));
        ath_session_stats stats;
        ath_session_get_stats(s, &stats);
        size_t planned = plan.bytes_pages + plan.bytes_recent + plan.bytes_state + plan.bytes_entries;
        assert_int_equal(stats.cache_bytes_at_ctx, planned);
        assert_string_equal(stats.type_k, plan.type_k);
        assert_true(planned > last);
        last = planned;
        ath_session_close(&s);
    }
    ath_engine_close(&engine);
}

/* Closed pages of turbo3 at head_dim 128: 50 bytes per row and side, and 3 bytes per channel and page of K. */
static void test_bytes_per_token(void **state) {
    (void)state;
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_cache_plan plan;
    ath_session_params p = ath_session_params_default();
    p.type_k = p.type_v = "turbo3";
    p.n_ctx = 8192;
    MUST(ath_engine_plan_cache(engine, &p, &plan, err));
    assert_true(fabs(plan.bytes_per_token - 2 * 2 * (50 + 50 + 3)) < 1e-9);
    ath_engine_close(&engine);
}

/* Bytes and rows of three steps behind 900 positions. */
static void steps_at_depth(const char *model, bool filled, ath_session_stats *stats) {
    ath_engine *engine = open_engine(model);
    ath_session *s = open_session(engine, "turbo3", 1024, 1);
    if (filled)
        MUST(ath_session_fill(s, 0, 900, err));
    else
        append(s, 0, text[0], 900);
    assert_int_equal(ath_session_length(s, 0), 900);
    assert_true(filled == !ath_session_logits(s, 0));
    ath_session_stats before;
    ath_session_get_stats(s, &before);
    decode(s, 0, text[0], 900, 903);
    for (int i = 0; i < N_VOCAB; i++) assert_true(isfinite(ath_session_logits(s, 0)[i]));
    ath_session_get_stats(s, stats);
    stats->k_rows_compressed -= before.k_rows_compressed;
    stats->v_rows_compressed -= before.v_rows_compressed;
    stats->k_rows_f16 -= before.k_rows_f16;
    MUST_FAIL(ath_session_fill(s, 0, 122, err), ATH_ERR_CONTEXT, "1024");
    MUST_FAIL(ath_session_fill(s, 1, 1, err), ATH_ERR_ARGUMENT, "sequence 1");
    ath_session_close(&s);
    ath_engine_close(&engine);
}

/* A cache of random values takes and reads what one of as many evaluated tokens does. */
static void test_fill(void **state) {
    (void)state;
    static const char *const models[] = {"llama/model.gguf", "gemma3/model.gguf", "deepseek2/model.gguf", "qwen35/model.gguf"};
    for (int i = 0; i < 4; i++) {
        ath_session_stats real, filled;
        steps_at_depth(models[i], false, &real);
        steps_at_depth(models[i], true, &filled);
        assert_true(filled.k_rows_compressed > 0);
        assert_int_equal(filled.k_rows_compressed, real.k_rows_compressed);
        assert_int_equal(filled.v_rows_compressed, real.v_rows_compressed);
        assert_int_equal(filled.k_rows_f16, real.k_rows_f16);
        assert_int_equal(filled.cache_bytes, real.cache_bytes);
        assert_int_equal(filled.tokens_prefill, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_batches_that_make_no_sense),
        cmocka_unit_test(test_sessions_that_make_no_sense),
        cmocka_unit_test(test_engines_that_make_no_sense),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_windowed_layers_stay_f16),
        cmocka_unit_test(test_plan_is_kept),
        cmocka_unit_test(test_plan_follows_the_parameters),
        cmocka_unit_test(test_bytes_per_token),
        cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests_name("session limits", tests, fill, NULL);
}
