"""Sliding windows of several sizes: the cache that keeps a window's pages, the one that keeps all (--swa-full), and a plain mask in
numpy give the same logits, with every cache type. Quick by default; ATH_COMPLETE=1 (make check-windows) runs all windows over
4,096 tokens."""
import json
import os

import numpy as np
import pytest

from golden import logits, mean_kld
from make_golden_like import Shape, make_model
from plain_decoder import Decoder

COMPLETE = os.environ.get("ATH_COMPLETE") == "1"
WINDOWS = [128, 300, 512, 1024] if COMPLETE else [300]
N_TOKENS = 4096 if COMPLETE else 1200
ENCODED = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "turbo4", "turbo3", "turbo2", "turbo4_tcq", "turbo3_tcq", "turbo2_tcq"]
TYPES = ["f16", "bf16"] + (ENCODED if COMPLETE else ["q8_0", "turbo3", "turbo2_tcq"])
VOCAB = 320


def gemma3(path, window):
    """Three layers, the last of which sees everything."""
    shape = Shape(arch="gemma3", layers=3, heads=2, kv_heads=1, head_dim=64, context=8192, seed=window)
    rng = np.random.default_rng(window)
    tensors = {}
    for il in range(shape.layers):
        for name, n in (("attn_q_norm", 64), ("attn_k_norm", 64), ("post_attention_norm", 64), ("post_ffw_norm", 64)):
            tensors[f"blk.{il}.{name}.weight"] = (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
    keys = {"attention.sliding_window": window, "attention.sliding_window_pattern": 3, "rope.freq_base": 1e6}
    return make_model(path, shape, tensors=tensors, keys=keys)


class Windowed:
    def __init__(self, program, folder, window):
        self.program, self.folder, self.window = program, folder, window
        self.model = gemma3(folder / "model.gguf", window)
        self.tokens = np.random.default_rng(5).integers(3, VOCAB, N_TOKENS).tolist()
        self.f32, _ = self.run("f32")

    def run(self, kind, *flags):
        stats = self.folder / "stats.json"
        out = logits(self.program, self.model, self.tokens, self.folder, "-ctk", kind, "-ctv", kind, "-c", N_TOKENS,
                     "--decode-from", N_TOKENS - 8, "--json-stats", stats, *flags, n_vocab=VOCAB)
        return out, json.loads(stats.read_text())


@pytest.fixture(scope="module", params=WINDOWS)
def model(request, athanor_release, tmp_path_factory):
    return Windowed(athanor_release, tmp_path_factory.mktemp("window"), request.param)


def test_against_a_plain_mask(model):
    want = Decoder(model.model).logits(model.tokens)
    assert want.std() > 1
    assert np.abs(model.f32 - want).max() < 2e-3  # angles at position 4,000, as in the long golden models


@pytest.mark.parametrize("kind", TYPES)
def test_every_cache_type(model, kind):
    got, stats = model.run(kind)
    full, full_stats = model.run(kind, "--swa-full")
    assert (got == full).all()
    assert stats["cache_bytes"] < full_stats["cache_bytes"]
    kld = mean_kld(model.f32, got)
    print(f"window {model.window}, {kind}: mean KLD {kld:.3g}")
    assert kld < (1e-5 if kind == "f16" else 1e-3 if kind == "bf16" else 0.5)
    for layer in range(3):
        counts = stats["layers"][layer]
        compressed, plain = counts["k_rows_compressed"], counts["k_rows_f16"]
        if kind in ("f16", "bf16"):
            assert compressed == 0
        elif layer == 2:
            assert compressed > plain
        else:
            assert (compressed > 0) == (model.window > 129)
