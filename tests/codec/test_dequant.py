"""codec: every decoder and encoder, bit for bit, against the `gguf` package, and the generated codebooks."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ATH_BUILD", REPO / "build")) / "tests" / "test_tensor_type"
SEED = 20261

# Worked out by hand in test_tensor_type.c, as the package has no decoder for them.
BY_HAND = {"Q1_0", "Q2_0"}
# Types that the package knows nothing of, or whose size it has wrong (Q8_1 keeps its two scales as f16).
OTHER_SIZES = {"Q2_0": (64, 18), "Q8_1": (32, 36)}
NO_WEIGHTS = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"}
FLOATS = ["F32", "F16", "BF16"]
DECODERS = FLOATS + [t.name for t in quants._type_traits if t.name not in FLOATS]
ENCODERS = ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"]


def convert(option, name, data, tmp_path):
    source, result = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data.tobytes())
    subprocess.run([PROGRAM, option, name, source, result], check=True)
    return result.read_bytes()


def listed_types():
    """name: (id, block_size, block_bytes, has_decoder)"""
    output = subprocess.run([PROGRAM, "--list"], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    return {name: tuple(map(int, (number, *rest))) for number, name, *rest in rows}


def test_table():
    types = listed_types()
    expected = {t.name: (int(t), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    for name, sizes in OTHER_SIZES.items():
        expected[name] = (types[name][0], *sizes)
    assert {name: info[:3] for name, info in types.items()} == expected
    assert {name for name, info in types.items() if not info[3]} == NO_WEIGHTS
    assert set(types) == NO_WEIGHTS | BY_HAND | set(DECODERS), "a type that no test decodes"


def random_blocks(name):
    """Random bytes; then each value of the leading bytes, where several types have their scale, in turn; then
    the same for the trailing ones; then all bits clear and all bits set."""
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    rng = np.random.default_rng([SEED, GGMLQuantizationType[name]])
    blocks = rng.integers(0, 256, (770, block_bytes), dtype=np.uint8)
    every_byte = np.arange(256, dtype=np.uint8)[:, None]
    blocks[:256, :4] = every_byte
    blocks[256:512, -4:] = every_byte
    blocks[-2] = 0
    blocks[-1] = 255
    return blocks


@pytest.mark.parametrize("name", DECODERS)
def test_decoder(name, tmp_path):
    print("seed", SEED)
    blocks = random_blocks(name)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks, GGMLQuantizationType[name]).ravel()
    actual = np.frombuffer(convert("--dequant", name, blocks, tmp_path), np.float32)
    assert actual.size == expected.size
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert numbers.sum() > expected.size // 2
    assert np.array_equal(actual.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


def encoder_input():
    """Blocks of 32 values over the magnitudes that f16 scales cover and beyond, and some of special shape."""
    rng = np.random.default_rng(SEED)
    magnitude = 10.0 ** rng.uniform(-9, 6, (512, 1))
    offset = magnitude * rng.integers(-2, 3, (512, 1))
    random = rng.standard_normal((512, 32)) * magnitude + offset
    halves = rng.integers(-254, 255, (64, 32)) / 4  # ties between codes
    halves[:, 3] = 63.5
    few = rng.integers(-8, 8, (64, 32)) / 2
    few[:32, 7] = -4
    constant = np.repeat([[0.0], [-0.0], [1.0], [-3.0], [1e-8]], 32, axis=1)
    opposite = np.tile([2.5, -2.5], (1, 16))  # the first of two equal magnitudes decides the sign
    return np.concatenate([random, halves, few, constant, opposite, -opposite]).astype(np.float32)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(name, tmp_path):
    print("seed", SEED)
    values = encoder_input()
    with np.errstate(all="ignore"):
        expected = quants.quantize(values, GGMLQuantizationType[name])
    actual = np.frombuffer(convert("--quantize", name, values, tmp_path), np.uint8)
    assert np.array_equal(actual, expected.ravel())


def test_encoder_iq4_nl(tmp_path):
    """By its definition: nearest table values under d = largest / -127, then the d of least squared error."""
    print("seed", SEED)
    values = encoder_input()
    table = np.array(quants.IQ4_NL.kvalues, np.float32)
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    d = largest / np.float32(-127)
    with np.errstate(all="ignore"):
        scaled = values * np.where(d == 0, np.float32(0), np.float32(1) / d)
        codes = np.abs(scaled[:, :, None].astype(np.float64) - table).argmin(axis=2)
        y = table[codes]
        # cumsum adds one after the other in float32, as the encoder does (from 0, so that a -0 sum is 0)
        scale = (0 + np.cumsum(values * y, axis=1)[:, -1]) / np.cumsum(y * y, axis=1)[:, -1]
        scale = scale.astype(np.float16).reshape(-1, 1).view(np.uint8)
    packed = (codes[:, :16] | codes[:, 16:] << 4).astype(np.uint8)
    expected = np.concatenate([scale, packed], axis=1)
    actual = np.frombuffer(convert("--quantize", "IQ4_NL", values, tmp_path), np.uint8)
    assert np.array_equal(actual, expected.ravel())


def test_codebooks_are_as_generated(tmp_path):
    codec = REPO / "src" / "codec"
    subprocess.run([sys.executable, codec / "gen_iq_grids.py", tmp_path / "iq_grids.h"], check=True)
    assert (tmp_path / "iq_grids.h").read_text() == (codec / "iq_grids.h").read_text()
