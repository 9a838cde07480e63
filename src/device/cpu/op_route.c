/* The choice of experts: probabilities, groups of experts, the largest ones and their weights. */
#include <math.h>

#include "device/cpu/cpu_device.h"
#include "kernels/vector_math.h"

typedef struct route_run {
    const ath_router *router;
    const float *logits;
    int32_t *expert;
    float *weight;
} route_run;

/* Probabilities times the sum that is returned: a division per chosen one is enough. */
static float probabilities(const ath_router *r, const float *logits, float *p) {
    if (r->sigmoid) {
        for (int e = 0; e < r->n_experts; e++) p[e] = 1.0f / (1.0f + ath_expf(-logits[e]));
        return 1.0f;
    }
    float max = logits[0], sum = 0.0f;
    for (int e = 1; e < r->n_experts; e++) max = logits[e] > max ? logits[e] : max;
    for (int e = 0; e < r->n_experts; e++) sum += p[e] = ath_expf(logits[e] - max);
    return sum;
}

static float group_score(const ath_router *r, const float *score, int n) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = 0; e < n; e++) {
        if (score[e] > best) {
            second = best;
            best = score[e];
        } else if (score[e] > second) {
            second = score[e];
        }
    }
    return r->sigmoid && n > 1 ? best + second : best;
}

/* The n_used indices of largest score, in descending order; an equal one that comes later stays behind. */
static void choose(const float *score, int n, int n_used, int32_t *chosen) {
    for (int e = 0; e < n; e++) {
        int kept = e < n_used ? e : n_used, slot = kept;
        while (slot > 0 && score[e] > score[chosen[slot - 1]]) slot--;
        if (slot == n_used) continue;
        for (int s = kept < n_used ? kept : kept - 1; s > slot; s--) chosen[s] = chosen[s - 1];
        chosen[slot] = e;
    }
}

/* Takes the experts of all but the best groups out of the choice. */
static void mask_groups(const ath_router *r, float *score) {
    float group[ATH_MAX_EXPERTS];
    int32_t chosen[ATH_MAX_EXPERTS];
    bool used[ATH_MAX_EXPERTS] = {false};
    int n = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) group[g] = group_score(r, score + g * n, n);
    choose(group, r->n_groups, r->n_groups_used, chosen);
    for (int g = 0; g < r->n_groups_used; g++) used[chosen[g]] = true;
    for (int e = 0; e < r->n_groups * n; e++) {
        if (!used[e / n]) score[e] = -INFINITY;
    }
}

static void route_row(const ath_router *r, const float *logits, int32_t *expert, float *weight) {
    float p[ATH_MAX_EXPERTS], score[ATH_MAX_EXPERTS], *by = p;
    float sum = probabilities(r, logits, p), sum_used = 0.0f;
    if (r->bias || r->n_groups > 1) {
        for (int e = 0; e < r->n_experts; e++) score[e] = p[e] / sum + (r->bias ? r->bias[e] : 0.0f);
        by = score;
    }
    if (r->n_groups > 1) mask_groups(r, score);
    choose(by, r->n_experts, r->n_used, expert);
    for (int s = 0; s < r->n_used; s++) sum_used += weight[s] = p[expert[s]] / sum;
    float factor = r->renormalise ? r->scale / (sum_used > 6.1035e-5f ? sum_used : 6.1035e-5f) : r->scale;
    for (int s = 0; s < r->n_used; s++) weight[s] *= factor;
}

static void route_range(void *arg, int64_t begin, int64_t end) {
    const route_run *run = arg;
    const ath_router *r = run->router;
    for (int64_t row = begin; row < end; row++)
        route_row(r, run->logits + row * r->n_experts, run->expert + row * r->n_used,
                  run->weight + row * r->n_used);
}

void ath_op_route(ath_device *dev, const ath_router *router, const float *logits, int32_t *expert,
                  float *weight, int64_t rows) {
    route_run r = {router, logits, expert, weight};
    ath_parallel_ranges(dev, route_range, &r, rows, 8 * router->n_experts);
}
