/* Rotary embedding frequencies: base, linear scaling, YaRN (Peng et al. 2023, arXiv 2309.00071), and the per-pair
 * divisors that Llama 3.1 files carry. All in double: at position 2000 a float angle is off by 1e-4. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"

typedef struct scaling {
    bool yarn, long_factors, unrounded;
    double base, freq_scale; /* freq_scale = 1/factor */
    double orig_ctx, ext_factor, attn_factor, log_multiplier, beta_fast, beta_slow;
} scaling;

/* Pair index (fractional) whose wavelength makes `turns` rotations over the original context. */
static double yarn_pair(double turns, int n_rot, double base, double orig_ctx) {
    return n_rot * log(orig_ctx / (turns * 2 * 3.14159265358979323846)) / (2 * log(base));
}

static void fill_frequencies(double *inv_freq, int n_rot, const scaling *s, const float *divisors) {
    double low = 0, high = 0;
    if (s->yarn) {
        low = yarn_pair(s->beta_fast, n_rot, s->base, s->orig_ctx);
        high = yarn_pair(s->beta_slow, n_rot, s->base, s->orig_ctx);
        low = fmax(0, s->unrounded ? low : floor(low));
        high = fmin(n_rot - 1, s->unrounded ? high : ceil(high));
    }
    for (int i = 0; i < n_rot / 2; i++) {
        double f = pow(s->base, -2.0 * i / n_rot);
        if (divisors) f /= divisors[i];
        double interpolated = f * s->freq_scale;
        if (s->yarn) {
            double ramp = fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
            double keep = (1 - ramp) * s->ext_factor;
            interpolated = interpolated * (1 - keep) + f * keep;
        }
        inv_freq[i] = interpolated;
    }
}

static bool is(ath_str s, const char *text) { return s.size == strlen(text) && !memcmp(s.data, text, s.size); }

static float chosen(float override, float model) { return override >= 0 ? override : model; }

/* The kind of scaling, by flag or by key; absent means linear, with a factor that is 1 unless set. */
static void read_scaling_type(ath_loader *in, scaling *s, bool *none) {
    ath_str type;
    if (ath_gguf_get_str(in->gguf, &type, in->err, "%s.rope.scaling.type", in->arch) != ATH_OK) {
        in->status = ATH_ERR_FORMAT;
        return;
    }
    const char *flag = in->params->rope.scaling;
    if (flag) type = (ath_str){flag, strlen(flag)};
    s->yarn = is(type, "yarn");
    s->long_factors = is(type, "longrope");
    *none = is(type, "none");
    if (type.size && !s->yarn && !s->long_factors && !*none && !is(type, "linear"))
        ath_load_fail(in, ATH_ERR_UNSUPPORTED, "rope scaling \"%.*s\" is not one of: none, linear, yarn, longrope",
                      (int)type.size, type.data);
}

static void read_scaling(ath_loader *in, scaling *s) {
    const ath_rope_overrides *o = &in->params->rope;
    bool none = false;
    *s = (scaling){.freq_scale = 1};
    if (o->scale < 0 || o->freq_scale < 0 || o->freq_base < 0)
        ath_load_fail(in, ATH_ERR_ARGUMENT,
                      "--rope-scale %g, --rope-freq-scale %g, --rope-freq-base %g: none can be below zero",
                      (double)o->scale, (double)o->freq_scale, (double)o->freq_base);
    read_scaling_type(in, s, &none);
    s->base = o->freq_base > 0 ? o->freq_base : ath_load_f32(in, "rope.freq_base", 10000);
    float factor = ath_load_f32(in, "rope.scaling.factor", ath_load_f32(in, "rope.scale_linear", 0));
    if (o->scale > 0) factor = o->scale;
    if (o->freq_scale > 0) factor = 1 / o->freq_scale;
    if (none) factor = 1;
    if (factor > 0) s->freq_scale = 1 / (double)factor;
    s->orig_ctx = o->yarn_orig_ctx > 0
                      ? (double)o->yarn_orig_ctx
                      : (double)ath_load_u32(in, "rope.scaling.original_context_length", (uint32_t)in->model->n_ctx_train);
    s->ext_factor = chosen(o->yarn_ext_factor, ath_load_f32(in, "rope.scaling.yarn_ext_factor", 1));
    s->attn_factor = ath_load_f32(in, "rope.scaling.attn_factor", 1);
    s->attn_factor *= chosen(o->yarn_attn_factor, ath_load_f32(in, "rope.scaling.yarn_attn_factor", 1));
    s->log_multiplier = ath_load_f32(in, "rope.scaling.yarn_log_multiplier", 0);
    s->beta_fast = chosen(o->yarn_beta_fast, ath_load_f32(in, "rope.scaling.yarn_beta_fast", 32));
    s->beta_slow = chosen(o->yarn_beta_slow, ath_load_f32(in, "rope.scaling.yarn_beta_slow", 1));
    if (in->status == ATH_OK && !(s->base > 1 && isfinite(s->base) && s->orig_ctx >= 1 && isfinite(s->freq_scale)))
        ath_load_fail(in, ATH_ERR_FORMAT, "rope: base %g, original context %g, scale %g make no sense", s->base,
                      s->orig_ctx, s->freq_scale);
}

static void fill_rope(ath_loader *in, ath_rope *rope, const scaling *s, int n_rot, bool neox, const float *divisors) {
    double *f = ath_load_alloc(in, (size_t)n_rot / 2 + 1, sizeof *f);
    if (!f) return;
    fill_frequencies(f, n_rot, s, divisors);
    *rope = (ath_rope){.n_rot = n_rot, .neox = neox, .inv_freq = f, .magnitude = (float)s->attn_factor};
    if (!s->yarn || s->freq_scale >= 1) return;
    in->model->yarn_factor = 1 / s->freq_scale;
    if (s->ext_factor == 0) return; /* plain interpolation: no magnitude either */
    double length = -log(s->freq_scale), magnitude = 1 + 0.1 * length;
    if (s->log_multiplier != 0) magnitude /= 1 + 0.1 * s->log_multiplier * length;
    rope->magnitude = (float)(s->attn_factor * magnitude);
}

/* LongRoPE (Ding et al. 2024, arXiv 2402.13753): one set of divisors up to the original context, another beyond it. */
static void load_long_rope(ath_loader *in, const scaling *s, int n_rot, bool neox) {
    ath_model *m = in->model;
    unsigned flags = s->long_factors ? 0 : ATH_LOAD_OPTIONAL;
    float *shorter = ath_load_vector(in, n_rot / 2, flags, "rope_factors_short.weight", 0);
    float *longer = ath_load_vector(in, n_rot / 2, shorter ? 0 : flags, "rope_factors_long.weight", 0);
    if (in->status != ATH_OK || !shorter || !longer) return;
    fill_rope(in, &m->rope[ATH_ROPE_FULL], s, n_rot, neox, shorter);
    fill_rope(in, &m->rope[ATH_ROPE_LONG], s, n_rot, neox, longer);
    m->rope_long_above = (int64_t)s->orig_ctx;
}

/* Whether the heads are as wide is checked when all layers have their tables. */
static int load_n_rot(ath_loader *in, const char *key, uint32_t fallback) {
    uint32_t n_rot = ath_load_u32(in, key, fallback);
    if (n_rot % 2 || n_rot > ATH_MAX_HEAD_DIM || n_rot == 0)
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.%s is %u: an even number of a head's channels is possible",
                      in->arch, key, n_rot);
    return (int)n_rot;
}

void ath_load_rope(ath_loader *in, unsigned flags) {
    bool neox = flags & ATH_LOAD_NEOX;
    ath_model *m = in->model;
    scaling full;
    read_scaling(in, &full);
    full.unrounded = flags & ATH_LOAD_UNROUNDED;
    int n_rot = load_n_rot(in, "rope.dimension_count",
                           ath_load_u32(in, "attention.key_length", (uint32_t)m->layers[0].head_dim_k));
    if (in->status != ATH_OK) return;
    float *divisors = ath_load_vector(in, n_rot / 2, ATH_LOAD_OPTIONAL, "rope_freqs.weight", 0);
    if (in->status != ATH_OK) return;
    fill_rope(in, &m->rope[ATH_ROPE_FULL], &full, n_rot, neox, divisors);
    load_long_rope(in, &full, n_rot, neox);
    for (int il = 0; il < m->n_layers; il++) m->layers[il].rope = &m->rope[ATH_ROPE_FULL];
}

void ath_load_window_rope(ath_loader *in, float default_base) {
    ath_model *m = in->model;
    scaling plain = {.base = ath_load_f32(in, "rope.freq_base_swa", default_base), .freq_scale = 1, .attn_factor = 1};
    if (in->status == ATH_OK && !(plain.base > 1 && isfinite(plain.base)))
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s.rope.freq_base_swa is %g", in->arch, plain.base);
    if (in->status != ATH_OK) return;
    const ath_rope *full = &m->rope[ATH_ROPE_FULL];
    int n_rot = load_n_rot(in, "rope.dimension_count_swa", (uint32_t)full->n_rot);
    if (in->status != ATH_OK) return;
    fill_rope(in, &m->rope[ATH_ROPE_WINDOW], &plain, n_rot, full->neox, NULL);
    for (int il = 0; il < m->n_layers; il++)
        if (m->layers[il].window) m->layers[il].rope = &m->rope[ATH_ROPE_WINDOW];
}

void ath_load_windows(ath_loader *in, uint32_t default_period) {
    ath_model *m = in->model;
    uint32_t window = ath_load_u32(in, "attention.sliding_window", 0);
    const ath_gguf_kv *pattern = NULL;
    char key[128];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", in->arch);
    pattern = ath_gguf_find(in->gguf, key);
    bool per_layer = pattern && pattern->type == ATH_GGUF_ARRAY;
    uint32_t period = per_layer ? 0 : ath_load_u32(in, "attention.sliding_window_pattern", default_period);
    if (per_layer && (pattern->count < (uint64_t)m->n_layers || pattern->strings))
        ath_load_fail(in, ATH_ERR_FORMAT, "key %s has %llu entries for %d layers", key,
                      (unsigned long long)pattern->count, m->n_layers);
    uint32_t head_k = ath_load_u32(in, "attention.key_length_swa", 0),
             head_v = ath_load_u32(in, "attention.value_length_swa", 0);
    if (head_k > ATH_MAX_HEAD_DIM || head_v > ATH_MAX_HEAD_DIM)
        ath_load_fail(in, ATH_ERR_UNSUPPORTED,
                      "keys attention.key_length_swa %u and value_length_swa %u: up to %d are possible",
                      head_k, head_v, ATH_MAX_HEAD_DIM);
    if (in->status != ATH_OK || window == 0) return;
    for (int il = 0; il < m->n_layers; il++) {
        ath_layer *l = &m->layers[il];
        bool windowed = per_layer ? ath_gguf_item_i64(pattern, (uint64_t)il) != 0
                                  : period == 0 || (uint32_t)il % period < period - 1;
        if (!windowed) continue;
        l->window = window;
        if (head_k) l->head_dim_k = (int)head_k;
        if (head_v) l->head_dim_v = (int)head_v;
    }
}
