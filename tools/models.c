/* athanor models: what was fetched from hubs and by URL, with its size, and its removal. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub.h"
#include "json.h"
#include "tool.h"

static const ath_program program = {
    .bit = ATH_PROGRAM_M,
    .usage = "[--remove USER/REPO[:QUANT]] [--json]",
    .about = "Lists the models that -hf and -mu have fetched, or removes one.",
};

typedef struct report {
    cJSON *json; /* NULL: text */
    int n;
    double bytes;
} report;

static void show(report *r, const char *name, const char *path, int64_t size) {
    r->n++;
    r->bytes += (double)size;
    if (!r->json) {
        printf("%10.1f MiB  %s\n", (double)size / 1048576, name);
        return;
    }
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "name", name);
    cJSON_AddStringToObject(entry, "path", path);
    cJSON_AddNumberToObject(entry, "bytes", (double)size);
    cJSON_AddItemToArray(r->json, entry);
}

/* "models--USER--REPO" to "USER/REPO". */
static bool repo_of_folder(const char *folder, char *repo, size_t cap) {
    static const char prefix[] = "models--";
    const char *user = folder + sizeof prefix - 1;
    const char *dashes = strncmp(folder, prefix, sizeof prefix - 1) == 0 ? strstr(user, "--") : NULL;
    if (!dashes) return false;
    int n = snprintf(repo, cap, "%.*s/%s", (int)(dashes - user), user, dashes + 2);
    return n > 0 && (size_t)n < cap;
}

static void show_repo(report *r, const char *root, const char *name) {
    char repo[200], folder[2 * ATH_HUB_PATH], snapshot[ATH_HUB_PATH];
    ath_hub_list list;
    if (!repo_of_folder(name, repo, sizeof repo) || strlen(root) + strlen(name) + 2 > ATH_HUB_PATH) return;
    snprintf(folder, sizeof folder, "%s/%s", root, name);
    if (ath_hub_cached(folder, &list, snapshot))
        for (int i = 0; i < list.n; i++) {
            char label[1300], path[2 * ATH_HUB_PATH];
            snprintf(label, sizeof label, "%s  %.1000s", repo, list.files[i].path);
            snprintf(path, sizeof path, "%s/%.2000s", snapshot, list.files[i].path);
            show(r, label, path, list.files[i].size);
        }
    ath_hub_list_free(&list);
}

static void show_file(report *r, const char *root, const char *name) {
    char path[2 * ATH_HUB_PATH];
    size_t size = strlen(name);
    struct stat st;
    snprintf(path, sizeof path, "%.4000s/%.1000s", root, name);
    if (size > 5 && strcmp(name + size - 5, ".gguf") == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        show(r, name, path, st.st_size);
}

static void show_folder(report *r, const char *root, void (*entry)(report *, const char *, const char *)) {
    struct dirent **names;
    int n = scandir(root, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') entry(r, root, names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

static int list_models(const ath_args *args) {
    char hub[ATH_HUB_PATH], url[ATH_HUB_PATH];
    if (!ath_hub_root(hub) || !ath_url_root(url))
        return ath_tool_fail("there is no folder for models: set HF_HUB_CACHE or HOME");
    report r = {.json = ATH_ARG_ON(args, JSON) ? cJSON_CreateArray() : NULL};
    show_folder(&r, hub, show_repo);
    show_folder(&r, url, show_file);
    if (r.json) return ath_json_print(r.json, stdout);
    if (r.n)
        printf("%10.1f MiB in %d file%s\n", r.bytes / 1048576, r.n, r.n == 1 ? "" : "s");
    else
        printf("no models in %s\n", hub);
    return ath_tool_flush();
}

/* ---- removal */

/* Is a blob of this name still linked from a snapshot? Looks through all of them. */
static bool is_linked(const char *folder, const char *blob, int depth) {
    DIR *dir = opendir(folder);
    bool linked = false;
    for (struct dirent *entry; dir && !linked && (entry = readdir(dir));) {
        char path[2 * ATH_HUB_PATH], target[ATH_HUB_PATH];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%.6000s/%.1000s", folder, entry->d_name);
        if (lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode) && depth < 6) linked = is_linked(path, blob, depth + 1);
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
        if (n < 0) continue;
        target[n] = 0;
        const char *slash = strrchr(target, '/');
        linked = slash && strcmp(slash + 1, blob) == 0;
    }
    if (dir) closedir(dir);
    return linked;
}

/* Removes a snapshot's link, and the blob if nobody else needs it. */
static int remove_file(const char *folder, const char *path) {
    char target[ATH_HUB_PATH], snapshots[ATH_HUB_PATH + 16], blob[2 * ATH_HUB_PATH];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (unlink(path) != 0) return ath_tool_fail("%s: %s", path, strerror(errno));
    if (n < 0) return 0; /* a plain file, as on file systems without links */
    target[n] = 0;
    const char *name = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", folder);
    snprintf(blob, sizeof blob, "%s/blobs/%.1000s", folder, name);
    if (is_linked(snapshots, name, 0)) return 0;
    return unlink(blob) == 0 || errno == ENOENT ? 0 : ath_tool_fail("%s: %s", blob, strerror(errno));
}

static int remove_model(const char *text) {
    ath_hub_name name;
    ath_hub_list list;
    char folder[ATH_HUB_PATH], snapshot[ATH_HUB_PATH];
    const ath_hub_file *chosen[1000];
    if (ath_hub_parse(text, &name) != 0) return 1;
    if (!ath_hub_repo_folder(name.repo, folder)) return ath_tool_fail("there is no folder for models: set HF_HUB_CACHE");
    bool there = ath_hub_cached(folder, &list, snapshot);
    int n = there && *name.tag ? ath_hub_choose(&list, name.tag, NULL, chosen, 1000) : list.n;
    int code = there && n > 0 ? 0 : ath_tool_fail("%s is not in the cache (%s)", text, folder);
    double bytes = 0;
    for (int i = 0; code == 0 && i < n; i++) {
        const ath_hub_file *file = *name.tag ? chosen[i] : &list.files[i];
        char path[2 * ATH_HUB_PATH];
        snprintf(path, sizeof path, "%s/%.2000s", snapshot, file->path);
        code = remove_file(folder, path);
        if (code == 0) printf("removed %s  %s\n", name.repo, file->path);
        bytes += (double)file->size;
    }
    if (code == 0) printf("%.1f MiB freed\n", bytes / 1048576);
    ath_hub_list_free(&list);
    return code ? code : ath_tool_flush();
}

int ath_tool_models(int argc, char **argv) {
    ath_args args;
    int code = ath_tool_begin(&args, &program, argc, argv);
    if (code < 0) code = ATH_ARG_TEXT(&args, REMOVE) ? remove_model(ATH_ARG_TEXT(&args, REMOVE)) : list_models(&args);
    ath_args_free(&args);
    return code;
}
