/* The window of past tokens and the penalties that count in it. See sampler_steps.h. */
#include "sample/sampler_steps.h"

static void count(ath_penalties *penalties, int32_t token, int32_t by) {
    if (token >= 0 && token < penalties->n_vocab) penalties->counts[token] += by;
}

void ath_history_accept(ath_history *h, ath_penalties *penalties, int32_t token) {
    if (h->capacity == 0) return;
    if (penalties->counts) {
        if (h->n >= penalties->last_n) count(penalties, ath_history_at(h, penalties->last_n - 1), -1);
        count(penalties, token, 1);
    }
    h->tokens[h->head] = token;
    h->head = h->head + 1 == h->capacity ? 0 : h->head + 1;
    if (h->n < h->capacity) h->n++;
}

/* The repeat penalty (Keskar et al., 2019) makes a token less likely whatever the sign of its logit. */
void ath_step_penalties(ath_candidates *c, const ath_penalties *penalties) {
    for (int32_t i = 0; i < c->size; i++) {
        int32_t n = penalties->counts[c->data[i].id];
        if (n == 0) continue;
        float logit = c->data[i].logit;
        logit = logit <= 0 ? logit * penalties->repeat : logit / penalties->repeat;
        c->data[i].logit = logit - ((float)n * penalties->frequency + penalties->presence);
    }
    c->n_sorted = 0;
}
