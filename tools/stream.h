/* Text to a terminal or pipe as it is made: only whole UTF-8 characters, and it knows when a stop text has
 * come. */
#ifndef ATH_TOOL_STREAM_H
#define ATH_TOOL_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct ath_stream {
    FILE *file;
    char pending[4]; /* start of a character whose other bytes have not come yet */
    size_t n_pending;
    char *recent; /* last bytes written, [cap_recent] */
    size_t n_recent, cap_recent;
    bool newline; /* the last byte written was one */
} ath_stream;

/* look_back: length of the longest stop text. False if there is no memory. */
bool ath_stream_init(ath_stream *stream, FILE *file, size_t look_back);
void ath_stream_free(ath_stream *stream);
/* Writes and flushes. False if the file can't be written (errno says why). */
bool ath_stream_put(ath_stream *stream, const char *text, size_t size);
/* The rest, whole or not. */
bool ath_stream_end(ath_stream *stream);
/* Have the last `within` bytes brought this text to an end? */
bool ath_stream_has(const ath_stream *stream, const char *text, size_t size, size_t within);

#endif
