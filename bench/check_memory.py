#!/usr/bin/env python3
"""Peak resident memory of a long run: stays within weights + the cache as `inspect` predicts it + 150 MiB.

    check_memory.py --athanor build/bin/athanor --make-model make_model.py [--cache FOLDER] [--tokens 32768]

Evaluates that many tokens of a random model of the shape qwen3-0.6b (made once, kept in FOLDER) with a turbo3 cache.
Weights count once, as their bytes in the file. Takes some minutes. Prints the parts; exits 1 on failure.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import gguf

MIB = 1 << 20
SHAPE, TYPE, ALLOWED = "qwen3-0.6b", "turbo3", 150 * MIB


def get_model(make_model, folder):
    path = folder / f"{SHAPE}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, str(make_model), SHAPE, str(partial)], check=True)
        partial.rename(path)
    return path


def predicted_cache(athanor, model, tokens):
    """Bytes of the inspected plan for at least that many tokens, and its parts."""
    out = subprocess.run([athanor, "inspect", model, "--json"], check=True, stdout=subprocess.PIPE).stdout
    plans = json.loads(out)["cache"][TYPE]["plans"]
    plan = min((p for p in plans if p["tokens"] >= tokens), key=lambda p: p["tokens"])
    return sum(plan[k] for k in ("bytes_pages", "bytes_recent", "bytes_entries")), plan


def run(args):
    """Seconds, and peak resident bytes of the child alone."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(a) for a in args], stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"exit code {process.returncode}\n{log.read().decode()}")
    return time.monotonic() - start, usage.ru_maxrss * 1024


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--athanor", required=True)
    ap.add_argument("--make-model", required=True, type=pathlib.Path)
    ap.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(".cache/models"))
    ap.add_argument("--tokens", type=int, default=32768)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    model = get_model(a.make_model, a.cache)
    weights = sum(int(t.n_bytes) for t in gguf.GGUFReader(model).tensors)
    cache, plan = predicted_cache(a.athanor, model, a.tokens)
    with tempfile.TemporaryDirectory() as folder:
        ids, out, stats = (pathlib.Path(folder) / name for name in ("ids.txt", "logits.f32", "stats.json"))
        ids.write_text(" ".join(str(i * 2654435761 % 251) for i in range(a.tokens)))
        seconds, peak = run([a.athanor, "logits", "-m", model, "-f", ids, "-o", out, "--last", 1, "-c", a.tokens,
                             "-ctk", TYPE, "-ctv", TYPE, "-t", a.threads, "--json-stats", stats])
        s = json.loads(stats.read_text())
    if (s["type_k"], s["type_v"]) != (TYPE, TYPE) or a.tokens > 1024 and s["share_compressed"] < 0.5:
        raise SystemExit(f"this was no {TYPE} run: {s['type_k']}, {s['type_v']}, {s['share_compressed']}")
    print(f"{SHAPE}, {a.tokens} tokens, {TYPE}, {seconds:.0f} s")
    for name, size in (("weights in the file", weights), ("weights as counted by the engine", s["weight_bytes"]),
                       (f"cache, as inspected for {plan['tokens']}", cache), ("cache, as counted by the engine", s["cache_bytes"]),
                       ("scratch, as counted", s["scratch_bytes"]), ("allowed besides", ALLOWED),
                       ("allowed in all", weights + cache + ALLOWED), ("peak resident", peak),
                       ("peak - weights - cache", peak - weights - cache)):
        print(f"  {name:36s} {size / MIB:9.1f} MiB")
    ok = peak <= weights + cache + ALLOWED
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
