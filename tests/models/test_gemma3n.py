"""What a gemma3n file may leave out, and that each of its keys counts. Its logits are checked in test_golden.py."""
import numpy as np
import pytest

from golden import logits
from make_gemma3n import LAYERS, VOCAB, make_gemma3n, tokens

F32 = ("-ctk", "f32", "-ctv", "f32")


@pytest.fixture
def run(athanor_release, tmp_path):
    """run(changes): logits of the model with other keys or without some."""
    def run(**changes):
        path = make_gemma3n(tmp_path / "model.gguf", **changes)
        return logits(athanor_release, path, tokens(), tmp_path, *F32, n_vocab=VOCAB)
    return run


def test_a_file_that_says_less(run):
    """The released models' values stand in: 20 layers with a cache of their own, 10 sparse ones, every fifth sees everything."""
    said = {"attention.shared_kv_layers": 2, "activation_sparsity_scale": [1.6448533535] * 10 + [-float("inf")] * 12,
            "final_logit_softcapping": 30.0}
    silent = [*said, "altup.num_inputs", "altup.active_idx", "attention.sliding_window_pattern"]
    assert (run(layers=22, keys=said) == run(layers=22, keys=said, without=silent)).all()


@pytest.mark.parametrize("keys", [
    {"attention.shared_kv_layers": 3}, {"activation_sparsity_scale": [1.6448533535, 0.8416212194] + [-float("inf")] * 8},
    {"activation_sparsity_scale": [-float("inf")] * LAYERS}, {"final_logit_softcapping": 16.0}, {"attention.sliding_window": 17},
    {"rope.freq_base": 9e5}, {"rope.freq_base_swa": 9e3}, {"attention.sliding_window_pattern": [il % 5 != 3 for il in range(LAYERS)]},
], ids=lambda keys: next(iter(keys)))
def test_each_key_counts(run, keys):
    assert np.abs(run(keys=keys) - run()).max() > 1e-3


def test_three_streams(run):
    """Another number of streams runs, and gives another model."""
    got = run(streams=3)
    assert np.isfinite(got).all() and got.std() > 1 and np.abs(got - run()).max() > 1
