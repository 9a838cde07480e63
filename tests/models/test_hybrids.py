"""Models with recurrent layers: which layers are, by which key, and what is refused. (Their logits: test_golden.py; states,
rollbacks and saved sequences: tests/kv/test_kv_recurrent.c, tests/engine/test_session_recurrent.c.)
"""
import json
import subprocess

import numpy as np
import pytest

import vector
from conftest import BUILD
from golden import Golden, copy_model, logits

F32 = ("-ctk", "f32", "-ctv", "f32")


@pytest.fixture
def model(golden):
    return Golden(golden / "qwen35")


def test_recurrent_layers_by_name(model, athanor, tmp_path):
    path = copy_model(model.model, tmp_path / "m.gguf", {"attention.recurrent_layers": [True, True, True, False],
                                                         "full_attention_interval": 2})
    got = logits(athanor, path, model.tokens, tmp_path, *F32, n_vocab=model.n_vocab)
    assert np.abs(got - model.reference()).max() <= model.tolerance


def test_layers_that_predict_further_tokens_are_left_out(model, athanor, tmp_path):
    # Here it is the only one with attention: what is left has no K and V at all.
    flags = ("--override-kv", "qwen35.nextn_predict_layers=int:1")
    got = logits(athanor, model.model, model.tokens, tmp_path, *flags, n_vocab=model.n_vocab)
    assert len(got) == len(model.tokens) and np.isfinite(got).all() and np.abs(got - model.reference()).max() > 0.1


@pytest.mark.parametrize("key, value, words", [
    ("ssm.state_size", 48, ["qwen35.ssm", "48 channels"]), ("ssm.inner_size", 257, ["qwen35.ssm", "257 inner"]),
    ("ssm.group_count", 3, ["qwen35.ssm", "3 key heads"]), ("ssm.group_count", 0, ["qwen35.ssm"]),
    ("ssm.time_step_rank", 0, ["qwen35.ssm"]), ("ssm.conv_kernel", 0, ["qwen35.ssm", "0 taps"]),
    ("ssm.conv_kernel", 4000000000, ["qwen35.ssm"]), ("ssm.conv_kernel", 3, ["blk.0.ssm_conv1d.weight", "[4, 512]"]),
    ("full_attention_interval", 0, ["qwen35.full_attention_interval"]),
    ("full_attention_interval", 2, ["blk.1.attn_qkv.weight", "768"]),
    ("nextn_predict_layers", 4, ["qwen35.nextn_predict_layers"]), ("attention.value_length", 64, ["layer 3", "gate"]),
])
def test_keys_that_make_no_sense(model, athanor, tmp_path, key, value, words):
    done = athanor("logits", "-m", model.model, "--ids", "5 6", "-o", tmp_path / "out.f32", "--override-kv",
                   f"qwen35.{key}=int:{value}", check=False)
    message = done.stderr.decode()
    assert done.returncode == 1 and message.startswith("error: ") and message.count("\n") == 1, message
    for word in words:
        assert word in message, message


def test_inspect(athanor, golden):
    j = json.loads(athanor("inspect", golden / "qwen35/model.gguf", "--json").stdout)
    assert [layer["cache"] for layer in j["layers"]] == ["recurrent"] * 3 + ["full"]
    state = 4 * (3 * 512 + 4 * 64 * 64)  # three inputs of 512 channels, four heads of 64 x 64
    assert [layer["state_bytes"] for layer in j["layers"]] == [state] * 3 + [0]
    assert j["cache"]["f16"]["bytes_per_token"] == 2 * 2 * 128  # of the one layer with attention
    plan = j["cache"]["turbo3"]["plans"][0]  # 8,192 tokens: two states at boundaries and one in the making
    assert 9 * state <= plan["bytes_state"] <= 9 * state + 3 * 128
    assert j["cache"]["turbo3"]["type_k"] == "turbo3"
    text = athanor("inspect", golden / "qwen35/model.gguf").stdout.decode()
    assert "3 layers with a recurrent state of 70.0 KiB\n" in text and "1 layer with a full cache: head_dim 128" in text


@pytest.mark.parametrize("name", [name for name in vector.NAMES if vector.recipe(name).get("recurrent")])
def test_states_rollbacks_and_saved_sequences(name, family):
    """Bitwise, as test_session_recurrent.c does it with golden models."""
    done = subprocess.run([BUILD / "tests/test_session_recurrent", family(name).model], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
