#!/usr/bin/env python3
"""An independent decoder of turbo pages, written from docs/turbo_format.md (version 1). Slow and literal.

usage: turbo_decode.py TYPE k|v HEAD_DIM PAGE OUT      (TYPE: turbo2, turbo3, turbo4, turbo2_tcq, turbo3_tcq, turbo4_tcq;
                                                        turbo2:plain, turbo3:plain, turbo4:plain)

Writes the page's plain tile as little-endian float32: K as [head_dim][128], V as [128][head_dim].
"""
import sys

import numpy as np

TOKENS = 128
F32 = np.float32
# Bits of a symbol, a state and an index; the table.
CODES = {
    "turbo2": (2, 2, 2, [-127, -38, 38, 127]),
    "turbo3": (3, 3, 3, [-127, -79, -45, -14, 14, 45, 79, 127]),
    "turbo4": (4, 4, 4, [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127]),
    "turbo2_tcq": (2, 6, 4, [-88, 67, -29, 15, 87, -62, -12, 30, -127, 7, -39, 58, 37, -11, -63, 127]),
    "turbo3_tcq": (3, 7, 4, [-91, 51, -7, 26, 90, -51, -26, 7, -127, 12, -67, 67, 37, -13, -37, 127]),
    "turbo4_tcq": (4, 8, 6, [
        -30, 5, -5, -55, 20, -13, 48, -70, 65, 38, -42, -88, 13, -2, -20, 30,
        -46, 59, 10, -19, -25, 88, -78, -103, 1, -14, -32, 31, -14, 11, -7, 22,
        -127, -66, -25, -9, 35, 26, 103, 1, -18, 52, -52, 9, 70, 43, 18, -38,
        -38, -47, 27, 14, 127, -59, 37, -33, 44, -9, 20, 78, 56, 6, -25, -1]),
}


def parts_of(head_dim):
    """(first channel, size) of each part: the largest power of two up to 128 that still fits, again and again."""
    parts, start = [], 0
    while start < head_dim:
        size = 128
        while size > head_dim - start:
            size //= 2
        parts.append((start, size))
        start += size
    return parts


def sign_is_minus(channel):
    mask = 2**64 - 1
    state = 0x417468616E6F7231
    for _ in range(channel // 64 + 1):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z = z ^ (z >> 31)
    return z >> (channel % 64) & 1 == 1


def stream_bit(codes, k, side, head_dim, token, bit):
    """A bit of a token's stream."""
    group, size = 16 if side == "k" else 4, head_dim * k // 8
    byte = codes[token // group * group * size + bit // 8 * group + token % group]
    return byte >> bit % 8 & 1


def value_at(codes, type_name, side, head_dim, token, part, i):
    """Value i of a part (first channel, size)."""
    k, state_bits, index_bits, table = CODES[type_name]
    start, n = part
    state = 0
    for b in range(state_bits):
        state |= stream_bit(codes, k, side, head_dim, token, k * start + (k * i + b) % (k * n)) << b
    if state_bits > k:
        state ^= state >> index_bits
    return table[state % (1 << index_bits)]


def bf16(bits):
    return np.array([bits << 16], dtype=np.uint32).view(F32)[0]


def unrotate(part):
    """part: float32 [n][tokens]; Walsh-Hadamard over the first axis, then the scale."""
    n = len(part)
    half = 1
    while half < n:
        for i in range(n):
            if not i & half:
                a, b = part[i].copy(), part[i + half].copy()
                part[i] = a + b
                part[i + half] = a - b
        half *= 2
    part *= F32(1 / np.sqrt(np.float64(n)))


def decode_page(type_name, side, head_dim, page):
    """float32 [head_dim][128], for K and V alike."""
    parts = parts_of(head_dim)
    type_name, _, plain = type_name.partition(":")
    has_mean = side == "k" and not plain
    norms_at = TOKENS * head_dim * CODES[type_name][0] // 8
    mean_at = norms_at + 2 * TOKENS * len(parts)
    eq_at = mean_at + 2 * head_dim
    size = eq_at + head_dim if has_mean else mean_at
    if len(page) != size:
        raise ValueError(f"the page has {len(page)} bytes, not {size}")
    norms = np.frombuffer(page, dtype="<u2", offset=norms_at, count=TOKENS * len(parts)).reshape(-1, TOKENS)
    x = np.zeros((head_dim, TOKENS), dtype=F32)
    for p, (start, n) in enumerate(parts):
        for token in range(TOKENS):
            norm = bf16(int(norms[p, token]))
            for i in range(n):
                value = value_at(page, type_name, side, head_dim, token, (start, n), i)
                x[start + i, token] = norm * F32(value)
        unrotate(x[start:start + n])
    for channel in range(head_dim):
        if sign_is_minus(channel):
            x[channel] = x[channel] * F32(-1)
    if has_mean:
        means = np.frombuffer(page, dtype="<f2", offset=mean_at, count=head_dim).astype(F32)
        for channel in range(head_dim):
            e = min(max(page[eq_at + channel], 112), 144)
            x[channel] = x[channel] * F32(2.0 ** ((e - 128) / 4)) + means[channel]
    return x


def main():
    type_name, side, head_dim, source, target = sys.argv[1:]
    with open(source, "rb") as file:
        tile = decode_page(type_name, side, int(head_dim), file.read())
    with open(target, "wb") as file:
        file.write((tile if side == "k" else tile.T).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
