"""athanor quality: its figures against llama-perplexity and athanor logits, its files, and Ctrl+C."""
import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

import numpy as np
import pytest

from conftest import BUILD
from make_golden_like import Shape, make_model

FAST = ("--greedy", 0, "--needles", 0, "--no-store")


@pytest.fixture
def model(golden):
    return golden / "qwen3/model.gguf"


@pytest.fixture
def text(tmp_path):
    rng = np.random.default_rng(6)
    file = tmp_path / "text.txt"
    file.write_text(" ".join(rng.choice("the hand and water of the old house by the sea".split(), 1400)))
    return file


@pytest.fixture
def quality(athanor, model, text, tmp_path):
    report = tmp_path / "report.json"

    def call(*args, text=text, **kw):
        report.unlink(missing_ok=True)
        done = athanor("quality", "-m", model, *(["-f", text] if text else []), "--json", report, *args, **kw)
        return done.stdout.decode(), json.loads(report.read_text())
    return call


def test_agrees_with_perplexity(quality, athanor, model, text, tmp_path):
    base, kld = tmp_path / "base.bin", tmp_path / "kld.json"
    out, report = quality("-c", 512, "--chunks", 2, "--types", "f16,turbo2,q8_0/turbo3", *FAST)
    assert (report["context"], report["windows"], report["positions"]) == (512, 2, 510)
    assert [t["type"] for t in report["types"]] == ["f16", "turbo2", "q8_0/turbo3"]
    athanor("-m", model, "-f", text, "--chunks", 2, "--kl-divergence-base", base, "--json", kld, program="llama-perplexity")
    ppl = json.loads(kld.read_text())["ppl"]
    for t in report["types"]:
        athanor("-m", model, "--kl-divergence", "--kl-divergence-base", base, "-ctk", t["type_k"], "-ctv", t["type_v"], "--json",
                kld, program="llama-perplexity")
        want = json.loads(kld.read_text())
        # the base file rounds to 16 bits, nothing else differs: far below the standard error
        assert t["kld_mean"] == pytest.approx(want["kld_mean"], rel=0.01, abs=2e-6)
        assert t["kld_median"] == pytest.approx(want["kld_median"], rel=0.02, abs=2e-6)
        assert t["kld_p99"] == pytest.approx(want["kld_p99"], rel=0.02, abs=2e-4)
        assert t["kld_max"] == pytest.approx(want["kld_max"], rel=0.02, abs=2e-4)
        assert t["top1"] == pytest.approx(want["top1"], abs=0.005)
        assert t["ppl_ratio"] == pytest.approx(want["ppl"] / ppl, rel=1e-5)
    f16, turbo2, mixed = report["types"]
    assert f16["kld_mean"] == 0 and f16["top1"] == 1 and f16["verdict"] == "safe" and f16["bits_per_value"] == 16
    assert turbo2["kld_mean"] > 5 * turbo2["kld_se"] > 0 and turbo2["kld_p99_se"] > 0 and turbo2["kld_median_se"] > 0
    assert turbo2["bytes_per_token"] < mixed["bytes_per_token"] < f16["bytes_per_token"]
    assert re.search(r"^turbo2 +2\.\d\d ", out, re.M) and re.search(r"^f16 +safe$", out, re.M)


def test_quarters(quality, athanor, model, text, tmp_path):
    """By position, and counted over whole windows: numpy over athanor logits."""
    _, report = quality("-c", 768, "--chunks", 1, "--types", "turbo3", "-ub", 128, *FAST)
    file = tmp_path / "ids.txt"
    file.write_bytes(athanor("-m", model, "--ids", "-f", text, program="llama-tokenize").stdout)
    file.write_text(" ".join(map(str, json.loads(file.read_text())[:768])))

    def log_probs(cache):
        out = tmp_path / "rows.f32"
        athanor("logits", "-m", model, "-f", file, "-o", out, "-ub", 128, "-ctk", cache, "-ctv", cache)
        x = np.fromfile(out, "<f4").reshape(768, -1)[:767].astype(np.float64)
        x -= x.max(1, keepdims=True)
        return x - np.log(np.exp(x).sum(1, keepdims=True))
    p, q = log_probs("f16"), log_probs("turbo3")
    kld = (np.exp(p) * (p - q)).sum(1)
    quarter = np.arange(767) * 4 // 767
    want = [kld[quarter == i].mean() for i in range(4)]
    assert report["types"][0]["kld_quarters"] == pytest.approx(want, rel=2e-3, abs=1e-6)

    def block_error(x):
        blocks = x[384:][:len(x[384:]) // 32 * 32].reshape(-1, 32).mean(1)
        return blocks.std(ddof=1) / np.sqrt(len(blocks))
    ids = np.array(file.read_text().split(), int)[1:]
    at = np.arange(767)
    (t,) = report["types"]
    assert t["kld_se"] == pytest.approx(block_error(kld), rel=1e-2)
    assert t["top1_se"] == pytest.approx(block_error((p.argmax(1) == q.argmax(1)).astype(float)), rel=1e-2)
    assert t["ppl_ratio_se"] == pytest.approx(t["ppl_ratio"] * block_error((p - q)[at, ids]), rel=1e-2)


def test_continuation(quality, athanor, model, text, tmp_path):
    _, report = quality("-c", 256, "--chunks", 1, "--types", "f16,turbo2", "--greedy", 200, "--needles", 0, "--no-store")
    prompt = json.loads(athanor("-m", model, "--ids", "-f", text, program="llama-tokenize").stdout)[:256]
    stats = tmp_path / "stats.json"
    cut = tmp_path / "cut.txt"
    data = text.read_bytes()
    low, high = 200, len(data)
    while low < high:  # the shortest text of 256 tokens
        cut.write_bytes(data[:(low + high) // 2])
        if len(json.loads(athanor("-m", model, "--ids", "-f", cut, program="llama-tokenize").stdout)) >= 256:
            high = (low + high) // 2
        else:
            low = (low + high) // 2 + 1
    cut.write_bytes(data[:low])
    ids = {}
    for cache in ("f16", "turbo2"):
        athanor("-m", model, "-bf", cut, "-n", 200, "--temp", 0, "--ignore-eos", "--json-stats", stats, "-ctk", cache, "-ctv", cache,
                "-c", 512, program="llama-completion")
        stat = json.loads(stats.read_text())
        assert stat["prompt_ids"] == prompt
        ids[cache] = stat["ids"]
    same, turbo2 = report["types"]
    assert same["greedy"]["first_difference"] is None and same["greedy"]["tokens"] == 200
    differ = [i for i, (a, b) in enumerate(zip(ids["f16"], ids["turbo2"])) if a != b]
    assert turbo2["greedy"]["first_difference"] == (differ[0] if differ else None)
    for cache, t in (("f16", same), ("turbo2", turbo2)):
        runs = [tuple(ids[cache][i:i + 4]) for i in range(197)]
        assert t["greedy"]["repetition"] == pytest.approx(1 - len(set(runs)) / 197)


def test_needles(athanor, tmp_path):
    model = make_model(tmp_path / "m.gguf", Shape(head_dim=64, vocab=300))
    report = tmp_path / "r.json"
    athanor("quality", "-m", model, "-c", 64, "--chunks", 1, "--types", "f16,turbo3", "--greedy", 0, "--needles", 6, "--no-store",
            "--json", report)
    r = json.loads(report.read_text())
    assert r["f16"]["needles"]["of"] == 6 and r["f16"]["needles"] == r["types"][0]["needles"]
    assert r["types"][1]["needles"]["answer_nll"] == pytest.approx(r["f16"]["needles"]["answer_nll"], rel=0.2)
    assert r["types"][1]["needles"]["answer_nll"] != r["f16"]["needles"]["answer_nll"]


def test_errors_of_layers(quality, golden):
    """Scalar codes of 2, 3, 4 bits lose what docs/turbo_format.md says of normal vectors, about: .119, .034, .0092 of the power."""
    _, report = quality("-c", 512, "--chunks", 1, "--types", "turbo2,turbo3,turbo4,f16,turbo2/f16", *FAST)
    turbo2, turbo3, turbo4, f16, mixed = report["types"]
    for t, power in ((turbo2, 0.119), (turbo3, 0.034), (turbo4, 0.0092)):
        assert len(t["layers"]) == 2
        for layer in t["layers"]:
            assert layer["k"] ** 2 == pytest.approx(power, rel=0.25) and layer["v"] ** 2 == pytest.approx(power, rel=0.25)
        for side in "kv":
            worst = t["worst_" + side]
            assert worst["error"] >= max(layer[side] for layer in t["layers"]) and worst["layer"] in (0, 1)
    assert all(layer == {"k": 0, "v": 0, "k_norm": 0, "v_norm": 0} for layer in f16["layers"])
    assert mixed["layers"][0]["k"] == turbo2["layers"][0]["k"]  # deeper layers see what V did
    assert all(layer["v"] == 0 for layer in mixed["layers"])


def test_built_in_text_and_defaults(athanor, model, tmp_path):
    report, plot = tmp_path / "r.json", tmp_path / "p.svg"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = athanor("quality", "-m", model, "-c", 512, "--chunks", 1, "--greedy", 8, "--needles", 0, "--json", report, "--plot", plot, env=env)
    r = json.loads(report.read_text())
    types = [t["type"] for t in r["types"]]
    assert "q8_0" in types and sum(t.startswith("turbo") for t in types) >= 3
    for t in r["types"]:
        assert t["verdict"] in ("safe", "visible", "not recommended")
        assert re.search(rf"^{t['type']} +{t['verdict']}", done.stdout.decode(), re.M)
    svg = xml.etree.ElementTree.parse(plot).getroot()
    assert svg.tag.endswith("svg") and len(svg.findall("{*}polyline")) == len(types)
    (stored,) = (tmp_path / "cache/athanor/verdicts").iterdir()
    assert [t["type"] for t in json.loads(stored.read_text())["types"]] == types
    for context, kept in ((384, 512), (512, 512), (640, 640)):  # shorter windows replace nothing
        done = athanor("quality", "-m", model, "-c", context, "--chunks", 1, "--types", "q8_0", "--greedy", 0, "--needles", 0, env=env)
        again = {t["type"]: t for t in json.loads(stored.read_text())["types"]}
        assert set(again) == set(types) and again["q8_0"]["context"] == kept and again["turbo3"]["context"] == 512
        assert (b"q8_0: the stored verdict stays, from windows of 512 tokens" in done.stderr) == (context < kept)


@pytest.mark.parametrize("length", [16, 129, 256])
def test_nothing_compressed_says_nothing(quality, model, tmp_path, length):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    out, report = quality("-c", length, "--chunks", 2, "--types", "turbo2,q8_0/f16,f32/bf16", "--greedy", 0, "--needles", 0, env=env)
    turbo2, mixed, plain = report["types"]
    for t in (turbo2, mixed):
        assert t["verdict"] == "unknown" and t["reasons"].startswith("no compressed row was read: -c 1024"), t
    assert plain["verdict"] == "safe" and plain["reasons"] == ""
    assert re.search(r"^turbo2 +unknown \(no compressed row was read", out, re.M)
    (stored,) = (tmp_path / "cache/athanor/verdicts").iterdir()
    assert [t["type"] for t in json.loads(stored.read_text())["types"]] == ["f32/bf16"]


@pytest.mark.parametrize("flags", [("--debug-k-bias", "0:5=2"), ("--activations", "f32"), ("--rope-freq-base", 20000),
                                   ("--rope-scaling", "none"), ("--yarn-orig-ctx", 64), ("--override-kv", "general.name=str:other")])
def test_verdicts_of_changed_models_are_not_stored(athanor, model, tmp_path, flags):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = lambda *more: athanor("quality", "-m", model, "-c", 320, "--chunks", 1, "--types", "q8_0", "--greedy", 0, "--needles", 0,
                                *more, env=env).stderr.decode()
    log = run(*flags)
    assert f"{flags[0]}" in re.search(r"verdicts with (.*) are not the model's own", log)[1]
    assert not (tmp_path / "cache").exists()


def test_a_failed_store_is_a_warning(athanor, model, tmp_path):
    report, plot = tmp_path / "o.json", tmp_path / "o.svg"
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    done = athanor("quality", "-m", model, "-c", 320, "--chunks", 1, "--types", "q8_0", "--greedy", 0, "--needles", 0, "--json", report,
                   "--plot", plot, env={**os.environ, "XDG_CACHE_HOME": str(blocked)})
    assert "not kept for auto" in done.stderr.decode() and b"q8_0" in done.stdout
    assert json.loads(report.read_text())["types"][0]["type"] == "q8_0" and plot.read_text().startswith("<svg")


def test_outputs_are_opened_first_and_all_written(athanor, model, tmp_path):
    json_file, plot = tmp_path / "o.json", tmp_path / "o.svg"
    run = lambda *args: athanor("quality", "-m", model, "-c", 320, "--chunks", 1, "--types", "q8_0", *FAST, *args, check=False)
    for bad in ("--json", "--plot"):
        other, file = ("--plot", plot) if bad == "--json" else ("--json", json_file)
        done = run(other, file, bad, tmp_path / "none/x")
        assert done.returncode == 1 and b"none/x" in done.stderr and not done.stdout
    assert not list(tmp_path.iterdir())
    done = run("--json", "/dev/full", "--plot", plot)
    assert done.returncode == 1 and b"/dev/full" in done.stderr and b"q8_0" in done.stdout and plot.exists()


def test_learned_positions(athanor, golden, tmp_path):
    """96 of them: windows, records and continuation are cut to that, and one line says so."""
    report = tmp_path / "r.json"
    for flags in ((), ("-c", 512, "--greedy", 300, "--needles", 20)):
        done = athanor("quality", "-m", golden / "gpt2/model.gguf", "--chunks", 1, "--types", "f32,bf16", "--no-store", "--json", report,
                       *flags)
        r = json.loads(report.read_text())
        assert r["context"] == 96 and r["f16"]["greedy"]["tokens"] == 48 and "needles" not in r["f16"]
        log = done.stderr.decode()
        assert log.count("a model of 96 positions: windows of 96, a continuation of 48, 0 records") == 1
        assert "trained on" not in log


def test_defaults_end_with_training(athanor, tmp_path):
    """A length that was asked for goes further, and the warning of a longer context comes once."""
    model = make_model(tmp_path / "m.gguf", Shape(head_dim=32, vocab=300, context=128, embd=32, ff=32))
    report = tmp_path / "r.json"
    run = lambda *args: athanor("quality", "-m", model, "--chunks", 1, "--types", "f32,bf16,q8_0", "--no-store", "--json", report, *args)
    log = run().stderr.decode()
    r = json.loads(report.read_text())
    assert r["context"] == 128 and r["f16"]["greedy"]["tokens"] == 64 and "needles" not in r["f16"]
    assert "windows of 128, a continuation of 64, 0 records" in log and "trained on" not in log
    log = run("-c", 300, "--greedy", 4, "--needles", 0).stderr.decode()
    assert json.loads(report.read_text())["context"] == 300
    assert log.count("a context of 300 is more than the 128 positions") == log.count("trained on") == 1


def test_nan_is_an_error(athanor, tmp_path):
    broken = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    model = make_model(tmp_path / "m.gguf", Shape(head_dim=64, vocab=300), tensors=broken)
    done = athanor("quality", "-m", model, "-c", 64, "--chunks", 1, "--types", "q8_0", *FAST, check=False)
    assert done.returncode == 1 and b"f16: what the model gives at position 0 of window 1 is not a number" in done.stderr


def test_bad_input(athanor, model, tmp_path):
    def error(*args):
        done = athanor("quality", "-m", model, *args, check=False)
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
        assert done.returncode == 1 and len(errors) == 1, done.stderr.decode()
        return errors[0]
    assert "turbo9" in error("--types", "turbo9", *FAST)
    assert "cache type" in error("--types", ",", *FAST) and "cache type" in error("--types", "/f16", *FAST)
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert "window" in error("-f", short, *FAST)
    assert "--needles" in error("--needles", 65) and "--greedy" in error("--greedy", -1)
    assert "out of range" in error("-c", 3)
    odd = make_model(tmp_path / "odd.gguf", Shape(head_dim=24, vocab=300))
    assert "--types" in error("-m", odd, *FAST)


def test_interrupt(model, text, tmp_path):
    report = tmp_path / "r.json"
    text.write_text(text.read_text() * 100)
    command = [BUILD / "bin/athanor", "quality", "-m", model, "-f", text, "-c", "256", "--json", report, "--types", "turbo3"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"interrupted" in err and b"turbo3" in out
    assert 0 < json.loads(report.read_text())["positions"] and not (tmp_path / "cache").exists()


def test_interrupt_in_a_first_half(tmp_path):
    """Something was scored, but nothing that counts: no verdict, and no reasons for one."""
    model = make_model(tmp_path / "m.gguf", Shape(head_dim=64, vocab=300, context=65536))
    report, text = tmp_path / "r.json", tmp_path / "text.txt"
    text.write_text("abc " * 16384)
    command = [BUILD / "bin/athanor", "quality", "-m", model, "-f", text, "-c", 65536, "-ub", 32, "--json", report,
               "--types", "turbo3", *FAST]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert any(b"windows of" in line for line in process.stderr)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    r = json.loads(report.read_text())
    assert process.returncode == 130 and r["positions"] == 0
    assert [(t["verdict"], t["reasons"]) for t in r["types"]] == [("unknown", "")] and b"(another" not in out
