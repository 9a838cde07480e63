"""athanor logits, tokenize, inspect, distortion."""
import json

import numpy as np
import pytest

from golden import Golden


@pytest.fixture
def model(golden):
    return golden / "qwen3/model.gguf"


@pytest.fixture
def logits(athanor, model, tmp_path):
    def call(*args):
        out = tmp_path / "out.f32"
        athanor("logits", "-m", model, "-o", out, *args)
        return np.fromfile(out, "<f4").reshape(-1, 320)
    return call


IDS = [3, 99, 4, 8, 250, 7, 7, 12, 300, 1]
TEXT_IDS = " ".join(map(str, IDS))


def test_logits_forms_of_ids(logits, tmp_path):
    want = logits("--ids", TEXT_IDS)
    assert want.shape == (10, 320)
    file = tmp_path / "ids.txt"
    for text in (str(IDS), "\n".join(map(str, IDS)) + "\n", ",".join(map(str, IDS))):
        file.write_text(text)
        assert (logits("-f", file) == want).all() and (logits("--ids", text) == want).all()
    assert (logits("--ids", TEXT_IDS, "--last", 3) == want[-3:]).all()
    assert (logits("--ids", TEXT_IDS, "--last", 99) == want).all()


def test_logits_ways_of_evaluation(logits):
    want = logits("--ids", TEXT_IDS, "-ub", 4)
    assert (logits("--ids", TEXT_IDS, "-ub", 12, "--seqs", 3) == want).all()
    assert (logits("--ids", TEXT_IDS, "-ub", 4, "--decode-from", 4)[:4] == want[:4]).all()
    by_one = logits("--ids", TEXT_IDS, "-ub", 1)
    assert (logits("--ids", TEXT_IDS, "--decode-from", 0) == by_one).all()
    assert np.abs(by_one - want).max() < 0.05
    assert (logits("--ids", TEXT_IDS, "-ub", 4, "-t", 1) == want).all()


def test_logits_summary_and_stats(athanor, model, tmp_path):
    out, stats = tmp_path / "out.f32", tmp_path / "stats.json"
    ids = " ".join(str(i % 300) for i in range(700))
    done = athanor("logits", "-m", model, "--ids", ids, "-o", out, "-ctk", "turbo3", "-ctv", "q4_0", "-ub", 64, "--json-stats", stats)
    s = json.loads(stats.read_text())
    assert f"K turbo3, V q4_0; {100 * s['share_compressed']:.1f} % of the rows read were compressed" in done.stderr.decode()
    assert s["k_rows_compressed"] > 0 and s["prompt_tokens"] == 700 and "ids" not in s
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.f32", "stats.json"]


def error(athanor, *args, program="athanor"):
    done = athanor(*args, program=program, check=False)
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr.decode()
    return errors[0]


def test_logits_bad_input(athanor, model, tmp_path):
    out = tmp_path / "out.f32"
    base = ("logits", "-m", model, "-o", out)
    assert "whole numbers" in error(athanor, *base, "--ids", "1 x")
    assert "whole numbers" in error(athanor, *base, "--ids", "1 99999999999")
    assert "whole numbers" in error(athanor, *base, "--ids", "-1")
    assert "320" in error(athanor, *base, "--ids", "1 320")
    assert "no token ids" in error(athanor, *base, "--ids", " [] ")
    assert "no token ids" in error(athanor, *base)
    assert "one of them" in error(athanor, *base, "--ids", "1", "-f", "x")
    assert "do not fit" in error(athanor, *base, "--ids", "1 " * 300, "-c", 256)
    assert "--seqs" in error(athanor, *base, "--ids", "1", "--seqs", 9, "-ub", 8)
    assert "-o" in error(athanor, "logits", "-m", model, "--ids", "1")
    assert "can't be written" in error(athanor, "logits", "-m", model, "--ids", "1", "-o", tmp_path / "no/such")
    assert "can't be written" in error(athanor, "logits", "-m", model, "--ids", "1", "-o", tmp_path)
    assert "can't be written" in error(athanor, "logits", "-m", model, "--ids", "1", "-o", "/dev/full")
    assert "is empty" in error(athanor, "logits", "-m", model, "--ids", "1", "-o", "")
    assert not list(tmp_path.iterdir()), "something half-written is left"
    ids = tmp_path / "ids"
    ids.write_bytes(b"1 2 \0 3")
    assert "zero bytes" in error(athanor, *base, "-f", ids)
    assert not out.exists()


def test_tokenize(athanor, model, tmp_path):
    def run(*args, **kw):
        return athanor("-m", model, *args, program="llama-tokenize", **kw).stdout
    ids = json.loads(run("--ids", "-p", "the hand"))
    assert run("--ids", "-p", "the hand") == (str(ids) + "\n").encode()
    file = tmp_path / "text"
    file.write_bytes(b"the hand")
    assert json.loads(run("--ids", "-f", file)) == ids == json.loads(run("--ids", "--stdin", input=b"the hand"))
    lines = run("-p", "the hand", "--show-count").decode().splitlines()
    assert len(lines) == len(ids) + 1 and lines[-1] == f"Total number of tokens: {len(ids)}"
    assert lines[0].split(" -> ") == [f"{ids[0]:6}", "'the'"]
    assert json.loads(run("--ids", "-p", "a\\nb")) != json.loads(run("--ids", "-p", "a\\nb", "--escape"))
    assert "one of -p" in error(athanor, "-m", model, program="llama-tokenize")
    assert "one of -p" in error(athanor, "-m", model, "-p", "x", "--stdin", program="llama-tokenize")


def test_tokenize_flags(athanor, golden):
    spm = golden / "llama/model.gguf"
    def ids(*args):
        return json.loads(athanor("-m", spm, "--ids", *args, program="llama-tokenize").stdout)
    with_bos, without = ids("-p", "a"), ids("-p", "a", "--no-bos")
    assert with_bos[1:] == without and len(with_bos) == len(without) + 1
    assert len(ids("-p", "</s>", "--no-bos")) < len(ids("-p", "</s>", "--no-bos", "--no-parse-special"))


def test_tokenize_vocabulary_only(athanor, golden):
    path = next(iter(sorted((golden.parent / "vocab").glob("*.gguf"))), None)
    if not path:
        pytest.skip("no vocabularies")
    assert json.loads(athanor("-m", path, "--ids", "-p", "Hello", program="llama-tokenize").stdout)
    done = athanor("inspect", path)
    assert b"no cache table: " in done.stdout and b"tokenizer.ggml.model" in done.stdout


def test_inspect(athanor, model):
    text = athanor("inspect", model).stdout.decode()
    for line in ("architecture qwen3", "qwen3.block_count = 2", "tensors: 24", "head_dim 128", "2 layers with a full cache"):
        assert line in text, line
    assert "blk.0.attn_q.weight" not in text and "blk.0.attn_q.weight" in athanor("inspect", "-m", model, "--tensors").stdout.decode()
    j = json.loads(athanor("inspect", model, "--json", "--tensors").stdout)
    assert j["architecture"] == "qwen3" and len(j["tensors"]) == j["n_tensors"] == 24
    assert j["tensor_types"]["F32"]["bytes"] == sum(t["bytes"] for t in j["tensors"])
    assert list(j["cache"])[0] == "f32" and len(j["cache"]) == 18
    for name, row in j["cache"].items():
        assert [p["tokens"] for p in row["plans"]] == [2048, 8192, 32768, 131072], name
        assert f"{row['bits_per_value']:.3f}" in text
    assert j["cache"]["f16"]["bytes_per_token"] == 2 * 2 * 2 * 128 * 2 # layers, K and V, heads, head_dim, bytes
    bits = [j["cache"][t]["bits_per_value"] for t in ("f32", "f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2")]
    assert bits == sorted(bits, reverse=True)


def test_inspect_kinds_of_layers(athanor, golden):
    model = golden / "gemma4/model.gguf"
    j = json.loads(athanor("inspect", model, "--json").stdout)
    assert [layer["cache"] for layer in j["layers"]] == ["window", "window", "full", "shared", "shared", "shared"]
    assert [layer["head_dim_k"] for layer in j["layers"]] == [64, 64, 128, 64, 64, 128]
    assert j["cache"]["f16"]["bytes_per_token"] == 2 * 2 * 128  # K and V of the one layer that grows
    text = athanor("inspect", model).stdout.decode()
    for line in ("2 layers with a window of 16 tokens: head_dim 64, 1 KV head\n", "1 layer with a full cache: head_dim 128",
                 "2 layers that read the K and V of earlier ones: head_dim 64"):
        assert line in text


def test_inspect_windows_and_strangers(athanor, golden, tmp_path):
    j = json.loads(athanor("inspect", golden / "gemma3/model.gguf", "--json").stdout)
    assert any(layer["window"] for layer in j["layers"])
    path = tmp_path / "model.gguf"
    path.write_bytes((golden / "gemma4/model.gguf").read_bytes().replace(b"gemma4", b"gemmaX"))
    stranger = athanor("inspect", path).stdout.decode()
    assert "no cache table: " in stranger and "gemmaX" in stranger and "tensors: " in stranger
    assert "/no/such" in error(athanor, "inspect", "/no/such")
    assert "no model" in error(athanor, "inspect")


def test_distortion(athanor, tmp_path):
    def run(*args):
        return json.loads(athanor("distortion", "--json", *args).stdout)
    figures = {t: run("--type", t, "--n", 512) for t in ("f16", "q8_0", "q4_0", "turbo4", "turbo4_tcq", "turbo3", "turbo3_tcq", "turbo2", "turbo2_tcq")}
    order = ("f16", "q8_0", "turbo4_tcq", "turbo4", "turbo3_tcq", "turbo3", "turbo2_tcq", "turbo2")
    mse = [figures[t]["mse"] for t in order]
    assert mse == sorted(mse) and figures["turbo3"]["codebook_mse"] > 0 and figures["turbo3"]["n_vectors"] == 512
    assert run("--type", "turbo3", "--n", 512) == figures["turbo3"] != run("--type", "turbo3", "--n", 512, "--seed", 2)
    vectors = np.random.default_rng(1).standard_normal((128, 64)).astype("<f4")
    file = tmp_path / "x.f32"
    vectors.tofile(file)
    got = run("--type", "turbo4", "--head-dim", 64, "--input", file, "--key")
    assert got["n_vectors"] == 128 and got["side"] == "k" and 0 < got["mse"] < 0.02
    text = athanor("distortion", "--type", "turbo3", "--n", 128).stdout.decode()
    for word in ("bytes per value", "MSE", "SNR", "worst vector", "inner product", "sign flips"):
        assert word in text


def test_distortion_bad_input(athanor, tmp_path):
    file = tmp_path / "x.f32"
    file.write_bytes(b"12345")
    assert "turbo9" in error(athanor, "distortion", "--type", "turbo9")
    assert "no cache type" in error(athanor, "distortion")
    assert "whole number of vectors" in error(athanor, "distortion", "--type", "f16", "--input", file)
    np.full(128, np.nan, "<f4").tofile(file)
    assert "finite" in error(athanor, "distortion", "--type", "turbo3", "--input", file)
    error(athanor, "distortion", "--type", "turbo3", "--head-dim", 0)
    error(athanor, "distortion", "--type", "turbo3", "--n", 0)


def test_argmax(athanor, golden, tmp_path):
    model = Golden(golden / "llama")
    base = ("logits", "-m", model.model, "--ids", " ".join(map(str, model.tokens)))
    athanor(*base, "-o", tmp_path / "picks", "--argmax", "-ctk", "f32", "-ctv", "f32")
    picks = [int(line) for line in (tmp_path / "picks").read_text().splitlines()]
    assert picks == model.reference().argmax(axis=1).tolist()
