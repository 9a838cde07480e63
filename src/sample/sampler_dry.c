/* DRY. See sampler_steps.h.
 *
 * With the sequence read backwards, z[k] is how many tokens before position k (from the end) equal the last
 * ones of the sequence: the Z function, linear in the window. The token that followed there is the one at k
 * - 1. */
#include "sample/sampler_steps.h"

#include <math.h>

/* How far back a repetition may reach: up to the last breaker. A breaker of several tokens counts from its
 * end. */
static int32_t find_limit(const ath_dry *dry, const ath_history *h, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t token = ath_history_at(h, i), longest = -1;
        if (token < 0 || token >= dry->n_vocab) continue;
        for (int32_t b = dry->first[token]; b < dry->first[token + 1]; b++) {
            int32_t length = dry->offset[b + 1] - dry->offset[b], k = 0;
            if (length <= longest || length > i) continue;
            while (k < length && dry->tails[dry->offset[b] + k] == ath_history_at(h, i - 1 - k)) k++;
            if (k == length) longest = length;
        }
        if (longest >= 0) return i - longest;
    }
    return n;
}

static void find_repetitions(int32_t *z, const ath_history *h, int32_t n) {
    int32_t left = 0, right = 0; /* the match found so far that reaches farthest: [left, right) */
    for (int32_t k = 1; k < n; k++) {
        int32_t length = 0;
        if (k < right) length = z[k - left] < right - k ? z[k - left] : right - k;
        while (k + length < n && ath_history_at(h, length) == ath_history_at(h, k + length)) length++;
        z[k] = length;
        if (k + length > right) {
            left = k;
            right = k + length;
        }
    }
}

static bool is_breaker(const ath_dry *dry, int32_t token) {
    for (int32_t b = dry->first[token]; b < dry->first[token + 1]; b++)
        if (dry->offset[b] == dry->offset[b + 1]) return true;
    return false;
}

void ath_step_dry(ath_candidates *c, ath_dry *dry, const ath_history *h) {
    int32_t n = h->n < dry->last_n ? h->n : dry->last_n;
    if (n <= dry->allowed_length) return;
    int32_t limit = find_limit(dry, h, n);
    if (limit < dry->allowed_length) return;
    find_repetitions(dry->z, h, n);
    for (int32_t k = 1; k < n; k++) {
        int32_t length = dry->z[k] < limit ? dry->z[k] : limit, token = ath_history_at(h, k - 1);
        bool known = token >= 0 && token < dry->n_vocab;
        if (known && length >= dry->allowed_length && length >= dry->longest[token])
            dry->longest[token] = length + 1;
    }
    int32_t max_exponent = dry->base > 1.000001f ? (int32_t)(88.7228391f / logf(dry->base)) : INT32_MAX;
    for (int32_t i = 0; i < c->size; i++) {
        int32_t length = dry->longest[c->data[i].id] - 1;
        if (length < 0 || is_breaker(dry, c->data[i].id)) continue;
        int32_t exponent = length - dry->allowed_length;
        if (exponent > max_exponent) exponent = max_exponent;
        c->data[i].logit -= dry->multiplier * powf(dry->base, (float)exponent);
    }
    c->n_sorted = 0;
    for (int32_t k = 1; k < n; k++) {
        int32_t token = ath_history_at(h, k - 1);
        if (token >= 0 && token < dry->n_vocab) dry->longest[token] = 0;
    }
}
