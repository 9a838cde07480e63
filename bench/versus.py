#!/usr/bin/env python3
"""Speed beside llama.cpp, and of our own settings beside each other: interleaved, several rounds, ratios with their spread.

    versus.py --athanor build/bin/athanor --peer peer_bench.py (--all | --rows NAME,NAME | --list) [--rounds 3]
    versus.py --athanor build/bin/athanor --peer peer_bench.py --curve MODEL --types f16,turbo3 --peer-types f16,q8_0

A row of the table below compares two measurements, or holds one against a limit. All engines that a depth needs are started,
filled to it once, and stopped (SIGSTOP); then each round lets one after another run its tests, so that nothing else runs
meanwhile and a drift of the machine meets all of them alike. A row's value is taken within a round; the median of the
rounds decides, and the range is printed. Where llama.cpp has two settings of flash attention, the faster one of the round
counts. --rows takes beginnings of names too. Random models, and filled caches of llama.cpp, are made where they are missing
and kept in --cache.

Writes a line per row to bench/machines/CPU.csv (or --out); rows that were measured before and are not now stay in it.
--curve writes the columns of `athanor bench --curve` to --out, with rows of llama.cpp up to --peer-depth (bench/plot.py).
Exits 1 if a row is short of its bar.
"""
import argparse
import csv
import datetime
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT, OURS_GEN, PEER_GEN, STEPS = 512, 128, 32, 512

# What is measured. OURS_GEN is a page: the encoding of one is in the time of decode.
MODELS = {  # name: arguments of make_model.py, or a file of --models
    "qwen3": ["qwen3-0.6b"],
    "qwen3-q8_0": ["qwen3-0.6b", "--quant", "Q8_0"],
    "qwen3-q6_k": ["qwen3-0.6b", "--quant", "Q6_K"],
    "qwen3-q5_k": ["qwen3-0.6b", "--quant", "Q5_K"],
    "qwen3-q4_0": ["qwen3-0.6b", "--quant", "Q4_0"],
    "qwen3-f16": ["qwen3-0.6b", "--quant", "F16"],
    "qwen3-l4": ["qwen3-0.6b", "--layers", "4", "--vocab", "4096"],
    "llama": ["llama3.2-1b"],
    "llama-l4": ["llama3.2-1b", "--layers", "4", "--vocab", "4096"],
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
}
# A process: one engine over one model and cache type. fa: llama.cpp's flash attention; isa: ours, "" for the best.
Engine = namedtuple("Engine", "who model type threads fa isa", defaults=("f16", 2, 0, ""))
# A test at a depth; busy: while another process takes a core.
Need = namedtuple("Need", "engine depth test busy", defaults=(False,))
# value(get): get(need) is the answer of the present round. below: the bar is an upper limit.
Row = namedtuple("Row", "name work needs value bar aim below shown", defaults=(False, None))


def ours(model, kind="f16", depth=0, test="tg", threads=2, isa="", busy=False):
    return Need(Engine("ours", model, kind, threads, 0, isa), depth, test, busy)


def peers(model, kind="f16", depth=0, test="tg"):
    """Quantised V exists with flash attention only."""
    return [Need(Engine("peer", model, kind, 2, fa, ""), depth, test) for fa in ((1, 0) if kind == "f16" else (1,))]


def speed_ratio(name, work, we, others, bar, aim):
    def value(get):
        return get(we)["ts"] / max(get(n)["ts"] for n in others)

    def shown(get):
        return get(we)["ts"], max(get(n)["ts"] for n in others)
    return Row(name, work, [we, *others], value, bar, aim, False, shown)


def beside(name, model, test, bar, aim, kind="f16", peer="f16", depth=0):
    words = f"{model}, {'prefill 512' if test == 'pp' else 'decode'}, {kind} to llama.cpp's {peer}, depth {depth}"
    return speed_ratio(name, words, ours(model, kind, depth, test), peers(model, peer, depth, test), bar, aim)


def within(name, work, we, other, bar, aim):
    return speed_ratio(name, work, we, [other], bar, aim)


def cache_bandwidth(name, model, bar, aim):
    """Bytes of cache over the time that depth adds to a step, on one core, against what that core reads."""
    deep, flat = (ours(model, "turbo3", depth, "tg", threads=1) for depth in (16384, 0))

    def value(get):
        seconds = 1 / get(deep)["ts"] - 1 / get(flat)["ts"]
        return get(deep)["bytes_per_token"] * 16384 / seconds / memory_bandwidth(1)
    return Row(name, f"{model}, turbo3 cache read in decode at 16384, -t 1, to one core's bandwidth", [deep, flat], value, bar, aim)


def rows():
    out = []
    for model, prefill, decode in (("qwen3", (1.7, 2.7), (1.15, 1.3)), ("llama", (1.6, 2.5), (1.1, 1.3)),
                                   ("smollm2", (4, 6), (1.6, 2.5)), ("gemma", (1.7, 2.5), (1.55, 1.65))):
        out += [beside(f"{model}-prefill", model, "pp", *prefill), beside(f"{model}-decode", model, "tg", *decode)]
    out += [beside(f"{m}-prefill", m, "pp", 1.2, 2) for m in MODELS if re.fullmatch(r"qwen3-(q\d_.|f16)", m)]
    deep = dict(model="qwen3-l4", depth=16384)
    for peer, decode, prefill in (("f16", (4, 7), (2.6, 4)), ("q8_0", (8, 14), (10, 15)), ("q4_0", (10, 20), (15, 25))):
        out += [beside(f"decode16k-turbo3-{peer}", test="tg", bar=decode[0], aim=decode[1], kind="turbo3", peer=peer, **deep),
                beside(f"prefill16k-turbo3-{peer}", test="pp", bar=prefill[0], aim=prefill[1], kind="turbo3", peer=peer, **deep)]
    out += [beside("prefill4k-turbo3-f16", "qwen3-l4", "pp", 2.6, 4, "turbo3", depth=4096),
            beside("decode4k-turbo3-f16", "qwen3-l4", "tg", 2, 3, "turbo3", depth=4096)]
    for kind, decode, prefill in (("f16", 1.1, 1.6), ("q8_0", 1.5, 2.5), ("q4_0", 1.5, 1.7)):
        out += [beside(f"decode16k-{kind}", test="tg", bar=decode, aim=2, kind=kind, **deep),
                beside(f"prefill16k-{kind}", test="pp", bar=prefill, aim=3, kind=kind, **deep)]
    out += own_rows("qwen3-l4")
    return out


def own_rows(m):
    """What needs no peer."""
    tcq, turbo3 = (functools.partial(ours, m, kind, 16384) for kind in ("turbo3_tcq", "turbo3"))
    steps = ours(m, "turbo3_tcq", 8192, "steps")
    scratch = [ours(m, "turbo3", depth, "tg") for depth in (2048, 32768)]
    out = [within("turbo3-f16-32k", "turbo3 to f16, decode at 32768", ours(m, "turbo3", 32768), ours(m, "f16", 32768), 2.5, 3.5),
           within("tcq", "turbo3_tcq to turbo3, decode at 16384", tcq(), turbo3(), 0.85, 0.97),
           within("tcq-avx2", "turbo3_tcq to turbo3, decode at 16384, AVX2", tcq(isa="avx2"), turbo3(isa="avx2"), 0.75, 0.9),
           within("threads", "-t 2 to -t 1, turbo3, decode at 16384", turbo3(), turbo3(threads=1), 1.8, 1.95),
           within("busy", "with one core taken to without, turbo3, decode at 16384", turbo3(busy=True), turbo3(), 0.33, 0.5),
           cache_bandwidth("attention-128", "qwen3-l4", 0.6, 0.9), cache_bandwidth("attention-64", "llama-l4", 0.4, 0.7),
           Row("slowest-step", f"slowest of {STEPS} steps to their median, turbo3_tcq at 8192", [steps],
               lambda get: max(get(steps)["steps_ns"]) / statistics.median(get(steps)["steps_ns"]), 1.3, 1.1, True),
           Row("scratch", "scratch at 32768 to scratch at 2048, turbo3", scratch,
               lambda get: get(scratch[1])["scratch_bytes"] / get(scratch[0])["scratch_bytes"], 1, 1, True)]
    for kind, bar, aim in (("turbo3", 0.03, 0.01), ("turbo3_tcq", 0.10, 0.05)):
        need = ours("llama", kind, 0, "pp")
        out.append(Row(f"encode-{kind}", f"llama, page encode's share of the time of prefill, {kind}", [need],
                       lambda get, need=need: get(need)["prefill_encode_ms"] * 1e6 / get(need)["ns"], bar, aim, True))
    return out


# ---- processes

class Process:
    """One engine that obeys lines; stopped unless it is asked."""

    peer_flags = []

    def __init__(self, engine, n_ctx):
        self.who = engine.who
        common = ["-m", get_model(engine.model), "-ctk", engine.type, "-ctv", engine.type, "-t", engine.threads]
        if engine.who == "ours":
            self.start([a.athanor, "bench", "--commands", *common, "-d", n_ctx, *(["--isa", engine.isa] if engine.isa else [])])
            self.ask("depth", 0)
            return
        command = [sys.executable, ROOT / "bench/peer_rounds.py", "--peer", a.peer, *common, "-c", n_ctx, "--fa", engine.fa,
                   "--states", a.cache / "states"]
        self.start([*command, *Process.peer_flags])
        if not self.try_to_ask("depth", 0):
            if self.process.wait() != -signal.SIGILL or Process.peer_flags:
                self.give_up()
            Process.peer_flags = ["--no-amx"]
            say("  llama.cpp ends with an illegal instruction: from here on it runs without AMX")
            self.start([*command, *Process.peer_flags])
            self.ask("depth", 0)

    def start(self, command):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=None if a.verbose else subprocess.DEVNULL, text=True)

    def try_to_ask(self, word, n):
        """None if the process has ended."""
        os.kill(self.process.pid, signal.SIGCONT)
        try:
            self.process.stdin.write(f"{word} {n}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return None
        os.kill(self.process.pid, signal.SIGSTOP)
        return json.loads(line)

    def ask(self, word, n):
        return self.try_to_ask(word, n) or self.give_up()

    def give_up(self):
        raise SystemExit(f"{' '.join(self.process.args)}\nended with exit code {self.process.wait()} (--verbose shows why)")

    def measure(self, need):
        """A token that isn't counted goes before the counted ones."""
        if need.test == "pp":
            return self.ask("pp", PROMPT)
        self.ask("tg", 1)
        n = STEPS if need.test == "steps" else OURS_GEN if self.who == "ours" else PEER_GEN
        other = take_a_core() if need.busy else None
        answer = self.ask("tg", n)
        if other:
            other.kill()
            other.wait()
        return answer

    def close(self):
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def take_a_core():
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"])
    time.sleep(0.5)
    return process


def get_model(name):
    recipe = MODELS[name]
    if isinstance(recipe, str):
        path = a.models / recipe
        if not path.exists():
            raise SystemExit(f"{path} is missing: `make {path}` fetches it")
        return path
    path = a.cache / ("-".join(r.strip("-") for r in recipe) + ".gguf")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, ROOT / "bench/make_model.py", recipe[0], partial, *recipe[1:]], check=True)
        partial.rename(path)
    return path


bandwidths = {}


def memory_bandwidth(threads):
    """Bytes per second; measured once."""
    if not bandwidths:
        out = subprocess.run([a.athanor, "bench", "--memory", "-o", "json"], check=True, stdout=subprocess.PIPE).stdout
        bandwidths.update({r["threads"]: r["gb_per_s"] * 1e9 for r in json.loads(out)["read"]})
    return bandwidths[threads]


# ---- measuring

def measure_model(needs, rounds):
    """{need: [answer of each round]} of one model: depth by depth, filling goes on from the last depth."""
    last = {n.engine: max(m.depth for m in needs if m.engine == n.engine) for n in needs}
    processes, answers = {}, {n: [] for n in needs}
    for depth in sorted({n.depth for n in needs}):
        here = [n for n in needs if n.depth == depth]
        for need in here:
            if need.engine not in processes:
                processes[need.engine] = Process(need.engine, last[need.engine] + PROMPT + STEPS)
            start = time.monotonic()
            processes[need.engine].ask("depth", depth)
            if time.monotonic() - start > 5:
                say(f"  {need.engine.who} {need.engine.type}: filled to {depth} in {time.monotonic() - start:.0f} s")
        for _ in range(rounds):
            for need in here:
                answers[need].append(processes[need.engine].measure(need))
        for engine in [e for e in processes if last[e] == depth]:
            processes.pop(engine).close()
    return answers


def say(text):
    print(text, flush=True)


def check_share(need, answer):
    """A figure of a turbo cache from a depth on is one of compressed rows."""
    if "turbo" in need.engine.type and need.depth >= 1024 and answer["share_compressed"] < 0.5:
        raise SystemExit(f"{need}: only {answer['share_compressed']:.0%} of the rows read were compressed")


def judge(row, answers, rounds):
    """A line of the table."""
    for need in row.needs:
        for answer in answers[need] if need.engine.who == "ours" else []:
            check_share(need, answer)
    values = [row.value(lambda need: answers[need][i]) for i in range(rounds)]
    median = statistics.median(values)
    good = (lambda limit: median <= limit) if row.below else (lambda limit: median >= limit)
    verdict = "aim" if good(row.aim) else "PASS" if good(row.bar) else "short"
    we = answers[row.needs[0]][0]
    speeds = ["", ""]
    if row.shown:
        both = [row.shown(lambda need: answers[need][i]) for i in range(rounds)]
        speeds = [f"{statistics.median(s):.2f}" for s in zip(*both)]
    say(f"  {row.name:28s} {median:7.3f} ({min(values):.3f}-{max(values):.3f})  bar {row.bar:g}, aim {row.aim:g}: {verdict:5s}"
        + (f"  {speeds[0]} to {speeds[1]} t/s" if row.shown else ""))
    return dict(row=row.name, work=row.work, value=f"{median:.4f}", low=f"{min(values):.4f}", high=f"{max(values):.4f}", rounds=rounds,
                bar=row.bar, aim=row.aim, verdict=verdict, ours_ts=speeds[0], other_ts=speeds[1],
                share_compressed=f"{we['share_compressed']:.4f}", isa=we["isa"], threads=row.needs[0].engine.threads,
                peer_flags=" ".join(Process.peer_flags), date=f"{datetime.date.today()}", commit=commit(), cpu=cpu_name())


def run_rows(chosen):
    lines = []
    for model in MODELS:
        of_model = [r for r in chosen if r.needs[0].engine.model == model]
        needs = list(dict.fromkeys(n for r in of_model for n in r.needs))
        if needs:
            say(f"{model}: {', '.join(r.name for r in of_model)}")
            answers = measure_model(needs, a.rounds)
            lines += [judge(r, answers, a.rounds) for r in of_model]
    return lines


# ---- results

def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {k: m[1] for k in ("model name", "cpu family", "model") if (m := re.search(rf"^{k}\s*: (.*)$", text, re.M))}
    return f"{found.get('model name', 'unknown CPU')}, family {found.get('cpu family', '?')} model {found.get('model', '?')}"


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or "unknown"


def default_out(suffix=""):
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(r\)|\(tm\)|processor|cpu", "", cpu_name().lower())).strip("-")
    return ROOT / f"bench/machines/{slug}{suffix}.csv"


def write_rows(path, lines):
    """Keeps the rows of an earlier run that this one did not measure, in the order of the table."""
    old = list(csv.DictReader(path.open())) if path.exists() else []
    names = {line["row"] for line in lines}
    merged = {line["row"]: line for line in [*(o for o in old if o["row"] not in names), *lines]}
    order = [r.name for r in rows()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), extrasaction="ignore", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(merged.values(), key=lambda l: order.index(l["row"]) if l["row"] in order else len(order)))


def run_curve(path):
    """Ours as the program prints it; llama.cpp's rows have no bytes, and the better setting of flash attention."""
    model = get_model(a.curve) if a.curve in MODELS else pathlib.Path(a.curve)
    MODELS.setdefault(a.curve, str(model.resolve()))
    command = [a.athanor, "bench", "--curve", "-m", model, "--types", a.types, "-t", a.threads, *(["-d", a.depths] if a.depths else [])]
    done = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True)
    lines = list(csv.DictReader(done.stdout.splitlines()))
    depths = sorted({int(l["depth"]) for l in lines if int(l["depth"]) <= a.peer_depth})
    for kind in filter(None, a.peer_types.split(",")):
        needs = [n._replace(engine=n.engine._replace(threads=a.threads)) for d in depths for t in ("pp", "tg")
                 for n in peers(a.curve, kind, d, t)]
        answers = measure_model(needs, 2)
        for depth in depths:
            best = {t: max(x["ts"] for n in needs if (n.depth, n.test) == (depth, t) for x in answers[n]) for t in ("pp", "tg")}
            lines.append(dict(engine="llama.cpp", cpu=lines[0]["cpu"], threads=a.threads, model=lines[0]["model"], type_k=kind, type_v=kind,
                              depth=depth, pp_ts=f"{best['pp']:.3f}", tg_ts=f"{best['tg']:.3f}", share_compressed=""))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def choose(table):
    if a.all:
        return table
    wanted = a.rows.split(",")
    for name in wanted:
        if not any(r.name.startswith(name) for r in table):
            raise SystemExit(f"no row begins with {name}; --list shows them")
    return [r for r in table if any(r.name.startswith(name) for name in wanted)]


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--athanor", default=str(ROOT / "build/bin/athanor"))
    ap.add_argument("--peer", default=str(ROOT.parent / "shared/bench/peer_bench.py"), help="peer_bench.py")
    what = ap.add_mutually_exclusive_group(required=True)
    what.add_argument("--rows", help="names of rows, or beginnings of names")
    what.add_argument("--all", action="store_true", help="every row: half an hour or more")
    what.add_argument("--list", action="store_true", help="name the rows and exit")
    what.add_argument("--curve", metavar="MODEL", help="a name of MODELS, or a file")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--out", type=pathlib.Path, help="CSV to write")
    ap.add_argument("--models", type=pathlib.Path, default=ROOT / ".cache/models", help="folder of the real models")
    ap.add_argument("--cache", type=pathlib.Path, default=ROOT / ".cache/random", help="folder of the random models")
    ap.add_argument("--types", default="f16,q8_0,turbo4,turbo3,turbo3_tcq,turbo2", help="of --curve")
    ap.add_argument("--peer-types", default="f16,q8_0", help="of --curve")
    ap.add_argument("--depths", default="", help="of --curve; default 0 to 131072")
    ap.add_argument("--peer-depth", type=int, default=16384, help="of --curve: where llama.cpp's rows end")
    ap.add_argument("--threads", type=int, default=2, help="of --curve")
    ap.add_argument("--verbose", action="store_true", help="what the engines write on standard error")
    return ap.parse_args()


def main():
    if a.curve:
        run_curve(a.out or default_out("-curve"))
        return 0
    table = rows()
    if a.list:
        for r in table:
            say(f"{r.name:28s} bar {r.bar:g}, aim {r.aim:g}: {r.work}")
        return 0
    say(f"{cpu_name()}; commit {commit()}; {a.rounds} rounds")
    lines = run_rows(choose(table))
    if lines:
        write_rows(a.out or default_out(), lines)
    short = [line["row"] for line in lines if line["verdict"] == "short"]
    say(f"{len(lines) - len(short)} of {len(lines)} rows reach their bar" + (f"; short: {', '.join(short)}" if short else ""))
    return 1 if short else 0


if __name__ == "__main__":
    a = parse()
    sys.exit(main())
