"""Stretched positions by key and by flag: a file that says so, and the plain file with the flags, give the same bits."""
import numpy as np
import pytest

from gguf_copy import copy_model
from golden import Golden, logits
from test_golden import F32, LONG, MODELS, QUANTISED, compare

# gpt2 learns its positions; one factor of gpt-oss means the released model, which rounds in its own way; olmo3's base by key is that
# of its windowed layers too, which no flag changes.
LEFT_OUT = {"gpt2", "gpt-oss-notrunc", "olmo3", "mistral", "qwen3-yarn", "deepseek3", *LONG, *QUANTISED}
FAMILIES = [name for name in MODELS if name not in LEFT_OUT]
N_TOKENS = 40
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32, "rope.freq_base": 5000.0,
    "rope.scaling.yarn_ext_factor": 0.75, "rope.scaling.yarn_attn_factor": 1.25, "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 2.0,
}
YARN_FLAGS = (
    "--rope-scaling", "yarn", "--rope-scale", 4, "--yarn-orig-ctx", 32, "--rope-freq-base", 5000, "--yarn-ext-factor", 0.75,
    "--yarn-attn-factor", 1.25, "--yarn-beta-fast", 8, "--yarn-beta-slow", 2)
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
LINEAR_FLAGS = ("--rope-scaling", "linear", "--rope-freq-scale", 0.25)


@pytest.fixture
def run(athanor_release, family, tmp_path):
    """run(family, its file, flags): logits."""
    def run(name, path, *flags):
        model = family(name)
        return logits(athanor_release, path, model.tokens[:N_TOKENS], tmp_path, *F32, *flags, n_vocab=model.n_vocab)
    return run


@pytest.mark.parametrize("name", FAMILIES)
def test_by_key_and_by_flag(name, run, family, tmp_path):
    path = family(name).model
    results = [run(name, path, "--rope-scaling", "none")]
    for keys, flags in ((YARN, YARN_FLAGS), (LINEAR, LINEAR_FLAGS)):
        copy = copy_model(path, tmp_path / "keys.gguf", keys=keys)
        by_key, by_flag = run(name, copy), run(name, path, *flags)
        assert (by_key == by_flag).all()
        for other in results:  # another model each time
            assert np.abs(by_key - other).max() > 1e-3
        results.append(by_key)


def test_none_in_place_of_keys(run, golden, tmp_path):
    path = golden / "qwen3/model.gguf"
    copy = copy_model(path, tmp_path / "keys.gguf", keys=LINEAR)
    assert (run("qwen3", copy, "--rope-scaling", "none") == run("qwen3", path)).all()


@pytest.mark.parametrize("flag, value", [("--rope-scale", 3), ("--yarn-orig-ctx", 100), ("--rope-freq-base", 7000), ("--yarn-ext-factor", 0.3),
                                         ("--yarn-attn-factor", 1.1), ("--yarn-beta-fast", 3), ("--yarn-beta-slow", 3)])
def test_each_flag_counts(flag, value, run, golden):
    path = golden / "qwen3/model.gguf"
    assert (run("qwen3", path, *YARN_FLAGS) != run("qwen3", path, *YARN_FLAGS, flag, value)).any()


@pytest.mark.parametrize("flags", [
    ("--rope-scaling", "yarn", "--rope-scale", 4, "--yarn-ext-factor", 0),
    ("--rope-scaling", "linear", "--rope-scale", 4), ("--rope-freq-scale", 0.25),
])
def test_other_words_for_linear_scaling(flags, run, golden):
    """YaRN without extrapolation is interpolation alone, without a factor on cos and sin (as in llama.cpp, checked by hand)."""
    path = golden / "qwen3/model.gguf"
    assert (run("qwen3", path, *flags) == run("qwen3", path, *LINEAR_FLAGS)).all()


def test_flags_in_place_of_keys(run, golden, tmp_path, athanor):
    """The golden logits of the model with YaRN, from its file without the keys."""
    model = Golden(golden / "qwen3-yarn")
    keys = ["type", "factor", "original_context_length", "attn_factor"]
    path = copy_model(model.model, tmp_path / "plain.gguf", without=[f"qwen3.rope.scaling.{key}" for key in keys])
    scaling = model.info["config"]["rope_parameters"]
    flags = ("--rope-scaling", "yarn", "--rope-scale", scaling["factor"], "--yarn-orig-ctx", scaling["original_max_position_embeddings"])
    got = logits(athanor, path, model.tokens, tmp_path, *F32, *flags, n_vocab=model.n_vocab)
    compare(model, got, model.tolerance, 1e-7)
    plain = logits(athanor, path, model.tokens, tmp_path, *F32, n_vocab=model.n_vocab)
    assert np.abs(plain - got).max() > 0.01
