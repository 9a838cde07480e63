/* Verdicts of athanor quality, kept per model file in the user's cache folder. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "auto_cache.h"
#include "json.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096, MOST_PATH = 4096 };

static uint64_t add_to_hash(uint64_t hash, const void *data, size_t size) { /* FNV-1a */
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return hash;
}

/* Size of all parts, and 64 pieces of the first, its start among them: whole models take too long to read,
 * and a change of the weights reaches every part of the file. */
static bool hash_model(const ath_engine_info *info, uint64_t *hash) {
    FILE *file = fopen(info->path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0) {
        if (file) fclose(file);
        return false;
    }
    uint64_t size = info->file_bytes;
    *hash = add_to_hash(0xCBF29CE484222325u, &size, sizeof size);
    for (int i = 0; i < SAMPLES; i++) {
        unsigned char piece[SAMPLE_BYTES];
        if (fseeko(file, (off_t)(st.st_size / SAMPLES * i), SEEK_SET) != 0) break;
        *hash = add_to_hash(*hash, piece, fread(piece, 1, sizeof piece, file));
    }
    fclose(file);
    return true;
}

/* False if there is no such folder to be had. */
static bool verdict_path(const ath_engine *engine, char *buf, size_t cap) {
    const char *root = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    ath_engine_info info;
    ath_engine_get_info(engine, &info);
    uint64_t hash;
    if (!(root && *root) && !(home && *home)) return false;
    if (!hash_model(&info, &hash)) return false;
    bool own = root && *root;
    int n = snprintf(buf, cap, "%s%s/athanor/verdicts/%016" PRIx64 ".json", own ? root : home,
                     own ? "" : "/.cache", hash);
    return n > 0 && (size_t)n < cap;
}

/* ---- reading */

bool ath_verdict_read(const cJSON *entry, ath_verdict *out) {
    const cJSON *type = cJSON_GetObjectItem(entry, "type"), *kld = cJSON_GetObjectItem(entry, "kld_mean");
    const cJSON *context = cJSON_GetObjectItem(entry, "context"), *verdict = cJSON_GetObjectItem(entry, "verdict");
    if (!cJSON_IsString(type) || !cJSON_IsNumber(kld) || !cJSON_IsNumber(context) || !cJSON_IsString(verdict)) return false;
    *out = (ath_verdict){type->valuestring, ATH_CLASS_SAFE, kld->valuedouble, context->valuedouble};
    while (out->class <= ATH_CLASS_BAD && strcmp(verdict->valuestring, ath_class_name(out->class)) != 0) out->class++;
    return out->class <= ATH_CLASS_BAD && isfinite(out->kld) && out->kld >= 0 && isfinite(out->context) && out->context > 0;
}

static void drop_nonsense(const char *path, cJSON *types) {
    int n = 0;
    ath_verdict verdict;
    for (int i = cJSON_GetArraySize(types) - 1; i >= 0; i--) {
        if (ath_verdict_read(cJSON_GetArrayItem(types, i), &verdict)) continue;
        cJSON_DeleteItemFromArray(types, i);
        n++;
    }
    if (n)
        ath_tool_log(ATH_LOG_WARN,
                     "%s: %d left out of its verdicts, which are safe, visible or not recommended, with a mean KLD of 0 or "
                     "more and a context",
                     path, n);
}

/* NULL if there is no file (the usual case), or a damaged one. */
static cJSON *read_stored(const char *path, bool *damaged) {
    struct stat st;
    *damaged = stat(path, &st) == 0;
    if (!*damaged) return NULL;
    size_t size;
    char *text = ath_tool_read_file(path, &size);
    cJSON *json = text ? cJSON_ParseWithLength(text, size) : NULL, *types = cJSON_GetObjectItem(json, "types");
    free(text);
    *damaged = !cJSON_IsArray(types);
    if (!*damaged) {
        drop_nonsense(path, types);
        return json;
    }
    cJSON_Delete(json);
    return NULL;
}

cJSON *ath_verdicts_load(const ath_engine *engine) {
    char path[MOST_PATH];
    bool damaged;
    if (!verdict_path(engine, path, sizeof path)) return NULL;
    cJSON *stored = read_stored(path, &damaged);
    if (damaged) ath_tool_log(ATH_LOG_WARN, "%s can't be read and is left out of the choice", path);
    return stored;
}

/* ---- storing */

/* Every folder of the path. */
static void make_folders(char *path) {
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0777); /* what can't be made shows when the file is opened */
        *at = '/';
    }
}

static void take_out(cJSON *types, const char *name) {
    for (int i = cJSON_GetArraySize(types) - 1; i >= 0; i--) {
        ath_verdict verdict;
        bool sound = ath_verdict_read(cJSON_GetArrayItem(types, i), &verdict);
        if (sound && strcmp(verdict.type, name) == 0) cJSON_DeleteItemFromArray(types, i);
    }
}

/* Of the longest windows that the type was measured on; 0: it wasn't. */
static double stored_context(const cJSON *types, const char *name) {
    const cJSON *entry;
    double longest = 0;
    cJSON_ArrayForEach(entry, types) {
        ath_verdict verdict;
        bool sound = ath_verdict_read(entry, &verdict);
        if (sound && strcmp(verdict.type, name) == 0 && verdict.context > longest) longest = verdict.context;
    }
    return longest;
}

/* A type of the report, unless it has no verdict, or the stored one comes from longer windows. */
static void add_type(cJSON *types, const cJSON *report, const cJSON *type) {
    static const char *const kept[] = {"type", "kld_mean",  "kld_se", "kld_p99",
                                       "top1", "ppl_ratio", "verdict"};
    cJSON *entry = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        cJSON_AddItemToObject(entry, kept[i], cJSON_Duplicate(cJSON_GetObjectItem(type, kept[i]), true));
    cJSON_AddItemToObject(entry, "context", cJSON_Duplicate(cJSON_GetObjectItem(report, "context"), true));
    ath_verdict verdict;
    bool sound = ath_verdict_read(entry, &verdict);
    double stored = sound ? stored_context(types, verdict.type) : 0;
    if (!sound || stored > verdict.context) {
        if (sound)
            ath_tool_log(ATH_LOG_INFO, "%s: the stored verdict stays, from windows of %.0f tokens", verdict.type, stored);
        cJSON_Delete(entry);
        return;
    }
    take_out(types, verdict.type);
    cJSON_AddItemToArray(types, entry);
}

static int set_aside(const char *path) {
    char bad[MOST_PATH + 8];
    snprintf(bad, sizeof bad, "%s.bad", path);
    if (rename(path, bad) != 0)
        return ath_tool_fail("%s can't be read as verdicts, nor renamed to %s: %s", path, bad, strerror(errno));
    ath_tool_log(ATH_LOG_WARN, "%s can't be read as verdicts: it is kept as %s, and a new file begins", path, bad);
    return 0;
}

int ath_verdicts_store(const ath_engine *engine, const cJSON *report) {
    char path[MOST_PATH];
    bool damaged;
    if (!verdict_path(engine, path, sizeof path))
        return ath_tool_fail(
            "there is no folder for verdicts: set XDG_CACHE_HOME or HOME, or use --no-store");
    cJSON *stored = read_stored(path, &damaged), *types = cJSON_GetObjectItem(stored, "types");
    if (damaged && set_aside(path)) return 1;
    if (!stored) {
        stored = cJSON_CreateObject();
        cJSON_AddItemToObject(stored, "model", cJSON_Duplicate(cJSON_GetObjectItem(report, "model"), true));
        types = cJSON_AddArrayToObject(stored, "types");
    }
    const cJSON *type;
    cJSON_ArrayForEach(type, cJSON_GetObjectItem(report, "types")) add_type(types, report, type);
    make_folders(path);
    ath_outfile out;
    if (ath_outfile_open(&out, path)) {
        cJSON_Delete(stored);
        return 1;
    }
    return ath_json_print(stored, out.file) || ath_outfile_commit(&out);
}
