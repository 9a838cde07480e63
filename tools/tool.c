/* What the sub-commands share: errors, the log, files, and the way from flags to parameters. */
#include "tool.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hub.h"

/* Names in a model file and paths may hold anything; a message stays one line and leaves the terminal alone. */
static void mask_controls(char *line) {
    for (; *line; line++)
        if ((unsigned char)*line < ' ' || *line == 127) *line = '?';
}

int ath_tool_fail(const char *format, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    mask_controls(line);
    fprintf(stderr, "error: %s\n", line);
    return 1;
}

double ath_tool_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- Ctrl+C */

volatile sig_atomic_t ath_tool_interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    ath_tool_interrupted = 1;
}

void ath_tool_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
}

static bool was_interrupted(void *unused) {
    (void)unused;
    return ath_tool_interrupted;
}

void ath_tool_stop_on_interrupt(ath_session *session) {
    ath_session_set_cancel(session, was_interrupted, NULL);
}

/* ---- log */

static struct {
    int level;
    bool prefix, timestamps;
    double start_ms;
    FILE *file;
} the_log = {.level = ATH_LOG_INFO};

int ath_tool_log_open(const ath_args *args) {
    the_log.start_ms = ath_tool_now_ms();
    the_log.level = (int)ATH_ARG_INT(args, LOG_VERBOSITY);
    if (ATH_ARG_ON(args, VERBOSE)) the_log.level = ATH_LOG_DEBUG;
    if (ATH_ARG_ON(args, LOG_DISABLE)) the_log.level = 0;
    the_log.prefix = ATH_ARG_ON(args, LOG_PREFIX);
    the_log.timestamps = ATH_ARG_ON(args, LOG_TIMESTAMPS);
    const char *path = ATH_ARG_TEXT(args, LOG_FILE);
    if (path && !(the_log.file = fopen(path, "w")))
        return ath_tool_fail("--log-file %s: %s", path, strerror(errno));
    return -1;
}

bool ath_tool_logs(ath_log_level level) {
    return (int)level <= the_log.level;
}

static void write_line(FILE *file, double seconds, ath_log_level level, const char *line) {
    static const char letters[] = "?EWI?D";
    if (the_log.timestamps) fprintf(file, "%.3f ", seconds);
    if (the_log.prefix) fprintf(file, "%c ", letters[level]);
    fprintf(file, "%s%s\n", level == ATH_LOG_WARN ? "warning: " : "", line);
}

void ath_tool_log_callback(void *user, ath_log_level level, const char *text) {
    (void)user;
    if (!ath_tool_logs(level)) return;
    char line[1024];
    snprintf(line, sizeof line, "%s", text);
    mask_controls(line);
    double seconds = (ath_tool_now_ms() - the_log.start_ms) * 1e-3;
    write_line(stderr, seconds, level, line);
    if (!the_log.file) return;
    write_line(the_log.file, seconds, level, line);
    fflush(the_log.file);
}

void ath_tool_log(ath_log_level level, const char *format, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    ath_tool_log_callback(NULL, level, line);
}

static int find_adapters(ath_args *args);

int ath_tool_begin(ath_args *args, const ath_program *program, int argc, char **argv) {
    int code = ath_args_parse(args, program, argc, argv);
    if (code < 0 && program->bit & ~(unsigned)(ATH_PROGRAM_I | ATH_PROGRAM_D | ATH_PROGRAM_P | ATH_PROGRAM_M))
        code = ath_tool_log_open(args);
    for (size_t i = 0; code < 0 && i < args->n_warnings; i++)
        ath_tool_log(ATH_LOG_WARN, "%s", args->warnings[i]);
    args->values[ATH_FLAG_OVERRIDE_KV].text = ath_args_joined(args, ATH_FLAG_OVERRIDE_KV);
    if (code < 0) code = find_adapters(args);
    return code < 0 ? ath_tool_find_model(args) : code;
}

/* ---- parameters */

enum { MOST_ADAPTERS = 16 };
static struct { /* of --lora and --lora-scaled, for as long as the program runs */
    ath_adapter_params list[MOST_ADAPTERS];
    int n;
} the_adapters;

/* FILE[,FILE...], each with :SCALE behind it if `scaled`. -1, or 1 after an error line. */
static int add_adapters(ath_args *args, const char *list, bool scaled) {
    for (size_t size; *list; list += size + (list[size] == ',')) {
        size = strcspn(list, ",");
        char *path = ath_args_own(args, strndup(list, size)), *end = NULL, *colon = scaled ? strrchr(path, ':') : NULL;
        double scale = colon ? strtod(colon + 1, &end) : 1;
        if (!*path || (scaled && (!colon || colon == path || end == colon + 1 || *end || !(scale > -1e6 && scale < 1e6))))
            return ath_tool_fail("--lora%s, but got \"%.100s\"", scaled ? "-scaled expects FILE:SCALE" : " expects FILE", path);
        if (colon) *colon = 0;
        if (the_adapters.n == MOST_ADAPTERS) return ath_tool_fail("more than %d adapters were named", MOST_ADAPTERS);
        the_adapters.list[the_adapters.n++] = (ath_adapter_params){path, (float)scale};
    }
    return -1;
}

static int find_adapters(ath_args *args) {
    int code = -1;
    for (size_t i = 0; i < args->n_list && code < 0; i++)
        if (args->list[i].id == ATH_FLAG_LORA || args->list[i].id == ATH_FLAG_LORA_SCALED)
            code = add_adapters(args, args->list[i].text, args->list[i].id == ATH_FLAG_LORA_SCALED);
    return code;
}

static int in_int(const ath_args *args, ath_flag_id id, int64_t low, int *out) {
    const ath_arg *arg = &args->values[id];
    if (arg->number < low || arg->number > INT_MAX)
        return ath_tool_fail("%s %s: expected %lld to %d", arg->name, arg->text, (long long)low, INT_MAX);
    *out = (int)arg->number;
    return -1;
}

/* Not given: 0, the engine's choice. 0 or less: every logical core. */
static int thread_count(const ath_args *args, ath_flag_id id, int *out) {
    if (!ath_args_given(args, id)) return -1;
    if (args->values[id].number <= 0) {
        *out = (int)sysconf(_SC_NPROCESSORS_ONLN);
        return -1;
    }
    return in_int(args, id, 1, out);
}

/* The flags of "--isa": a name, or the word itself. Not given: all. */
static int isa_mask(const ath_args *args, uint32_t *mask) {
    static const struct {
        const char *name;
        uint32_t mask;
    } names[] = {{"c", 0},        {"avx2", 1},        {"avx512", 15}, {"amx", 31},
                 {"neon", 0x100}, {"dotprod", 0x300}, {"i8mm", 0x700}};
    const char *text = ATH_ARG_TEXT(args, ISA);
    if (!text) return -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i].name) != 0) continue;
        *mask = names[i].mask;
        return -1;
    }
    char *end;
    errno = 0;
    unsigned long long word = strtoull(text, &end, strncasecmp(text, "0x", 2) == 0 ? 16 : 10);
    if (end == text || *end || errno || word > UINT32_MAX)
        return ath_tool_fail("--isa %.60s: expected c, avx2, avx512, amx, neon, dotprod, i8mm or a number such as 3 or 0x3", text);
    *mask = (uint32_t)word;
    return -1;
}

static void rope_params(const ath_args *args, ath_engine_params *p) {
    p->rope_scaling = ATH_ARG_TEXT(args, ROPE_SCALING);
    if (ATH_ARG_GIVEN(args, ROPE_SCALE)) p->rope_scale = (float)ATH_ARG_REAL(args, ROPE_SCALE);
    if (ATH_ARG_GIVEN(args, ROPE_FREQ_BASE)) p->rope_freq_base = (float)ATH_ARG_REAL(args, ROPE_FREQ_BASE);
    if (ATH_ARG_GIVEN(args, ROPE_FREQ_SCALE)) p->rope_freq_scale = (float)ATH_ARG_REAL(args, ROPE_FREQ_SCALE);
    if (ATH_ARG_GIVEN(args, YARN_EXT)) p->yarn_ext_factor = (float)ATH_ARG_REAL(args, YARN_EXT);
    if (ATH_ARG_GIVEN(args, YARN_ATTN)) p->yarn_attn_factor = (float)ATH_ARG_REAL(args, YARN_ATTN);
    if (ATH_ARG_GIVEN(args, YARN_SLOW)) p->yarn_beta_slow = (float)ATH_ARG_REAL(args, YARN_SLOW);
    if (ATH_ARG_GIVEN(args, YARN_FAST)) p->yarn_beta_fast = (float)ATH_ARG_REAL(args, YARN_FAST);
}

ath_engine_params ath_tool_metadata_params(const ath_args *args) {
    ath_engine_params p = ath_engine_params_default();
    p.model_path = ATH_ARG_TEXT(args, MODEL);
    p.kv_overrides = ATH_ARG_TEXT(args, OVERRIDE_KV);
    p.closest_pre = ATH_ARG_ON(args, CLOSEST_PRE);
    if (p.closest_pre) p.log = ath_tool_log_callback; /* says what was taken */
    p.metadata_only = true;
    return p;
}

int ath_tool_engine_params(const ath_args *args, ath_engine_params *p) {
    *p = ath_engine_params_default();
    p->model_path = ATH_ARG_TEXT(args, MODEL);
    p->kv_overrides = ATH_ARG_TEXT(args, OVERRIDE_KV);
    p->closest_pre = ATH_ARG_ON(args, CLOSEST_PRE);
    p->log = ath_tool_log_callback;
    p->adapters = the_adapters.list;
    p->n_adapters = the_adapters.n;
    p->repack = ATH_ARG_ON(args, REPACK);
    p->check_tensors = ATH_ARG_ON(args, CHECK_TENSORS);
    p->exact_activations = strcmp(ATH_ARG_TEXT(args, ACTIVATIONS), "f32") == 0;
    rope_params(args, p);
    int batch = 0;
    int code = isa_mask(args, &p->cpu_mask);
    if (code < 0) code = thread_count(args, ATH_FLAG_THREADS, &p->n_threads);
    if (code < 0) code = thread_count(args, ATH_FLAG_THREADS_BATCH, &p->n_threads_batch);
    if (code < 0) code = ath_tool_placements(args, &p->placement, &p->placement_batch);
    if (code < 0) code = in_int(args, ATH_FLAG_UBATCH, 1, &p->n_ubatch);
    if (code < 0) code = in_int(args, ATH_FLAG_BATCH, 1, &batch);
    if (code < 0 && ATH_ARG_GIVEN(args, YARN_ORIG_CTX))
        code = in_int(args, ATH_FLAG_YARN_ORIG_CTX, 0, &p->yarn_orig_ctx);
    if (code < 0 && batch < p->n_ubatch) p->n_ubatch = batch;
    return code;
}

int ath_tool_session_params(const ath_args *args, ath_session_params *p) {
    *p = ath_session_params_default();
    p->n_ctx = ATH_ARG_INT(args, CTX_SIZE);
    p->type_k = ATH_ARG_TEXT(args, CACHE_K);
    p->type_v = ATH_ARG_TEXT(args, CACHE_V);
    p->kv_layers = ATH_ARG_TEXT(args, KV_LAYERS);
    p->swa_full = ATH_ARG_ON(args, SWA_FULL);
    p->debug_k_bias = ATH_ARG_TEXT(args, DEBUG_K_BIAS);
    return in_int(args, ATH_FLAG_ENTRY_EVERY, 0, &p->entry_every);
}

int ath_tool_split_types(const char *name, size_t size, char type_k[ATH_TYPE_NAME], char type_v[ATH_TYPE_NAME]) {
    const char *slash = memchr(name, '/', size);
    size_t k = slash ? (size_t)(slash - name) : size, v = slash ? size - k - 1 : size;
    if (!k || !v || k >= ATH_TYPE_NAME || v >= ATH_TYPE_NAME)
        return ath_tool_fail("--types: \"%.*s\" is no cache type", (int)(size > 40 ? 40 : size), name);
    snprintf(type_k, ATH_TYPE_NAME, "%.*s", (int)k, name);
    snprintf(type_v, ATH_TYPE_NAME, "%.*s", (int)v, slash ? slash + 1 : name);
    return -1;
}

/* ---- files */

static char *read_stream(FILE *file, size_t *size) {
    size_t cap = 1 << 16, n = 0;
    char *data = malloc(cap);
    while (data) {
        n += fread(data + n, 1, cap - 1 - n, file);
        if (n < cap - 1) break;
        char *more = realloc(data, cap *= 2);
        if (!more) free(data);
        data = more;
    }
    if (data && ferror(file)) {
        free(data);
        data = NULL;
    }
    if (data) data[n] = 0;
    *size = n;
    return data;
}

char *ath_tool_read_file(const char *path, size_t *size) {
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    errno = file ? 0 : errno;
    char *data = file ? read_stream(file, size) : NULL;
    if (!data) ath_tool_fail("%s: %s", path, errno ? strerror(errno) : "can't be read");
    if (file && !standard) fclose(file);
    return data;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t ath_tool_unescape(char *text, size_t size) {
    static const char letters[] = "ntr\"'\\", meanings[] = "\n\t\r\"'\\";
    size_t out = 0;
    for (size_t at = 0; at < size; at++) {
        const char *letter =
            text[at] == '\\' && at + 1 < size ? memchr(letters, text[at + 1], sizeof letters - 1) : NULL;
        if (letter) {
            text[out++] = meanings[letter - letters];
            at++;
        } else if (text[at] == '\\' && at + 3 < size && text[at + 1] == 'x' && hex_digit(text[at + 2]) >= 0 &&
                   hex_digit(text[at + 3]) >= 0) {
            text[out++] = (char)(hex_digit(text[at + 2]) * 16 + hex_digit(text[at + 3]));
            at += 3;
        } else
            text[out++] = text[at];
    }
    text[out] = 0;
    return out;
}

int ath_tool_read_text(const ath_args *args, bool escapes, char **text, size_t *size) {
    const char *given = ATH_ARG_TEXT(args, PROMPT), *path = ATH_ARG_TEXT(args, FILE);
    const char *binary = ATH_ARG_TEXT(args, BINARY_FILE);
    if ((given != NULL) + (path != NULL) + (binary != NULL) > 1)
        return ath_tool_fail("the prompt comes from one of -p, -f, -bf, but several of them were given");
    if (path || binary) {
        *text = ath_tool_read_file(path ? path : binary, size);
        if (*text && path && *size && (*text)[*size - 1] == '\n') (*text)[--*size] = 0;
        return *text ? -1 : 1;
    }
    *text = strdup(given ? given : "");
    if (!*text) return ath_tool_fail("out of memory");
    *size = strlen(*text);
    if (escapes) *size = ath_tool_unescape(*text, *size);
    return -1;
}

int ath_tool_flush(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    return errno == EPIPE ? 1 : ath_tool_fail("standard output can't be written: %s", strerror(errno));
}

int ath_outfile_open(ath_outfile *out, const char *path) {
    *out = (ath_outfile){.path = path};
    if (!*path) return ath_tool_fail("the name of the file to write is empty");
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* opening a directory fails, with the right words */
        out->file = fopen(path, "wb");
    } else {
        size_t cap = strlen(path) + 32;
        out->temporary = malloc(cap);
        if (!out->temporary) return ath_tool_fail("out of memory");
        snprintf(out->temporary, cap, "%s.part-%ld", path, (long)getpid());
        out->file = fopen(out->temporary, "wb");
    }
    if (out->file) return 0;
    ath_tool_fail("%s can't be written: %s", path, strerror(errno));
    free(out->temporary);
    *out = (ath_outfile){0};
    return 1;
}

int ath_outfile_commit(ath_outfile *out) {
    errno = 0;
    bool failed = ferror(out->file) != 0;
    if (fclose(out->file) != 0) failed = true;
    out->file = NULL;
    if (!failed && out->temporary && rename(out->temporary, out->path) != 0) failed = true;
    if (failed) ath_tool_fail("%s can't be written: %s", out->path, errno ? strerror(errno) : "no room left");
    ath_outfile_abandon(out); /* after the rename there is nothing left to remove */
    return failed;
}

void ath_outfile_abandon(ath_outfile *out) {
    if (out->file) fclose(out->file);
    if (out->temporary) unlink(out->temporary);
    free(out->temporary);
    *out = (ath_outfile){0};
}
