"""LoRA adapters: the same logits as a model whose weights were merged with numpy, for every kind of weight."""
import gguf
import numpy as np
import pytest

from golden import Golden, logits
from gguf_copy import copy_model

RANK, ALPHA = 4, 6.0
F32 = ("-ctk", "f32", "-ctv", "f32")
# model, and parts of the names of the matrices that its adapter changes
CASES = {
    "llama": ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output.weight"],
    "phi3": ["attn_qkv", "ffn_up", "ffn_down"],           # one tensor, several weights
    "qwen3moe": ["ffn_gate_exps", "ffn_down_exps", "ffn_gate_inp.weight"],
    "gemma3": ["attn_q.weight", "token_embd.weight"],       # embeddings that are the output matrix too
}


def tensors_of(path):
    return {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in gguf.GGUFReader(path).tensors}


def halves(name, weight, rng, dtype):
    """a and b as arrays that dtype holds, rows first, and what they add to the weight."""
    *experts, n_out, n_in = weight.shape
    strength = 0.3 * np.abs(weight).mean() * np.sqrt(n_in)
    if name == "token_embd.weight":
        a, b = rng.standard_normal((n_out, RANK)), strength / 8 * rng.standard_normal((n_in, RANK))
    else:
        a, b = rng.standard_normal((*experts, RANK, n_in)) / np.sqrt(n_in), strength * rng.standard_normal((*experts, n_out, RANK))
    a, b = (x.astype(dtype).astype(np.float32) for x in (a, b))
    return a, b, a @ b.T if name == "token_embd.weight" else b @ a


def write_adapter(path, arch, tensors, alpha=ALPHA, kind="lora", type="adapter", dtype=np.float32, **more):
    w = gguf.GGUFWriter(path, arch)
    w.add_string("general.type", type)
    w.add_string("adapter.type", kind)
    w.add_float32("adapter.lora.alpha", alpha)
    for key, value in more.items():
        w.add_array(key.replace("__", "."), value)
    for name, array in tensors.items():
        w.add_tensor(name, array.astype(dtype))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def make(model, arch, names, tmp_path, seed=1, dtype=np.float32, file="adapter.gguf"):
    """An adapter file, and what it adds to each weight at scale 1."""
    rng = np.random.default_rng(seed)
    tensors, delta = {}, {}
    for name, weight in tensors_of(model).items():
        if any(n in name for n in names) and name.endswith("weight") and "norm" not in name:
            a, b, d = halves(name, weight, rng, dtype)
            tensors[name + ".lora_a"], tensors[name + ".lora_b"] = a, b
            delta[name] = d * (ALPHA / RANK)
    assert len(delta) >= 2
    return write_adapter(tmp_path / file, arch, tensors, dtype=dtype), delta


def merged(model, target, *deltas):
    weights = tensors_of(model)
    new = {}
    for delta, scale in deltas:
        for name, d in delta.items():
            new[name] = new.get(name, weights[name]) + np.float32(scale) * d.astype(np.float32)
    if "token_embd.weight" in new and "output.weight" not in weights:  # an adapter of embeddings leaves the output as it was
        new["output.weight"] = weights["token_embd.weight"]
    return copy_model(model, target, tensors=new)


@pytest.mark.parametrize("name", CASES)
def test_equals_merged_weights(athanor, golden, name, tmp_path):
    model = Golden(golden / name)
    arch = "llama" if name == "mixtral" else name
    adapter, delta = make(model.model, arch, CASES[name], tmp_path)
    run = lambda path, *args: logits(athanor, path, model.tokens, tmp_path, *F32, *args, n_vocab=model.n_vocab)  # noqa: E731
    plain = run(model.model)
    got = run(model.model, "--lora", adapter)
    want = run(merged(model.model, tmp_path / "merged.gguf", (delta, 1)))
    assert np.abs(want - plain).max() > 0.3
    assert np.abs(got - want).max() < model.tolerance
    halved = run(model.model, "--lora-scaled", f"{adapter}:-0.5")
    assert np.abs(halved - run(merged(model.model, tmp_path / "merged.gguf", (delta, -0.5)))).max() < model.tolerance
    # row by row, and another number of threads: the same bits
    assert np.array_equal(run(model.model, "--lora", adapter, "-ub", "1", "-t", "1"), got)


def test_several(athanor, golden, tmp_path):
    model = Golden(golden / "llama")
    one, d1 = make(model.model, "llama", ["attn_q", "ffn_down"], tmp_path, 1, file="1.gguf")
    two, d2 = make(model.model, "llama", ["attn_q", "ffn_up"], tmp_path, 2, np.float16, "2.gguf")
    run = lambda path, *args: logits(athanor, path, model.tokens, tmp_path, *F32, *args, n_vocab=model.n_vocab)  # noqa: E731
    want = run(merged(model.model, tmp_path / "merged.gguf", (d1, 1), (d2, 0.75)))
    assert np.abs(run(model.model, "--lora", one, "--lora-scaled", f"{two}:0.75") - want).max() < model.tolerance
    assert np.array_equal(run(model.model, "--lora", f"{one},{two}"), run(model.model, "--lora", one, "--lora", two))


def test_quantised_model(athanor, golden, tmp_path):
    """The adapter is exact whatever the weights are: logits move as they do in F32."""
    model = Golden(golden / "llama")
    adapter, _ = make(model.model, "llama", CASES["llama"], tmp_path)
    moved = [logits(athanor, golden / "llama" / file, model.tokens, tmp_path, *F32, "--lora", adapter, n_vocab=model.n_vocab)
             for file in ("model.gguf", "model-q8_0.gguf")]
    plain = [logits(athanor, golden / "llama" / file, model.tokens, tmp_path, *F32, n_vocab=model.n_vocab)
             for file in ("model.gguf", "model-q8_0.gguf")]
    rounding = np.abs(plain[0] - plain[1]).mean()
    assert np.abs(moved[0] - moved[1]).mean() < 2 * rounding < 0.1 * np.abs(moved[0] - plain[0]).mean()


def test_refusals(athanor, golden, tmp_path):
    model = golden / "llama/model.gguf"
    adapter, _ = make(model, "llama", ["attn_q"], tmp_path)
    a = gguf.GGUFReader(adapter)
    tensors = {t.name: np.array(t.data) for t in a.tensors}
    first = next(iter(tensors))

    def refused(*args):
        done = athanor("completion", "-m", model, "-p", "a", "-n", "1", *args, check=False)
        lines = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
        assert done.returncode == 1 and len(lines) == 1, done.stderr
        return lines[0]

    def written(arch="llama", changed=None, **more):
        return write_adapter(tmp_path / "bad.gguf", arch, {**tensors, **(changed or {})}, **more)

    assert "No such file" in refused("--lora", tmp_path / "none.gguf")
    assert "another architecture than llama" in refused("--lora", written("qwen3"))
    assert "does not say that it is a LoRA adapter" in refused("--lora", model)
    assert "does not say that it is a LoRA adapter" in refused("--lora", written(kind="other"))
    assert "no matrix of the model takes its tensor blk.0.other.weight.lora_a" in refused(
        "--lora", written(changed={"blk.0.other.weight.lora_a": tensors[first]}))
    assert "do not fit the shape of" in refused("--lora", written(changed={first: tensors[first][:, 1:]}))
    assert "do not fit the shape of" in refused("--lora", written(changed={first: tensors[first][1:]}))
    assert "do not fit the shape of" in refused(
        "--lora", write_adapter(tmp_path / "bad.gguf", "llama", {k: v for k, v in tensors.items() if k != first}))
    assert "it holds no tensors" in refused("--lora", write_adapter(tmp_path / "bad.gguf", "llama", {}))
    assert "aLoRA" in refused("--lora", written(adapter__alora__invocation_tokens=[1, 2]))
    assert "expects FILE:SCALE" in refused("--lora-scaled", adapter)
    assert "expects FILE:SCALE" in refused("--lora-scaled", f"{adapter}:x")
    assert "more than 16" in refused(*["--lora", adapter] * 17)
