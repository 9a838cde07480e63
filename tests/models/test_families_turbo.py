"""Every family with a compressed cache, on 1,024 tokens: against our own f32 cache, whose logits test_golden.py checks.

The models are random, so the divergence says nothing about real ones: it is reported (pytest -rA, or the junit file), and
bounded only so that a broken page shows. What is asserted is that the cache was compressed and was read compressed.
"""
import re

import numpy as np
import pytest

from golden import copy_model, logits, mean_kld
from test_golden import LONG, MODELS

N_TOKENS = 1024
MAX_KLD = 0.5


def with_more_positions(source, target, n):
    """A copy of a gpt2 file whose learned positions start over at the end of the table."""
    return copy_model(source, target, {"context_length": n}, lambda name, data:
                      np.resize(data, (n, data.shape[1])) if name == "position_embd.weight" else data)


@pytest.mark.parametrize("name", [m for m in MODELS if m not in LONG])
def test_turbo3(name, family, athanor_release, tmp_path, record_property):
    model = family(name)
    path = model.model if name != "gpt2" else with_more_positions(model.model, tmp_path / "gpt2.gguf", N_TOKENS)
    tokens = model.shuffled(N_TOKENS)
    summary = []

    def program(*args):
        summary.append(athanor_release(*args).stderr.decode())

    got = {}
    for kind in ("f32", "turbo3"):
        got[kind] = logits(program, path, tokens, tmp_path, "-ctk", kind, "-ctv", kind, n_vocab=model.n_vocab)
    kld = mean_kld(got["f32"], got["turbo3"])  # refuses NaN
    found = re.search(r"K (.*), V (.*); ([0-9.]+) % of the rows read were compressed", summary[-1])
    record_property("mean KLD", kld)
    print(f"{name}: mean KLD {kld:.3g} against the f32 cache, {found[3]} % of the rows read were compressed")
    full, windowed = model.layers, model.windowed
    if windowed > full - windowed:
        types = f"f16 + turbo3 x{full - windowed}"
    else:
        types = f"f16 + turbo3 x{windowed}" if 2 * windowed == full else "turbo3" + (f" + f16 x{windowed}" if windowed else "")
    assert found[1] == found[2] == types
    assert float(found[3]) >= 50
    assert 0 < kld < MAX_KLD
