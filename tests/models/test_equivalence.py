"""Results do not depend on how the work is cut: threads and neighbours change no bit, the size of passes next to nothing;
nor, but for rounding, on the instruction set.

(Forks, rollbacks, and neighbours with other texts: tests/engine/test_session.c.)
"""
import json
import platform

import numpy as np
import pytest

from golden import Golden, logits, mean_kld

N_TOKENS = 1024
FILES = ["llama/model.gguf", "llama/model-q8_0.gguf", "qwen2/model.gguf", "mixtral/model.gguf", "gemma3/model.gguf"]


@pytest.fixture
def run(golden, athanor_release, tmp_path):
    """run(file, type, *flags): all logits of the shuffled golden tokens."""
    def evaluate(file, kind, *flags, n=N_TOKENS):
        model = Golden(golden / file.split("/")[0])
        types = ("-ctk", kind, "-ctv", kind, "-c", n)
        return logits(athanor_release, golden / file, model.shuffled(n), tmp_path, *types, *flags, n_vocab=model.n_vocab)
    return evaluate


def assert_same_bits(a, b):
    assert a.shape == b.shape
    rows = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)).any(axis=1))
    assert len(rows) == 0, f"{len(rows)} rows differ, the first is {rows[0]}: {np.abs(a - b).max()}"


@pytest.mark.parametrize("kind", ["f16", "turbo3", "q4_0"])
@pytest.mark.parametrize("file", FILES)
def test_threads(run, file, kind):
    one = run(file, kind, "-t", 1, "--decode-from", 900)
    assert_same_bits(run(file, kind, "-t", 2, "--decode-from", 900), one)
    assert_same_bits(run(file, kind, "-t", 3, "-tb", 2, "--decode-from", 900), one)


@pytest.mark.parametrize("kind", ["f16", "turbo3"])
@pytest.mark.parametrize("file", FILES)
def test_alone_and_beside_three_sequences(run, file, kind):
    """The same passes of 512 and of one token per sequence, alone and with three more."""
    alone = run(file, kind, "-ub", 512, "--decode-from", 900)
    assert_same_bits(run(file, kind, "-ub", 2048, "--seqs", 4, "--decode-from", 900), alone)


@pytest.mark.parametrize("kind, limit", [("f32", 1e-8), ("turbo3", 1e-4)])
@pytest.mark.parametrize("file", ["llama/model.gguf", "qwen3/model.gguf", "qwen2/model.gguf", "gemma3/model.gguf", "mistral/model.gguf"])
def test_size_of_passes(run, file, kind, limit):
    whole = run(file, kind, "-ub", 512)
    klds = {n: mean_kld(whole, run(file, kind, "-ub", n)) for n in (1, 7, 64)}
    assert max(klds.values()) < limit, klds


@pytest.mark.parametrize("kind", ["f32", "turbo3"])
def test_passes_of_several_rows_give_the_same_bits(run, kind):
    whole = run("llama/model-q8_0.gguf", kind, "-ub", 512)
    assert_same_bits(run("llama/model-q8_0.gguf", kind, "-ub", 64), whole)
    assert_same_bits(run("llama/model-q8_0.gguf", kind, "-ub", 128), whole)


@pytest.mark.parametrize("file, kind, limit", [("llama/model.gguf", "f16", 1e-4), ("llama/model.gguf", "turbo3", 1e-4),
                                               ("qwen3/model.gguf", "turbo3_tcq", 1e-4), ("llama/model-q8_0.gguf", "turbo3", 1e-3)])
def test_instruction_sets(run, tmp_path, file, kind, limit):
    """Plain C, AVX2, AVX-512 without VNNI and VBMI, all of it, and AMX: prefill and decode. What a machine lacks falls back."""
    def one(isa):
        stats = tmp_path / "stats.json"
        rows = run(file, kind, "--decode-from", 752, "--isa", isa, "--json-stats", stats, n=768)
        return rows, json.loads(stats.read_text())
    plain, stats = one("c")
    assert "plain C" in stats["device"]
    for isa, lacks in (("avx2", "avx512"), ("3", "vbmi"), ("avx512", "amx"), ("amx", "plain")):
        rows, stats = one(isa)
        assert lacks not in stats["device"] or platform.machine() != "x86_64"
        assert mean_kld(plain, rows) < limit, stats["device"]
        assert kind == "f16" or stats["share_compressed"] > 0.5
