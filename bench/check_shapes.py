#!/usr/bin/env python3
"""Random models of real sizes: each is loaded and evaluates 8,192 tokens with a turbo3 cache, the last 64 of them one by one.

    check_shapes.py --athanor build/bin/athanor --make-model bench/make_model.py [--cache FOLDER] [--tokens 8192] [--only NAME,...]

For each, and exit 1 if one of these fails: logits are finite; at least half of the rows were read compressed; the cache takes what
`inspect` predicts for that many tokens (2048, 8192, 32768 or 131072), within 5 %; the process takes what the weights, the cache and the scratch memory come
to, within 5 % (and 150 MiB, for the program and its vocabulary). The files are made once and kept in FOLDER. An hour or more on two cores.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

MIB = 1 << 20
DECODED = 64
# name: shape and flags. The mixture is cut to a quarter of its layers, 4.6 GB.
MODELS = {
    "7B dense": ["mistral-7b"],
    "30B-A3B, 12 of 48 layers": ["qwen3-30b-a3b", "--layers", "12"],
    "9B hybrid": ["qwen3.5-9b"],
    "4B with windows of 300": ["gemma3-4b", "--window", "300"],
}


def get_model(make_model, folder, flags):
    path = folder / ("-".join(flags).replace("--", "") + ".gguf")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, str(make_model), flags[0], str(partial), *flags[1:]], check=True)
        partial.rename(path)
    return path


def predicted_cache(athanor, model, tokens):
    out = subprocess.run([athanor, "inspect", model, "--json"], check=True, stdout=subprocess.PIPE).stdout
    plans = {plan["tokens"]: plan for plan in json.loads(out)["cache"]["turbo3"]["plans"]}
    return sum(plans[tokens][k] for k in ("bytes_pages", "bytes_recent", "bytes_state", "bytes_entries"))


def run(athanor, model, n, folder):
    """Statistics, and peak resident bytes of the child alone."""
    ids, out, stats = folder / "ids.txt", folder / "logits.f32", folder / "stats.json"
    ids.write_text(" ".join(map(str, np.random.default_rng(1).integers(0, 256, n))))
    args = [athanor, "logits", "-m", model, "-f", ids, "-o", out, "-ctk", "turbo3", "-ctv", "turbo3", "-c", n, "--decode-from", n - DECODED,
            "--last", DECODED, "--json-stats", stats]
    process = subprocess.Popen([str(a) for a in args])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{model}: exit code {os.waitstatus_to_exitcode(status)}")
    logits = np.fromfile(out, "<f4")
    return json.loads(stats.read_text()), usage.ru_maxrss * 1024, bool(np.isfinite(logits).all()) and logits.std() > 0


def check(athanor, model, tokens):
    with tempfile.TemporaryDirectory() as folder:
        stats, peak, sane = run(athanor, model, tokens, pathlib.Path(folder))
    expected = predicted_cache(athanor, model, tokens)
    cache, parts = stats["cache_bytes"], stats["weight_bytes"] + stats["cache_bytes"] + stats["scratch_bytes"]
    compressed = stats["k_rows_compressed"] + stats["v_rows_compressed"]
    share = compressed / (compressed + stats["k_rows_f16"] + stats["v_rows_f16"])
    print(f"  cache {cache / MIB:.1f} MiB, predicted {expected / MIB:.1f}; process {peak / MIB:.0f} MiB, its parts {parts / MIB:.0f}; "
          f"{100 * share:.1f} % of the rows read compressed; logits {'finite' if sane else 'NOT FINITE'}", flush=True)
    return sane and share >= 0.5 and abs(cache / expected - 1) <= 0.05 and peak <= 1.05 * parts + 150 * MIB


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--athanor", required=True)
    ap.add_argument("--make-model", required=True, type=pathlib.Path)
    ap.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(".cache/models"))
    ap.add_argument("--tokens", type=int, default=8192)
    ap.add_argument("--only", help="shapes, with commas")
    a = ap.parse_args()
    failed = []
    for name, flags in MODELS.items():
        if a.only and flags[0] not in a.only.split(","):
            continue
        print(f"{name} ({' '.join(flags)})", flush=True)
        if not check(a.athanor, get_model(a.make_model, a.cache, flags), a.tokens):
            failed.append(name)
    print(f"FAILED: {', '.join(failed)}" if failed else "all as predicted")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
