"""Files whose tensors have types of all kinds side by side, as they are found on the hub: the logits of the same weights in F32, up to the
rounding of activations to 8 bits; the same files in parts."""
import gguf
import numpy as np
import pytest

from golden import logits, mean_kld
from make_golden_like import Shape, add_key, write_keys, write_vocabulary
from random_blocks import random_blocks

SHAPE = Shape(layers=2, embd=256, ff=512, heads=4, kv_heads=2, head_dim=64, seed=3)
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MIXES = {
    "small Q4_K_M": ["Q5_0", "Q5_0", "Q8_0", "Q5_0", "Q4_K", "Q5_0", "Q6_K"],
    "UD IQ2": ["IQ2_XXS", "IQ2_XS", "IQ4_XS", "IQ3_XXS", "IQ2_S", "IQ2_XXS", "Q2_K"],
    "UD IQ3": ["IQ3_S", "IQ3_XXS", "Q5_K", "IQ4_NL", "IQ3_S", "IQ1_S", "Q3_K"],
    "legacy": ["Q4_0", "Q4_1", "Q5_1", "Q5_0", "Q4_0", "Q4_1", "Q8_0"],
    "MXFP4_MOE": ["Q8_0", "Q8_0", "Q8_0", "Q8_0", "MXFP4", "MXFP4", "MXFP4"],
}


def tensors_of(mix, seed=1):
    """{name: (bytes or floats, type or None, the values in F32)}"""
    rng = np.random.default_rng(seed)
    out = {}

    def add(name, kind, shape, gain):
        data, raw = random_blocks(rng, kind, shape, gain / np.sqrt(shape[-1]))
        out[name] = data, raw, gguf.dequantize(data, raw).reshape(shape)

    def add_float(name, values):
        out[name] = values.astype(np.float32), None, values.astype(np.float32)

    s, experts = SHAPE, (4,) if mix == "MXFP4_MOE" else ()
    shapes = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256), "ffn_gate": (512, 256),
              "ffn_up": (512, 256), "ffn_down": (256, 512)}
    add("token_embd.weight", "Q6_K", (s.vocab, 256), 16)
    add("output.weight", "Q6_K", (s.vocab, 256), 3)
    add_float("output_norm.weight", 1 + 0.1 * rng.standard_normal(256))
    for il in range(s.layers):
        for name in ("attn_norm", "ffn_norm"):
            add_float(f"blk.{il}.{name}.weight", 1 + 0.1 * rng.standard_normal(256))
        for part, kind in zip(PARTS, MIXES[mix]):
            more = experts if part.startswith("ffn") else ()
            add(f"blk.{il}.{part}{'_exps' if more else ''}.weight", kind, (*more, *shapes[part]), 1.5)
        if experts:
            add_float(f"blk.{il}.ffn_gate_inp.weight", rng.standard_normal((4, 256)) / 4)
    return out


def write(path, mix, tensors, plain, **writer):
    w = gguf.GGUFWriter(path, "llama", **writer)
    write_keys(w, SHAPE, (), {})
    if mix == "MXFP4_MOE":
        add_key(w, "llama.expert_count", 4)
        add_key(w, "llama.expert_used_count", 2)
    write_vocabulary(w, SHAPE.vocab)
    for name, (data, raw, values) in tensors.items():
        w.add_tensor(name, values if plain else data, raw_dtype=None if plain else raw)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("mix", MIXES)
def test_same_as_in_f32(athanor_release, tmp_path, mix):
    tensors = tensors_of(mix)
    write(tmp_path / "mixed.gguf", mix, tensors, False)
    write(tmp_path / "plain.gguf", mix, tensors, True)
    tokens = np.random.default_rng(2).integers(3, SHAPE.vocab, 48).tolist()

    def run(name, *flags):
        return logits(athanor_release, tmp_path / name, tokens, tmp_path, "-ctk", "f32", "-ctv", "f32", *flags, n_vocab=SHAPE.vocab)

    want, got = run("plain.gguf"), run("mixed.gguf")
    assert want.std() > 1
    kld = mean_kld(want, got)
    print(f"{mix}: mean KLD {kld:.3g}")
    # A router's choice may flip. IQ types are multiplied in F32, so a mix of them alone is exact.
    assert kld < (2e-2 if mix == "MXFP4_MOE" else 4e-3)
    assert (run("mixed.gguf", "-ub", 1) == got).all()
    write(tmp_path / "part.gguf", mix, tensors, False, split_max_tensors=5)
    first = min(tmp_path.glob("part-00001-of-*.gguf"))
    assert (run(first.name) == got).all()
