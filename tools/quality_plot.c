/* athanor quality --plot: KLD by position as a picture, log scale, a line per type. */
#include <math.h>
#include <string.h>

#include "quality.h"

enum { WIDTH = 860, HEIGHT = 460, LEFT = 80, RIGHT = 180, TOP = 50, BOTTOM = 60, BINS = QUALITY_BINS };

typedef struct scale {
    double low, high; /* decades */
} scale;

/* Mean KLD of positions bin by bin; NAN where nothing was scored, or nothing lost: f16 was read there. */
static void bin_means(const quality *q, const quality_type *t, double mean[BINS]) {
    double error[BINS];
    quality_bins(q, t, mean, error);
    for (int b = 0; b < BINS; b++)
        if (!(mean[b] > 1e-6)) mean[b] = (double)NAN;
}

static scale scale_of(const quality *q) {
    scale s = {INFINITY, -INFINITY};
    for (int i = 0; i < q->n_types; i++) {
        double mean[BINS];
        bin_means(q, &q->type[i], mean);
        for (int b = 0; b < BINS; b++)
            if (mean[b] == mean[b]) s = (scale){fmin(s.low, log10(mean[b])), fmax(s.high, log10(mean[b]))};
    }
    s = (scale){floor(s.low), ceil(s.high)};
    if (!(s.low < s.high)) s = s.low == s.high ? (scale){s.low, s.low + 1} : (scale){-4, 0};
    return s;
}

static double x_of(double bin) {
    return LEFT + bin / BINS * (WIDTH - LEFT - RIGHT);
}

static double y_of(scale s, double log_kld) {
    return TOP + (s.high - log_kld) / (s.high - s.low) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(FILE *file, double x, double y, const char *anchor, const char *text) {
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) {
        if (*text == '&' || *text == '<')
            fprintf(file, "&#%d;", *text);
        else
            fputc(*text, file);
    }
    fputs("</text>\n", file);
}

static void put_axes(FILE *file, const quality *q, scale s) {
    char label[64];
    for (int d = (int)s.low; d <= (int)s.high; d++) {
        double y = y_of(s, d);
        fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT,
                WIDTH - RIGHT, y, y);
        snprintf(label, sizeof label, "%g", pow(10, d));
        put_text(file, LEFT - 8, y + 4, "end", label);
    }
    for (int quarter = 0; quarter <= 4; quarter++) {
        snprintf(label, sizeof label, "%zu", q->n_ctx * (size_t)quarter / 4);
        put_text(file, x_of(BINS * quarter / 4.0), HEIGHT - BOTTOM + 20, "middle", label);
    }
    put_text(file, x_of(BINS / 2.0), HEIGHT - 14, "middle", "position in the window");
    put_text(file, LEFT, TOP - 20, "start", "mean KL divergence from the f16 cache, nats");
}

static void put_type(FILE *file, const quality *q, int i, scale s) {
    static const char *const colours[] = {"#1b6ca8", "#c0392b", "#27864a", "#8e44ad",
                                          "#b9770e", "#117a8b", "#7f4f24", "#555555"};
    const char *colour = colours[i % 8], *dash = i >= 8 ? " stroke-dasharray=\"6 3\"" : "";
    double mean[BINS], y_label = TOP + 14 + 20.0 * i;
    bin_means(q, &q->type[i], mean);
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour, dash);
    for (int b = 0; b < BINS; b++)
        if (mean[b] == mean[b]) fprintf(file, "%.1f,%.1f ", x_of(b + 0.5), y_of(s, log10(mean[b])));
    fprintf(file,
            "\"/>\n<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
            WIDTH - RIGHT + 16, WIDTH - RIGHT + 40, y_label - 4, y_label - 4, colour, dash);
    put_text(file, WIDTH - RIGHT + 46, y_label, "start", q->type[i].name);
}

void quality_plot(const quality *q, FILE *file) {
    scale s = scale_of(q);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_axes(file, q, s);
    for (int i = 0; i < q->n_types; i++) put_type(file, q, i, s);
    fputs("</svg>\n", file);
}
