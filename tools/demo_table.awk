# The table at the end of ./demo, from two files of --json-stats: the exact cache first, the compressed one second.
# Their top-level fields stand one on a line, behind one tab. Fails if less than half of the rows that the second run
# read were compressed: then its figures would say nothing about the compressed type.

/^\t"[a-z0-9_]+":\t/ {
    if (FNR < last) run = 1
    last = FNR
    split($0, half, "\":\t")
    value = half[2]
    gsub(/^"|"?,?$/, "", value)
    field[run, substr(half[1], 3)] = value
}

function mib(name) {
    return sprintf("%.2f", field[i, name] / 1048576)
}

# Position of the first different token, counted from 1 (0: none); n_equal counts the equal ones.
function compare(    first, n, k, a, b) {
    n = split(substr(field[0, "ids"], 2), a, /[],] */)
    split(substr(field[1, "ids"], 2), b, /[],] */)
    n_tokens = n_equal = 0
    for (k = 1; k <= n; k++) {
        if (a[k] == "") continue
        n_tokens++
        if (a[k] == b[k]) n_equal++
        else if (!first) first = k
    }
    return first + 0
}

# Of the tokens that the exact cache chose, how many the compressed one chooses after the same text: file `picks`.
function count_same_picks(    n, k, a, id) {
    n = split(substr(field[0, "ids"], 2), a, /[],] */)
    n_same = 0
    for (k = 1; k <= n && (getline id < picks) > 0; k++) if (a[k] == id) n_same++
}

BEGIN { run = 0; last = 0 }

END {
    format = "%-10s %12s %12s %14s %12s %12s %16s %14s\n"
    printf format, "cache", "bytes per", "MiB now", "MiB at", "tokens/s", "tokens/s", "rows read", "tokens that"
    printf format, "type", "token", "", field[0, "n_ctx"] " tokens", "reading", "writing", "compressed", "agree"
    first = compare()
    for (i = 0; i < 2; i++)
        printf format, field[i, "type_k"], sprintf("%.0f", field[i, "bytes_per_token"]), mib("cache_bytes"),
            mib("cache_bytes_at_ctx"), sprintf("%.1f", field[i, "prompt_tokens_per_second"]),
            sprintf("%.1f", field[i, "eval_tokens_per_second"]), sprintf("%.1f %%", 100 * field[i, "share_compressed"]),
            i ? n_equal " of " n_tokens : "-"
    print ""
    count_same_picks()
    print "After the same text, " field[1, "type_k"] " picks the token that f16 picked " n_same " times of " n_tokens "."
    if (!first) print "Both caches gave the same " n_tokens " tokens."
    else {
        print "The first different token is number " first ". From there on the two runs continue different texts, so what agrees"
        print "later is chance: two tokens that are almost equally likely are enough to part the ways for good."
    }
    print "The text that was read has " field[0, "prompt_tokens"] " tokens. \"MiB now\" includes the last pages, which are kept in f16."
    if (field[1, "share_compressed"] < 0.5) {
        print "error: less than half of the rows that " field[1, "type_k"] " read were compressed" >"/dev/stderr"
        exit 1
    }
}
