/* Reference-counted pages of one size. Memory comes in slabs when it is needed, up to a budget; a page that
 * nobody holds is used again. A page is all zero when it is handed out, so that no uninitialised value is
 * ever read (or was so once: see `overwritten`), and ATH_PAGE_SLACK bytes after it may be read. Not thread-safe. */
#ifndef ATH_KV_PAGE_POOL_H
#define ATH_KV_PAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ath_page {
    uint8_t *mem; /* 64-byte aligned */
    int32_t refs;
    bool used_before;
    size_t ready; /* bytes from its start that are zero and resident */
    struct ath_page *next_free;
} ath_page;

typedef struct ath_page_pool {
    size_t page_bytes; /* slack included; multiple of 64; 0: a pool without pages */
    int64_t max_pages; /* the budget */
    bool overwritten;  /* pages are written wholly before they are read: used ones are handed out as they are */
    int64_t n_pages;   /* in slabs */
    int64_t n_in_use;  /* held by somebody */
    int64_t n_shared;  /* held more than once */
    ath_page *free_list;
    struct ath_page_slab *slabs;
} ath_page_pool;

/* payload bytes + slack, rounded up; 0 stays 0. */
size_t ath_page_bytes(size_t payload);

void ath_page_pool_init(ath_page_pool *pool, size_t page_bytes, int64_t max_pages);
void ath_page_pool_free(ath_page_pool *pool); /* all pages, held or not */

/* A zeroed page with one reference; NULL if the budget or the memory is used up. */
ath_page *ath_page_take(ath_page_pool *pool);
/* Zeroes up to that many bytes of the page that is taken next, and makes them resident: what take needn't do then. */
void ath_page_prepare(ath_page_pool *pool, size_t bytes);
ath_page *ath_page_ref(ath_page_pool *pool, ath_page *page); /* returns page */
void ath_page_unref(ath_page_pool *pool, ath_page *page);

#endif
