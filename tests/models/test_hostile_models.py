"""Model files that make no sense, and requests that a model can't serve: exit code 1, one line on stderr that names what
is wrong, and no output file."""
import re
import resource

import gguf
import numpy as np
import pytest

from make_gemma3n import make_gemma3n
from make_golden_like import Shape, make_model

SMALL = Shape(head_dim=32, ff=64, vocab=300)


@pytest.fixture
def refused(athanor, tmp_path):
    """refused(model, words, *flags): runs `logits`, which must fail, and checks that its line holds the words."""
    def check(model, words, *flags, ids="5 6 7"):
        out = tmp_path / "logits.f32"
        before = sorted(tmp_path.iterdir())
        done = athanor("logits", "-m", model, "--ids", ids, "-o", out, *flags, check=False)
        message = done.stderr.decode()
        assert done.returncode == 1, message
        assert done.stdout == b""
        assert message.startswith("error: ") and message.count("\n") == 1 and message.endswith("\n"), message
        for word in words:
            assert word in message, message
        assert sorted(tmp_path.iterdir()) == before
    return check


def model(tmp_path, shape=SMALL, **kw):
    return make_model(tmp_path / "model.gguf", shape, **kw)


def test_the_model_itself_runs(athanor, tmp_path):
    out = tmp_path / "logits.f32"
    done = athanor("logits", "-m", model(tmp_path), "--ids", "5 6 7", "-o", out)
    assert out.stat().st_size == 3 * 300 * 4
    assert b"error" not in done.stderr and b"warning" not in done.stderr, done.stderr


def test_unknown_architecture(refused, tmp_path):
    path = model(tmp_path, Shape(arch="foobar", head_dim=32, ff=64, vocab=300))
    refused(path, ["foobar", "gemma3", "llama", "qwen2", "qwen3"])


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.attn_q.weight", "blk.0.ffn_norm.weight",
                                  "blk.1.ffn_down.weight", "blk.0.attn_output.weight"])
def test_missing_tensor(refused, tmp_path, name):
    refused(model(tmp_path, without=[name]), [name, "missing"])


@pytest.mark.parametrize("key, words", [
    ("block_count", ["llama.block_count"]), ("embedding_length", ["llama.embedding_length"]),
    ("context_length", ["llama.context_length"]), ("feed_forward_length", ["llama.feed_forward_length"]),
    ("attention.head_count", ["heads"]),
])
def test_missing_key(refused, tmp_path, key, words):
    refused(model(tmp_path, without=[key]), words)


@pytest.mark.parametrize("name, shape, words", [
    ("blk.0.attn_k.weight", (48, 64), ["[64, 48]", "[64, 32"]),
    ("blk.1.ffn_up.weight", (64, 32), ["[32, 64]", "[64, 64"]),
    ("output_norm.weight", (63,), ["[63]", "[64"]),
    ("token_embd.weight", (300, 32), ["[32, 300]", "[64, 300"]),
    ("output.weight", (299, 64), ["[64, 299]", "[64, 300"]),
])
def test_wrong_shape(refused, tmp_path, name, shape, words):
    refused(model(tmp_path, tensors={name: np.zeros(shape, np.float32)}), [name, *words])


def test_wrong_kind_of_tensor(refused, tmp_path):
    refused(model(tmp_path, tensors={"blk.0.attn_v.weight": np.zeros((32, 64), np.int32)}), ["blk.0.attn_v.weight", "I32"])


def test_vocabulary_larger_than_the_embeddings(refused, tmp_path):
    small = {name: np.zeros((280, 64), np.float32) for name in ("token_embd.weight", "output.weight")}
    refused(model(tmp_path, tensors=small), ["300", "280"])


@pytest.mark.parametrize("ids, words", [("5 300", ["300"]), ("2147483647", ["2147483647"]), ("5 -1", ["-1"]),
                                        ("99999999999", ["99999999999"]), ("5 x", ["x"])])
def test_token_out_of_range(refused, tmp_path, ids, words):
    refused(model(tmp_path), words, ids=ids)


@pytest.mark.parametrize("keys, words", [
    ({"attention.head_count": 3, "attention.head_count_kv": 2}, ["3 heads", "2 kv heads"]),
    ({"attention.head_count": 0}, ["0 heads"]),
    ({"attention.key_length": 1 << 20}, ["1048576"]),
    ({"block_count": 4000000000}, ["block_count"]),
    ({"block_count": 3}, ["blk.2."]),
    ({"embedding_length": 0}, ["embedding_length"]),
    ({"rope.dimension_count": 33}, ["33"]),
    ({"rope.dimension_count": 64}, ["64"]),
    ({"context_length": 0}, ["context_length"]),
])
def test_keys_that_make_no_sense(refused, tmp_path, keys, words):
    refused(model(tmp_path, keys=keys), words)


def test_rotation_wider_than_the_heads_of_a_later_layer(refused, tmp_path):
    # Without key_length a layer's heads are as wide as its share of the embedding: 32 channels, then 16.
    square = {f"blk.{il}.attn_{name}.weight": np.zeros((64, 64), np.float32) for il in (0, 1) for name in ("q", "k", "v", "output")}
    keys = {"attention.head_count": [2, 4], "attention.head_count_kv": [2, 4], "rope.dimension_count": 32}
    path = model(tmp_path, without=["attention.key_length", "attention.value_length"], tensors=square, keys=keys)
    refused(path, ["32 channels", "layer 1", "heads of 16"])


def test_numbers_that_are_none(refused, tmp_path):
    for key in ("rope.freq_base", "rope.scaling.factor"):
        for value in (float("nan"), float("inf")):
            refused(model(tmp_path, keys={key: value}), [f"llama.{key} is"])


def test_names_cannot_steer_the_terminal(refused, athanor, tmp_path):
    path = model(tmp_path, Shape(arch="evil\n\x1b[31m", head_dim=32, ff=64, vocab=300))
    refused(path, ["evil??[31m"])
    path = model(tmp_path, keys={"rope.scaling.type": "evil\n\x1b[31m"})
    refused(path, ["evil??[31m"])
    path = tmp_path / "no\nsuch"
    refused(path, ["no?such"])


def test_context_smaller_than_any_prompt(athanor, tmp_path, golden):
    # The learned positions of GPT-2 are the context: with two of them no prompt fits, and nothing is written behind them.
    source, path = gguf.GGUFReader(golden / "gpt2/model.gguf"), tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = 2 if name == "gpt2.context_length" else field.contents()
            writer.add_key_value(name, value, field.types[0], sub_type=field.types[-1] if len(field.types) > 1 else None)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data[:2] if tensor.name == "position_embd.weight" else tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = athanor("-m", path, "-p", "the hand of the water", "-n", 4, program="llama-completion", check=False)
    assert done.returncode == 1 and b"a context of 2 takes prompts of up to 0" in done.stderr, done.stderr


def test_memory_that_ends(athanor_release, tmp_path):
    shape = Shape(embd=512, head_dim=64, ff=16384, vocab=300)
    path = model(tmp_path, shape)
    seen = set()
    for mib in range(120, 560, 40):
        limit = mib << 20
        done = athanor_release("logits", "-m", path, "--ids", "5 6", "-o", tmp_path / "out.f32", "-t", 1, "-ub", 8, check=False,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        message = done.stderr.decode()
        assert done.returncode in (0, 1) and message.count("\n") == 1, (mib, message)
        seen.add("ran" if done.returncode == 0 else "MiB" in message)
    assert seen >= {True, "ran"}


@pytest.mark.parametrize("head_dim, kind", [(24, "turbo3"), (24, "q4_0"), (40, "turbo2")])
def test_head_size_that_a_type_cannot_hold(refused, athanor, tmp_path, head_dim, kind):
    path = model(tmp_path, Shape(head_dim=head_dim, ff=64, vocab=300))
    refused(path, [str(head_dim), kind, "f16"], "-ctk", kind)
    refused(path, [str(head_dim), kind, "f16"], "-ctv", kind)
    athanor("logits", "-m", path, "--ids", "5 6", "-o", tmp_path / "out.f32", "-ctk", "bf16")


def test_unknown_cache_type(refused, tmp_path):
    refused(model(tmp_path), ["turbo5", "turbo4", "turbo3", "turbo2", "q8_0", "iq4_nl"], "-ctk", "turbo5")


def test_context_that_is_too_small_or_too_large(refused, tmp_path):
    path = model(tmp_path)
    refused(path, ["300", "256"], "-c", "256", ids=" ".join(["7"] * 300))
    refused(path, ["MiB", "turbo2"], "-c", str(1 << 31))


def test_not_a_number(refused, tmp_path):
    bad = np.ones((32, 64), np.float32)
    bad[3, 5] = np.nan
    path = model(tmp_path, tensors={"blk.1.attn_k.weight": bad})
    refused(path, ["layer 1"])
    refused(path, ["blk.1.attn_k.weight"], "--check-tensors")


def test_broken_files(refused, tmp_path):
    data = model(tmp_path).read_bytes()
    broken = tmp_path / "broken.gguf"
    sizes = [0, 3, 4, 20, 100, 1000, len(data) // 2, len(data) - 1]
    for size in sizes:
        broken.write_bytes(data[:size])
        refused(broken, ["broken.gguf"])
    for content in (b"\0" * 4096, b"PK\x03\x04" + data[4:], b"GGUF" + b"\xff" * 100, b"GGML" + data[4:]):
        broken.write_bytes(content)
        refused(broken, ["broken.gguf"])


def test_wrong_endian(refused, tmp_path):
    path = model(tmp_path, endianess=gguf.GGUFEndian.BIG)
    refused(path, ["endian"])


def test_no_such_file(refused, tmp_path):
    refused(tmp_path / "none.gguf", ["none.gguf", "No such file"])
    (tmp_path / "folder.gguf").mkdir()
    refused(tmp_path / "folder.gguf", ["folder.gguf"])


def test_output_that_cannot_be_written(athanor, tmp_path):
    done = athanor("logits", "-m", model(tmp_path), "--ids", "5", "-o", tmp_path / "no/where.f32", check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*no/where\.f32.*\n", done.stderr.decode()), done.stderr


@pytest.mark.parametrize("keys, words", [
    ({"altup.num_inputs": 17}, ["altup.num_inputs 17"]), ({"altup.num_inputs": 1}, ["altup.num_inputs 1"]),
    ({"altup.active_idx": 1}, ["active_idx 1"]), ({"altup.num_inputs": 3}, ["altup_proj.weight", "shape"]),
    ({"activation_sparsity_scale": [1.5] * 9}, ["activation_sparsity_scale"]), ({"activation_sparsity_scale": 1.5}, ["activation_sparsity_scale"]),
    ({"activation_sparsity_scale": [float("nan")] * 10}, ["activation_sparsity_scale", "layer 0"]),
    ({"attention.shared_kv_layers": 10}, ["attention.shared_kv_layers"]), ({"attention.shared_kv_layers": 6}, ["layer 4", "shares"]),
    ({"embedding_length_per_layer_input": 0}, ["embedding_length_per_layer_input"]),
    ({"embedding_length_per_layer_input": 17}, ["per_layer_token_embd.weight"]),
])
def test_gemma3n(refused, tmp_path, keys, words):
    refused(make_gemma3n(tmp_path / "model.gguf", keys=keys), words)
