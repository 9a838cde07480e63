#!/usr/bin/env python3
"""Write a GGUF of a well-known model's exact shape with random weights.

Speed and memory depend on shapes, types and bytes, not on what the weights say, so these files
stand in for models that are too large to ship.  Quantised blocks are random bits under small
scales: finite everywhere, the same work for any engine that reads the file.

    make_model.py SHAPE OUT.gguf [--quant Q4_K_M|Q4_0|Q5_K|Q6_K|Q8_0|F16] [--layers N] [--vocab N] [--ctx N] [--window N] [--seed S]
    make_model.py --list

Needs numpy and gguf (PyPI).  Streams tensor by tensor: memory stays below one tensor.
"""
import argparse
import sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T

# n_layer, n_embd, n_head, n_kv, head_dim, n_ff, vocab, rope base, extras
SHAPES = {
    "smollm2-135m":  dict(arch="llama", L=30, E=576,  H=9,  KV=3, D=64,  F=1536,  V=49152,  base=1e5),
    "llama3.2-1b":   dict(arch="llama", L=16, E=2048, H=32, KV=8, D=64,  F=8192,  V=128256, base=5e5),
    "llama3.1-8b":   dict(arch="llama", L=32, E=4096, H=32, KV=8, D=128, F=14336, V=128256, base=5e5, untied=True),
    "mistral-7b":    dict(arch="llama", L=32, E=4096, H=32, KV=8, D=128, F=14336, V=32768,  base=1e6, untied=True),
    "qwen3-0.6b":    dict(arch="qwen3", L=28, E=1024, H=16, KV=8, D=128, F=3072,  V=151936, base=1e6),
    "qwen3-4b":      dict(arch="qwen3", L=36, E=2560, H=32, KV=8, D=128, F=9728,  V=151936, base=1e6),
    "qwen2.5-1.5b":  dict(arch="qwen2", L=28, E=1536, H=12, KV=2, D=128, F=8960,  V=151936, base=1e6),
    "qwen2.5-7b":    dict(arch="qwen2", L=28, E=3584, H=28, KV=4, D=128, F=18944, V=152064, base=1e6, untied=True),
    "qwen2.5-14b":   dict(arch="qwen2", L=48, E=5120, H=40, KV=8, D=128, F=13824, V=152064, base=1e6, untied=True),
    "gemma3-4b":     dict(arch="gemma3", L=34, E=2560, H=8, KV=4, D=256, F=10240, V=262208, base=1e6, swa=1024),
    # Mixture of experts: F is the width of one of X experts, of which U are used.
    "qwen3-30b-a3b": dict(arch="qwen3moe", L=48, E=2048, H=32, KV=4, D=128, F=768, V=151936, base=1e6, untied=True, X=128, U=8),
    # Three of four layers recurrent (gated DeltaNet): rk key heads and rv value heads of rd channels.
    "qwen3.5-9b":    dict(arch="qwen35", L=32, E=4096, H=16, KV=4, D=256, F=12288, V=248320, base=1e7, untied=True,
                          rot=64, interval=4, rk=16, rv=32, rd=128),
}
CONV = 4            # taps of the recurrent layers' convolution

BLOCK = {T.Q4_K: (256, 144), T.Q6_K: (256, 210), T.Q5_K: (256, 176), T.Q8_0: (32, 34), T.Q5_0: (32, 22), T.Q4_0: (32, 18)}


def quant_bytes(rng, qtype, rows, cols):
    """Random blocks of qtype for a [rows, cols] matrix whose values have a std of about 1/sqrt(cols)."""
    bs, bb = BLOCK[qtype]
    n = rows * cols // bs
    out = rng.integers(0, 256, size=(n, bb), dtype=np.uint8)
    std = 1.0 / np.sqrt(cols)

    def half(values):
        return values.astype(np.float16).view(np.uint8).reshape(-1, 2)

    jitter = rng.uniform(0.8, 1.2, size=n)
    if qtype == T.Q8_0:
        out[:, 0:2] = half(std / 73.0 * jitter)
    elif qtype == T.Q4_0:
        out[:, 0:2] = half(std / 4.6 * jitter)
    elif qtype == T.Q5_0:
        out[:, 0:2] = half(std / 9.2 * jitter)
    elif qtype in (T.Q4_K, T.Q5_K):
        # value = d*sc*q - dmin*mn; sc, mn are 6-bit (mean 32): centre the codes, q mean is 7.5 (15.5)
        q_mean, q_std = (7.5, 4.6) if qtype == T.Q4_K else (15.5, 9.2)
        d = std / (q_std * 32.0)
        out[:, 0:2] = half(d * jitter)
        out[:, 2:4] = half(d * q_mean * jitter)
    elif qtype == T.Q6_K:
        out[:, 192:208] = rng.integers(1, 64, size=(n, 16), dtype=np.uint8)
        out[:, 208:210] = half(std / (18.5 * 32.0) * jitter)
    return out.reshape(rows, -1)


def pick(quant, name, cols, layer, n_layer):
    """The type that common quantisers give this tensor."""
    if quant == "F16":
        return T.F16
    if quant == "Q8_0":
        return T.Q8_0
    if quant in ("Q4_0", "Q5_K", "Q6_K"):                        # one type throughout
        return getattr(T, quant) if quant == "Q4_0" or cols % 256 == 0 else T.Q8_0
    more = layer is not None and (layer < n_layer // 8 or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2)
    big = name in ("output", "token_embd") or (name in ("attn_v", "ffn_down") and more)
    if cols % 256:
        return T.Q8_0 if big else T.Q5_0
    return T.Q6_K if big else T.Q4_K


def norm(name, n):
    return (name, None, (n,), None)


def attention(b, i, s):
    """Tensors of layer i's attention, as (name, kind, shape, layer); kind None: F32."""
    E, H, KV, D = (s[k] for k in "E H KV D".split())
    wide = 2 if s["arch"] == "qwen35" else 1                        # a gate beside every query
    out = [(b + "attn_q.weight", "attn_q", (wide * H * D, E), i), (b + "attn_k.weight", "attn_k", (KV * D, E), i),
           (b + "attn_v.weight", "attn_v", (KV * D, E), i), (b + "attn_output.weight", "attn_output", (E, H * D), i)]
    if s["arch"] in ("qwen3", "qwen3moe", "gemma3", "qwen35"):
        out += [norm(b + "attn_q_norm.weight", D), norm(b + "attn_k_norm.weight", D)]
    if s["arch"] == "qwen2":
        out += [norm(b + "attn_q.bias", H * D), norm(b + "attn_k.bias", KV * D), norm(b + "attn_v.bias", KV * D)]
    return out


def recurrence(b, i, s):
    E, S, keys, values = s["E"], s["rd"], s["rk"] * s["rd"], s["rv"] * s["rd"]
    return [(b + "attn_qkv.weight", "attn_qkv", (2 * keys + values, E), i), (b + "attn_gate.weight", "attn_gate", (values, E), i),
            (b + "ssm_alpha.weight", None, (s["rv"], E), i), (b + "ssm_beta.weight", None, (s["rv"], E), i),
            (b + "ssm_conv1d.weight", None, (2 * keys + values, CONV), i), norm(b + "ssm_a", s["rv"]),
            norm(b + "ssm_dt.bias", s["rv"]), norm(b + "ssm_norm.weight", S), (b + "ssm_out.weight", "ssm_out", (E, values), i)]


def feed_forward(b, i, s):
    E, F = s["E"], s["F"]
    if "X" not in s:
        return [(b + "ffn_gate.weight", "ffn_gate", (F, E), i), (b + "ffn_up.weight", "ffn_up", (F, E), i),
                (b + "ffn_down.weight", "ffn_down", (E, F), i)]
    return [(b + "ffn_gate_inp.weight", None, (s["X"], E), i), (b + "ffn_gate_exps.weight", "ffn_gate", (s["X"], F, E), i),
            (b + "ffn_up_exps.weight", "ffn_up", (s["X"], F, E), i), (b + "ffn_down_exps.weight", "ffn_down", (s["X"], E, F), i)]


def tensors(s):
    E, V, L, arch = (s[k] for k in "E V L arch".split())
    todo = [("token_embd.weight", "token_embd", (V, E), None)]
    for i in range(L):
        b = f"blk.{i}."
        recurrent = "interval" in s and (i + 1) % s["interval"] != 0
        todo += [norm(b + "attn_norm.weight", E), *(recurrence if recurrent else attention)(b, i, s),
                 norm(b + ("post_attention_norm.weight" if arch == "qwen35" else "ffn_norm.weight"), E), *feed_forward(b, i, s)]
        if arch == "gemma3":
            todo += [norm(b + "post_attention_norm.weight", E), norm(b + "post_ffw_norm.weight", E)]
    todo.append(norm("output_norm.weight", E))
    if s.get("untied"):
        todo.append(("output.weight", "output", (V, E), None))
    return todo


def values(rng, name, shape):
    """F32 values of a small tensor: norms near 1, biases near 0, decays below 0, rows of matrices near unit length."""
    x = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(x)
    if name.endswith("bias"):
        return 0.1 * x
    return x / np.sqrt(np.float32(shape[-1])) if len(shape) > 1 else 1 + 0.1 * x


def add_recurrent_keys(w, s):
    for key, value in (("full_attention_interval", s["interval"]), ("ssm.conv_kernel", CONV), ("ssm.state_size", s["rd"]),
                       ("ssm.group_count", s["rk"]), ("ssm.time_step_rank", s["rv"]), ("ssm.inner_size", s["rv"] * s["rd"])):
        w.add_uint32(f"{s['arch']}.{key}", value)
    third = (s["rot"] // 2 + 2) // 3
    w.add_array(f"{s['arch']}.rope.dimension_sections", [third, third, s["rot"] // 2 - 2 * third, 0])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("shape", nargs="?")
    ap.add_argument("out", nargs="?")
    ap.add_argument("--quant", default="Q4_K_M", choices=["Q4_K_M", "Q4_0", "Q5_K", "Q6_K", "Q8_0", "F16"])
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--ctx", type=int, default=131072)
    ap.add_argument("--window", type=int, help="tokens that the windowed layers of a shape see (shapes that have such layers)")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    if a.list or not a.out:
        for k, v in SHAPES.items():
            print(f"{k:14s} {v}")
        return 0 if a.list else 2
    s = dict(SHAPES[a.shape])
    s["L"] = a.layers or s["L"]
    s["V"] = a.vocab or s["V"]
    if a.window and "swa" not in s:
        sys.exit(f"{a.shape} has no layers with a window")
    rng = np.random.default_rng(a.seed)

    w = gguf.GGUFWriter(a.out, s["arch"], use_temp_file=False)
    w.add_name(f"{a.shape}-random")
    w.add_context_length(a.ctx)
    w.add_embedding_length(s["E"])
    w.add_block_count(s["L"])
    w.add_feed_forward_length(s["F"])
    w.add_head_count(s["H"])
    w.add_head_count_kv(s["KV"])
    w.add_key_length(s["D"])
    w.add_value_length(s["D"])
    w.add_rope_dimension_count(s.get("rot", s["D"]))
    w.add_rope_freq_base(s["base"])
    w.add_layer_norm_rms_eps(1e-6)
    if "swa" in s:
        w.add_sliding_window(a.window or s["swa"])
    if "X" in s:
        w.add_expert_count(s["X"])
        w.add_expert_used_count(s["U"])
        w.add_expert_feed_forward_length(s["F"])
    if "interval" in s:
        add_recurrent_keys(w, s)
    w.add_file_type({"Q4_K_M": 15, "Q4_0": 2, "Q5_K": 17, "Q6_K": 18, "Q8_0": 7, "F16": 1}[a.quant])

    # A byte-level vocabulary: the 256 bytes, filler tokens, one end token.
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in printable:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    toks = [table[b] for b in range(256)] + [f"<unused{i}>" for i in range(s["V"] - 257)] + ["<|endoftext|>"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(toks)
    w.add_token_types([1] * 256 + [5] * (s["V"] - 257) + [3])
    w.add_token_merges([f"{table[ord('t')]} {table[ord('h')]}"])
    w.add_eos_token_id(s["V"] - 1)
    w.add_bos_token_id(s["V"] - 1)
    w.add_add_bos_token(False)

    todo, L, V = tensors(s), s["L"], s["V"]
    plan = []
    for name, kind, shape, layer in todo:
        t = T.F32 if kind is None else pick(a.quant, kind, shape[-1], layer, L)
        if t == T.F32:
            w.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        elif t == T.F16:
            w.add_tensor_info(name, shape, np.dtype(np.float16), int(np.prod(shape)) * 2)
        else:
            bs, bb = BLOCK[t]
            byte_shape = (*shape[:-1], shape[-1] // bs * bb)
            w.add_tensor_info(name, byte_shape, np.dtype(np.uint8), int(np.prod(byte_shape)), raw_dtype=t)
        plan.append((name, shape, t))

    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, t in plan:
        if t == T.F32:
            x = values(rng, name, shape)
        elif t == T.F16:
            x = (rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])).astype(np.float16)
        else:
            x = quant_bytes(rng, t, int(np.prod(shape[:-1])), shape[-1]).reshape(*shape[:-1], -1)
        w.write_tensor_data(x)
    w.close()
    print(f"{a.out}: {a.shape} {a.quant}, {L} layers, {V} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
