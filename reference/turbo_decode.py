#!/usr/bin/env python3
"""An independent decoder of turbo pages, written from docs/turbo_format.md (version 1). Slow and literal.

usage: turbo_decode.py TYPE k|v HEAD_DIM PAGE OUT      (TYPE: turbo2, turbo3, turbo4)

Writes the page's plain tile as little-endian float32: K as [head_dim][128], V as [128][head_dim].
"""
import sys

import numpy as np

TOKENS = 128
F32 = np.float32
BITS = {"turbo2": 2, "turbo3": 3, "turbo4": 4}
VALUES = {
    "turbo2": [-127, -38, 38, 127],
    "turbo3": [-127, -79, -45, -14, 14, 45, 79, 127],
    "turbo4": [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127],
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


def code_at(codes, bits, side, head_dim, token, channel):
    if side == "k":
        unit = (token // 16) * (head_dim // 4) + channel // 4
        i = (token % 16) * 4 + channel % 4
    else:
        unit = (token // 4) * (head_dim // 16) + channel // 16
        i = (channel % 16) * 4 + token % 4
    code = 0
    for b in range(bits):
        position = bits * i + b
        byte = codes[unit * 8 * bits + position // 8]
        code |= (byte >> position % 8 & 1) << b
    return code


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
    bits, values, parts = BITS[type_name], VALUES[type_name], parts_of(head_dim)
    norms_at = TOKENS * head_dim * bits // 8
    mean_at = norms_at + 2 * TOKENS * len(parts)
    eq_at = mean_at + 2 * head_dim
    size = eq_at + head_dim if side == "k" else mean_at
    if len(page) != size:
        raise ValueError(f"the page has {len(page)} bytes, not {size}")
    norms = np.frombuffer(page, dtype="<u2", offset=norms_at, count=TOKENS * len(parts)).reshape(-1, TOKENS)
    x = np.zeros((head_dim, TOKENS), dtype=F32)
    for p, (start, n) in enumerate(parts):
        for token in range(TOKENS):
            norm = bf16(int(norms[p, token]))
            for channel in range(start, start + n):
                value = values[code_at(page, bits, side, head_dim, token, channel)]
                x[channel, token] = norm * F32(value)
        unrotate(x[start:start + n])
    for channel in range(head_dim):
        if sign_is_minus(channel):
            x[channel] = x[channel] * F32(-1)
    if side == "k":
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
