/* Evaluation that the caller cancels: what is undone, what stays, and that the sequence goes on as if nothing had been. */
#include "engine/session_fixture.h"

static int questions_left;

static bool when_asked_enough(void *user) {
    (void)user;
    return questions_left-- <= 0;
}

typedef struct seen {
    size_t n;
} seen;

static void count_row(void *user, int part, size_t row, const float *logits) {
    (void)part;
    (void)row;
    (void)logits;
    ((seen *)user)->n++;
}

static void test_cancel(void **state) {
    (void)state;
    static float cold[N_VOCAB];
    ath_engine *engine = open_engine("llama/model.gguf");
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    cold_logits(cold, engine, "turbo3", text[0], 600, 600);
    ath_session *s = open_session(engine, "turbo3", 1024, 1);
    append(s, 0, text[0], 300);
    for (int layers = 0; layers < info.n_layers; layers++) { /* a pass that is not done is undone */
        questions_left = layers;
        ath_session_set_cancel(s, when_asked_enough, NULL);
        MUST_FAIL(ath_session_append(s, 0, text[1], 200, err), ATH_ERR_CANCELLED, "cancelled");
        assert_int_equal(ath_session_length(s, 0), 300);
    }
    questions_left = info.n_layers + 2; /* two pieces of logits */
    seen rows = {0};
    ath_batch_part part = {0, text[0] + 300, 300};
    MUST_FAIL(ath_session_eval(s, &(ath_batch){.parts = &part, .n_parts = 1, .on_logits = count_row, .user = &rows}, err),
              ATH_ERR_CANCELLED, "cancelled");
    assert_true(rows.n > 0 && rows.n < 300);
    assert_int_equal(ath_session_length(s, 0), 600);
    assert_null(ath_session_logits(s, 0));
    ath_session_set_cancel(s, NULL, NULL);
    assert_int_equal(ath_session_truncate(s, 0, 500), 500);
    append(s, 0, text[0] + 500, 100);
    assert_same_logits(ath_session_logits(s, 0), cold, "after cancelling", 600);
    ath_session_close(&s);
    ath_engine_close(&engine);
}

static int fill(void **state) {
    (void)state;
    fill_texts();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests_name("session cancel", tests, fill, NULL);
}
