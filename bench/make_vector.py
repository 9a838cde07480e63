#!/usr/bin/env python3
"""Writes the logits of vector sets (tests/models/vector.py) by llama.cpp, with weights and cache in f32.

    make_vector.py NAME...        after `make vector NAME=...` has made its Python environment once

For each set it shows how the logits spread, and how far the last of them move when a tensor gets other values or early tokens change
places. Exit 1 if one moves less than 100 times the tolerance: the set could not tell a mistake there.
"""
import argparse
import ctypes
import pathlib
import sys
import tempfile

import gguf
import llama_cpp as L
import numpy as np

from peer_logits import QUIET, Peer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/models"))
import vector  # noqa: E402
from gguf_copy import copy_model  # noqa: E402


def peer_logits(path, tokens):
    return np.concatenate([rows.copy() for rows in Peer(path, exact=True).logits(tokens)])[-vector.N_ROWS:]


def kinds(path):
    """Names of tensors by what they are in their layer."""
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        part = t.name.split(".", 2)[2] if t.name.startswith("blk.") else t.name
        found.setdefault(part, []).append(t)
    return found


def changed(tensor):
    """The values in another order, within rows."""
    x = np.array(tensor.data)
    return np.ascontiguousarray(np.roll(x, 1, axis=-1))


def moves(model, reference, folder):
    """{what was changed: how far the logits moved}"""
    swapped = [model.tokens[1], model.tokens[0], *model.tokens[2:]]
    found = {"early tokens": np.abs(peer_logits(model.model, swapped) - reference).max()}
    for part, tensors in kinds(model.model).items():
        path = copy_model(model.model, folder / "changed.gguf", tensors={t.name: changed(t) for t in tensors})
        found[part] = np.abs(peer_logits(path, model.tokens) - reference).max()
    return found


def write(name, folder):
    model = vector.Vector(name, folder)
    logits = peer_logits(model.model, model.tokens)
    logits.astype("<f4").tofile(vector.FOLDER / f"{name}.f32")
    print(f"{name}: standard deviation {logits.std():.2f}, largest {np.abs(logits).max():.1f}")
    found = moves(model, logits, folder)
    for what, distance in found.items():
        print(f"  {what}: {distance:.3g}")
    return np.isfinite(logits).all() and min(found.values()) >= 100 * model.tolerance


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("names", nargs="+", choices=vector.NAMES, metavar="NAME")
    a = ap.parse_args()
    L.llama_log_set(QUIET, ctypes.c_void_p(0))
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        for name in a.names:
            ok &= write(name, pathlib.Path(folder))
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
