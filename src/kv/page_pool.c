/* Slabs of about a megabyte, or of one page where pages are larger: calloc hands large slabs out without
 * touching them, so memory is resident only once a page is written. */
#include "kv/page_pool.h"

#include <stdlib.h>
#include <string.h>

#include "codec/kv_page.h"

enum { PAGE_ALIGN = 64, SLAB_BYTES = 1 << 20 };

typedef struct ath_page_slab {
    struct ath_page_slab *next;
    void *memory;
    ath_page pages[];
} ath_page_slab;

size_t ath_page_bytes(size_t payload) {
    if (payload == 0) return 0;
    return (payload + ATH_PAGE_SLACK + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
}

void ath_page_pool_init(ath_page_pool *pool, size_t page_bytes, int64_t max_pages) {
    *pool = (ath_page_pool){.page_bytes = page_bytes, .max_pages = max_pages};
}

void ath_page_pool_free(ath_page_pool *pool) {
    while (pool->slabs) {
        ath_page_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        free(slab->memory);
        free(slab);
    }
    *pool = (ath_page_pool){0};
}

static bool pool_grow(ath_page_pool *pool) {
    int64_t n = pool->page_bytes < SLAB_BYTES ? (int64_t)(SLAB_BYTES / pool->page_bytes) : 1;
    if (n > pool->max_pages - pool->n_pages) n = pool->max_pages - pool->n_pages;
    if (n <= 0) return false;
    ath_page_slab *slab = malloc(sizeof *slab + (size_t)n * sizeof *slab->pages);
    if (!slab) return false;
    slab->memory = calloc(1, (size_t)n * pool->page_bytes + PAGE_ALIGN);
    if (!slab->memory) {
        free(slab);
        return false;
    }
    uint8_t *mem = slab->memory;
    mem += (PAGE_ALIGN - (uintptr_t)mem % PAGE_ALIGN) % PAGE_ALIGN;
    for (int64_t i = n - 1; i >= 0; i--) {
        slab->pages[i] = (ath_page){.mem = mem + (size_t)i * pool->page_bytes, .next_free = pool->free_list};
        pool->free_list = &slab->pages[i];
    }
    slab->next = pool->slabs;
    pool->slabs = slab;
    pool->n_pages += n;
    return true;
}

ath_page *ath_page_take(ath_page_pool *pool) {
    if (!pool->free_list && !pool_grow(pool)) return NULL;
    ath_page *page = pool->free_list;
    pool->free_list = page->next_free;
    if (page->used_before && !pool->overwritten) memset(page->mem + page->ready, 0, pool->page_bytes - page->ready);
    page->used_before = true;
    page->ready = 0;
    page->next_free = NULL;
    page->refs = 1;
    pool->n_in_use++;
    return page;
}

void ath_page_prepare(ath_page_pool *pool, size_t bytes) {
    if (pool->overwritten || (!pool->free_list && !pool_grow(pool))) return;
    ath_page *page = pool->free_list;
    if (bytes > pool->page_bytes - page->ready) bytes = pool->page_bytes - page->ready;
    memset(page->mem + page->ready, 0, bytes);
    page->ready += bytes;
}

ath_page *ath_page_ref(ath_page_pool *pool, ath_page *page) {
    if (++page->refs == 2) pool->n_shared++;
    return page;
}

void ath_page_unref(ath_page_pool *pool, ath_page *page) {
    if (--page->refs == 1) pool->n_shared--;
    if (page->refs > 0) return;
    pool->n_in_use--;
    page->next_free = pool->free_list;
    pool->free_list = page;
}
