"""Writes a llama GGUF like the golden ones, in any shape: random F32 weights from a seed, scaled so that attention
matters and logits spread as theirs do, and a toy vocabulary. Every part can be left out or replaced, for tests of what
a broken file gets."""
import dataclasses

import gguf
import numpy as np


@dataclasses.dataclass
class Shape:
    arch: str = "llama"
    layers: int = 2
    embd: int = 64
    ff: int = 96
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 256
    vocab: int = 320
    context: int = 512
    seed: int = 1


def make_model(path, shape, without=(), tensors=None, keys=None, **writer):
    """without: names of tensors and keys that are left out; tensors, keys: replacements by name; whole numbers as u32."""
    w = gguf.GGUFWriter(path, shape.arch, **writer)
    write_keys(w, shape, without, keys or {})
    write_vocabulary(w, shape.vocab)
    for name, array in {**random_tensors(shape), **(tensors or {})}.items():
        if name not in without:
            w.add_tensor(name, array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def write_keys(w, shape, without, replaced):
    keys = {
        "block_count": shape.layers, "context_length": shape.context, "embedding_length": shape.embd,
        "feed_forward_length": shape.ff, "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim, "attention.layer_norm_rms_epsilon": 1e-5, **replaced,
    }
    for name, value in keys.items():
        if name not in without:
            add_key(w, f"{shape.arch}.{name}", value)


def add_key(w, name, value):
    add = {int: w.add_uint32, float: w.add_float32, str: w.add_string, list: w.add_array, bool: w.add_bool}[type(value)]
    add(name, value)


def write_vocabulary(w, n):
    letters = [f"t{i}" for i in range(n - 259)]
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + letters)
    w.add_token_scores([0.0] * n)
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(letters))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def random_tensors(shape):
    rng = np.random.default_rng(shape.seed)
    embd, ff, n_q, n_kv = shape.embd, shape.ff, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(n_out, n_in, gain):
        return (gain / np.sqrt(n_in) * rng.standard_normal((n_out, n_in))).astype(np.float32)

    def norm():
        return (1 + 0.1 * rng.standard_normal(embd)).astype(np.float32)

    out = {"token_embd.weight": matrix(shape.vocab, embd, np.sqrt(embd))}
    for i in range(shape.layers):
        out.update({
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": matrix(n_q, embd, 1.5),
            f"blk.{i}.attn_k.weight": matrix(n_kv, embd, 1.5),
            f"blk.{i}.attn_v.weight": matrix(n_kv, embd, 1),
            f"blk.{i}.attn_output.weight": matrix(embd, n_q, 2),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": matrix(ff, embd, 1),
            f"blk.{i}.ffn_up.weight": matrix(ff, embd, 1),
            f"blk.{i}.ffn_down.weight": matrix(embd, ff, 1),
        })
    return {**out, "output_norm.weight": norm(), "output.weight": matrix(shape.vocab, embd, 3)}
