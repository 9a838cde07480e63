#!/usr/bin/env python3
"""Speed at depth 0 against llama.cpp, interleaved: at least half of its prefill (512 tokens) and decode (32 tokens).

    check_speed.py --athanor build/bin/athanor --peer peer_bench.py [--rounds 3] [--bar 0.5] MODEL.gguf ...

Each round runs ours, llama.cpp with flash attention, and without, one after another, all with an f16 cache; ratios are taken
within a round, from llama.cpp's better setting, and their median decides, because absolute figures drift. Of each run
the best of its repetitions counts. Prints a line per round; exits 1 if a median is below the bar.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

PREFILL, DECODE, REPEAT = 512, 32, 2


def ours(athanor, model, threads, folder):
    """Tokens per second of prefill and decode, with the ids of peer_bench.py. A token that is decoded after the prefill
    takes the row of logits that is written, so that prefill computes those of its last row alone, as theirs does."""
    ids, stats, best = folder / "ids.txt", folder / "stats.json", {}
    for name, prefill, key in (("pp", PREFILL, "prompt_tokens_per_second"), ("tg", 1, "eval_tokens_per_second")):
        ids.write_text(" ".join(str((i * 2654435761 >> 7) % 256) for i in range(prefill + (name == "tg") * DECODE + 1)))
        command = [athanor, "logits", "-m", model, "-f", ids, "-o", folder / "out.f32", "--last", "1", "--decode-from", prefill,
                   "-c", 1024, "-t", threads, "--json-stats", stats]
        for _ in range(REPEAT):
            subprocess.run([str(c) for c in command], check=True, stderr=subprocess.DEVNULL)
            best[name] = max(best.get(name, 0), json.loads(stats.read_text())[key])
    return best


def theirs(peer, model, threads, flash):
    command = [sys.executable, peer, "-m", model, "-t", str(threads), "-d", "0", "-k", "f16", "--fa", str(flash), "-p",
               str(PREFILL), "-n", str(DECODE), "-r", str(REPEAT)]
    out = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(out.decode().splitlines()[-1])


def compare(a, model, folder):
    ratios = {"pp": [], "tg": []}
    for i in range(a.rounds):
        we = ours(a.athanor, model, a.threads, folder)
        peers = [theirs(a.peer, model, a.threads, flash) for flash in (1, 0)]
        line = []
        for name, label in (("pp", "prefill"), ("tg", "decode")):
            best = max(p[name] for p in peers)
            ratios[name].append(we[name] / best)
            line.append(f"{label} {we[name]:8.1f} to {best:8.1f} tokens/s, ratio {ratios[name][-1]:.2f}")
        print(f"  round {i + 1}: {'; '.join(line)}", flush=True)
    medians = {name: statistics.median(r) for name, r in ratios.items()}
    print(f"  median ratio: prefill {medians['pp']:.2f}, decode {medians['tg']:.2f}")
    return min(medians.values()) >= a.bar


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+", type=pathlib.Path)
    ap.add_argument("--athanor", required=True)
    ap.add_argument("--peer", required=True, help="peer_bench.py")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--bar", type=float, default=0.5)
    a = ap.parse_args()
    ok = True
    for model in a.models:
        print(model.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            ok &= compare(a, model, pathlib.Path(folder))
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
