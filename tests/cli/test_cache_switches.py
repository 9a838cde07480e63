"""What there is to test caches with: plain types, a bias on K (before and after the rotation), exact activations; what inspect
says of bits; clamped and refused values."""
import importlib.util
import json
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest

from conftest import BUILD, ROOT
from make_golden_like import Shape, make_model

spec = importlib.util.spec_from_file_location("make_k_bias", ROOT / "bench/make_k_bias.py")
make_k_bias = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_k_bias)

BIAS = "0:62-63=60"
SHAPE = Shape(head_dim=64, kv_heads=2, heads=4, context=1024)


@pytest.fixture
def model(tmp_path):
    """The slowest rotary pair turns by nothing worth mentioning, so that a bias before and after the rotation are the same."""
    return make_model(tmp_path / "model.gguf", SHAPE, keys={"rope.freq_base": 1e20})


@pytest.fixture
def quality(athanor_release, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(np.random.default_rng(3).integers(97, 123, 1100, np.uint8).tobytes())

    def call(model, *args):
        report = tmp_path / "report.json"
        athanor_release("quality", "-m", model, "-f", text, "-c", 1024, "--chunks", 1, "--greedy", 0, "--needles", 0, "--no-store",
                        "--json", report, *args)
        return {t["type"]: t for t in json.loads(report.read_text())["types"]}
    return call


def test_bias_on_keys(quality, model, tmp_path):
    """The page mean takes it up; plain codes are ruined. The file and the flag are the same model."""
    types = ("--types", "turbo3,turbo3_tcq,turbo3:plain")
    make_k_bias.write(model, tmp_path / "biased.gguf", BIAS)
    clean, flag, file = quality(model, *types), quality(model, *types, "--debug-k-bias", BIAS), quality(tmp_path / "biased.gguf", *types)
    for biased in (flag, file):
        for t in ("turbo3", "turbo3_tcq"):
            assert biased[t]["kld_mean"] < 1.3 * clean[t]["kld_mean"]
            first, second = biased[t]["layers"]
            assert first["k_norm"] ** 2 == pytest.approx(clean[t]["layers"][0]["k_norm"] ** 2 + 2 * 60 ** 2, rel=0.1)
            assert second["k_norm"] == pytest.approx(clean[t]["layers"][1]["k_norm"], rel=0.05)
        assert biased["turbo3:plain"]["kld_mean"] > 3 * clean["turbo3:plain"]["kld_mean"]
    assert file["turbo3"]["kld_mean"] == pytest.approx(flag["turbo3"]["kld_mean"], rel=0.2)
    assert clean["turbo3:plain"]["kld_mean"] > clean["turbo3"]["kld_mean"] > clean["turbo3_tcq"]["kld_mean"]


def test_bias_tables(athanor, model):
    tables = make_k_bias.bias_tables("0-1,-1:2,-1=5;1:2=1", 4, 3, 8)
    assert sorted(tables) == [0, 1, 3] and tables[0].shape == (3, 8)
    assert (tables[1][:, 2] == 6).all() and (tables[3][:, 7] == 5).all() and tables[0].sum() == 30
    for bad in ("0", "0:1", "0:64=1", "2:1=1", "0:1=x", "0:1=inf", "0:1=1,2"):
        done = athanor("logits", "-m", model, "--ids", "1 2", "-o", "/dev/null", "--debug-k-bias", bad, check=False)
        assert done.returncode == 1 and b"error: --debug-k-bias" in done.stderr, bad


def test_exact_activations(athanor, golden, tmp_path):
    """The weights as they are, without rounded activations: the same model with its weights written out as F32."""
    model, copy = golden / "llama/model-q8_0.gguf", tmp_path / "f32.gguf"
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(copy, "llama")
    make_k_bias.copy_fields(reader, writer)
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()

    def logits(path, *args):
        out = tmp_path / "out.f32"
        athanor("logits", "-m", path, "-o", out, "--ids", " ".join(str(3 + i * 7 % 300) for i in range(40)), *args)
        return np.fromfile(out, "<f4")
    exact = logits(copy)
    for repack in ("--repack", "--no-repack"):
        assert np.abs(logits(model, "--activations", "f32", repack) - exact).max() < 1e-5 * np.abs(exact).max()
    assert np.abs(logits(model) - exact).max() > 1e-4 * np.abs(exact).max()


def test_plain_types_per_layer(athanor, model, tmp_path):
    stats = tmp_path / "stats.json"
    ids = " ".join(str(3 + i % 300) for i in range(400))
    athanor("logits", "-m", model, "-o", "/dev/null", "--ids", ids, "--last", 1, "--json-stats", stats, "-ctk", "turbo3_tcq", "-ctv",
            "q8_0", "--kv-layers", "-1:k=turbo3:plain,v=turbo2:plain")
    s = json.loads(stats.read_text())
    assert "turbo3:plain x1" in s["type_k"] and "turbo2:plain x1" in s["type_v"]
    first, last = s["layers"]
    assert last["k_rows_f16"] == last["v_rows_f16"] == 0 and last["k_rows_compressed"] == 400 * 401 // 2
    assert 0 < first["k_rows_compressed"] < first["k_rows_f16"]


BITS = {"turbo4": 4, "turbo3": 3, "turbo2": 2, "turbo4_tcq": 4, "turbo3_tcq": 3, "turbo2_tcq": 2, "turbo3:plain": 3}


@pytest.mark.parametrize("layers,kv_heads,head_dim", [(3, 3, 64), (2, 1, 256), (2, 2, 80)])
def test_every_byte_is_counted(athanor, tmp_path, layers, kv_heads, head_dim):
    """Bits of a closed page, and of all that is held at 2K, 8K, 32K, worked out again from the format's document."""
    model = make_model(tmp_path / "m.gguf", Shape(layers=layers, kv_heads=kv_heads, heads=kv_heads, head_dim=head_dim, context=1 << 15))
    text, report = athanor("inspect", model).stdout.decode(), json.loads(athanor("inspect", model, "--json").stdout)
    parts = {64: 1, 256: 2, 80: 2}[head_dim]

    def page_memory(payload):  # with 64 readable bytes behind it, in whole cache lines
        return (payload + 64 + 63) // 64 * 64
    f16_page = page_memory(layers * kv_heads * 128 * head_dim * 2 * 2)
    sinks = page_memory(layers * kv_heads * 4 * head_dim * 2 * 2)
    for name, bits in BITS.items():
        value = 128 * head_dim * bits // 8 + 256 * parts  # codes, norms
        key = value + (0 if ":" in name else 3 * head_dim)  # mean, eq
        row = report["cache"][name]
        assert row["bits_per_value"] == pytest.approx(8 * (key + value) / (2 * 128 * head_dim), rel=1e-12)
        assert row["bytes_per_token"] == pytest.approx(layers * kv_heads * (key + value) / 128, rel=1e-12)
        for plan, tokens, entries in zip(row["plans"], (2048, 8192, 32768), (0, 0, 3)):  # one every 8192, the last is recent
            pages = tokens // 128
            assert plan["tokens"] == tokens
            assert plan["bytes_pages"] == pages * page_memory(layers * kv_heads * (key + value))
            assert plan["bytes_recent"] == 2 * f16_page + sinks
            assert plan["bytes_entries"] == entries * f16_page
            total = plan["bytes_pages"] + plan["bytes_recent"] + plan["bytes_entries"]
            in_all = 16 * total / (pages * f16_page)
            assert plan["bits_per_value"] == pytest.approx(in_all, rel=1e-12)
            if bits == 3 and tokens >= 8192 and head_dim != 80:  # a 3-bit cache with everything that is in it
                assert in_all < 4
            line = next(line for line in text.splitlines() if line.split()[:1] == [name])
            assert f" {in_all:.3f}" in line and f" {row['bits_per_value']:.3f} " in line


def test_clamped_and_refused_values(athanor, golden, tmp_path):
    """Beyond f16: said once and counted. No numbers: refused, with the layer's name."""
    model, stats = golden / "llama/model.gguf", tmp_path / "stats.json"
    run = ("logits", "-m", model, "-o", "/dev/null", "--ids", "3 4 5 6 7", "--json-stats", stats)
    done = athanor(*run, "-ctk", "turbo3", "-ctv", "turbo3", "--debug-k-bias", "0:5=1e6")
    assert b"10 values of K and V were outside +-65504 and were clamped" in done.stderr  # 5 tokens, 2 heads
    assert json.loads(stats.read_text())["saturated"] == 10
    assert b"clamped" not in athanor(*run, "-ctk", "f32", "-ctv", "f32", "--debug-k-bias", "0:5=1e6").stderr
    done = athanor(*run, "--debug-k-bias", "1:5=3e38;1:5=3e38", check=False)
    assert done.returncode == 1 and b"error: layer 1: " in done.stderr and b"NaN or infinite" in done.stderr


def test_interrupted_logits(golden, tmp_path):
    out, ids = tmp_path / "out.f32", tmp_path / "ids.txt"
    ids.write_text(" ".join(str(3 + i % 300) for i in range(60000)))
    command = [BUILD / "bin/athanor", "logits", "-m", golden / "llama-long/model.gguf", "-f", ids, "-o", out, "-c", "60000"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
    time.sleep(1.5)
    assert process.poll() is None
    start = time.time()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"interrupted after" in err and b"rows of 320 logits" in err
    assert not out.exists() and time.time() - start < 10
