/* Getting documents and files over HTTP, with libcurl: what hub.c needs, and nothing about hubs. */
#ifndef ATH_TOOL_FETCH_H
#define ATH_TOOL_FETCH_H

#include <stdint.h>

typedef enum ath_fetch_result {
    ATH_FETCH_OK,
    ATH_FETCH_UNREACHABLE, /* no connection: what is on disk may do */
    ATH_FETCH_REFUSED,     /* the server says no */
    ATH_FETCH_FAILED,      /* broken off, wrong content, disk full ... */
} ath_fetch_result;

typedef struct ath_fetch_options {
    const char *token; /* NULL: none; never sent on to another host */
    int stall_seconds; /* a connection that brings nothing for so long is given up */
} ath_fetch_options;

enum { ATH_FETCH_WHY = 512 }; /* room for the sentence that says what went wrong */

/* A small document (up to 64 MiB). On success *text (NUL behind it) and *next (the URL of the next page by the Link
 * header, NULL if there is none) are malloc'd. */
ath_fetch_result ath_fetch_text(const char *url, const ath_fetch_options *options, char **text, char **next,
                                char *why);

/* What a server says of a file. */
typedef struct ath_fetch_head {
    int64_t size;     /* -1: not said */
    char etag[128];   /* "" : not said; without quotes */
    char sha256[65];  /* "" : not said (X-Linked-ETag) */
} ath_fetch_head;
ath_fetch_result ath_fetch_get_head(const char *url, const ath_fetch_options *options, ath_fetch_head *head, char *why);

typedef struct ath_fetch_file {
    const char *url, *label; /* label: how messages and the progress bar call it */
    const char *path;        /* appears when the file is complete and its digest right */
    const char *partial;     /* what has come so far; a later call goes on from there */
    const char *lock;        /* locked meanwhile: of two processes one fetches, the other waits for it */
    int64_t size;            /* -1: not known */
    const char *digest;      /* hex: SHA-256 (64 digits), git's SHA-1 of a blob (40), or NULL */
} ath_fetch_file;

/* The folders must exist. Connections that break are taken up again, five times without progress at most.
 * Returns ATH_FETCH_OK at once if `path` exists. */
ath_fetch_result ath_fetch_to_disk(const ath_fetch_file *file, const ath_fetch_options *options, char *why);

#endif
