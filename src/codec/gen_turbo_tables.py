#!/usr/bin/env python3
"""Writes turbo_tables.h: the constants of the turbo formats (docs/turbo_format.md, "Constants").

usage: gen_turbo_tables.py [OUTPUT]     (default: turbo_tables.h beside this script)

Nothing is drawn at random: the scalar codebooks are the fixed point of Lloyd's iteration on the normal density, the
signs come from the seed below. The trellis tables are data: see train_trellis.py.
"""
import math
import pathlib
import struct
import sys

from train_trellis import CODES

SIGN_SEED = 0x417468616E6F7231
MAX_HEAD_DIM = 1024
EQ_STEPS = 16  # the equalisation byte is 128 - EQ_STEPS ... 128 + EQ_STEPS, in quarter octaves

HEADER = """\
/* Constants of the turbo formats (docs/turbo_format.md). Written by gen_turbo_tables.py: do not edit. */
#ifndef ATH_CODEC_TURBO_TABLES_H
#define ATH_CODEC_TURBO_TABLES_H

#include <stdint.h>
"""


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def upper_tail(x):
    return math.erfc(x / math.sqrt(2)) / 2


def centroid(a, b):
    """Mean of the part of N(0,1) between a and b."""
    return (density(a) - density(b)) / (upper_tail(a) - upper_tail(b))


def lloyd_max(bits):
    """Positive levels and the thresholds between them of the best 2^bits-level quantiser of N(0,1)."""
    count = 1 << bits - 1
    levels = [(i + 0.5) * 2.5 / count for i in range(count)]
    for _ in range(100000):
        edges = [0.0] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [math.inf]
        better = [centroid(a, b) for a, b in zip(edges, edges[1:])]
        moved = max(abs(a - b) for a, b in zip(levels, better))
        levels = better
        if moved < 1e-14:
            break
    return levels, [(a + b) / 2 for a, b in zip(levels, levels[1:])]


def int8_levels(levels):
    """Integer levels, the largest 127; decoding needs their ratios only."""
    positive = [round(127 * level / levels[-1]) for level in levels]
    return [-value for value in reversed(positive)] + positive


def splitmix64(seed, count):
    mask = (1 << 64) - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        yield z ^ z >> 31


def signs():
    words = list(splitmix64(SIGN_SEED, MAX_HEAD_DIM // 64))
    return [-1 if words[c // 64] >> c % 64 & 1 else 1 for c in range(MAX_HEAD_DIM)]


def f32(x):
    """A C literal of the f32 nearest to x."""
    rounded = struct.unpack("<f", struct.pack("<f", x))[0]
    text = f"{rounded:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def table(name, ctype, items, per_line):
    lines = [f"\nstatic const {ctype} ath_{name}[{len(items)}] = {{"]
    lines += ["    " + ", ".join(items[i:i + per_line]) + "," for i in range(0, len(items), per_line)]
    return "\n".join(lines + ["};", ""])


def trellis_targets(code):
    """The values in the encoder's units."""
    return [round(value * code.factor) for value in code.values]


def header():
    text = HEADER
    for bits in (2, 3, 4):
        levels, positive = lloyd_max(bits)
        thresholds = [-t for t in reversed(positive)] + [0.0] + positive
        text += table(f"turbo{bits}_values", "int8_t", [str(value) for value in int8_levels(levels)], 16)
        scale = f32(127 / levels[-1])
        text += f"static const float ath_turbo{bits}_scale = {scale}; /* integer units per sigma */\n"
        text += table(f"turbo{bits}_thresholds", "float", [f32(t) for t in thresholds], 6)
    for name, code in CODES.items():
        text += table(f"{name}_values", "int8_t", [str(value) for value in code.values], 16)
        text += table(f"{name}_targets", "int16_t", [str(value) for value in trellis_targets(code)], 16)
        text += f"static const float ath_{name}_scale = {f32(code.scale)}; /* integer units per sigma */\n"
        text += f"static const float ath_{name}_target_scale = {f32(code.scale * code.factor)}; /* target units */\n"
        text += f"enum {{ ATH_{name.upper()}_LIMIT = {code.limit} }}; /* of the encoder's input, in target units */\n"
    exponents = range(-EQ_STEPS, EQ_STEPS + 1)
    text += f"\nenum {{ ATH_EQ_ONE = 128, ATH_EQ_STEPS = {EQ_STEPS} }};\n"
    text += "\n/* 2^(i/4), i = -ATH_EQ_STEPS ... ATH_EQ_STEPS. Mirrored entries are reciprocal. */"
    text += table("eq_scales", "float", [f32(2.0 ** (i / 4)) for i in exponents], 6)
    text += "\n/* Where the rounding to quarter octaves steps up: 2^((i-1/2)/4), i = 1-ATH_EQ_STEPS ... */"
    text += table("eq_thresholds", "float", [f32(2.0 ** ((i - 0.5) / 4)) for i in exponents[1:]], 6)
    text += table("signs", "float", [str(sign) for sign in signs()], 24)
    return text + "\n#endif\n"


def main():
    default = pathlib.Path(__file__).with_name("turbo_tables.h")
    (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default).write_text(header())


if __name__ == "__main__":
    main()
