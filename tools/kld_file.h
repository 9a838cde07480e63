/* The file of log-probabilities that one run writes and another is compared with (docs/quality.md has its
 * layout): a header with the tokens, then per scored position a row of 16-bit values. */
#ifndef ATH_TOOL_KLD_FILE_H
#define ATH_TOOL_KLD_FILE_H

#include "tool.h"

typedef struct ath_kld_header {
    int32_t n_ctx, n_vocab, n_chunks;
    ath_token *tokens; /* [n_chunks][n_ctx] */
} ath_kld_header;

/* Words (u16) of a row. */
size_t ath_kld_row_words(int32_t n_vocab);
/* row [ath_kld_row_words]: 65536 steps between the largest log-probability and 16 below it, or the smallest.
 */
void ath_kld_encode_row(const float *logits, size_t n_vocab, uint16_t *row);
/* False if that is no distribution: the row's head isn't finite or its scale negative, or the likeliest of n_vocab tokens
 * is likelier than 1 or less likely than all of them can be. */
bool ath_kld_decode_row(const uint16_t *row, size_t n_vocab, float *log_p);

void ath_kld_write_header(FILE *file, const ath_kld_header *header);
/* Checks the header and the file's size against each other. Tokens are malloc'd. -1, or 1 after an error
 * line. */
int ath_kld_read_header(FILE *file, const char *path, ath_kld_header *header);

#endif
