"""Experts in every form that files have them: the same logits as in the usual one. What a router chooses is what counts."""
import pathlib

import gguf
import numpy as np
import pytest

import vector
from gguf_copy import copy_model
from golden import Golden, logits, mean_kld
from make_golden_like import Shape, make_model
from plain_decoder import Decoder

F32 = ("-ctk", "f32", "-ctv", "f32")


@pytest.fixture
def run(athanor, tmp_path):
    """run(model file, tokens): its logits."""
    return lambda path, tokens: logits(athanor, path, tokens, tmp_path, *F32, n_vocab=320)


def tensors_of(path):
    return {t.name: t.data for t in gguf.GGUFReader(path).tensors}


def changed(family, tmp_path, name, change, **more):
    """A copy of a model after change(tensors): it replaces, adds and removes (None)."""
    model = family(name)
    tensors = tensors_of(model.model)
    before = dict(tensors)
    change(tensors)
    gone = [n for n in before if tensors.get(n) is None]
    new = {n: t for n, t in tensors.items() if t is not None and t is not before.get(n)}
    return model, copy_model(model.model, tmp_path / "changed.gguf", tensors=new, without=gone, **more)


def layers(tensors):
    return sorted({name.split(".")[1] for name in tensors if "ffn_up_exps" in name})


def test_merged_gate_and_up(run, family, tmp_path):
    def merge(tensors):
        for il in layers(tensors):
            both = [tensors[f"blk.{il}.ffn_{part}_exps.weight"] for part in ("gate", "up")]
            tensors[f"blk.{il}.ffn_gate_up_exps.weight"] = np.concatenate(both, axis=1)
            tensors[f"blk.{il}.ffn_gate_exps.weight"] = tensors[f"blk.{il}.ffn_up_exps.weight"] = None
    model, path = changed(family, tmp_path, "qwen3moe", merge)
    assert (run(path, model.tokens) == run(model.model, model.tokens)).all()


def test_merged_gate_and_up_with_biases(run, family, tmp_path):
    def merge(tensors):
        for il in layers(tensors):
            for kind in ("weight", "bias"):
                both = [tensors[f"blk.{il}.ffn_{part}_exps.{kind}"] for part in ("gate", "up")]
                tensors[f"blk.{il}.ffn_gate_up_exps.{kind}"] = np.concatenate(both, axis=1)
                tensors[f"blk.{il}.ffn_gate_exps.{kind}"] = tensors[f"blk.{il}.ffn_up_exps.{kind}"] = None
    model, path = changed(family, tmp_path, "gpt-oss", merge)
    assert (run(path, model.tokens) == run(model.model, model.tokens)).all()


def test_one_tensor_per_expert(run, family, tmp_path):
    def split(tensors):
        for il in layers(tensors):
            for part in ("gate", "up", "down"):
                for e, expert in enumerate(tensors[f"blk.{il}.ffn_{part}_exps.weight"]):
                    tensors[f"blk.{il}.ffn_{part}.{e}.weight"] = np.ascontiguousarray(expert)
                tensors[f"blk.{il}.ffn_{part}_exps.weight"] = None
    model, path = changed(family, tmp_path, "mixtral", split)
    assert (run(path, model.tokens) == run(model.model, model.tokens)).all()


@pytest.mark.parametrize("name", ["qwen2", "qwen3moe", "deepseek2", "gemma4", "phi3"])
def test_scales_beside_weights(run, family, tmp_path, name):
    """Halves and doubles, which are exact: X.weight / s and X.scale = s."""
    rng = np.random.default_rng(3)

    def scale(tensors):
        for n in [n for n in tensors if n.endswith(".weight") and "blk." in n and tensors[n].ndim > 1 and "gate_inp" not in n]:
            experts = len(tensors[n]) if tensors[n].ndim == 3 and "exps" in n and rng.random() < 0.5 else 1
            factors = 2.0 ** rng.integers(-3, 4, experts).astype(np.float32)
            if tensors[n].ndim == 3 and "exps" not in n:
                continue  # the heads of latent attention
            tensors[n] = tensors[n] / (factors.reshape(-1, 1, 1) if tensors[n].ndim == 3 else factors)
            tensors[n.replace(".weight", ".scale")] = factors
    model, path = changed(family, tmp_path, name, scale)
    assert (run(path, model.tokens) == run(model.model, model.tokens)).all()


def test_a_scale_of_another_size_is_refused(athanor, family, tmp_path):
    def scale(tensors):
        tensors["blk.0.ffn_up_exps.scale"] = np.ones(3, np.float32)
    model, path = changed(family, tmp_path, "mixtral", scale)
    done = athanor("logits", "-m", path, "--ids", "5", "-o", tmp_path / "out.f32", check=False)
    assert done.returncode == 1 and b"blk.0.ffn_up_exps.scale has shape [3]" in done.stderr, done.stderr


# ---- routing

def exchange(tensors, a, b, experts, router):
    """Experts a and b of every layer change places: their weights, their rows of the router, or both."""
    for name in list(tensors):
        of_router = "ffn_gate_inp." in name or "exp_probs_b" in name
        if (of_router and router) or ("_exps." in name and experts):
            swapped = tensors[name].copy()
            swapped[[a, b]] = swapped[[b, a]]
            tensors[name] = swapped


EXPERTS = ["mixtral", "qwen3moe", "qwen2moe", "gpt-oss", "deepseek2", "deepseek3"] + [
    name for name in vector.NAMES if "expert_count" in vector.recipe(name).get("keys", {})]


@pytest.mark.parametrize("name", EXPERTS)
def test_exchanged_experts_are_seen(run, family, tmp_path, name):
    model = family(name)
    reference = model.reference()

    def distance(path):
        return np.abs(run(path, model.tokens)[model.first:model.last] - reference).max()
    for experts, router in ((True, False), (False, True)):
        path = changed(family, tmp_path, name, lambda t: exchange(t, 0, 1, experts, router))[1]
        difference = distance(path)
        assert difference > 100 * model.tolerance, f"experts {experts}, router {router}: {difference}"
    both = changed(family, tmp_path, name, lambda t: exchange(t, 0, 1, True, True))[1]
    assert distance(both) <= model.tolerance


# ---- glm4moe

def glm4moe(path, head_norms):
    shape = Shape(arch="glm4moe", layers=4, head_dim=32, heads=4, kv_heads=2, seed=7)
    rng = np.random.default_rng(8)
    n_experts, n_ff = 6, 32

    def matrix(*size, gain=1.0):
        return (gain / np.sqrt(size[-1]) * rng.standard_normal(size)).astype(np.float32)

    tensors, without = {}, []
    for il in range(shape.layers):
        b = f"blk.{il}."
        tensors[b + "post_attention_norm.weight"] = (1 + 0.1 * rng.standard_normal(64)).astype(np.float32)
        without.append(b + "ffn_norm.weight")
        for part, n in (("q", 128), ("k", 64), ("v", 64)):
            tensors[b + f"attn_{part}.bias"] = (0.3 * rng.standard_normal(n)).astype(np.float32)
            if head_norms and part != "v":
                tensors[b + f"attn_{part}_norm.weight"] = (1 + 0.1 * rng.standard_normal(32)).astype(np.float32)
        if il == 0:
            continue
        without += [b + f"ffn_{part}.weight" for part in ("gate", "up", "down")]
        tensors[b + "ffn_gate_inp.weight"] = matrix(n_experts, 64, gain=2.0)
        tensors[b + "exp_probs_b.bias"] = (0.3 * rng.standard_normal(n_experts)).astype(np.float32)
        for part, size in (("gate", (n_ff, 64)), ("up", (n_ff, 64)), ("down", (64, n_ff))):
            tensors[b + f"ffn_{part}_exps.weight"] = matrix(n_experts, *size, gain=2.0)
            tensors[b + f"ffn_{part}_shexp.weight"] = matrix(*size, gain=2.0)
    keys = {
        "rope.dimension_count": 16, "rope.freq_base": 1e6, "expert_count": n_experts, "expert_used_count": 2,
        "expert_feed_forward_length": n_ff, "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2,
        "expert_weights_norm": True, "expert_weights_scale": 1.5, "nextn_predict_layers": 1,
    }
    return make_model(path, shape, without=without, tensors=tensors, keys=keys)


@pytest.mark.parametrize("head_norms", [True, False])
def test_glm4moe(run, tmp_path, head_norms):
    path = glm4moe(tmp_path / "model.gguf", head_norms)
    tokens = np.random.default_rng(1).integers(3, 320, 70).tolist()
    want = Decoder(path).logits(tokens)
    assert want.std() > 1
    assert np.abs(run(path, tokens) - want).max() < 1e-4


# ---- gemma4 with experts

def gemma4_with_experts(golden, path):
    rng = np.random.default_rng(11)
    n_experts, tensors = 6, {}

    def matrix(*size, gain=2.0):
        return (gain / np.sqrt(size[-1]) * rng.standard_normal(size)).astype(np.float32)

    def norm(n):
        return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    for il in range(6):
        b = f"blk.{il}."
        tensors[b + "ffn_gate_inp.weight"] = matrix(n_experts, 64, gain=3.0)
        tensors[b + "ffn_gate_inp.scale"] = 8 * norm(64)
        tensors[b + "ffn_gate_up_exps.weight"] = matrix(n_experts, 64, 64)
        tensors[b + "ffn_down_exps.weight"] = matrix(n_experts, 64, 32)
        tensors[b + "ffn_down_exps.scale"] = norm(n_experts)
        for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
            tensors[b + name + ".weight"] = norm(64)
    keys = {"expert_count": n_experts, "expert_used_count": 2, "expert_feed_forward_length": 32}
    return copy_model(golden / "gemma4/model.gguf", path, keys=keys, tensors=tensors)


def test_gemma4_with_experts(run, golden, tmp_path):
    """Against llama.cpp (llama-cpp-python 0.3.36, f32 cache) on this very file, every eighth position; its GELU is a table in half precision."""
    path = gemma4_with_experts(golden, tmp_path / "model.gguf")
    want = np.loadtxt(pathlib.Path(__file__).parent / "gemma4_experts_peer.txt", dtype=np.float32)
    got = run(path, Golden(golden / "gemma4").tokens)[7::8]
    assert np.abs(got - want).max() < 0.02 and mean_kld(want, got) < 2e-6
