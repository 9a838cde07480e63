/* The file of log-probabilities; the layout is the one that llama.cpp's perplexity program reads and writes.
 */
#include "kld_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "score.h"

static const char magic[8] = "_logits_";
static const float depth = 16; /* nats below the likeliest token that a row reaches */
static const float rounding = 1e-3f; /* more than that of a float log-probability */
enum {
    ROW_HEAD = 4,  /* words: two floats */
    MOST = 1 << 24 /* tokens, windows, ids in a file that is believed: the products below fit into 64 bits */
};

size_t ath_kld_row_words(int32_t n_vocab) {
    return 2 * (((size_t)n_vocab + 1) / 2) + ROW_HEAD;
}

void ath_kld_encode_row(const float *logits, size_t n_vocab, uint16_t *row) {
    float max = logits[0], min = logits[0];
    for (size_t i = 1; i < n_vocab; i++) {
        if (logits[i] > max) max = logits[i];
        if (logits[i] < min) min = logits[i];
    }
    if (min < max - depth) min = max - depth;
    float head[2] = {(max - min) / 65535.0f, (float)((double)min - ath_log_sum_exp(logits, n_vocab, NULL))};
    memset(row, 0, ath_kld_row_words((int32_t)n_vocab) * sizeof *row);
    memcpy(row, head, sizeof head);
    if (head[0] <= 0) return;
    for (size_t i = 0; i < n_vocab; i++)
        if (logits[i] > min) {
            float steps = rintf((logits[i] - min) / head[0]);
            row[ROW_HEAD + i] = (uint16_t)(steps > 65535.0f ? 65535.0f : steps);
        }
}

bool ath_kld_decode_row(const uint16_t *row, size_t n_vocab, float *log_p) {
    float head[2], greatest = -INFINITY;
    memcpy(head, row, sizeof head);
    if (!isfinite(head[0]) || !isfinite(head[1]) || head[0] < 0) return false;
    for (size_t i = 0; i < n_vocab; i++) {
        log_p[i] = head[0] * (float)row[ROW_HEAD + i] + head[1];
        if (log_p[i] > greatest) greatest = log_p[i];
    }
    return greatest <= rounding && greatest >= -logf((float)n_vocab) - rounding;
}

void ath_kld_write_header(FILE *file, const ath_kld_header *h) {
    int32_t sizes[3] = {h->n_ctx, h->n_vocab, h->n_chunks};
    fwrite(magic, 1, sizeof magic, file);
    fwrite(sizes, sizeof *sizes, 3, file);
    fwrite(h->tokens, sizeof *h->tokens, (size_t)h->n_chunks * (size_t)h->n_ctx, file);
}

/* Bytes that follow the sizes in the header. */
static uint64_t bytes_behind(const ath_kld_header *h) {
    uint64_t tokens = (uint64_t)h->n_chunks * (uint64_t)h->n_ctx * sizeof *h->tokens;
    uint64_t scored = (uint64_t)(h->n_ctx - 1 - h->n_ctx / 2);
    return tokens + (uint64_t)h->n_chunks * scored * ath_kld_row_words(h->n_vocab) * sizeof(uint16_t);
}

int ath_kld_read_header(FILE *file, const char *path, ath_kld_header *h) {
    char start[sizeof magic];
    int32_t sizes[3];
    if (fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, magic, sizeof magic) != 0)
        return ath_tool_fail("%s is no file of log-probabilities: --kl-divergence-base alone writes one",
                             path);
    if (fread(sizes, sizeof *sizes, 3, file) != 3) return ath_tool_fail("%s ends within its header", path);
    *h = (ath_kld_header){sizes[0], sizes[1], sizes[2], NULL};
    bool sane = h->n_ctx >= 4 && h->n_ctx <= MOST && h->n_vocab >= 1 && h->n_vocab <= MOST &&
                h->n_chunks >= 1 && h->n_chunks <= MOST &&
                (int64_t)h->n_chunks * h->n_ctx <= (int64_t)1 << 36;
    if (!sane)
        return ath_tool_fail("%s: %d windows of %d tokens over a vocabulary of %d make no sense", path,
                             h->n_chunks, h->n_ctx, h->n_vocab);
    struct stat st;
    uint64_t wanted = sizeof magic + sizeof sizes + bytes_behind(h);
    if (fstat(fileno(file), &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < wanted)
        return ath_tool_fail("%s is cut short: %lld of %llu bytes", path, (long long)st.st_size,
                             (unsigned long long)wanted);
    size_t n = (size_t)h->n_chunks * (size_t)h->n_ctx;
    h->tokens = malloc(n * sizeof *h->tokens);
    if (!h->tokens) return ath_tool_fail("out of memory");
    if (fread(h->tokens, sizeof *h->tokens, n, file) != n)
        return ath_tool_fail("%s ends within its tokens", path);
    for (size_t i = 0; i < n; i++)
        if (h->tokens[i] < 0 || h->tokens[i] >= h->n_vocab)
            return ath_tool_fail("%s: token id %d is not in its vocabulary of %d", path, h->tokens[i],
                                 h->n_vocab);
    return -1;
}
