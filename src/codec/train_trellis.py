#!/usr/bin/env python3
"""The tables of the folded trellis codes (docs/turbo_format.md, "Constants"), and the program that trains such tables.

usage: train_trellis.py [CODE ...]     (default: all; prints the error of the committed table and of a new one)

The committed tables are constants of the format and come from a study that trained them in the same way; they are never
replaced by a new run. A new run shows that nothing but N(0,1) went into them: it starts from seeded random values and
reaches the same error.
"""
import dataclasses
import sys

import numpy as np

SEED = 20265
CLIP = 127


@dataclasses.dataclass
class Code:
    k: int         # bits per value
    L: int         # bits of a state
    w: int         # bits of an index into the table
    scale: float   # integer units per sigma
    factor: float  # the encoder's units per integer unit
    limit: int     # the encoder's largest input, in its units
    values: list


CODES = {
    "turbo2_tcq": Code(2, 6, 4, 60.25756072998047, 0.5, 96, [
        -88, 67, -29, 15, 87, -62, -12, 30, -127, 7, -39, 58, 37, -11, -63, 127]),
    "turbo3_tcq": Code(3, 7, 4, 52.41130828857422, 1, 144, [
        -91, 51, -7, 26, 90, -51, -26, 7, -127, 12, -67, 67, 37, -13, -37, 127]),
    "turbo4_tcq": Code(4, 8, 6, 42.30765914916992, 2, 272, [
        -30, 5, -5, -55, 20, -13, 48, -70, 65, 38, -42, -88, 13, -2, -20, 30,
        -46, 59, 10, -19, -25, 88, -78, -103, 1, -14, -32, 31, -14, 11, -7, 22,
        -127, -66, -25, -9, 35, 26, 103, 1, -18, 52, -52, 9, 70, 43, 18, -38,
        -38, -47, 27, 14, 127, -59, 37, -33, 44, -9, 20, 78, 56, 6, -25, -1]),
}


def fold(code):
    state = np.arange(1 << code.L)
    return (state ^ state >> code.w) & (1 << code.w) - 1


def best_path(code, table, x):
    """Table indices [steps][blocks] of the best free path through x [steps][blocks]; newest symbol in the low bits."""
    groups, branches = 1 << code.L - code.k, 1 << code.k
    index = fold(code)
    cost = np.zeros((1 << code.L, x.shape[1]), dtype=np.float32)
    origin = np.empty((x.shape[0], groups, x.shape[1]), dtype=np.uint8)
    for step, values in enumerate(x):
        by_origin = cost.reshape(branches, groups, -1)
        origin[step] = by_origin.argmin(axis=0)
        least = by_origin.min(axis=0)
        cost = np.repeat(least, branches, axis=0) + (np.float32(table)[:, None] - values)[index] ** 2
    state, blocks = cost.argmin(axis=0), np.arange(x.shape[1])
    path = np.empty(x.shape, dtype=np.int64)
    for step in range(len(x) - 1, -1, -1):
        path[step] = index[state]
        group = state >> code.k
        state = group | origin[step, group, blocks].astype(np.int64) << code.L - code.k
    return path


def error(code, table, rng, blocks=500, steps=256):
    """Mean squared error per value on N(0,1), of free paths."""
    x = rng.standard_normal((steps, blocks)).astype(np.float32)
    return float(np.mean((np.asarray(table)[best_path(code, table, x)] - x) ** 2))


def improve(code, table, rng, rounds, blocks, steps=128):
    """Lloyd's iteration: every entry becomes the mean of what was mapped to it."""
    for _ in range(rounds):
        x = rng.standard_normal((steps, blocks)).astype(np.float32)
        path = best_path(code, table, x)
        count = np.bincount(path.ravel(), minlength=len(table))
        total = np.bincount(path.ravel(), weights=x.ravel(), minlength=len(table))
        table = np.where(count > 0, total / np.maximum(count, 1), table)
    return table


def train(code, seed=SEED, starts=32, rounds=60, blocks=400):
    """The best of some random starts, improved. Returns integer values and their scale."""
    rng = np.random.default_rng([seed, code.L, code.k])
    candidates = []
    for _ in range(starts):
        table = improve(code, rng.standard_normal(1 << code.w), rng, 12, 40)
        candidates.append((error(code, table, np.random.default_rng(seed), 60), table))
    table = improve(code, min(candidates, key=lambda c: c[0])[1], rng, rounds, blocks)
    scale = CLIP / np.abs(table).max()
    return np.rint(table * scale).astype(int).tolist(), float(scale)


def main():
    for name in sys.argv[1:] or CODES:
        code = CODES[name]
        committed = error(code, np.array(code.values) / code.scale, np.random.default_rng(SEED + 1))
        values, scale = train(code)
        new = error(code, np.array(values) / scale, np.random.default_rng(SEED + 1))
        print(f"{name}: committed {committed:.5f}, new {new:.5f} with scale {scale:.4f} and values {values}")


if __name__ == "__main__":
    main()
