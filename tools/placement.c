/* Where threads run: the flags -C, -Cr, --cpu-strict, --prio, --poll and their twins for prefill, and --numa.
 */
#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

enum { N_CPUS = 1024 };

typedef struct place_flags {
    ath_flag_id mask, range, strict, priority, poll;
} place_flags;

static void add_cpu(ath_placement *p, long cpu) { p->cpus[cpu / 64] |= UINT64_C(1) << cpu % 64; }

/* The last digit is CPUs 0 to 3. */
static bool read_mask(const char *text, ath_placement *p) {
    if (strncmp(text, "0x", 2) == 0 || strncmp(text, "0X", 2) == 0) text += 2;
    size_t n = strlen(text);
    if (n < 1 || n > N_CPUS / 4) return false;
    for (size_t i = 0; i < n; i++) {
        char c = (char)tolower((unsigned char)text[n - 1 - i]);
        if (!isxdigit((unsigned char)c)) return false;
        int digit = c <= '9' ? c - '0' : c - 'a' + 10;
        for (int bit = 0; bit < 4; bit++)
            if (digit >> bit & 1) add_cpu(p, 4 * (long)i + bit);
    }
    return true;
}

/* "2-5", "-5" or "2-" */
static bool read_range(const char *text, ath_placement *p) {
    const char *dash = strchr(text, '-');
    if (!dash || !text[1] || strspn(text, "0123456789-") != strlen(text) || strchr(dash + 1, '-')) return false;
    long low = dash == text ? 0 : strtol(text, NULL, 10), high = dash[1] ? strtol(dash + 1, NULL, 10) : N_CPUS - 1;
    if (low > high || high >= N_CPUS) return false;
    for (long cpu = low; cpu <= high; cpu++) add_cpu(p, cpu);
    return true;
}

static int in_range(const ath_args *args, ath_flag_id id, int low, int high, int *out) {
    const ath_arg *arg = &args->values[id];
    if (arg->number < low || arg->number > high)
        return ath_tool_fail("%s %s: %d to %d are possible", arg->name, arg->text, low, high);
    *out = (int)arg->number;
    return -1;
}

static int read_flags(const ath_args *args, const place_flags *flags, ath_placement *p) {
    const ath_arg *mask = &args->values[flags->mask], *range = &args->values[flags->range];
    if (mask->text && !read_mask(mask->text, p))
        return ath_tool_fail("%s %.60s: expected a hexadecimal number such as 0x3, of at most %d digits", mask->name,
                             mask->text, N_CPUS / 4);
    if (range->text && !read_range(range->text, p))
        return ath_tool_fail("%s %.60s: expected a range such as 0-3, below %d", range->name, range->text, N_CPUS);
    p->strict = args->values[flags->strict].on;
    int code = in_range(args, flags->priority, -1, 3, &p->priority);
    return code < 0 ? in_range(args, flags->poll, 0, 100, &p->poll) : code;
}

/* ---- --numa */

static bool has_cpu(const ath_placement *p, int cpu) {
    return p->cpus[cpu / 64] >> cpu % 64 & 1;
}

/* Numbers as the system lists them, "0-3,8-11"; false if there is no such file. */
static bool read_list(const char *path, ath_placement *list) {
    char text[512] = "";
    FILE *file = fopen(path, "r");
    if (!file) return false;
    if (!fgets(text, sizeof text, file)) *text = 0;
    fclose(file);
    for (char *at = text; isdigit((unsigned char)*at); at += *at == ',') {
        long low = strtol(at, &at, 10), high = *at == '-' ? strtol(at + 1, &at, 10) : low;
        for (long i = low; i <= high && i < N_CPUS; i++) add_cpu(list, i);
    }
    return true;
}

/* The CPUs of the node that this thread runs on, as far as the process may use them; *n: how many nodes there
 * are. */
static ath_placement own_node(int *n) {
    ath_placement nodes = {.poll = 50}, found = nodes;
    cpu_set_t allowed;
    *n = 0;
    if (!read_list("/sys/devices/system/node/online", &nodes) ||
        sched_getaffinity(0, sizeof allowed, &allowed))
        return found;
    int here = sched_getcpu();
    for (int node = 0; node < N_CPUS; node++) {
        char path[64];
        ath_placement cpus = {.poll = 50};
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (!has_cpu(&nodes, node) || !read_list(path, &cpus)) continue;
        ++*n;
        if (here < 0 || here >= N_CPUS || !has_cpu(&cpus, here)) continue;
        for (int cpu = 0; cpu < N_CPUS; cpu++)
            if (has_cpu(&cpus, cpu) && CPU_ISSET(cpu, &allowed)) add_cpu(&found, cpu);
    }
    return found;
}

/* Says what a mode does here, once. Threads that no flag ties are spread by the system's scheduler, a process
 * that numactl has tied stays where it is, and memory lies on the node of the thread that first writes it. */
static int apply_numa(const ath_args *args, ath_placement *p) {
    static bool said;
    const char *mode = ATH_ARG_TEXT(args, NUMA);
    int n_nodes;
    if (!mode) return -1;
    bool isolate = strcmp(mode, "isolate") == 0;
    ath_placement node = own_node(&n_nodes);
    if (isolate && (ath_args_given(args, ATH_FLAG_AFFINITY) || ath_args_given(args, ATH_FLAG_AFFINITY_RANGE)))
        return ath_tool_fail("--numa isolate chooses the CPUs that -C and -Cr name: leave one of them out");
    const char *what = n_nodes < 2 ? "this machine has one memory node, so it changes nothing"
                       : isolate   ? "threads stay on the memory node that the program started on"
                                 : "threads run where the system puts them, weights come to the node of the "
                                   "thread that packs them";
    if (!said) ath_tool_log(ATH_LOG_INFO, "--numa %s: %s", mode, what);
    said = true;
    if (n_nodes > 1 && isolate) memcpy(p->cpus, node.cpus, sizeof p->cpus);
    return -1;
}

int ath_tool_placements(const ath_args *args, ath_placement *decode, ath_placement *batch) {
    static const place_flags own = {ATH_FLAG_AFFINITY, ATH_FLAG_AFFINITY_RANGE, ATH_FLAG_CPU_STRICT, ATH_FLAG_PRIO,
                                    ATH_FLAG_POLL},
                             of_batch = {ATH_FLAG_AFFINITY_BATCH, ATH_FLAG_AFFINITY_RANGE_BATCH,
                                         ATH_FLAG_CPU_STRICT_BATCH, ATH_FLAG_PRIO_BATCH, ATH_FLAG_POLL_BATCH};
    int code = read_flags(args, &own, decode);
    if (code < 0) code = apply_numa(args, decode);
    if (code >= 0) return code;
    bool given = ath_args_given(args, of_batch.mask) || ath_args_given(args, of_batch.range) ||
                 ath_args_given(args, of_batch.strict) || ath_args_given(args, of_batch.priority) ||
                 ath_args_given(args, of_batch.poll);
    if (given) return read_flags(args, &of_batch, batch);
    *batch = *decode;
    return -1;
}
