#!/usr/bin/env python3
"""All tables of docs/quality.md: what cache types do to real models, ours and llama.cpp's, and the bars they have to meet.

    quality_tables.py --athanor build/bin/athanor --text wiki.test.raw --smollm2 A.gguf --gemma B.gguf [--write docs/quality.md]

A cell is one run of athanor quality, or of peer_kld.py (llama.cpp as a black box), on windows of the text: some minutes each.
Finished cells are kept as JSON under --cells and not run again (delete a file to measure it again), so that the script may be
stopped at any time. --only REGEX runs the cells whose names match, --list names them all. At the end come the tables, and
each bar with PASS or short; --write puts the tables into the document, between its markers, and what auto is to expect into
tools/auto_expected.def as well. Exit code 1 if a bar is not met.

Every engine is held against its own f16 cache. "int8": as people run it, activations rounded to 8 bits before each product
with quantised weights (both engines do). "f32": exact activations: ours with --activations f32, llama.cpp's on a copy of the
model with its weights written out as F32. That rounding alone puts two runs that differ by one bit some thousandths of a nat
apart, and hides what good caches do.
"""
import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
OURS = ["turbo4_tcq", "turbo3_tcq", "turbo3", "turbo2_tcq"]
MORE = ["f32", "q8_0", "turbo4", "turbo2", "turbo4_tcq/turbo3_tcq", "turbo3_tcq/turbo2_tcq", "q4_0"]
STRESSED = ["turbo3_tcq", "turbo3"]
FIVE = ["q8_0", "turbo4_tcq", "turbo3_tcq", "turbo3", "turbo2_tcq"]
PLAIN = ["turbo3:plain"]
FACTORS = (20, 50)
NAMES = {"smollm2": "SmolLM2", "gemma": "Gemma 3"}
PEER_BITS = {"q8_0": 8.5, "q4_0": 4.5}
STRESS_LAYERS, STRESS_CHANNELS, N_STRESSED = (0, 1, -2, -1), "59,61,63", 2


class Cells:
    """Names of runs, and how to get what they give."""

    def __init__(self, a):
        self.a, self.folder = a, a.cells
        self.folder.mkdir(parents=True, exist_ok=True)
        self.models = {"smollm2": a.smollm2, "gemma": a.gemma}
        self.all = {}
        for model in self.models:
            self.ours(f"{model}-int8", model, OURS)
            self.ours(f"{model}-plain", model, PLAIN)
            self.ours(f"{model}-f32", model, OURS, exact=True)
            self.peer(f"{model}-peer-int8", model, a.windows)
            self.peer(f"{model}-peer-f32", model, a.windows, types="q4_0", exact=True)
        self.ours("smollm2-8k", "smollm2", ["turbo3_tcq"], n_ctx=8192, chunks=a.long_windows)
        self.peer("smollm2-peer-8k", "smollm2", a.long_windows, n_ctx=8192, types="q4_0")
        self.ours("smollm2-unbiased", "smollm2", STRESSED, chunks=N_STRESSED)
        for factor in FACTORS:
            self.ours(f"smollm2-before{factor}", "smollm2", STRESSED, chunks=N_STRESSED, before=factor)
            self.peer(f"smollm2-peer-before{factor}", "smollm2", N_STRESSED, types="q4_0", before=factor)
            self.ours(f"smollm2-after{factor}", "smollm2", STRESSED, chunks=N_STRESSED, after=factor)
        self.all["smollm2-agreement"] = self.agreement
        for model in self.models:
            self.ours(f"{model}-more", model, MORE)
            self.peer(f"{model}-peer-unrotated", model, a.windows, types="q4_0", rotate=False)

    def ours(self, name, model, types, n_ctx=2048, chunks=None, exact=False, before=None, after=None):
        def run():
            path = self.biased(model, before) if before else self.models[model]
            bias = ["--debug-k-bias", self.bias(model, after)] if after else []
            return self.json_of([self.a.athanor, "quality", "-m", path, "-f", self.a.text, "-c", n_ctx, "--chunks",
                                 chunks or self.a.windows, "--types", ",".join(types), "--greedy", 0, "--needles", 0, "--no-store",
                                 "--entry-every", 0, "-t", self.a.threads, *(["--activations", "f32"] if exact else []), *bias,
                                 "--json", self.folder / f"{name}.out"], self.folder / f"{name}.out")
        self.all[name] = run

    def peer(self, name, model, chunks, n_ctx=2048, types="q8_0,q4_0", exact=False, rotate=True, before=None):
        def run():
            path = self.exact_copy(model) if exact else self.biased(model, before) if before else self.models[model]
            return self.json_of([sys.executable, HERE / "peer_kld.py", "-m", path, "--text", self.a.text, "-c", n_ctx, "--chunks",
                                 chunks, "--types", types, "-t", self.a.threads, *(["--all-rows"] if n_ctx > 2048 else []),
                                 "-o", self.folder / f"{name}.out"], self.folder / f"{name}.out",
                                {} if rotate else {"LLAMA_ATTN_ROT_DISABLE": "1"})
        self.all[name] = run

    def json_of(self, command, path, environment={}):
        self.execute(command, environment)
        result = json.loads(path.read_text())
        path.unlink()
        return result

    def execute(self, command, environment={}):
        command = [str(part) for part in command]
        print(f"  {' '.join([*(f'{k}={v}' for k, v in environment.items()), *command])}", flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})
        if done.returncode:
            raise SystemExit(f"code {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout.decode()

    def agreement(self):
        """athanor quality beside llama-perplexity --kl-divergence on the same text, and how long the first takes in full."""
        text, base, report = HERE.parent / "tools/quality_text.txt", self.folder / "base.part", self.folder / "agree.part"
        model, common = self.models["smollm2"], ["-f", text, "-c", 4096, "-t", self.a.threads]
        perplexity = self.a.athanor.with_name("llama-perplexity")
        start = time.time()
        quality = self.json_of([self.a.athanor, "quality", "-m", model, *common, "--types", ",".join(FIVE), "--no-store", "--json",
                                report], report)
        seconds = time.time() - start
        self.execute([perplexity, "-m", model, *common, "--kl-divergence-base", base])
        other = {}
        for cache in FIVE:
            other[cache] = self.json_of([perplexity, "-m", model, *common, "--kl-divergence", "--kl-divergence-base", base, "-ctk",
                                         cache, "-ctv", cache, "--json", report], report)
        base.unlink()
        return dict(seconds=seconds, quality=quality, perplexity=other)

    def exact_copy(self, model):
        from peer_logits import write_f32
        path = self.folder / f"{model}-f32.gguf"
        if not path.exists():
            write_f32(self.models[model], path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        return path

    def bias(self, model, factor):
        """On each of a few channels of the slowest pairs: factor times the root mean square norm of that layer's K vectors."""
        layers = by_type(self.get(f"{model}-int8"))["turbo3"]["layers"]
        return ";".join(f"{il}:{STRESS_CHANNELS}={factor * layers[il]['k_norm']:.6g}" for il in STRESS_LAYERS)

    def biased(self, model, factor):
        from make_k_bias import write
        path = self.folder / f"{model}-bias{factor}.gguf"
        if not path.exists():
            write(self.models[model], path.with_suffix(".part"), self.bias(model, factor))
            path.with_suffix(".part").rename(path)
        return path

    def cell(self, name):
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def get(self, name):
        """The result, or None if the cell has not run."""
        cell = self.cell(name)
        return cell and cell["result"]

    def run(self, name):
        if self.cell(name):
            return
        print(name, flush=True)
        start = time.time()
        result = self.all[name]()
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(dict(seconds=round(time.time() - start, 1), result=result)))
        part.rename(self.folder / f"{name}.json")
        print(f"  done after {time.time() - start:.0f} s", flush=True)


def by_type(result):
    return {t["type"]: t for t in result["types"]} if result else {}


# ---- bars

class Bars:
    def __init__(self):
        self.lines, self.short = [], 0

    def at_most(self, what, value, limit, aim=None):
        if value is None or limit is None:
            self.lines.append((what, "not measured", "", ""))
            return
        verdict = "PASS" if value <= limit else "short"
        self.short += verdict == "short"
        if verdict == "PASS" and aim is not None and value <= aim:
            verdict = "PASS, and the aim"
        self.lines.append((what, f"{value:.3g}", f"at most {limit:.3g}" + (f" (aim {aim:.3g})" if aim is not None else ""), verdict))


def kld(cells, name, cache):
    t = by_type(cells.get(name)).get(cache)
    return t["kld_mean"] if t else None


def ratio(a, b):
    return a / b if a is not None and b else None


def bin_mean(result, cache, n_ctx, first, last):
    """Mean KLD of positions first to last, which are whole stretches of the report."""
    t = by_type(result).get(cache)
    if not t:
        return None
    n = len(t["kld_bins"])
    part = t["kld_bins"][first * n // n_ctx:last * n // n_ctx]
    return sum(part) / len(part)


def check_bars(cells):
    bars = Bars()
    for model in cells.models:
        for mode in ("int8", "f32"):
            peer = kld(cells, f"{model}-peer-{mode}", "q4_0")
            of = f"of llama.cpp's q4_0, {NAMES[model]}, {mode}"
            part = {cache: ratio(kld(cells, f"{model}-{mode}", cache), peer) for cache in OURS}
            peer8 = ratio(kld(cells, f"{model}-peer-{mode}", "q8_0"), peer)
            bars.at_most(f"turbo4_tcq {of}", part["turbo4_tcq"], 1 / 15, 2 * peer8 if peer8 else None)
            bars.at_most(f"turbo3_tcq {of}", part["turbo3_tcq"], 1 / 5, 1 / 10)
            bars.at_most(f"turbo3 {of}", part["turbo3"], 1 / 3, 1 / 6)
            bars.at_most(f"turbo2_tcq {of}", part["turbo2_tcq"], *((0.8, 0.5) if model == "smollm2" else (1 / 3, 1 / 6)))
        bars.at_most(f"turbo3_tcq of turbo3:plain, {NAMES[model]}, int8",
                     ratio(kld(cells, f"{model}-int8", "turbo3_tcq"), kld(cells, f"{model}-plain", "turbo3:plain")), 1 / 15, 1 / 40)
    bars.at_most("turbo3_tcq of llama.cpp's q4_0 at 4K-8K of windows of 8K, SmolLM2, int8",
                 ratio(kld(cells, "smollm2-8k", "turbo3_tcq"), kld(cells, "smollm2-peer-8k", "q4_0")), 1 / 4, 1 / 10)
    late, early = (bin_mean(cells.get("smollm2-8k"), "turbo3_tcq", 8192, *span) for span in ((7168, 8192), (1024, 2048)))
    bars.at_most("turbo3_tcq at 7K-8K of itself at 1K-2K, SmolLM2, int8", ratio(late, early), 2, 1.2)
    for factor in FACTORS:
        for cache in STRESSED:
            for kind in ("before", "after"):
                bars.at_most(f"{cache}, K bias of {factor}x {kind} the rotation, of itself without",
                             ratio(kld(cells, f"smollm2-{kind}{factor}", cache), kld(cells, "smollm2-unbiased", cache)), 1.3)
            bars.at_most(f"{cache} of llama.cpp's q4_0, K bias of {factor}x before the rotation",
                         ratio(kld(cells, f"smollm2-before{factor}", cache), kld(cells, f"smollm2-peer-before{factor}", "q4_0")), 1 / 10)
    add_agreement(bars, cells.get("smollm2-agreement"))
    return bars


def add_agreement(bars, result):
    if not result:
        bars.at_most("athanor quality beside llama-perplexity --kl-divergence", None, None)
        return
    for cache, theirs in result["perplexity"].items():
        ours = by_type(result["quality"])[cache]
        bars.at_most(f"athanor quality and llama-perplexity, {cache}: difference of mean KLD in standard errors",
                     abs(ours["kld_mean"] - theirs["kld_mean"]) / math.hypot(ours["kld_se"], theirs["kld_se"]), 1)
    bars.at_most("athanor quality, SmolLM2, five types at 4096 tokens: minutes", result["seconds"] / 60, 10)


# ---- the document

def number(x, digits=5):
    return "-" if x is None else f"{x:.{digits}f}"


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def with_error(t):
    return f"{t['kld_mean']:.5f} ± {t['kld_se']:.5f}" if t else "-"


def model_table(cells, model):
    groups = [("llama.cpp", ["q8_0", "q4_0"], [f"{model}-peer-int8"], [f"{model}-peer-f32"]),
              ("llama.cpp, not rotated", ["q4_0"], [f"{model}-peer-unrotated"], []),
              ("", ["f32", "q8_0", "q4_0", "turbo4_tcq", "turbo4", "turbo4_tcq/turbo3_tcq", "turbo3_tcq", "turbo3",
                    "turbo3_tcq/turbo2_tcq", "turbo2_tcq", "turbo2", "turbo3:plain"],
               [f"{model}-int8", f"{model}-more", f"{model}-plain"], [f"{model}-f32"])]
    peer = {mode: kld(cells, f"{model}-peer-{mode}", "q4_0") for mode in ("int8", "f32")}
    find = lambda names, cache: next((t for t in (by_type(cells.get(n)).get(cache) for n in names) if t), None)
    rows = []
    for engine, caches, names, exact_names in groups:
        for cache in caches:
            t, exact = find(names, cache), find(exact_names, cache)
            if not t and not exact:
                continue
            bits = PEER_BITS[cache] if engine else (t or exact)["bits_per_value"]
            shares = [f"{x['kld_mean'] / p:.3f}" if x and p else "-" for x, p in ((t, peer["int8"]), (exact, peer["f32"]))]
            rows.append([f"{engine}: {cache}" if engine else f"`{cache}`", f"{bits:.2f}", with_error(t), shares[0], with_error(exact),
                         shares[1], number(t and t["kld_p99"], 4), f"{100 * t['top1']:.1f} %" if t else "-",
                         number(t and t["ppl_ratio"], 4)])
    return table(["cache", "bits", "mean KLD", "of q4_0", "mean KLD, exact", "of q4_0", "99th percentile", "top-1", "PPL ratio"], rows)


def bits_table(cells):
    rows = []
    for model, path in cells.models.items():
        cache = json.loads(cells.execute([cells.a.athanor, "inspect", path, "--json"]))["cache"]
        for name in ("f16", "q8_0", "turbo4_tcq", "turbo3_tcq", "turbo2_tcq", "turbo3:plain"):
            plans = {p["tokens"]: p for p in cache[name]["plans"]}
            rows.append([NAMES[model], f"`{name}`", f"{cache[name]['bits_per_value']:.3f}",
                         *(f"{plans[n]['bits_per_value']:.2f}" for n in (2048, 8192, 32768))])
    return table(["model", "cache", "closed page", "all at 2K", "all at 8K", "all at 32K"], rows)


def depth_table(cells):
    rows, spans = [], [(0, 1024), (1024, 2048), (2048, 4096), (4096, 6144), (6144, 7168), (7168, 8192)]
    for name, label in (("smollm2-peer-8k", "llama.cpp: {}"), ("smollm2-8k", "`{}`")):
        result = cells.get(name)
        for cache in by_type(result):
            rows.append([label.format(cache), *(number(bin_mean(result, cache, 8192, *span)) for span in spans),
                         with_error(by_type(result)[cache])])
    return table(["cache", *(f"{a // 1024}K-{b // 1024}K" for a, b in spans), "4K-8K"], rows)


def stress_table(cells):
    rows = [["none", *(with_error(by_type(cells.get("smollm2-unbiased")).get(c)) for c in STRESSED), "-"]]
    for factor in FACTORS:
        for kind in ("before", "after"):
            ours = by_type(cells.get(f"smollm2-{kind}{factor}"))
            peer = by_type(cells.get(f"smollm2-peer-{kind}{factor}")).get("q4_0")
            rows.append([f"{factor}x, {kind} the rotation", *(with_error(ours.get(c)) for c in STRESSED), with_error(peer)])
    return table(["bias on K", *(f"`{c}`" for c in STRESSED), "llama.cpp: q4_0"], rows)


def document(cells, bars):
    parts = [f"#### {NAMES[m]}\n\n{model_table(cells, m)}" for m in cells.models]
    parts += ["#### Bits per value, everything counted\n\n" + bits_table(cells), "#### Depth\n\n" + depth_table(cells),
              "#### A bias on K\n\n" + stress_table(cells),
              "#### Bars\n\n" + table(["what", "measured", "bar", ""], [list(line) for line in bars.lines])]
    return "\n\n".join(parts)


# ---- what auto expects

ROW = 'EXPECT("{}", "{}", {}, {:g})'
VERDICTS = {"safe": "SAFE", "visible": "VISIBLE", "not recommended": "BAD"}


def expectations(text):
    """Rows (K, V, class, mean KLD) of auto_expected.def."""
    rows = re.findall(r'^EXPECT\("(.*?)", "(.*?)", (\w+), (.*?)\)$', text, re.M)
    return [(k, v, kind, float(kld)) for k, v, kind, kld in rows]


def measured_expectations(cells, rows):
    """The rows with what was measured as people run it, the worse of the models, where all models were; the best first."""
    order, new = ["EXACT", *VERDICTS.values()], []
    for k, v, kind, kld in rows:
        cache = k if k == v else f"{k}/{v}"
        found = [by_type(cells.get(f"{m}-int8")).get(cache) or by_type(cells.get(f"{m}-more")).get(cache) for m in cells.models]
        if all(found):
            kind = max((VERDICTS[t["verdict"]] for t in found), key=order.index)
            kld = float(f"{max(t['kld_mean'] for t in found):.2g}")
        new.append((k, v, kind, kld))
    return sorted(new, key=lambda row: (order.index(row[2]), row[3]))


def expected_table(rows):
    words = {"EXACT": "exact", **{kind: verdict for verdict, kind in VERDICTS.items()}}
    return table(["K, V", "class", "mean KLD to expect"],
                 [[k if k == v else f"{k}, {v}", words[kind], f"{kld:g}"] for k, v, kind, kld in rows])


def write_expectations(cells, path):
    text = path.read_text()
    rows = measured_expectations(cells, expectations(text))
    path.write_text(text[:text.index("EXPECT(")] + "\n".join(ROW.format(*row) for row in rows) + "\n")
    return expected_table(rows)


def write_section(path, name, text):
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    head, rest = path.read_text().split(begin)
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--athanor", required=True, type=pathlib.Path)
    ap.add_argument("--text", required=True, type=pathlib.Path)
    ap.add_argument("--smollm2", required=True, type=pathlib.Path)
    ap.add_argument("--gemma", required=True, type=pathlib.Path)
    ap.add_argument("--cells", type=pathlib.Path, default=pathlib.Path(".cache/quality"))
    ap.add_argument("--windows", type=int, default=8, help="of 2048 tokens")
    ap.add_argument("--long-windows", type=int, default=4, help="of 8192 tokens")
    ap.add_argument("--only", default="", help="run cells whose names match")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--write", type=pathlib.Path, help="put the tables into this document")
    ap.add_argument("-t", "--threads", type=int, default=2)
    a = ap.parse_args()
    cells = Cells(a)
    if a.list:
        print("\n".join(cells.all))
        return 0
    for name in cells.all:
        if re.search(a.only, name):
            cells.run(name)
    bars = check_bars(cells)
    text = document(cells, bars)
    print(text)
    if a.write:
        write_section(a.write, "measured", text)
        write_section(a.write, "expected", write_expectations(cells, HERE.parent / "tools/auto_expected.def"))
    return 1 if bars.short else 0


if __name__ == "__main__":
    sys.exit(main())
