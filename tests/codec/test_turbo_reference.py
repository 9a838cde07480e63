"""codec: turbo pages against an independent decoder, stored pages and the document; the generated tables."""
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

import gen_turbo_golden as golden
import train_trellis as training
from conftest import ROOT, SHARED

spec = importlib.util.spec_from_file_location("turbo_decode", ROOT / "reference/turbo_decode.py")
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

SHORT_TRAININGS = {  # with seeds that find a good start early
    "turbo2_tcq": dict(seed=2, starts=1, rounds=25, blocks=100),
    "turbo3_tcq": dict(seed=11, starts=4, rounds=60, blocks=100),
    "turbo4_tcq": dict(seed=7, starts=1, rounds=25, blocks=100),
}
CASES = [(t, side, hd) for t in golden.TYPES for side in "kv" for hd in golden.HEAD_DIMS]


def same_bits(type_name, side, head_dim, page):
    ours = golden.run("--decode", type_name, side, head_dim, page)
    theirs = reference.decode_page(type_name, side, head_dim, page)
    assert (theirs if side == "k" else theirs.T).tobytes() == ours


@pytest.mark.parametrize("type_name,side,head_dim", CASES)
def test_golden_pages(type_name, side, head_dim):
    stored = (golden.GOLDEN / golden.golden_name(type_name, side, head_dim)).read_bytes()
    assert golden.encode(type_name, side, golden.read_input(head_dim)) == stored
    same_bits(type_name, side, head_dim, stored)


@pytest.mark.parametrize("type_name,side,head_dim",
                         [("turbo3", "k", 112), ("turbo2", "v", 256), ("turbo4", "k", 16),
                          ("turbo3_tcq", "k", 112), ("turbo2_tcq", "v", 256), ("turbo4_tcq", "k", 16),
                          ("turbo3:plain", "k", 112)])
def test_any_bytes(type_name, side, head_dim):
    """Codes, norms, means and scales that no encoder writes; finite ones, as NaNs have no defined bits."""
    size, _, norms, mean, eq, *_ = map(int, golden.run("--layout", type_name, side, head_dim).split())
    rng = np.random.default_rng([golden.SEED, head_dim])
    page = rng.integers(0, 256, size, dtype=np.uint8)
    page[norms + 1:mean:2] &= 0xBF
    page[mean + 1:eq:2] &= 0xBF
    same_bits(type_name, side, head_dim, page.tobytes())


def test_reference_command(tmp_path):
    page = golden.GOLDEN / "turbo3_v_16.page"
    command = [sys.executable, ROOT / "reference/turbo_decode.py", "turbo3", "v", "16", page, tmp_path / "out"]
    subprocess.run(command, check=True)
    assert (tmp_path / "out").read_bytes() == golden.run("--decode", "turbo3", "v", 16, page.read_bytes())


@pytest.mark.parametrize("name", golden.SECTIONS)
def test_document(name):
    found = golden.section_pattern(name).findall(golden.DOCUMENT.read_text())
    assert found == [golden.SECTIONS[name]()]


def test_tables_are_regenerated():
    assert golden.tables.header() == (ROOT / "src/codec/turbo_tables.h").read_text()


def test_tables_agree_with_an_independent_study():
    path = SHARED / "data/codebooks/tables.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    for bits, theirs in json.loads(path.read_text())["lloyd_max"].items():
        levels, thresholds = golden.tables.lloyd_max(int(bits))
        assert golden.tables.int8_levels(levels) == theirs["int8"]
        assert np.allclose(thresholds, theirs["thresholds_sigma"][len(levels):], rtol=0, atol=1e-10)
        assert 127 / levels[-1] == pytest.approx(theirs["scale"], rel=1e-10)


@pytest.mark.parametrize("name,free_path_error", [("turbo2_tcq", .0788), ("turbo3_tcq", .0229), ("turbo4_tcq", .0061)])
def test_trellis_tables(name, free_path_error):
    """The committed table is as good as the document says, and a short training from random values comes near."""
    code = training.CODES[name]
    committed = training.error(code, np.array(code.values) / code.scale, np.random.default_rng(1), blocks=250)
    assert committed == pytest.approx(free_path_error, rel=0.01)
    values, scale = training.train(code, **SHORT_TRAININGS[name])
    new = training.error(code, np.array(values) / scale, np.random.default_rng(1), blocks=250)
    assert new < 1.01 * committed


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_are_optimal(bits):
    """Each level is the mean of its cell, by plain numeric integration of the density."""
    levels, thresholds = golden.tables.lloyd_max(bits)
    edges = [0, *thresholds, 12]
    for level, a, b in zip(levels, edges, edges[1:]):
        x = a + (b - a) * (np.arange(200000) + 0.5) / 200000
        weight = np.exp(-x * x / 2)
        assert level == pytest.approx(np.sum(weight * x) / np.sum(weight), rel=1e-8)
