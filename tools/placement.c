/* Where threads run: the flags -C, -Cr, --cpu-strict, --prio, --poll and their twins for prefill. */
#include <ctype.h>
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

int ath_tool_placements(const ath_args *args, ath_placement *decode, ath_placement *batch) {
    static const place_flags own = {ATH_FLAG_AFFINITY, ATH_FLAG_AFFINITY_RANGE, ATH_FLAG_CPU_STRICT, ATH_FLAG_PRIO,
                                    ATH_FLAG_POLL},
                             of_batch = {ATH_FLAG_AFFINITY_BATCH, ATH_FLAG_AFFINITY_RANGE_BATCH,
                                         ATH_FLAG_CPU_STRICT_BATCH, ATH_FLAG_PRIO_BATCH, ATH_FLAG_POLL_BATCH};
    int code = read_flags(args, &own, decode);
    if (code >= 0) return code;
    bool given = ath_args_given(args, of_batch.mask) || ath_args_given(args, of_batch.range) ||
                 ath_args_given(args, of_batch.strict) || ath_args_given(args, of_batch.priority) ||
                 ath_args_given(args, of_batch.poll);
    if (given) return read_flags(args, &of_batch, batch);
    *batch = *decode;
    return -1;
}
