"""Vector sets: tiny models for families that have no golden one. vectors/NAME.json says how the model is made, vectors/NAME.f32
holds the logits of its last positions, by another implementation (`make vector NAME=...`, bench/make_vector.py).

    arch       general.architecture
    shape      what differs from make_golden_like.Shape
    keys       added and replaced, without the architecture's prefix
    tensors    groups {name after "blk.N.": size, rows of a matrix first; null: left out}, of all layers or of those in "layers"
    model      the same for tensors of no layer
    recurrent  true: some layers have a state, and that is saved and rolled back in tests
    windowed   how many layers have a window so small that their cache stays f16
    tolerance  largest difference of a logit, with weights and cache in f32; default 3e-4"""
import json
import pathlib
import zlib

import numpy as np

from golden import Golden
from make_golden_like import Shape, make_model

FOLDER = pathlib.Path(__file__).parent / "vectors"
N_TOKENS, N_ROWS = 64, 8  # of these, logits are kept
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def recipe(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def shape_of(r):
    return Shape(**{"arch": r["arch"], "heads": 4, "kv_heads": 2, "head_dim": 32, "context": 2048, **r.get("shape", {})})


def tensor(name, size):
    """Random values by the tensor's name: norms about 1, biases about 0, matrices that keep the scale of their input."""
    x = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(size)
    if len(size) > 1:
        x *= (3 if "ffn_gate_inp" in name else 1.5) / np.sqrt(size[-1])
    else:
        x = 0.3 * x if name.endswith(".bias") else 1 + 0.2 * x
    return x.astype(np.float32)


def make(name, path):
    """Writes the model of a vector set."""
    r = recipe(name)
    shape, sizes = shape_of(r), dict(r.get("model", {}))
    for group in r.get("tensors", []):
        for il in group.get("layers", range(shape.layers)):
            sizes.update({f"blk.{il}.{part}": size for part, size in group.items() if part != "layers"})
    tensors = {full: tensor(full, size) for full, size in sizes.items() if size}
    return make_model(path, shape, without={full for full, size in sizes.items() if not size}, tensors=tensors, keys=r.get("keys"))


class Vector(Golden):
    """The same as a golden model, in a folder where the model's file may be made."""

    def __init__(self, name, folder):
        r = recipe(name)
        self.folder, self.model = FOLDER, make(name, folder / f"{name}.gguf")
        self.name, self.n_vocab = name, shape_of(r).vocab
        self.tokens = np.random.default_rng(1).integers(3, self.n_vocab, N_TOKENS).tolist()
        self.tolerance = r.get("tolerance", 3e-4)
        self.first, self.last = N_TOKENS - N_ROWS, N_TOKENS
        self.layers, self.windowed = shape_of(r).layers, r.get("windowed", 0)

    def reference(self, name=None):  # there is one only
        return np.fromfile(FOLDER / f"{self.name}.f32", "<f4").reshape(N_ROWS, self.n_vocab)
