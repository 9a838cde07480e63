"""athanor bench: what runs, what the forms of output hold, and what is refused. Speeds themselves are not judged here."""
import csv
import functools
import importlib.util
import io
import json
import os
import re
import sqlite3
import statistics

import pytest

from conftest import ROOT

FIELDS = """build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params n_batch
n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu no_kv_offload flash_attn
devices tensor_split tensor_buft_overrides load_mode embeddings no_op_offload no_host fit_target fit_min_ctx n_prompt n_gen
n_depth test_time avg_ns stddev_ns avg_ts stddev_ts""".split()


@pytest.fixture
def model(golden):
    return golden / "qwen3-long/model.gguf"


@pytest.fixture
def bench(athanor_release, model):
    """bench(*flags): a short run; -r 2 unless the flags say otherwise."""
    def call(*args, program=athanor_release, **kw):
        args = args if "-r" in args else ("-r", 2, *args)
        return program("-m", model, *args, program="llama-bench", **kw)
    return call


@pytest.fixture
def fails(athanor, model):
    """The one error line of a call that must fail before it has printed a result."""
    def call(*args, m=model, **kw):
        done = athanor("-m", m, *args, program="llama-bench", check=False, **kw)
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
        assert done.returncode == 1 and len(errors) == 1, done.stderr.decode()
        assert b"avg_ts" not in done.stdout
        return errors[0]
    return call


def names_of(text):
    return [line.split("|")[-3].strip() for line in text.decode().splitlines() if re.search(r"\d ± \d", line)]


def test_table(bench, athanor):
    out = bench("-p", "32", "-n", 4, program=athanor).stdout.decode()
    head, dashes, first, second, empty, build = out.splitlines()
    titles = [c.strip() for c in head.strip("|").split("|")]
    assert titles == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert len({len(line) for line in (head, dashes, first, second)}) == 1
    assert re.fullmatch(r"\|( -+:? \|)+", dashes) and dashes.count(":") == 5
    cells = [c.strip() for c in first.strip("|").split("|")]
    assert cells[0].startswith("qwen3 ") and cells[3] == "CPU" and re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cells[-1])
    assert re.fullmatch(r"\d+\.\d\d MiB", cells[1]) and re.fullmatch(r"\d+\.\d\d M", cells[2])
    assert empty == "" and re.fullmatch(r"build: \w+ \(\d+\)", build)


def test_combinations_in_their_order(bench):
    out = bench("-p", "8-16*2", "-p", "24", "-n", 2, "-pg", "8,2", "-d", "0,64-128+64", "-r", 1).stdout
    names = ["pp8", "pp16", "pp24", "tg2", "pp8+tg2"]
    assert names_of(out) == [name + depth for depth in ("", " @ d64", " @ d128") for name in names]
    out = bench("-p", 8, "-n", 0, "-ctk", "f16,turbo3", "-ctv", "q8_0", "-b", 64, "-ub", "16,32", "-r", 1).stdout.decode()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")]
    assert rows[0][4:] == ["threads", "n_batch", "n_ubatch", "type_k", "type_v", "test", "t/s"]
    assert [r[5:9] for r in rows[2:]] == [["64", ub, k, "q8_0"] for ub in ("16", "32") for k in ("f16", "turbo3")]
    assert names_of(bench("-p", 0, "-n", 3).stdout) == ["tg3"]


def test_forms_hold_the_same(bench, athanor):
    """CSV, SQL, JSON and JSON lines: the fields of llama-bench in its order."""
    flags = ("-p", 16, "-n", 2, "-ctk", "turbo3")
    bench = functools.partial(bench, program=athanor)
    rows = list(csv.reader(io.StringIO(bench(*flags, "-o", "csv").stdout.decode())))
    assert rows[0] == FIELDS and len(rows) == 3
    db = sqlite3.connect(":memory:")
    db.executescript(bench(*flags, "-o", "sql").stdout.decode())
    table = db.execute("SELECT * FROM llama_bench")
    assert [c[0] for c in table.description] == FIELDS
    stored = [dict(zip(FIELDS, row)) for row in table]
    objects = json.loads(bench(*flags, "-o", "json").stdout)
    lines = [json.loads(line) for line in bench(*flags, "-o", "jsonl").stdout.splitlines()]
    for got in (objects, lines):
        assert [list(row)[:len(FIELDS)] for row in got] == [FIELDS] * 2
    for i, (n_prompt, n_gen) in enumerate(((16, 0), (0, 2))):
        for row in (dict(zip(FIELDS, rows[i + 1])), stored[i], objects[i], lines[i]):
            assert (int(row["n_prompt"]), int(row["n_gen"]), int(row["n_depth"])) == (n_prompt, n_gen, 0)
            assert (row["type_k"], row["type_v"], row["backends"]) == ("turbo3", "f16", "CPU")
            assert int(row["avg_ns"]) > 0 and float(row["avg_ts"]) > 0 and int(row["model_n_params"]) > 1e5
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["test_time"])


def test_samples(bench):
    (row,) = json.loads(bench("-p", 0, "-n", 5, "-r", 3, "-o", "json", "--steps").stdout)
    ns, ts = row["samples_ns"], row["samples_ts"]
    assert len(ns) == len(ts) == 3
    assert ts == pytest.approx([5e9 / n for n in ns])
    assert row["avg_ns"] == pytest.approx(statistics.mean(ns), abs=1) and row["stddev_ns"] == pytest.approx(statistics.stdev(ns), abs=1)
    assert row["avg_ts"] == pytest.approx(statistics.mean(ts)) and row["stddev_ts"] == pytest.approx(statistics.stdev(ts), abs=1e-5)
    assert [len(steps) for steps in row["steps_ns"]] == [5, 5, 5]
    for steps, total in zip(row["steps_ns"], ns):
        assert sum(steps) <= total and min(steps) > 0


def test_depth_is_in_the_cache(bench):
    """Rows that the tests read are those of the depth, in the form of the type; filling and going back don't count."""
    def share(*flags):
        return [row["share_compressed"] for row in json.loads(bench(*flags, "-o", "json").stdout)]
    assert share("-p", 64, "-n", 4) == [0, 0]
    # one token at 896 + i: 4 sinks and the pages from the one before its own are f16
    expected = sum(896 - 128 - 4 for _ in range(4)) / sum(896 + i + 1 for i in range(4))
    deep = share("-p", 0, "-n", 4, "-d", 896, "-ctk", "turbo3", "-ctv", "turbo3")
    assert deep == pytest.approx([expected])
    odd = share("-p", 0, "-n", 4, "-d", 900, "-ctk", "turbo3", "-ctv", "turbo3")
    assert odd == pytest.approx([4 * 764 / sum(900 + i + 1 for i in range(4))])
    assert share("-p", 0, "-n", 4, "-d", "896,0", "-ctk", "turbo3", "-ctv", "turbo3") == pytest.approx([expected, 0])


def test_threads_masks_and_strange_flags(bench):
    (row,) = json.loads(bench("-p", 8, "-n", 0, "-t", 1, "-o", "json").stdout)
    assert row["n_threads"] == 1 and row["isa"]
    done = bench("-p", 8, "-n", 0, "-ngl", "0,99", "-fa", 1, "-mmp", "0,1", "-sm", "none", "-nkvo", 1, "--progress", "-oe", "jsonl",
                 "-o", "none")
    assert b"without effect in this build: " in done.stderr and b"pp8: run 2 of 2" in done.stderr and not done.stdout
    assert [json.loads(l)["n_prompt"] for l in done.stderr.splitlines() if l.startswith(b"{")] == [8]
    assert bench("--list-devices").stdout == b"CPU\n"


def test_placement_takes_effect(bench, athanor, fails):
    cpu = min(os.sched_getaffinity(0))
    run = functools.partial(bench, "-p", 8, "-n", 1, "-r", 1, "-o", "json", program=athanor)
    for row in json.loads(run("-C", hex(1 << cpu), "--cpu-strict", 1, "--poll", 7, "--prio", -1).stdout):
        assert (row["cpu_mask"], row["cpu_strict"], row["poll"]) == (hex(1 << cpu), True, 7)
    for row in json.loads(run().stdout):
        assert (row["cpu_mask"], row["cpu_strict"], row["poll"]) == ("0x0", False, 50)
    assert "may not run on CPU 1023" in fails("-p", 8, "-C", "8" + "0" * 255)
    assert "-C" in fails("-p", 8, "-C", "0x1,0x2") and "--poll" in fails("-p", 8, "--poll", "0,50")


def test_override_kv(bench, athanor, fails):
    (row,) = json.loads(bench("-p", 8, "-n", 0, "-r", 1, "-o", "json", "--override-kv", "general.size_label=str:77Q", program=athanor).stdout)
    assert " 77Q " in row["model_type"]
    assert "mamba9" in fails("-p", 8, "--override-kv", "general.architecture=str:mamba9")
    assert "--override-kv" in fails("-p", 8, "--override-kv", "x=y")


def test_refusals(fails):
    assert "ranges" in fails("-p", "5x") and "ranges" in fails("-p", "8-4") and "ranges" in fails("-d", "1-8*1")
    assert "ranges" in fails("-p", "99999999999") and "-pg expects two numbers" in fails("-pg", "512")
    assert "1 or more" in fails("-t", "0") and "1 or more" in fails("-ub", "0,512") and "empty" in fails("-ctk", "")
    assert "more than 4096" in fails("-p", "1-100000") and "two commas" in fails("-ctk", "f16,,f16")
    assert "turbo9" in fails("-ctk", "f16,turbo9") and "nothing to measure" in fails("-p", 0, "-n", 0)
    assert "--steps goes with" in fails("--steps") and "-r expects" in fails("-r", 0)
    assert "md|csv|json" in fails("-o", "xml") and "exclude each other" in fails("--memory", "--curve")
    assert "/no/such" in fails(m="/no/such,/nor/this")
    assert "CSV" in fails("--curve", "-o", "json") and "--types" in fails("--curve", "-ctk", "f16")
    assert "one value each" in fails("--curve", "-t", "1,2") and "turbo9" in fails("--curve", "--types", "turbo9", "--memory-size", 8)
    assert "not -o csv" in fails("--memory", "-o", "csv") and "lower --memory-size" in fails("--memory", "--memory-size", 1 << 23)
    assert "one value each" in fails("--commands", "-ctk", "f16,q8_0")


def test_memory(athanor):
    out = json.loads(athanor("bench", "--memory", "--memory-size", 16, "-o", "json").stdout)
    assert out["bytes"] == 16 << 20 and out["read"][0]["threads"] == 1
    assert all(0.05 < row["gb_per_s"] < 5000 for row in out["read"])
    assert "reading 16 MiB\n   1 thread " in athanor("bench", "--memory", "--memory-size", 16).stdout.decode()


def test_curve(bench):
    done = bench("--curve", "-d", "768,0,1024,1000000", "--types", "f16,q8_0/turbo3", "-p", 32, "-n", 4, "--memory-size", 16)
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode())))
    assert [(r["type_k"], r["type_v"], int(r["depth"])) for r in rows] == [
        (k, v, d) for k, v in (("f16", "f16"), ("q8_0", "turbo3")) for d in (0, 768, 1024)]
    assert b"ends below depth 1000000" in done.stderr and b"random K and V" in done.stderr
    f16, mixed = rows[2], rows[5]
    # qwen3-long: K and V of 1024 + 2.5 tokens on average, in f16
    per_token = json.loads(bench("-p", 8, "-n", 0, "-o", "json").stdout)[0]["bytes_per_token"]
    assert float(f16["cache_bytes_per_token"]) == pytest.approx(per_token * 1026.5, rel=1e-6)
    assert float(f16["share_compressed"]) == 0 and float(mixed["share_compressed"]) > 0.8
    assert float(mixed["cache_bytes_per_token"]) < 0.5 * float(f16["cache_bytes_per_token"])
    for r in rows:
        read = float(r["cache_bytes_per_token"]) + float(r["weight_bytes_per_token"])
        assert float(r["gb_per_s"]) == pytest.approx(read * float(r["tg_ts"]) * 1e-9, rel=0.01, abs=1e-3)
        assert float(r["percent_of_bandwidth"]) == pytest.approx(100 * float(r["gb_per_s"]) / float(r["bandwidth_gb_per_s"]), rel=0.01, abs=0.2)


def test_curve_of_learned_positions(athanor, golden):
    """96 of them: depth, prompt and tokens must fit; where there is no such end a depth may be the last trained position."""
    def curve(family, depths):
        done = athanor("bench", "--curve", "-m", golden / family / "model.gguf", "-d", depths, "--types", "f16", "-p", 32, "-n", 8,
                       "-r", 1, "--memory-size", 8)
        return [int(r["depth"]) for r in csv.DictReader(io.StringIO(done.stdout.decode()))], done.stderr.decode()
    depths, log = curve("gpt2", "0,32,64,300,96,56,57")
    assert depths == [0, 32, 56] and "ends below depth 300" in log
    depths, log = curve("llama3-rope", "0,512,513")
    assert depths == [0, 512] and "ends below depth 513" in log


@pytest.mark.parametrize("family", ["gemma3", "deepseek2", "qwen35"])
def test_curve_of_other_layers(athanor_release, golden, family):
    """Windows, latent attention, recurrent layers: every step reads less of a compressed cache."""
    path = golden / family / "model.gguf"
    out = athanor_release("bench", "--curve", "-m", path, "-d", 384, "--types", "f16,turbo3", "-p", 16, "-n", 4, "--memory-size", 16)
    f16, turbo3 = csv.DictReader(io.StringIO(out.stdout.decode()))
    assert 0 < float(turbo3["cache_bytes_per_token"]) < float(f16["cache_bytes_per_token"])


def test_commands(bench, fails):
    lines = bench("--commands", "-d", 896, "-p", 16, "-n", 4, "-ctk", "turbo3", "-ctv", "turbo3",
                  input=b"depth 896\ntg 4\npp 16\ntg 4\ndepth 0\npp 16\n").stdout.splitlines()
    a = [json.loads(line) for line in lines]
    assert [next(iter(x)) for x in a] == ["depth", "tg", "pp", "tg", "depth", "pp"]
    assert a[1]["share_compressed"] == a[3]["share_compressed"] > 0.8 and a[5]["share_compressed"] == 0
    assert 0 < a[0]["prefill_encode_ms"] * 1e6 < a[0]["ns"] and a[1]["prefill_encode_ms"] == 0
    assert len(a[1]["steps_ns"]) == 4 and all(x["ns"] > 0 for x in a[:4])
    assert "word and a number" in fails("--commands", input=b"pp\n") and "knows" in fails("--commands", input=b"go 1\n")
    assert "room for" in fails("--commands", "-p", 16, "-n", 4, input=b"pp 1000000\n")


def test_table_of_versus():
    """bench/versus.py: every row has a name of its own, a bar, an aim that is no easier, and what it needs."""
    spec = importlib.util.spec_from_file_location("versus", ROOT / "bench/versus.py")
    versus = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(versus)
    rows = versus.rows()
    assert len({r.name for r in rows}) == len(rows) > 35
    for row in rows:
        assert row.aim <= row.bar if row.below else row.aim >= row.bar, row.name
        assert row.needs and all(n.engine.model in versus.MODELS for n in row.needs)
        answers = {n: dict(ts=2.0, ns=1e9, steps_ns=[1, 2, 3], scratch_bytes=5, prefill_encode_ms=10.0, bytes_per_token=100) for n in row.needs}
        for i, need in enumerate(row.needs):
            answers[need]["ts"] += i
        versus.bandwidths[1] = 1e9
        assert row.value(answers.get) > 0
    by_name = {r.name: r for r in rows}
    ratio = by_name["qwen3-decode"]
    speeds = dict(zip(ratio.needs, (60.0, 30.0, 40.0)))  # ours, llama.cpp with flash attention and without
    assert ratio.value(lambda n: {"ts": speeds[n]}) == 1.5 and [n.engine.fa for n in ratio.needs[1:]] == [1, 0]
