/* HTTP with libcurl: see fetch.h. A partial file is only ever appended to, and it becomes the file by a rename after
 * its size and digest were checked; so a break at any point loses nothing, and a wrong file never gets a name. */
#include "fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tool.h"

enum { MOST_TEXT = 64 << 20, MOST_TRIES = 5, CONNECT_SECONDS = 15 };

/* ---- one request */

/* A handle for the URL, with what all requests share. The list of headers is the caller's to free. */
static CURL *open_request(const char *url, const ath_fetch_options *options, struct curl_slist **headers) {
    static bool initialised;
    if (!initialised) initialised = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    CURL *curl = curl_easy_init();
    *headers = NULL;
    if (!curl) return NULL;
    if (options->token && *options->token) { /* curl takes the header away when a redirection leaves the host */
        size_t cap = strlen(options->token) + 32;
        char *line = malloc(cap);
        if (line) snprintf(line, cap, "Authorization: Bearer %s", options->token);
        if (line) *headers = curl_slist_append(NULL, line);
        free(line);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "athanor/" ATHANOR_VERSION);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 8L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)options->stall_seconds);
    return curl;
}

static void close_request(CURL *curl, struct curl_slist *headers) {
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
}

static ath_fetch_result refuse_out_of_memory(char *why) {
    snprintf(why, ATH_FETCH_WHY, "out of memory");
    return ATH_FETCH_FAILED;
}

static long status_of(CURL *curl) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

/* What a failed request means, and its sentence. */
static ath_fetch_result explain(CURL *curl, CURLcode code, const char *url, char *why) {
    long status = status_of(curl);
    if (code == CURLE_HTTP_RETURNED_ERROR) {
        const char *hint = status == 401 || status == 403
                               ? " (no such file, or one that needs a token: -hft or HF_TOKEN, after its terms were "
                                 "accepted on its page)"
                               : "";
        snprintf(why, ATH_FETCH_WHY, "%.300s: the server answers %ld%s", url, status, hint);
        return ATH_FETCH_REFUSED;
    }
    snprintf(why, ATH_FETCH_WHY, "%.300s: %s", url, curl_easy_strerror(code));
    return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ||
                   code == CURLE_COULDNT_RESOLVE_PROXY || (code == CURLE_OPERATION_TIMEDOUT && status == 0)
               ? ATH_FETCH_UNREACHABLE
               : ATH_FETCH_FAILED;
}

/* ---- documents */

typedef struct text_sink {
    char *data;
    size_t size;
} text_sink;

static size_t take_text(char *data, size_t one, size_t size, void *user) {
    text_sink *sink = user;
    if (size > MOST_TEXT - sink->size) return 0;
    char *more = realloc(sink->data, sink->size + size + 1);
    if (!more) return 0;
    sink->data = more;
    memcpy(sink->data + sink->size, data, size);
    sink->data[sink->size += size] = 0;
    return size * one;
}

/* The target of rel="next" in a Link header (RFC 8288), malloc'd; NULL: none. */
static char *next_link(CURL *curl) {
    struct curl_header *header;
    if (curl_easy_header(curl, "Link", 0, CURLH_HEADER, -1, &header) != CURLHE_OK) return NULL;
    const char *rel = strstr(header->value, "rel=\"next\"");
    if (!rel) return NULL;
    const char *start = NULL;
    for (const char *c = header->value; c < rel; c++)
        if (*c == '<') start = c + 1;
    const char *end = start ? strchr(start, '>') : NULL;
    return end ? strndup(start, (size_t)(end - start)) : NULL;
}

ath_fetch_result ath_fetch_text(const char *url, const ath_fetch_options *options, char **text, char **next,
                                char *why) {
    *text = *next = NULL;
    struct curl_slist *headers;
    CURL *curl = open_request(url, options, &headers);
    if (!curl) return refuse_out_of_memory(why);
    text_sink sink = {.data = calloc(1, 1)};
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_text);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
    curl_easy_setopt(curl, CURLOPT_ACCEPT_ENCODING, "");
    CURLcode code = curl_easy_perform(curl);
    ath_fetch_result result = code == CURLE_OK ? ATH_FETCH_OK : explain(curl, code, url, why);
    if (result == ATH_FETCH_OK) *next = next_link(curl);
    close_request(curl, headers);
    if (result == ATH_FETCH_OK)
        *text = sink.data;
    else
        free(sink.data);
    return result;
}

/* Copies a header's value without quotes and the weak mark. Looks at all answers on the way through redirections
 * where `any` is set, otherwise at the last. */
static void copy_header(CURL *curl, const char *name, bool any, char *out, size_t cap) {
    struct curl_header *header;
    *out = 0;
    bool found = curl_easy_header(curl, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
    for (int request = 0; any && !found && request < 8; request++)
        found = curl_easy_header(curl, name, 0, CURLH_HEADER, request, &header) == CURLHE_OK;
    if (!found) return;
    const char *value = strncmp(header->value, "W/", 2) == 0 ? header->value + 2 : header->value;
    for (; *value && cap > 1; value++)
        if (*value != '"') *out++ = *value, cap--;
    *out = 0;
}

ath_fetch_result ath_fetch_get_head(const char *url, const ath_fetch_options *options, ath_fetch_head *head,
                                    char *why) {
    struct curl_slist *headers;
    CURL *curl = open_request(url, options, &headers);
    if (!curl) return refuse_out_of_memory(why);
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    CURLcode code = curl_easy_perform(curl);
    ath_fetch_result result = code == CURLE_OK ? ATH_FETCH_OK : explain(curl, code, url, why);
    curl_off_t size = -1;
    curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
    head->size = size;
    copy_header(curl, "ETag", false, head->etag, sizeof head->etag);
    copy_header(curl, "X-Linked-ETag", true, head->sha256, sizeof head->sha256);
    if (strspn(head->sha256, "0123456789abcdef") != 64) head->sha256[0] = 0;
    close_request(curl, headers);
    return result;
}

/* ---- progress */

typedef struct progress {
    const char *label;
    int64_t start, total; /* bytes that were there before; of the whole, -1: not known */
    double begun_ms, shown_ms;
    bool terminal;
} progress;

static void show_progress(progress *p, int64_t have, bool last) {
    double now = ath_tool_now_ms(), seconds = (now - p->begun_ms) * 1e-3;
    if (!ath_tool_logs(ATH_LOG_INFO) || (!last && now - p->shown_ms < (p->terminal ? 100 : 10000))) return;
    p->shown_ms = now;
    double rate = seconds > 0 ? (double)(have - p->start) / seconds : 0;
    char left[32] = "";
    if (p->total >= 0 && rate > 0 && !last) {
        double s = (double)(p->total - have) / rate;
        snprintf(left, sizeof left, ", %d:%02d left", (int)(s / 60), (int)s % 60);
    }
    char part[64];
    if (p->total > 0)
        snprintf(part, sizeof part, "%3d %%, %.1f of %.1f MiB", (int)(100 * have / p->total),
                 (double)have / 1048576, (double)p->total / 1048576);
    else
        snprintf(part, sizeof part, "%.1f MiB", (double)have / 1048576);
    fprintf(stderr, "%s%.60s: %s, %.1f MiB/s%s%s", p->terminal ? "\r" : "", p->label, part, rate / 1048576, left,
            p->terminal ? "\033[K" : "\n");
    if (p->terminal && last) fputc('\n', stderr);
}

/* ---- files */

typedef struct file_sink {
    CURL *curl;
    int fd;
    int64_t have, limit; /* bytes in the file; more than this must not come (-1: no limit) */
    bool first;          /* nothing of this answer was written yet */
    bool full, too_long; /* why writing stopped: the disk, the server */
    progress *progress;
} file_sink;

/* An answer to a request for the rest may be the whole file, or another part of it. */
static bool begin_body(file_sink *sink) {
    sink->first = false;
    if (sink->have == 0) return true;
    struct curl_header *header;
    long long start = 0;
    bool ranged = status_of(sink->curl) == 206 &&
                  curl_easy_header(sink->curl, "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
                  sscanf(header->value, "bytes %lld-", &start) == 1;
    if (ranged && start == sink->have) return true;
    if (ranged && start != 0) return false;
    sink->have = sink->progress->start = 0;
    return ftruncate(sink->fd, 0) == 0 && lseek(sink->fd, 0, SEEK_SET) == 0;
}

static size_t take_file(char *data, size_t one, size_t size, void *user) {
    file_sink *sink = user;
    if (sink->first && !begin_body(sink)) return 0;
    sink->too_long = sink->limit >= 0 && (int64_t)size > sink->limit - sink->have;
    if (sink->too_long) return 0;
    for (size_t done = 0; done < size;) {
        ssize_t n = write(sink->fd, data + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        sink->full = n < 0;
        if (n < 0) return 0;
        done += (size_t)n;
        sink->have += n;
    }
    show_progress(sink->progress, sink->have, false);
    return size * one;
}

/* One answer's worth of the file. *again: another try may help. */
static ath_fetch_result fetch_some(const ath_fetch_file *file, const ath_fetch_options *options, file_sink *sink,
                                   bool *again, char *why) {
    struct curl_slist *headers;
    CURL *curl = open_request(file->url, options, &headers);
    *again = false;
    if (!curl) return refuse_out_of_memory(why);
    char range[32];
    snprintf(range, sizeof range, "%" PRId64 "-", sink->have);
    if (sink->have) curl_easy_setopt(curl, CURLOPT_RANGE, range);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_file);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, sink);
    sink->curl = curl;
    sink->first = true;
    CURLcode code = curl_easy_perform(curl);
    long status = status_of(curl);
    ath_fetch_result result = code == CURLE_OK ? ATH_FETCH_OK : explain(curl, code, file->url, why);
    if (sink->full)
        snprintf(why, ATH_FETCH_WHY, "%.300s can't be written: %s; what has come is kept", file->partial,
                 strerror(errno));
    else if (sink->too_long)
        snprintf(why, ATH_FETCH_WHY, "%.200s: the server sends more than the %" PRId64 " bytes it announced",
                 file->label, file->size);
    else
        *again = result == ATH_FETCH_FAILED || result == ATH_FETCH_UNREACHABLE || status == 408 || status == 416 ||
                 status == 429 || status >= 500;
    if (status == 416 && ftruncate(sink->fd, 0) == 0) /* no such rest: what is there is something else */
        sink->have = lseek(sink->fd, 0, SEEK_SET);
    close_request(curl, headers);
    return result;
}

static ath_fetch_result fetch_all(const ath_fetch_file *file, const ath_fetch_options *options, int fd, int64_t have,
                                  char *why) {
    progress p = {.label = file->label, .start = have, .total = file->size, .begun_ms = ath_tool_now_ms(),
                  .terminal = isatty(STDERR_FILENO)};
    file_sink sink = {.fd = fd, .have = have, .limit = file->size, .progress = &p};
    ath_fetch_result result = ATH_FETCH_OK;
    for (int tries = 0; file->size < 0 || sink.have < file->size;) {
        int64_t before = sink.have;
        bool again;
        result = fetch_some(file, options, &sink, &again, why);
        if (result == ATH_FETCH_OK && (file->size < 0 || sink.have == file->size)) break;
        if (result == ATH_FETCH_OK) { /* a whole answer, but not the file that the listing speaks of */
            unlink(file->partial);
            snprintf(why, ATH_FETCH_WHY, "%.200s: the server has %" PRId64 " bytes, but announced %" PRId64,
                     file->label, sink.have, file->size);
            return ATH_FETCH_FAILED;
        }
        tries = sink.have > before ? 1 : tries + 1;
        if (!again || tries > MOST_TRIES) break;
        if (sink.have > 0 || tries > 1) ath_tool_log(ATH_LOG_WARN, "%s; trying again", why);
        usleep(100000u << (tries - 1));
    }
    if (p.shown_ms > 0 || result == ATH_FETCH_OK) show_progress(&p, sink.have, true);
    return result;
}

/* ---- checks */

/* The digest of a file in lower-case hex: SHA-256, or what git names a blob by. */
static bool digest_of(int fd, int64_t size, bool git, char *hex) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    enum { PIECE = 1 << 20 };
    unsigned char *piece = malloc(PIECE), sum[EVP_MAX_MD_SIZE];
    unsigned n_sum = 0;
    bool ok = context && piece && EVP_DigestInit_ex(context, git ? EVP_sha1() : EVP_sha256(), NULL) == 1;
    if (ok && git) {
        char head[32];
        int n = snprintf(head, sizeof head, "blob %" PRId64, size);
        ok = EVP_DigestUpdate(context, head, (size_t)n + 1) == 1;
    }
    for (int64_t at = 0; ok && at < size;) {
        ssize_t n = pread(fd, piece, PIECE, at);
        ok = n > 0 && EVP_DigestUpdate(context, piece, (size_t)n) == 1;
        at += n;
    }
    ok = ok && EVP_DigestFinal_ex(context, sum, &n_sum) == 1;
    for (unsigned i = 0; ok && i < n_sum; i++) sprintf(hex + 2 * i, "%02x", sum[i]);
    free(piece);
    EVP_MD_CTX_free(context);
    return ok;
}

static ath_fetch_result check_and_name(const ath_fetch_file *file, int fd, char *why) {
    struct stat st;
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    bool read = fstat(fd, &st) == 0;
    if (read && file->digest) {
        bool git = strlen(file->digest) == 40;
        read = digest_of(fd, st.st_size, git, hex);
        if (read && strcasecmp(hex, file->digest) != 0) {
            unlink(file->partial);
            snprintf(why, ATH_FETCH_WHY,
                     "%.120s: what came has the %s %s, but %s was announced; it was thrown away: try again",
                     file->label, git ? "SHA-1" : "SHA-256", hex, file->digest);
            return ATH_FETCH_FAILED;
        }
    }
    if (read && fsync(fd) == 0 && rename(file->partial, file->path) == 0) return ATH_FETCH_OK;
    snprintf(why, ATH_FETCH_WHY, "%.300s: %s", file->partial, strerror(errno));
    return ATH_FETCH_FAILED;
}

static ath_fetch_result check_room(const ath_fetch_file *file, int64_t have, char *why) {
    char folder[4096];
    struct statvfs fs;
    snprintf(folder, sizeof folder, "%s", file->partial);
    if (file->size < 0 || statvfs(dirname(folder), &fs) != 0) return ATH_FETCH_OK;
    double need = (double)(file->size - have), there = (double)fs.f_bavail * (double)fs.f_frsize;
    if (need <= there) return ATH_FETCH_OK;
    snprintf(why, ATH_FETCH_WHY,
             "%.100s needs %.1f MiB more, %.200s has %.1f MiB free: make room, or name a folder on another disk with "
             "HF_HUB_CACHE",
             file->label, need / 1048576, folder, there / 1048576);
    return ATH_FETCH_FAILED;
}

/* Waits while another process fetches the same file. -1 after a sentence. */
static int lock_file(const ath_fetch_file *file, char *why) {
    int fd = open(file->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0 && !locked && errno == EWOULDBLOCK) {
        ath_tool_log(ATH_LOG_INFO, "another process is fetching %s: waiting for it", file->label);
        do locked = flock(fd, LOCK_EX) == 0;
        while (!locked && errno == EINTR);
    }
    if (locked) return fd;
    snprintf(why, ATH_FETCH_WHY, "%.300s can't be locked: %s", file->lock, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

static ath_fetch_result fetch_locked(const ath_fetch_file *file, const ath_fetch_options *options, char *why) {
    if (access(file->path, F_OK) == 0) return ATH_FETCH_OK;
    int fd = open(file->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int64_t have = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (have >= 0 && file->size >= 0 && have > file->size) have = ftruncate(fd, 0) == 0 ? lseek(fd, 0, SEEK_SET) : -1;
    if (have < 0) {
        snprintf(why, ATH_FETCH_WHY, "%.300s can't be written: %s", file->partial, strerror(errno));
        if (fd >= 0) close(fd);
        return ATH_FETCH_FAILED;
    }
    ath_fetch_result result = check_room(file, have, why);
    if (result == ATH_FETCH_OK && have > 0)
        ath_tool_log(ATH_LOG_INFO, "%s: going on after %.1f MiB", file->label, (double)have / 1048576);
    if (result == ATH_FETCH_OK) result = fetch_all(file, options, fd, have, why);
    if (result == ATH_FETCH_OK) result = check_and_name(file, fd, why);
    close(fd);
    return result;
}

ath_fetch_result ath_fetch_to_disk(const ath_fetch_file *file, const ath_fetch_options *options, char *why) {
    if (access(file->path, F_OK) == 0) return ATH_FETCH_OK;
    int lock = lock_file(file, why);
    if (lock < 0) return ATH_FETCH_FAILED;
    ath_fetch_result result = fetch_locked(file, options, why);
    close(lock);
    return result;
}
