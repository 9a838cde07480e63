"""Metadata from the command line (--override-kv), and sampling as a model's file recommends it."""
import json

import pytest


@pytest.fixture
def model(golden):
    return golden / "llama/model.gguf"


def inspect(athanor, model, *overrides):
    flags = [x for o in overrides for x in ("--override-kv", o)]
    return json.loads(athanor("inspect", model, "--json", *flags).stdout)


def refused(athanor, *args):
    done = athanor(*args, check=False)
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    return lines[0]


def test_values_of_every_type(athanor, model):
    before = inspect(athanor, model)
    after = inspect(athanor, model, "llama.context_length=int:777,my.text=str:a b", "my.flag=bool:true",
                    "my.number=float:-2.5e-3", "general.name=str:")
    changed = {k: v for k, v in after["metadata"].items() if before["metadata"].get(k) != v}
    assert changed == {"llama.context_length": "777", "my.text": "a b", "my.flag": "true", "my.number": "-0.0025", "general.name": ""}
    assert after["n_ctx_train"] == 777 and after["name"] == ""


def test_the_model_sees_them(athanor, model, tmp_path):
    """A key that changes results does: the norm's epsilon."""
    (tmp_path / "ids").write_text("1 2 3 4")

    def logits(*flags):
        athanor("logits", "-m", model, "-f", tmp_path / "ids", "-o", tmp_path / "x", *flags)
        return (tmp_path / "x").read_bytes()
    plain = logits()
    assert logits("--override-kv", "llama.attention.layer_norm_rms_epsilon=float:0.1") != plain
    assert logits("--override-kv", "some.other=float:0.1") == plain


@pytest.mark.parametrize("spec", ["x", "x=int", "=int:1", "x=int:", "x=int:1.5", "x=int:9223372036854775808", "x=float:y", "x=bool:1",
                                  "x=u32:1", "general.alignment=int:64", "split.count=int:2"])
def test_refusals(athanor, model, spec):
    assert "--override-kv" in refused(athanor, "inspect", model, "--override-kv", spec)


def test_bad_values_are_refused_where_they_are_read(athanor, model):
    assert "llama.block_count" in refused(athanor, "completion", "-m", model, "-p", "a", "--override-kv", "llama.block_count=str:many")


SAMPLING = "general.sampling.temp=float:0.25,general.sampling.top_k=int:7,general.sampling.sequence=str:top_k;temperature"


def complete(athanor, model, *flags):
    done = athanor("completion", "-m", model, "-p", "a", "-n", "24", "--seed", "5", "-c", "256", *flags)
    return done.stdout, done.stderr.decode()


def test_sampling_defaults(athanor, model):
    """They have the effect of the flags, and a flag beats them."""
    plain, log = complete(athanor, model)
    assert "recommends" not in log
    text, log = complete(athanor, model, "--override-kv", SAMPLING)
    assert "recommends: temp 0.25, top_k 7" in log and "recommends: top_k;temperature" in log
    assert text != plain
    assert text == complete(athanor, model, "--temp", "0.25", "--top-k", "7", "--samplers", "top_k;temperature")[0]
    text, log = complete(athanor, model, "--override-kv", SAMPLING, "--temp", "0.8", "--top-k", "40", "--sampler-seq", "edskypmxt")
    assert text == plain and "recommends" not in log


def test_senseless_defaults_are_left_out(athanor, model):
    plain, _ = complete(athanor, model)
    text, log = complete(athanor, model, "--override-kv", "general.sampling.sequence=str:no;such,general.sampling.temp=float:nan")
    assert text == plain and log.count("left out") == 2
