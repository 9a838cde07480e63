"""Every cache type on golden weights, 1,024 tokens, against our own f32 cache on the same tokens.

Within a family more bits give less error, for K alone, V alone and both; f16 is exact to 1e-5; what was asked for is
what ran, and at least half of the rows were read in the compressed form. All pairs of types at head_dim 64, 128 and
256; with the K bias of qwen2 those that the families need.
"""
import concurrent.futures
import itertools
import json

import pytest

from golden import Golden, logits, mean_kld
from make_golden_like import Shape, make_model

TYPES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "turbo4", "turbo3", "turbo2"]
TRELLIS = ["turbo4_tcq", "turbo3_tcq", "turbo2_tcq"]
PLAIN = {"f32", "f16", "bf16"}
FAMILIES = [["turbo2", "turbo3", "turbo4"], TRELLIS[::-1], ["q4_0", "q5_0", "q8_0"], ["q4_1", "q5_1", "q8_0"]]
N_TOKENS = 1024
ALL = list(itertools.product(TYPES, TYPES))
OF_TRELLIS = [pair for t in TRELLIS for pair in ((t, t), (t, "f16"), ("f16", t))]
NEEDED = [(k, v) for k, v in ALL if k == v or "f16" in (k, v)] + OF_TRELLIS
MODELS = ["64 mistral", "128 qwen3", "128 qwen2", "256"]


class Pairs:
    """KLD and statistics of the pairs of one model."""

    def __init__(self, program, model, golden, folder, pairs):
        self.program, self.model, self.golden, self.folder = program, model, golden, folder
        self.tokens = golden.shuffled(N_TOKENS)
        self.reference = self.logits("f32", "f32")[0]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda pair: self.run(*pair), pairs)
            self.kld, self.stats = {}, {}
            for pair, (kld, stats) in zip(pairs, done):
                self.kld[pair], self.stats[pair] = kld, stats

    def logits(self, k, v):
        folder = self.folder / f"{k}-{v}"
        folder.mkdir(exist_ok=True)
        args = ("-ctk", k, "-ctv", v, "-t", 1, "-c", N_TOKENS, "--json-stats", folder / "stats.json")
        out = logits(self.program, self.model, self.tokens, folder, *args, n_vocab=self.golden.n_vocab)
        assert len(out) == N_TOKENS
        (folder / "logits.f32").unlink()
        return out, json.loads((folder / "stats.json").read_text())

    def run(self, k, v):
        out, stats = self.logits(k, v)
        return mean_kld(self.reference, out), stats  # refuses NaN


@pytest.fixture(scope="module", params=MODELS)
def pairs(request, golden, athanor_release, tmp_path_factory):
    head_dim, _, name = request.param.partition(" ")
    model = Golden(golden / (name or "llama"))
    folder = tmp_path_factory.mktemp("pairs")
    path = model.model if name else make_model(folder / "model.gguf", Shape(head_dim=int(head_dim)))
    return Pairs(athanor_release, path, model, folder, NEEDED if name == "qwen2" else ALL + OF_TRELLIS)


@pytest.mark.parametrize("family", FAMILIES, ids="-".join)
@pytest.mark.parametrize("side", ["K", "V", "both"])
def test_error_falls_with_bits(pairs, family, side):
    klds = [pairs.kld[{"K": (t, "f16"), "V": ("f16", t), "both": (t, t)}[side]] for t in family]
    assert klds == sorted(klds, reverse=True) and klds[-1] < klds[0] / 4, f"{family}: {klds}"


def test_a_trellis_code_is_better_than_a_scalar_one(pairs):
    for pair in OF_TRELLIS:
        scalar = tuple(t.removesuffix("_tcq") for t in pair)
        assert pairs.kld[pair] < pairs.kld[scalar], f"{pair}: {pairs.kld[pair]:.3g}, {scalar}: {pairs.kld[scalar]:.3g}"
        assert pairs.stats[pair]["bytes_per_token"] == pairs.stats[scalar]["bytes_per_token"]


def test_f16_is_exact(pairs):
    assert pairs.kld["f16", "f16"] < 1e-5
    assert pairs.kld["f32", "f32"] == 0
    assert pairs.kld["bf16", "bf16"] < 5e-4


def test_what_was_asked_for_ran(pairs):
    for (k, v), stats in pairs.stats.items():
        assert (stats["type_k"], stats["type_v"]) == (k, v)
        for side, kind in (("k", k), ("v", v)):
            compressed, plain = stats[f"{side}_rows_compressed"], stats[f"{side}_rows_f16"]
            assert compressed + plain == 2 * N_TOKENS * (N_TOKENS + 1) // 2  # layers; rows of all queries
            assert compressed == 0 if kind in PLAIN else compressed >= plain, f"{k} x {v}"


def test_errors_of_k_and_v_add_up(pairs):
    """A pair is as good as its halves: neither side spoils, or stands for, the other."""
    for (k, v), kld in pairs.kld.items():
        alone = pairs.kld[k, "f16"] + pairs.kld["f16", v]
        assert kld < 1.5 * alone + 1e-5, f"{k} x {v}: {kld:.3g}, alone {alone:.3g}"
        assert kld > 0.5 * max(pairs.kld[k, "f16"], pairs.kld["f16", v]) - 1e-5, f"{k} x {v}: {kld:.3g}, alone {alone:.3g}"


def test_half_the_bytes_and_less(pairs):
    sizes = {t: pairs.stats[t, t]["bytes_per_token"] / pairs.stats["f16", "f16"]["bytes_per_token"] for t in TYPES}
    assert sizes["f32"] == 2 and sizes["bf16"] == 1
    assert sizes["q8_0"] < 0.56 and sizes["q4_0"] < 0.31
    assert sizes["turbo4"] < 0.29 and sizes["turbo3"] < 0.23 and sizes["turbo2"] < 0.17
