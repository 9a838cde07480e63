/* Where fetched models lie, and which files of a repository make up a model: see hub.h. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "hub.h"
#include "tool.h"

/* ---- names */

static bool plain(const char *text, size_t size) { /* what hubs allow, so that no name leaves its folder */
    if (size == 0 || text[0] == '.' || text[0] == '-') return false;
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i])) return false;
    return true;
}

int ath_hub_parse(const char *text, ath_hub_name *name) {
    const char *slash = strchr(text, '/'), *colon = strchr(text, ':'), *end = text + strlen(text);
    const char *repo_end = colon ? colon : end;
    bool ok = slash && slash < repo_end && plain(text, (size_t)(slash - text)) &&
              plain(slash + 1, (size_t)(repo_end - slash - 1)) && repo_end - text < (long)sizeof name->repo &&
              (!colon || (plain(colon + 1, (size_t)(end - colon - 1)) && end - colon <= (long)sizeof name->tag));
    if (!ok) return ath_tool_fail("\"%.100s\" is no model of a hub: expected USER/REPO or USER/REPO:QUANT", text);
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)(repo_end - text), text);
    snprintf(name->tag, sizeof name->tag, "%s", colon ? colon + 1 : "");
    return 0;
}

/* ---- lists */

void ath_hub_list_free(ath_hub_list *list) {
    for (int i = 0; i < list->n; i++) {
        free(list->files[i].path);
        free(list->files[i].digest);
    }
    free(list->files);
    *list = (ath_hub_list){0};
}

bool ath_hub_list_add(ath_hub_list *list, const char *path, int64_t size, const char *digest) {
    ath_hub_file *more = realloc(list->files, ((size_t)list->n + 1) * sizeof *more);
    if (!more) return false;
    list->files = more;
    ath_hub_file file = {.path = strdup(path), .size = size, .digest = digest ? strdup(digest) : NULL};
    list->files[list->n++] = file;
    return file.path && (file.digest || !digest);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const ath_hub_file *)a)->path, ((const ath_hub_file *)b)->path);
}

void ath_hub_list_sort(ath_hub_list *list) {
    if (list->n) qsort(list->files, (size_t)list->n, sizeof *list->files, by_path);
}

/* ---- which files */

/* Projectors, importance matrices and drafts lie beside models and are none. */
static bool is_model(const char *path) {
    static const char *const others[] = {"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcasestr(path, others[i])) return false;
    return true;
}

/* The tag, with "-" or "." behind it, in any case. */
static bool has_tag(const char *path, const char *tag) {
    size_t size = strlen(tag);
    for (const char *at = path; (at = strcasestr(at, tag)); at++)
        if (at[size] == '-' || at[size] == '.') return true;
    return false;
}

static const ath_hub_file *find_tag(const ath_hub_list *list, const char *tag) {
    for (int i = 0; i < list->n; i++)
        if (is_model(list->files[i].path) && (!tag || has_tag(list->files[i].path, tag))) return &list->files[i];
    return NULL;
}

static const ath_hub_file *find_path(const ath_hub_list *list, const char *path) {
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->files[i].path, path) == 0) return &list->files[i];
    return NULL;
}

int ath_hub_split_parts(const char *path, size_t *stem) {
    enum { END = sizeof "-00001-of-00003.gguf" - 1 };
    size_t size = strlen(path);
    int part, parts, used = 0;
    if (size <= END || sscanf(path + size - END, "-%5d-of-%5d.gguf%n", &part, &parts, &used) != 2 || used != END)
        return 0;
    *stem = size - END;
    return part >= 1 && parts >= part ? parts : 0;
}

int ath_hub_choose(const ath_hub_list *list, const char *tag, const char *file, const ath_hub_file **chosen, int cap) {
    const ath_hub_file *found = file ? find_path(list, file) : find_tag(list, *tag ? tag : "Q4_K_M");
    if (!found && !file && !*tag) found = find_tag(list, "Q8_0");
    if (!found && !file && !*tag) found = find_tag(list, NULL);
    if (!found) return 0;
    size_t stem;
    int parts = ath_hub_split_parts(found->path, &stem);
    chosen[0] = found;
    if (parts == 0) return 1;
    for (int i = 0; i < parts && i < cap; i++) {
        char path[ATH_HUB_PATH];
        snprintf(path, sizeof path, "%.*s-%05d-of-%05d.gguf", (int)stem, found->path, i + 1, parts);
        if (!(chosen[i] = find_path(list, path))) return -1;
    }
    return parts <= cap ? parts : -1;
}

/* ---- folders */

/* Text behind text, into a buffer of ATH_HUB_PATH that none of them lies in. False: no room. */
static bool join(char *buf, const char *a, const char *b, const char *c) {
    int n = snprintf(buf, ATH_HUB_PATH, "%s%s%s", a, b, c);
    return n > 0 && n < ATH_HUB_PATH;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

bool ath_hub_root(char *buf) {
    static const struct {
        const char *name, *below;
    } roots[] = {{"LLAMA_CACHE", ""}, {"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "/hub"},
                 {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++)
        if (variable(roots[i].name)) return join(buf, variable(roots[i].name), roots[i].below, "");
    return false;
}

bool ath_url_root(char *buf) {
    if (variable("LLAMA_CACHE")) return join(buf, variable("LLAMA_CACHE"), "", "");
    if (variable("XDG_CACHE_HOME")) return join(buf, variable("XDG_CACHE_HOME"), "/llama.cpp", "");
    return variable("HOME") && join(buf, variable("HOME"), "/.cache/llama.cpp", "");
}

bool ath_hub_repo_folder(const char *repo, char *buf) {
    const char *slash = strchr(repo, '/');
    char root[ATH_HUB_PATH], name[256];
    if (!slash || !ath_hub_root(root)) return false;
    snprintf(name, sizeof name, "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
    return join(buf, root, "/", name);
}

bool ath_make_folders(const char *path) {
    char part[ATH_HUB_PATH];
    if (!join(part, path, "/", "")) return errno = ENAMETOOLONG, false;
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST) return false;
        *slash = '/';
    }
    return true;
}

/* ---- what is there */

static bool ends_in_gguf(const char *name) {
    size_t size = strlen(name);
    return size > 5 && strcasecmp(name + size - 5, ".gguf") == 0;
}

/* GGUF files of a folder and those below it (quantisations often have one each); `within`: "" or "/sub". */
static void add_folder(ath_hub_list *list, const char *folder, const char *within, int depth) {
    char path[ATH_HUB_PATH], name[ATH_HUB_PATH];
    DIR *dir = join(path, folder, within, "") ? opendir(path) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        if (entry->d_name[0] == '.' || !join(name, within, "/", entry->d_name) || !join(path, folder, name, "") ||
            stat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth < 4)
            add_folder(list, folder, name, depth + 1);
        else if (S_ISREG(st.st_mode) && ends_in_gguf(name))
            ath_hub_list_add(list, name + 1, st.st_size, NULL);
    }
    if (dir) closedir(dir);
}

bool ath_hub_cached(const char *folder, ath_hub_list *list, char *snapshot) {
    char path[ATH_HUB_PATH], commit[128] = "";
    *list = (ath_hub_list){0};
    FILE *ref = join(path, folder, "/refs/main", "") ? fopen(path, "r") : NULL;
    if (!ref) return false;
    bool ok = fscanf(ref, "%127[0-9a-zA-Z]", commit) == 1;
    fclose(ref);
    ok = ok && join(snapshot, folder, "/snapshots/", commit);
    if (ok) add_folder(list, snapshot, "", 0);
    ath_hub_list_sort(list);
    return ok;
}
