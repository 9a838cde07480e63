/* Text to a terminal or pipe as it is made. See stream.h. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

bool ath_stream_init(ath_stream *s, FILE *file, size_t look_back) {
    *s = (ath_stream){.file = file, .newline = true, .cap_recent = 2 * look_back + 4096};
    s->recent = malloc(s->cap_recent);
    return s->recent != NULL;
}

void ath_stream_free(ath_stream *s) {
    free(s->recent);
    s->recent = NULL;
}

/* Bytes that the character starting with this one has; 1 for bytes that can't start one. */
static size_t character_size(unsigned char first) {
    if (first >= 0xC2 && first < 0xE0) return 2;
    if (first >= 0xE0 && first < 0xF0) return 3;
    return first >= 0xF0 && first < 0xF5 ? 4 : 1;
}

/* Bytes at the end of text that are the start of an unfinished character. */
static size_t unfinished(const char *text, size_t size) {
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char byte = (unsigned char)text[size - back];
        if ((byte & 0xC0) == 0x80) continue;
        return character_size(byte) > back ? back : 0;
    }
    return 0;
}

static bool write_out(ath_stream *s, const char *text, size_t size) {
    if (size) s->newline = text[size - 1] == '\n';
    return fwrite(text, 1, size, s->file) == size;
}

static void remember(ath_stream *s, const char *text, size_t size) {
    if (size > s->cap_recent) text += size - s->cap_recent, size = s->cap_recent;
    if (s->n_recent + size > s->cap_recent) {
        size_t drop = s->n_recent + size - s->cap_recent;
        memmove(s->recent, s->recent + drop, s->n_recent -= drop);
    }
    memcpy(s->recent + s->n_recent, text, size);
    s->n_recent += size;
}

bool ath_stream_put(ath_stream *s, const char *text, size_t size) {
    remember(s, text, size);
    while (s->n_pending && size) { /* finish the character that waits, byte by byte */
        s->pending[s->n_pending++] = *text++;
        size--;
        if (unfinished(s->pending, s->n_pending) == s->n_pending) continue;
        size_t keep = unfinished(s->pending, s->n_pending), n = s->n_pending - keep;
        if (!write_out(s, s->pending, n)) return false;
        memmove(s->pending, s->pending + n, keep);
        s->n_pending = keep;
    }
    size_t keep = s->n_pending ? 0 : unfinished(text, size);
    if (!write_out(s, text, size - keep)) return false;
    if (keep) {
        memcpy(s->pending, text + size - keep, keep);
        s->n_pending = keep;
    }
    return fflush(s->file) == 0;
}

bool ath_stream_end(ath_stream *s) {
    bool written = write_out(s, s->pending, s->n_pending);
    s->n_pending = 0;
    return written && fflush(s->file) == 0;
}

bool ath_stream_has(const ath_stream *s, const char *text, size_t size, size_t within) {
    size_t span = within + size - 1;
    if (span > s->n_recent) span = s->n_recent;
    return size && memmem(s->recent + s->n_recent - span, span, text, size) != NULL;
}
