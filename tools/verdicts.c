/* Verdicts of athanor quality, kept per model file in the user's cache folder. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "auto_cache.h"
#include "json.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

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

bool ath_verdict_path(const ath_engine *engine, char *buf, size_t cap) {
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

cJSON *ath_verdicts_load(const ath_engine *engine) {
    char path[4096];
    if (!ath_verdict_path(engine, path, sizeof path)) return NULL;
    struct stat st;
    if (stat(path, &st) != 0) return NULL; /* the usual case, no error */
    size_t size;
    char *text = ath_tool_read_file(path, &size);
    cJSON *json = text ? cJSON_ParseWithLength(text, size) : NULL;
    free(text);
    if (!json) ath_tool_log(ATH_LOG_WARN, "%s can't be read and is left out of the choice", path);
    return json;
}

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
        const cJSON *type = cJSON_GetObjectItem(cJSON_GetArrayItem(types, i), "type");
        if (cJSON_IsString(type) && strcmp(type->valuestring, name) == 0) cJSON_DeleteItemFromArray(types, i);
    }
}

int ath_verdicts_store(const ath_engine *engine, const cJSON *report) {
    char path[4096];
    if (!ath_verdict_path(engine, path, sizeof path))
        return ath_tool_fail(
            "there is no folder for verdicts: set XDG_CACHE_HOME or HOME, or use --no-store");
    cJSON *stored = ath_verdicts_load(engine), *types = cJSON_GetObjectItem(stored, "types");
    if (!cJSON_IsArray(types)) {
        cJSON_Delete(stored);
        stored = cJSON_CreateObject();
        cJSON_AddItemToObject(stored, "model", cJSON_Duplicate(cJSON_GetObjectItem(report, "model"), true));
        types = cJSON_AddArrayToObject(stored, "types");
    }
    static const char *const kept[] = {"type", "kld_mean",  "kld_se", "kld_p99",
                                       "top1", "ppl_ratio", "verdict"};
    const cJSON *type;
    cJSON_ArrayForEach(type, cJSON_GetObjectItem(report, "types")) {
        const cJSON *name = cJSON_GetObjectItem(type, "type");
        if (!cJSON_IsString(name)) continue;
        take_out(types, name->valuestring);
        cJSON *entry = cJSON_CreateObject();
        for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
            cJSON_AddItemToObject(entry, kept[i], cJSON_Duplicate(cJSON_GetObjectItem(type, kept[i]), true));
        cJSON_AddItemToObject(entry, "context",
                              cJSON_Duplicate(cJSON_GetObjectItem(report, "context"), true));
        cJSON_AddItemToArray(types, entry);
    }
    make_folders(path);
    ath_outfile out;
    if (ath_outfile_open(&out, path)) {
        cJSON_Delete(stored);
        return 1;
    }
    return ath_json_print(stored, out.file) || ath_outfile_commit(&out);
}
