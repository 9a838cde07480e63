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

    def call(*args, text=text):
        report.unlink(missing_ok=True)
        done = athanor("quality", "-m", model, *(["-f", text] if text else []), "--json", report, *args)
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
    second = kld[384:]
    blocks = second[:len(second) // 32 * 32].reshape(-1, 32).mean(1)
    assert report["types"][0]["kld_se"] == pytest.approx(blocks.std(ddof=1) / np.sqrt(len(blocks)), rel=1e-2)


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
    for context, kept in ((256, 512), (512, 512), (640, 640)):  # shorter windows replace nothing
        done = athanor("quality", "-m", model, "-c", context, "--chunks", 1, "--types", "q8_0", "--greedy", 0, "--needles", 0, env=env)
        again = {t["type"]: t for t in json.loads(stored.read_text())["types"]}
        assert set(again) == set(types) and again["q8_0"]["context"] == kept and again["turbo3"]["context"] == 512
        assert (b"q8_0: the stored verdict stays, from windows of 512 tokens" in done.stderr) == (context < kept)


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
