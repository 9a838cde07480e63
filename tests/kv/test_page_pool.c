/* Page pools: zeroed pages, counting, the budget, reuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "codec/kv_page.h"
#include "kv/page_pool.h"

static void pages_are_zero_and_come_back(void **state) {
    (void)state;
    size_t bytes = ath_page_bytes(1000);
    assert_true(bytes >= 1000 + ATH_PAGE_SLACK && bytes % 64 == 0);
    assert_int_equal(ath_page_bytes(0), 0);
    ath_page_pool pool;
    ath_page_pool_init(&pool, bytes, 3);
    ath_page *pages[3];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            pages[i] = ath_page_take(&pool);
            assert_non_null(pages[i]);
            assert_int_equal((uintptr_t)pages[i]->mem % 64, 0);
            for (size_t b = 0; b < bytes; b++) assert_int_equal(pages[i]->mem[b], 0);
            memset(pages[i]->mem, 0xff, bytes);
        }
        assert_null(ath_page_take(&pool));
        assert_int_equal(pool.n_in_use, 3);
        for (int i = 0; i < 3; i++) ath_page_unref(&pool, pages[i]);
        assert_int_equal(pool.n_in_use, 0);
        assert_int_equal(pool.n_pages, 3);
    }
    ath_page_pool_free(&pool);
}

/* In pieces or all at once, fresh or used: what is handed out is zero, and the preparation of the next page starts anew. */
static void pages_are_prepared(void **state) {
    (void)state;
    size_t bytes = ath_page_bytes(1000);
    ath_page_pool pool;
    ath_page_pool_init(&pool, bytes, 1);
    for (int round = 0; round < 4; round++) {
        ath_page_prepare(&pool, 100);
        ath_page_prepare(&pool, round < 2 ? 50 : 5000);
        assert_int_equal(pool.n_pages, 1);
        assert_int_equal(pool.n_in_use, 0);
        assert_int_equal(pool.free_list->ready, round < 2 ? 150 : bytes);
        ath_page *page = ath_page_take(&pool);
        for (size_t b = 0; b < bytes; b++) assert_int_equal(page->mem[b], 0);
        memset(page->mem, 0xff, bytes);
        ath_page_prepare(&pool, 100); /* none left */
        ath_page_unref(&pool, page);
    }
    ath_page_pool_free(&pool);
}

static void references_are_counted(void **state) {
    (void)state;
    ath_page_pool pool;
    ath_page_pool_init(&pool, ath_page_bytes(64), 2);
    ath_page *page = ath_page_take(&pool);
    assert_ptr_equal(ath_page_ref(&pool, page), page);
    assert_int_equal(pool.n_shared, 1);
    ath_page_ref(&pool, page);
    assert_int_equal(pool.n_shared, 1);
    ath_page_unref(&pool, page);
    ath_page_unref(&pool, page);
    assert_int_equal(pool.n_shared, 0);
    assert_int_equal(pool.n_in_use, 1);
    ath_page_unref(&pool, page);
    assert_int_equal(pool.n_in_use, 0);
    ath_page_pool_free(&pool);
}

static void pages_larger_than_a_slab(void **state) {
    (void)state;
    ath_page_pool pool;
    ath_page_pool_init(&pool, ath_page_bytes(3 << 20), 2);
    ath_page *a = ath_page_take(&pool);
    assert_int_equal(pool.n_pages, 1); /* grown by what is needed alone */
    ath_page *b = ath_page_take(&pool);
    memset(a->mem, 1, pool.page_bytes);
    memset(b->mem, 2, pool.page_bytes);
    assert_int_equal(a->mem[pool.page_bytes - 1], 1);
    assert_null(ath_page_take(&pool));
    ath_page_pool_free(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_zero_and_come_back),
        cmocka_unit_test(pages_are_prepared),
        cmocka_unit_test(references_are_counted),
        cmocka_unit_test(pages_larger_than_a_slab),
    };
    return cmocka_run_group_tests_name("page_pool", tests, NULL, NULL);
}
