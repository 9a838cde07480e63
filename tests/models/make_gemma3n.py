"""A gemma3n model like the golden ones: random weights from a seed, the ids of a golden run, and the logits that Hugging Face
transformers has for them, which are in gemma3n_logits.txt.

    python make_gemma3n.py gemma3n_logits.txt      evaluates them again; needs torch and transformers, in which nothing is downloaded
"""
import json
import pathlib
import sys

import gguf
import numpy as np

from make_golden_like import Shape, make_model

LOGITS = pathlib.Path(__file__).parent / "gemma3n_logits.txt"
LAYERS, EMBD, FF, HEAD, VOCAB, EACH, STREAMS, RANK, WINDOW, SHARED = 10, 64, 96, 64, 320, 16, 4, 8, 16, 4
SPARSITY = [0.9, 0.8, 0.5] + [0.0] * 7
ABOVE = [1.2815515655, 0.8416212336, 0.0] + [-float("inf")] * 7  # the same as deviations of a normal distribution
TOKENS, FIRST = 64, 40  # logits are there from the 40th on
TOLERANCE = 4e-4


def make_gemma3n(path, layers=LAYERS, streams=STREAMS, seed=83, keys=None, without=()):
    """keys: others than the model's, by name."""
    shape = Shape(arch="gemma3n", layers=layers, embd=EMBD, ff=FF, heads=2, kv_heads=1, head_dim=HEAD, vocab=VOCAB, seed=seed)
    rng = np.random.default_rng(seed)

    def matrix(*size, std=None):
        return ((1.4 / np.sqrt(size[-1]) if std is None else std) * rng.standard_normal(size)).astype(np.float32)

    def norm(n, at=1.0):
        return (at * (1 + 0.2 * rng.standard_normal(n))).astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(VOCAB, EMBD, std=0.35), "per_layer_token_embd.weight": matrix(VOCAB, layers * EACH, std=0.25),
        "per_layer_model_proj.weight": matrix(layers * EACH, EMBD), "per_layer_proj_norm.weight": norm(EACH),
        "altup_proj.weight": matrix(streams - 1, EMBD, EMBD), "altup_unembd_proj.weight": matrix(streams - 1, EMBD, EMBD),
    }
    for il in range(layers):
        b = f"blk.{il}."
        for name in ("post_attention_norm", "post_ffw_norm", "post_norm", "laurel_post_norm", "altup_router_norm"):
            tensors[f"{b}{name}.weight"] = norm(EMBD)
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"{b}{name}.weight"] = norm(HEAD, 0.3)
        tensors.update({
            b + "inp_gate.weight": matrix(EACH, EMBD), b + "proj.weight": matrix(EMBD, EACH),
            b + "laurel_l.weight": matrix(RANK, EMBD), b + "laurel_r.weight": matrix(EMBD, RANK),
            b + "altup_router.weight": matrix(streams, EMBD, std=6.0), b + "altup_correct_scale.weight": norm(EMBD),
            b + "altup_predict_coef.weight": matrix(streams * streams, streams, std=0.2),
            b + "altup_correct_coef.weight": matrix(streams, streams, std=0.3),
        })
    pattern = [il % 5 != 4 for il in range(layers)]
    own = {
        "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": pattern, "attention.shared_kv_layers": SHARED, "altup.num_inputs": streams,
        "altup.active_idx": 0, "embedding_length_per_layer_input": EACH, "activation_sparsity_scale": ABOVE[:layers],
        "final_logit_softcapping": 15.0, **(keys or {}),
    }
    return make_model(path, shape, without=["output.weight", *without], tensors=tensors, keys=own)


def tokens():
    return np.random.default_rng(5).integers(3, VOCAB, TOKENS).tolist()


def write_folder(folder):
    """A folder in the form of the golden ones."""
    folder.mkdir()
    make_gemma3n(folder / "model.gguf")
    want = np.loadtxt(LOGITS, dtype=np.float32)
    want.tofile(folder / "logits.f32")
    (folder / "golden.json").write_text(json.dumps({
        "arch": "gemma3n", "tokens": tokens(), "n_vocab": VOCAB, "tolerance": {"suggested_max_abs_diff": TOLERANCE},
        "logits_positions": [FIRST, TOKENS], "logits_shape": list(want.shape), "config": {"num_hidden_layers": LAYERS},
    }))
    return folder


# ---- the reference

NAMES = {
    "token_embd": "embed_tokens", "per_layer_token_embd": "embed_tokens_per_layer", "output_norm": "norm",
    "per_layer_model_proj": "per_layer_model_projection", "per_layer_proj_norm": "per_layer_projection_norm",
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
    "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right", "laurel_post_norm": "laurel.post_laurel_norm",
    "altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm",
    "altup_predict_coef": "altup.prediction_coefs", "altup_correct_coef": "altup.correction_coefs",
}


def state(path):
    """The file's tensors under the names of transformers."""
    out = {}
    for t in gguf.GGUFReader(path).tensors:
        parts = t.name.removesuffix(".weight").split(".")
        layer, name = (f"layers.{parts[1]}.", parts[2]) if parts[0] == "blk" else ("", parts[0])
        if name in ("altup_proj", "altup_unembd_proj"):
            module = "altup_projections" if name == "altup_proj" else "altup_unembed_projections"
            out.update({f"model.{module}.{i}.weight": matrix for i, matrix in enumerate(t.data)})
        elif name == "altup_correct_scale":
            out[f"model.{layer}altup.correct_output_scale"] = t.data
        else:
            out[f"model.{layer}{NAMES[name]}.weight"] = t.data
    out["lm_head.weight"] = out["model.embed_tokens.weight"]
    return out


def reference(path, ids, dtype):
    import torch
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig
    config = Gemma3nTextConfig(
        vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, hidden_size=EMBD, hidden_size_per_layer_input=EACH,
        intermediate_size=[FF] * LAYERS, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=HEAD,
        rms_norm_eps=1e-6, sliding_window=WINDOW, num_kv_shared_layers=SHARED, altup_num_inputs=STREAMS, altup_active_idx=0,
        layer_types=["full_attention" if il % 5 == 4 else "sliding_attention" for il in range(LAYERS)], laurel_rank=RANK,
        activation_sparsity_pattern=SPARSITY, final_logit_softcapping=15.0, max_position_embeddings=512,
        attn_implementation="eager")
    model = Gemma3nForCausalLM(config).eval()
    gone = model.load_state_dict({name: torch.tensor(np.array(data)) for name, data in state(path).items()}, strict=False)
    unread = [f"model.layers.{il}.self_attn.{part}.weight" for il in range(LAYERS - SHARED, LAYERS) for part in ("k_proj", "v_proj", "k_norm")]
    assert not gone.missing_keys and set(gone.unexpected_keys) <= set(unread), gone
    with torch.no_grad():
        return model.to(dtype)(torch.tensor([ids])).logits[0].double().numpy()


def main():
    import tempfile
    import torch
    path = make_gemma3n(pathlib.Path(tempfile.mkdtemp()) / "model.gguf")
    want = reference(path, tokens(), torch.float64)
    single = reference(path, tokens(), torch.float32)
    print(f"standard deviation {want.std():.3g}; float32 differs by up to {np.abs(want - single).max():.3g}", file=sys.stderr)
    np.savetxt(sys.argv[1], want[FIRST:], fmt="%.5f")


if __name__ == "__main__":
    main()
