/* Models from a hub, kept where the hub's own Python client keeps them, so that both find what the other fetched:
 *
 *     ROOT/models--USER--REPO/refs/main               the commit that "main" was at
 *                            /snapshots/COMMIT/FILE   links into blobs/
 *                            /blobs/DIGEST            and DIGEST.incomplete
 *     ROOT/.locks/models--USER--REPO/DIGEST.lock
 *
 * ROOT is the first set of LLAMA_CACHE, HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
 * ~/.cache/huggingface/hub. (Layout: huggingface_hub's guide "Understand caching".) */
#ifndef ATH_TOOL_HUB_H
#define ATH_TOOL_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"

enum { ATH_HUB_PATH = 4096 };

typedef struct ath_hub_name {
    char repo[200]; /* USER/REPO */
    char tag[64];   /* of USER/REPO:TAG; "" */
} ath_hub_name;

/* Takes USER/REPO[:TAG] apart. 0, or 1 after an error line. */
int ath_hub_parse(const char *text, ath_hub_name *name);

typedef struct ath_hub_file {
    char *path;    /* within the repository */
    int64_t size;  /* bytes */
    char *digest;  /* hex; NULL in a list made from the cache */
} ath_hub_file;

/* Sorted by path, GGUF files only, broken links left out. */
typedef struct ath_hub_list {
    ath_hub_file *files;
    int n;
} ath_hub_list;
void ath_hub_list_free(ath_hub_list *list);
bool ath_hub_list_add(ath_hub_list *list, const char *path, int64_t size, const char *digest);
void ath_hub_list_sort(ath_hub_list *list);

/* The files of the list that make up one model: `file` if it is not NULL, otherwise the tag's; without a tag Q4_K_M,
 * Q8_0, then any. Of a split model all parts, in order. Returns how many of chosen[] were set; 0: there is none,
 * -1: parts are missing. */
int ath_hub_choose(const ath_hub_list *list, const char *tag, const char *file, const ath_hub_file **chosen, int cap);

/* How many parts a name that ends in "-00001-of-00003.gguf" speaks of, and what stands before that; 0: not split. */
int ath_hub_split_parts(const char *path, size_t *stem);

/* The cache root, and the repository's folder in it. False: neither of the variables nor HOME is set, or too long. */
bool ath_hub_root(char *buf);
bool ath_hub_repo_folder(const char *repo, char *buf);
/* The files of the snapshot that `main` was at; *snapshot: its folder. */
bool ath_hub_cached(const char *folder, ath_hub_list *list, char *snapshot);

/* The folder of files that were fetched by URL: LLAMA_CACHE, XDG_CACHE_HOME/llama.cpp, ~/.cache/llama.cpp. */
bool ath_url_root(char *buf);

/* Makes a folder and those above it. False with errno. */
bool ath_make_folders(const char *path);

/* Where -hf or -mu name a model, fetches it if need be and puts its path where -m's value is. Returns -1, or 1 after an
 * error line. */
int ath_tool_find_model(ath_args *args);

#endif
