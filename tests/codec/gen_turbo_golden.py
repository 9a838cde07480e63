#!/usr/bin/env python3
"""Writes golden_pages/ and the generated sections of docs/turbo_format.md with today's encoder.

usage: gen_turbo_golden.py          (ATH_BUILD names the build folder)

Run it when the format changes on purpose, which needs a new version of the document. test_turbo_reference.py
imports it and compares.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(HERE.parent), str(ROOT / "src/codec")]

import gen_turbo_tables as tables  # noqa: E402
from conftest import BUILD  # noqa: E402

PROGRAM = BUILD / "tests/test_kv_page"
DOCUMENT = ROOT / "docs/turbo_format.md"
GOLDEN = HERE / "golden_pages"
HEAD_DIMS = [16, 64, 80, 128]
TYPES = ["turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq", "turbo2:plain", "turbo3:plain", "turbo4:plain"]
TOKENS = 128
SEED = 20264


def run(option, type_name, side, head_dim, data=b""):
    """Output of test_kv_page: printed text for --layout, else the file that it makes of data."""
    command = [PROGRAM, option, type_name, side, str(head_dim)]
    if option == "--layout":
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
        source.write_bytes(data)
        subprocess.run([*command, source, target], check=True)
        return target.read_bytes()


def encode(type_name, side, vectors):
    """vectors: float16 [128][head_dim]"""
    tile = vectors.T if side == "k" else vectors
    return run("--encode", type_name, side, vectors.shape[1], tile.astype("<f2").tobytes())


def heavy_tailed(head_dim):
    """Student's t with channels of very different size, a biased one, a dead one, a token of zeros, and extremes."""
    rng = np.random.default_rng([SEED, head_dim])
    x = rng.standard_t(2.5, (TOKENS, head_dim)) * np.exp(rng.normal(0, 1.5, head_dim))
    x[:, 3] += 80
    x[:, 5] = 0
    x[7] = 0
    x[9, 11] = 65504
    x[11] = 2.0 ** -24
    return np.clip(x, -65504, 65504).astype(np.float16)


def golden_name(type_name, side, head_dim):
    return f"{type_name.replace(':', '_')}_{side}_{head_dim}.page"


def read_input(head_dim):
    return np.fromfile(GOLDEN / f"input_{head_dim}.f16", dtype="<f2").reshape(TOKENS, head_dim)


def hex_lines(data, per_line=24):
    return "\n".join("    " + data[i:i + per_line].hex(" ") for i in range(0, len(data), per_line))


def numbers(items, per_line=6):
    return "\n".join("    " + ", ".join(items[i:i + per_line]) for i in range(0, len(items), per_line))


def constants_section():
    text = []
    for bits in (2, 3, 4):
        levels, thresholds = tables.lloyd_max(bits)
        all_thresholds = [-t for t in reversed(thresholds)] + [0.0] + thresholds
        text += [f"`turbo{bits}`: values", numbers([str(v) for v in tables.int8_levels(levels)], 16),
                 "thresholds", numbers([tables.f32(t)[:-1] for t in all_thresholds])]
    for name, code in tables.CODES.items():
        text += [f"`{name}`: values", numbers([str(v) for v in code.values], 16),
                 f"targets (units: {tables.f32(code.scale * code.factor)[:-1]}, limit: {code.limit})",
                 numbers([str(t) for t in tables.trellis_targets(code)], 16)]
    exponents = range(1 - tables.EQ_STEPS, tables.EQ_STEPS + 1)
    text += ["Equalisation thresholds", numbers([tables.f32(2.0 ** ((i - 0.5) / 4))[:-1] for i in exponents])]
    words = tables.splitmix64(tables.SIGN_SEED, tables.MAX_HEAD_DIM // 64)
    text += ["Sign words 0 to 15", numbers([f"{word:016x}" for word in words], 4)]
    return "\n\n".join(text)


def layout_section():
    rows = ["| type, side | head_dim | parts | codes | norms | mean | eq | bytes |",
            "|---|---|---|---|---|---|---|---|"]
    for type_name in TYPES:
        for side in "kv":
            for head_dim in (64, 80, 128, 256):
                printed = run("--layout", type_name, side, head_dim)
                size, codes, norms, mean, eq, *parts = map(int, printed.split())
                key_sections = f"{mean} | {eq}" if eq < size else "- | -"
                rows.append(f"| {type_name} {side.upper()} | {head_dim} | {' + '.join(map(str, parts))} "
                            f"| {codes} | {norms} | {key_sections} | {size} |")
    return "\n".join(rows)


def example_vectors(side):
    t, c = np.mgrid[:TOKENS, :16]
    x = ((29 * t + 53 * c + t * c) % 61 - 30) / 8
    if side == "k":
        x = np.where(c == 3, 16 * x, x) + np.where(c == 5, 100, 0)
    return x.astype(np.float16)


def stream(page, side, token, size=6):
    """The stream of a token of head_dim 16."""
    group = 16 if side == "k" else 4
    return bytes(page[token // group * group * size + b * group + token % group] for b in range(size))


def example_section():
    v, k = example_vectors("v"), example_vectors("k")
    show = lambda values: numbers([f"{x:.9g}" for x in values], 8)
    text = ["V, token 0 before encoding", show(v[0])]
    for type_name in ("turbo3", "turbo3_tcq"):
        page = encode(type_name, "v", v)
        tile = np.frombuffer(run("--decode", type_name, "v", 16, page), "<f4").reshape(TOKENS, 16)
        symbols = int.from_bytes(stream(page, "v", 0), "little")
        text += [f"`{type_name}` V, codes of tokens 0 to 3: bytes 0 to 23", hex_lines(page[:24]),
                 "symbols of token 0", numbers([str(symbols >> 3 * i & 7) for i in range(16)], 16),
                 "norms of tokens 0 to 3: bytes 768 to 775", hex_lines(page[768:776]),
                 "token 0 decoded", show(tile[0])]
    page = encode("turbo3", "k", k)
    tile = np.frombuffer(run("--decode", "turbo3", "k", 16, page), "<f4").reshape(16, TOKENS)
    return "\n\n".join(text + [
        "`turbo3` K, channel 3, tokens 0 to 15 before encoding", show(k[:16, 3]),
        "codes of tokens 0 to 15: bytes 0 to 95", hex_lines(page[:96], 16),
        "norms of tokens 0 to 15: bytes 768 to 799", hex_lines(page[768:800]),
        "mean: bytes 1024 to 1055", hex_lines(page[1024:1056], 16),
        "eq: bytes 1056 to 1071", hex_lines(page[1056:1072]),
        "channel 3, tokens 0 to 15 decoded", show(tile[3, :16]),
    ])


SECTIONS = {"constants": constants_section, "layouts": layout_section, "example": example_section}


def section_pattern(name):
    return re.compile(rf"(?<=<!-- begin generated {name} -->\n\n).*?(?=\n\n<!-- end generated -->)", re.DOTALL)


def main():
    GOLDEN.mkdir(exist_ok=True)
    for head_dim in HEAD_DIMS:
        heavy_tailed(head_dim).astype("<f2").tofile(GOLDEN / f"input_{head_dim}.f16")
        for type_name in TYPES:
            for side in "kv":
                page = encode(type_name, side, read_input(head_dim))
                (GOLDEN / golden_name(type_name, side, head_dim)).write_bytes(page)
    text = DOCUMENT.read_text()
    for name, section in SECTIONS.items():
        text, count = section_pattern(name).subn(lambda _: section(), text)
        assert count == 1, name
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
