/* Softmax, sorting and drawing. See sampler_steps.h.
 *
 * Sorting is a heap that hands out the best one at a time: top_p looks at a few dozen of 100,000 candidates,
 * no memory is needed, and hostile logits can't make it quadratic. The heap is stored backwards,
 * its root at the array's end, so that the place that it frees is the next one of the sorted front. */
#include "sample/sampler_steps.h"

#include <math.h>

float ath_candidates_max(const ath_candidates *c) {
    float max = c->data[0].logit;
    if (c->n_sorted) return max;
    for (int32_t i = 1; i < c->size; i++)
        if (c->data[i].logit > max) max = c->data[i].logit;
    return max;
}

void ath_candidates_softmax(ath_candidates *c) {
    float max = ath_candidates_max(c), sum = 0;
    for (int32_t i = 0; i < c->size; i++) {
        c->data[i].p = expf(c->data[i].logit - max);
        sum += c->data[i].p;
    }
    for (int32_t i = 0; i < c->size; i++) c->data[i].p /= sum;
}

typedef bool order_fn(const ath_candidate *a, const ath_candidate *b);

static inline bool better(const ath_candidate *a, const ath_candidate *b) {
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

static inline bool worse(const ath_candidate *a, const ath_candidate *b) {
    return better(b, a);
}

/* Node i of the heap of n nodes is root[-i]; inline, so that the order is compiled in. */
static inline void sift_down(ath_candidate *root, int32_t n, int32_t i, order_fn *before) {
    ath_candidate moving = root[-i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&root[-(child + 1)], &root[-child])) child++;
        if (!before(&root[-child], &moving)) break;
        root[-i] = root[-child];
    }
    root[-i] = moving;
}

void ath_candidates_heapify(ath_candidates *c) {
    c->n_sorted = 0;
    for (int32_t i = c->size / 2 - 1; i >= 0; i--) sift_down(&c->data[c->size - 1], c->size, i, better);
}

void ath_candidates_pop(ath_candidates *c) {
    ath_candidate *root = &c->data[c->size - 1], best = *root;
    int32_t n = c->size - c->n_sorted - 1;
    *root = c->data[c->n_sorted];
    c->data[c->n_sorted++] = best;
    if (n > 1) sift_down(root, n, 0, better);
}

void ath_candidates_heapify_logits(ath_candidates *c) {
    if (c->n_sorted) return;
    for (int32_t i = 0; i < c->size; i++) c->data[i].key = c->data[i].logit;
    ath_candidates_heapify(c);
}

void ath_candidates_sort(ath_candidates *c) {
    ath_candidates_heapify_logits(c);
    while (c->n_sorted < c->size) ath_candidates_pop(c);
}

/* A heap of k with the worst on top: nearly all of a vocabulary fails the one comparison with it. */
void ath_candidates_keep_best(ath_candidates *c, int32_t k) {
    if (!c->n_sorted) {
        ath_candidate *root = &c->data[k - 1];
        for (int32_t i = 0; i < c->size; i++) c->data[i].key = c->data[i].logit;
        for (int32_t i = k / 2 - 1; i >= 0; i--) sift_down(root, k, i, worse);
        for (int32_t i = k; i < c->size; i++) {
            if (!better(&c->data[i], root)) continue;
            *root = c->data[i];
            sift_down(root, k, 0, worse);
        }
    }
    c->size = k;
    if (c->n_sorted) c->n_sorted = k;
    ath_candidates_sort(c);
}

int32_t ath_draw_dist(ath_candidates *c, ath_rng *rng) {
    float max = ath_candidates_max(c);
    double sum = 0, running = 0;
    for (int32_t i = 0; i < c->size; i++) {
        c->data[i].p = expf(c->data[i].logit - max);
        sum += c->data[i].p;
    }
    double target = sum * ath_rng_double(rng);
    for (int32_t i = 0; i < c->size; i++) {
        running += c->data[i].p;
        if (running >= target && c->data[i].p > 0) return i;
    }
    return -1;
}

int32_t ath_draw_discrete(const ath_candidates *c, ath_rng *rng) {
    double sum = 0, running = 0;
    for (int32_t i = 0; i < c->size; i++) sum += c->data[i].p;
    if (c->size == 1) return c->data[0].p > 0 ? 0 : -1;
    double target = ath_rng_double(rng);
    int32_t last = -1; /* rounding may leave the full sum below the target */
    for (int32_t i = 0; i < c->size; i++) {
        if (!(c->data[i].p > 0)) continue;
        running += c->data[i].p / sum;
        last = i;
        if (running >= target) break;
    }
    return last;
}
