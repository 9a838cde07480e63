/* -hf, -hff and -mu: ask the hub what a repository holds, fetch what is missing, and say where the model lies. */
#include "hub.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fetch.h"
#include "json.h"
#include "tool.h"

enum { MOST_PARTS = 1000 };

/* ---- listing */

static const char *endpoint(void) {
    const char *a = getenv("MODEL_ENDPOINT"), *b = getenv("HF_ENDPOINT");
    return a && *a ? a : b && *b ? b : "https://huggingface.co/";
}

static const char *separator(void) {
    const char *url = endpoint();
    return url[strlen(url) - 1] == '/' ? "" : "/";
}

static bool hex(const char *text, size_t size) {
    return text && strlen(text) == size && strspn(text, "0123456789abcdefABCDEF") == size;
}

/* A path that stays in its folder and can be written down in a URL after escaping. */
static bool safe_path(const char *path) {
    if (!*path || *path == '/' || strlen(path) > 1000 || strstr(path, "//")) return false;
    for (const char *c = path; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127 || *c == '\\') return false;
        if ((c == path || c[-1] == '/') && c[0] == '.') return false;
    }
    return true;
}

/* The commit that main is at. */
static ath_fetch_result fetch_commit(const char *repo, const ath_fetch_options *options, char commit[41], char *why) {
    char url[1024], *text, *next;
    snprintf(url, sizeof url, "%.500s%sapi/models/%s/refs", endpoint(), separator(), repo);
    ath_fetch_result result = ath_fetch_text(url, options, &text, &next, why);
    if (result != ATH_FETCH_OK) return result;
    cJSON *json = cJSON_Parse(text), *branch;
    *commit = 0;
    cJSON_ArrayForEach(branch, cJSON_GetObjectItem(json, "branches")) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(branch, "name"));
        const char *target = cJSON_GetStringValue(cJSON_GetObjectItem(branch, "targetCommit"));
        if (name && strcmp(name, "main") == 0 && hex(target, 40)) strcpy(commit, target);
    }
    cJSON_Delete(json);
    free(text);
    free(next);
    if (*commit) return ATH_FETCH_OK;
    snprintf(why, ATH_FETCH_WHY, "%.300s: the answer names no branch \"main\"", url);
    return ATH_FETCH_FAILED;
}

/* Adds the GGUF files of one page of the tree; anything odd in it is left out. */
static bool add_tree(ath_hub_list *list, const char *text) {
    cJSON *json = cJSON_Parse(text), *entry;
    bool ok = cJSON_IsArray(json);
    cJSON_ArrayForEach(entry, json) {
        cJSON *lfs = cJSON_GetObjectItem(entry, "lfs");
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "path"));
        const char *digest = cJSON_GetStringValue(cJSON_GetObjectItem(lfs ? lfs : entry, "oid"));
        double size = cJSON_GetNumberValue(cJSON_GetObjectItem(lfs ? lfs : entry, "size"));
        size_t n = path ? strlen(path) : 0;
        bool gguf = n > 5 && strcasecmp(path + n - 5, ".gguf") == 0;
        if (gguf && safe_path(path) && hex(digest, lfs ? 64 : 40) && size >= 0 && size < 1e15)
            ok = ath_hub_list_add(list, path, (int64_t)size, digest) && ok;
    }
    cJSON_Delete(json);
    return ok;
}

static ath_fetch_result fetch_list(const char *repo, const char *commit, const ath_fetch_options *options,
                                   ath_hub_list *list, char *why) {
    char first[1024];
    snprintf(first, sizeof first, "%.500s%sapi/models/%s/tree/%s?recursive=true", endpoint(), separator(), repo, commit);
    char *url = strdup(first);
    ath_fetch_result result = ATH_FETCH_OK;
    for (int page = 0; result == ATH_FETCH_OK && url && page < 1000; page++) {
        char *text, *next;
        result = ath_fetch_text(url, options, &text, &next, why);
        if (result == ATH_FETCH_OK && !add_tree(list, text)) {
            snprintf(why, ATH_FETCH_WHY, "%.300s: the answer is no list of files", url);
            result = ATH_FETCH_FAILED;
        }
        free(url);
        free(text);
        url = next;
    }
    free(url);
    ath_hub_list_sort(list);
    return result;
}

/* ---- fetching */

/* A path as part of a URL: everything but letters, digits and "-._~/" as %XX (RFC 3986). */
static void escape_path(const char *path, char *out, size_t cap) {
    for (; *path && cap > 4; path++) {
        bool keep = isalnum((unsigned char)*path) || strchr("-._~/", *path);
        int n = snprintf(out, cap, keep ? "%c" : "%%%02X", (unsigned char)*path);
        out += n;
        cap -= (size_t)n;
    }
    *out = 0;
}

static bool failed_path(const char *path, char *why) {
    snprintf(why, ATH_FETCH_WHY, "%.300s: %s", path, strerror(errno));
    return false;
}

/* snapshots/COMMIT/PATH as a link to blobs/DIGEST. */
static bool link_snapshot(const char *folder, const char *commit, const ath_hub_file *file, char *why) {
    char link[2 * ATH_HUB_PATH], target[512] = "../../";
    snprintf(link, sizeof link, "%s/snapshots/%s/%s", folder, commit, file->path);
    for (const char *c = file->path; *c; c++)
        if (*c == '/' && strlen(target) < 300) strcat(target, "../");
    strcat(strcat(target, "blobs/"), file->digest);
    char *slash = strrchr(link, '/');
    *slash = 0;
    if (!ath_make_folders(link)) return failed_path(link, why);
    *slash = '/';
    if (access(link, F_OK) == 0) return true;
    unlink(link); /* a link whose blob was removed */
    return symlink(target, link) == 0 || errno == EEXIST || failed_path(link, why);
}

static bool write_ref(const char *folder, const char *commit, char *why) {
    char path[2 * ATH_HUB_PATH], part[2 * ATH_HUB_PATH + 32];
    snprintf(path, sizeof path, "%s/refs", folder);
    if (!ath_make_folders(path)) return failed_path(path, why);
    strcat(path, "/main");
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(part, "w");
    bool ok = file && fputs(commit, file) >= 0;
    ok = file && fclose(file) == 0 && ok && rename(part, path) == 0;
    return ok || failed_path(path, why);
}

static ath_fetch_result fetch_blob(const char *repo, const char *folder, const char *commit, const ath_hub_file *file,
                                   const ath_fetch_options *options, char *why) {
    char url[4096], name[3100], path[2 * ATH_HUB_PATH], partial[2 * ATH_HUB_PATH], lock[2 * ATH_HUB_PATH];
    const char *base = strrchr(folder, '/');
    escape_path(file->path, name, sizeof name);
    snprintf(url, sizeof url, "%.500s%s%s/resolve/%s/%s", endpoint(), separator(), repo, commit, name);
    snprintf(lock, sizeof lock, "%.*s/.locks%s", (int)(base - folder), folder, base);
    snprintf(path, sizeof path, "%s/blobs", folder);
    if (!ath_make_folders(lock) || !ath_make_folders(path)) {
        failed_path(path, why);
        return ATH_FETCH_FAILED;
    }
    snprintf(lock + strlen(lock), 128, "/%s.lock", file->digest);
    snprintf(path + strlen(path), 128, "/%s", file->digest);
    snprintf(partial, sizeof partial, "%.4200s.incomplete", path);
    ath_fetch_file fetch = {.url = url, .label = file->path, .path = path, .partial = partial, .lock = lock,
                            .size = file->size, .digest = file->digest};
    ath_fetch_result result = ath_fetch_to_disk(&fetch, options, why);
    return result == ATH_FETCH_OK && !link_snapshot(folder, commit, file, why) ? ATH_FETCH_FAILED : result;
}

/* What there is, for the refusal of a choice that fits nothing. */
static void name_files(const ath_hub_list *list, char *buf, size_t cap) {
    *buf = 0;
    for (int i = 0; i < list->n; i++) {
        size_t used = strlen(buf);
        snprintf(buf + used, cap - used, "%s%.80s", i ? ", " : "", list->files[i].path);
    }
}

static ath_fetch_result refuse_choice(const ath_hub_name *name, const char *file, int n, const ath_hub_list *list,
                                      char *why) {
    char names[300];
    name_files(list, names, sizeof names);
    if (n < 0)
        snprintf(why, ATH_FETCH_WHY, "%s: parts of the split model are missing", name->repo);
    else if (list->n == 0)
        snprintf(why, ATH_FETCH_WHY, "%s holds no GGUF file", name->repo);
    else
        snprintf(why, ATH_FETCH_WHY, "%s has no %.64s; it has %s", name->repo,
                 file ? file : *name->tag ? name->tag : "model", names);
    return ATH_FETCH_REFUSED;
}

/* Everything of the model that `commit` has; path: its first file. */
static ath_fetch_result fetch_model(const ath_hub_name *name, const char *file, const char *folder,
                                    const ath_fetch_options *options, char *path, char *why) {
    char commit[41];
    ath_hub_list list = {0};
    const ath_hub_file *chosen[MOST_PARTS];
    ath_fetch_result result = fetch_commit(name->repo, options, commit, why);
    if (result == ATH_FETCH_OK) result = fetch_list(name->repo, commit, options, &list, why);
    int n = result == ATH_FETCH_OK ? ath_hub_choose(&list, name->tag, file, chosen, MOST_PARTS) : 0;
    if (result == ATH_FETCH_OK && n <= 0) result = refuse_choice(name, file, n, &list, why);
    for (int i = 0; result == ATH_FETCH_OK && i < n; i++)
        result = fetch_blob(name->repo, folder, commit, chosen[i], options, why);
    if (result == ATH_FETCH_OK && !write_ref(folder, commit, why)) result = ATH_FETCH_FAILED;
    if (result == ATH_FETCH_OK)
        snprintf(path, 2 * ATH_HUB_PATH, "%s/snapshots/%s/%s", folder, commit, chosen[0]->path);
    ath_hub_list_free(&list);
    return result;
}

/* The model as the cache has it. */
static bool find_cached(const ath_hub_name *name, const char *file, const char *folder, char *path) {
    char snapshot[ATH_HUB_PATH];
    ath_hub_list list;
    const ath_hub_file *chosen[MOST_PARTS];
    bool found = ath_hub_cached(folder, &list, snapshot) &&
                 ath_hub_choose(&list, name->tag, file, chosen, MOST_PARTS) > 0;
    if (found) snprintf(path, 2 * ATH_HUB_PATH, "%s/%s", snapshot, chosen[0]->path);
    ath_hub_list_free(&list);
    return found;
}

/* The token of the flag, the variable, or the file that the hub's own login leaves. malloc'd; NULL: none. */
static char *find_token(const ath_args *args) {
    const char *given = ATH_ARG_TEXT(args, HF_TOKEN), *home = getenv("HF_HOME"), *named = getenv("HF_TOKEN_PATH");
    char path[ATH_HUB_PATH], token[512] = "";
    if (given && *given) return strdup(given);
    if (named && *named)
        snprintf(path, sizeof path, "%s", named);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/token", home);
    else
        snprintf(path, sizeof path, "%s/.cache/huggingface/token", getenv("HOME") ? getenv("HOME") : "");
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%511s", token) != 1) *token = 0;
    if (file) fclose(file);
    return *token ? strdup(token) : NULL;
}

static int from_hub(const ath_args *args, const ath_fetch_options *options, char *path) {
    ath_hub_name name;
    char folder[ATH_HUB_PATH], why[ATH_FETCH_WHY];
    const char *file = ATH_ARG_TEXT(args, HF_FILE);
    if (ath_hub_parse(ATH_ARG_TEXT(args, HF_REPO), &name) != 0) return 1;
    if (file && !safe_path(file)) return ath_tool_fail("-hff %.100s is no path within a repository", file);
    if (!ath_hub_repo_folder(name.repo, folder))
        return ath_tool_fail("there is no folder for models: set HF_HUB_CACHE or HOME");
    bool offline = ATH_ARG_ON(args, OFFLINE);
    ath_fetch_result result = offline ? ATH_FETCH_UNREACHABLE : fetch_model(&name, file, folder, options, path, why);
    if (result == ATH_FETCH_OK) return -1;
    if (result == ATH_FETCH_UNREACHABLE && find_cached(&name, file, folder, path)) {
        if (!offline) ath_tool_log(ATH_LOG_WARN, "%s; taking the model from the cache as it is", why);
        return -1;
    }
    if (offline) return ath_tool_fail("%s is not in the cache (%s): run once without --offline",
                                      ATH_ARG_TEXT(args, HF_REPO), folder);
    return ath_tool_fail("%s", why);
}

/* ---- -mu */

/* Fetches one file of a URL unless it is there with the same ETag (kept in NAME.etag). */
static ath_fetch_result fetch_url(const char *url, const char *root, const char *name, const ath_fetch_options *options,
                                  char *path, char *why) {
    char etag_path[2 * ATH_HUB_PATH], partial[2 * ATH_HUB_PATH], lock[2 * ATH_HUB_PATH], known[128] = "";
    snprintf(path, 2 * ATH_HUB_PATH, "%s/%s", root, name);
    snprintf(etag_path, sizeof etag_path, "%.4000s/%.1000s.etag", root, name);
    snprintf(lock, sizeof lock, "%.4000s/%.1000s.lock", root, name);
    ath_fetch_head head;
    ath_fetch_result result = ath_fetch_get_head(url, options, &head, why);
    if (result != ATH_FETCH_OK) return result;
    FILE *file = fopen(etag_path, "r");
    if (file && !fgets(known, sizeof known, file)) *known = 0;
    if (file) fclose(file);
    if (strcmp(known, head.etag) != 0) unlink(path); /* another file has this name now */
    uint32_t hash = 2166136261u; /* FNV-1a: the rest of one file is never put behind the start of another */
    for (const char *c = head.etag; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    snprintf(partial, sizeof partial, "%.4000s/%.1000s.%08x.incomplete", root, name, hash);
    ath_fetch_file fetch = {.url = url, .label = name, .path = path, .partial = partial, .lock = lock,
                            .size = head.size, .digest = *head.sha256 ? head.sha256 : NULL};
    result = ath_fetch_to_disk(&fetch, options, why);
    if (result != ATH_FETCH_OK) return result;
    file = fopen(etag_path, "w");
    bool ok = file && fputs(head.etag, file) >= 0;
    if (file) fclose(file);
    if (!ok) failed_path(etag_path, why);
    return ok ? ATH_FETCH_OK : ATH_FETCH_FAILED;
}

/* The file's name in a URL: its last part, without query. */
static bool url_name(const char *url, char *name, size_t cap, size_t *begin, size_t *end) {
    *end = strcspn(url, "?#");
    for (*begin = *end; *begin > 0 && url[*begin - 1] != '/';) --*begin;
    snprintf(name, cap, "%.*s", (int)(*end - *begin), url + *begin);
    return (strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0) && *begin > 8 && *end - *begin < cap &&
           safe_path(name);
}

static int from_url(const ath_args *args, const ath_fetch_options *options, char *path) {
    const char *url = ATH_ARG_TEXT(args, MODEL_URL);
    char root[ATH_HUB_PATH], name[512], why[ATH_FETCH_WHY], part_url[2048], part_name[600], other[2 * ATH_HUB_PATH];
    size_t begin, end, stem;
    if (!url_name(url, name, sizeof name, &begin, &end) || strlen(url) > 1500)
        return ath_tool_fail("-mu %.100s: expected http(s)://HOST/.../NAME.gguf", url);
    if (!ath_url_root(root)) return ath_tool_fail("there is no folder for models: set LLAMA_CACHE or HOME");
    if (!ath_make_folders(root)) return ath_tool_fail("%s: %s", root, strerror(errno));
    int parts = ath_hub_split_parts(name, &stem);
    bool offline = ATH_ARG_ON(args, OFFLINE);
    ath_fetch_result result = offline ? ATH_FETCH_UNREACHABLE : fetch_url(url, root, name, options, path, why);
    snprintf(path, 2 * ATH_HUB_PATH, "%s/%s", root, name);
    for (int i = 1; result == ATH_FETCH_OK && i < parts; i++) {
        snprintf(part_name, sizeof part_name, "%.*s-%05d-of-%05d.gguf", (int)stem, name, i + 1, parts);
        snprintf(part_url, sizeof part_url, "%.*s%s%s", (int)begin, url, part_name, url + end);
        result = fetch_url(part_url, root, part_name, options, other, why);
    }
    if (result == ATH_FETCH_OK) return -1;
    if (result == ATH_FETCH_UNREACHABLE && access(path, F_OK) == 0) {
        if (!offline) ath_tool_log(ATH_LOG_WARN, "%s; taking the file from the cache as it is", why);
        return -1;
    }
    return offline ? ath_tool_fail("%s is not in the cache (%s): run once without --offline", url, root)
                   : ath_tool_fail("%s", why);
}

/* What a token is for: the hub, and no other host that a URL names. */
static bool is_of_hub(const char *url) {
    size_t size = strlen(endpoint());
    return strncmp(url, endpoint(), size) == 0 && (endpoint()[size - 1] == '/' || url[size] == '/');
}

/* The one of -m, -hf and -mu that counts; a flag beats a variable. -1: none; -2 after an error line. */
static int find_source(const ath_args *args) {
    static const ath_flag_id sources[] = {ATH_FLAG_MODEL, ATH_FLAG_HF_REPO, ATH_FLAG_MODEL_URL};
    int found = -1, n[2] = {0, 0};
    for (int from_env = 1; from_env >= 0; from_env--)
        for (int i = 0; i < 3; i++) {
            const ath_arg *arg = &args->values[sources[i]];
            if (!arg->text || arg->from_env != from_env) continue;
            found = (int)sources[i];
            n[from_env]++;
        }
    if (n[0] > 1 || (n[0] == 0 && n[1] > 1)) {
        ath_tool_fail("the model comes from one of -m, -hf, -mu, but several of them were given");
        return -2;
    }
    return found;
}

int ath_tool_find_model(ath_args *args) {
    int source = find_source(args);
    if (source == -2) return 1;
    if (ATH_ARG_TEXT(args, HF_FILE) && source != ATH_FLAG_HF_REPO)
        return ath_tool_fail("-hff names a file of a repository: name that with -hf");
    if (source != ATH_FLAG_HF_REPO && source != ATH_FLAG_MODEL_URL) return -1;
    bool of_hub = source == ATH_FLAG_HF_REPO || is_of_hub(ATH_ARG_TEXT(args, MODEL_URL));
    char *token = of_hub ? find_token(args) : NULL, path[2 * ATH_HUB_PATH];
    ath_fetch_options options = {.token = token, .stall_seconds = (int)ATH_ARG_INT(args, DOWNLOAD_TIMEOUT)};
    int code = options.stall_seconds > 0 ? -1 : ath_tool_fail("--download-timeout expects 1 or more seconds");
    if (code < 0)
        code = source == ATH_FLAG_HF_REPO ? from_hub(args, &options, path) : from_url(args, &options, path);
    free(token);
    if (code >= 0) return code;
    args->values[ATH_FLAG_MODEL] = args->values[source];
    args->values[ATH_FLAG_MODEL].text = ath_args_own(args, strdup(path));
    return -1;
}
