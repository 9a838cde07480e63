"""Golden models: run `athanor logits` on them and compare. Shared by the tests of models and cache types."""
import json

import gguf
import numpy as np

WINDOWED = {"gemma2": 2, "gemma3": 6, "cohere2": 3, "gpt-oss": 1, "gpt-oss-mxfp4": 2, "gpt-oss-notrunc": 1, "gemma3n": 8,
            "gemma4": 4}


class Golden:
    def __init__(self, folder):
        self.folder = folder
        self.model = folder / "model.gguf"
        self.info = json.loads((folder / "golden.json").read_text())
        self.tokens = self.info["tokens"]
        self.n_vocab = self.info["n_vocab"]
        self.tolerance = self.info["tolerance"]["suggested_max_abs_diff"]
        self.first, self.last = self.info["logits_positions"]
        self.layers = self.info["config"].get("num_hidden_layers", 2)
        self.windowed = WINDOWED.get(folder.name, 0)  # layers whose cache stays f16

    def reference(self, name="logits.f32"):
        return np.fromfile(self.folder / name, "<f4").reshape(self.info["logits_shape"])

    def shuffled(self, n, seed=1):
        """n tokens: the golden ids over and over, each repetition in another order."""
        rng = np.random.default_rng(seed)
        out = []
        while len(out) < n:
            out += rng.permutation(self.tokens).tolist()
        return out[:n]


def logits(program, model, tokens, tmp_path, *args, n_vocab):
    """[n][n_vocab] logits of all tokens."""
    ids, out = tmp_path / "ids.txt", tmp_path / "logits.f32"
    ids.write_text(" ".join(map(str, tokens)))
    program("logits", "-m", model, "-f", ids, "-o", out, *args)
    return np.fromfile(out, "<f4").reshape(-1, n_vocab)


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def mean_kld(reference, candidate):
    p, q = log_softmax(reference), log_softmax(candidate)
    assert np.isfinite(candidate).all()
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def copy_model(source, target, keys, change=lambda name, data: data):
    """A copy of a GGUF file with other values of these keys (whole numbers, lists of bools) and changed tensors."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key.removeprefix(arch + ".") not in keys:
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for key, value in keys.items():
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(f"{arch}.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, change(tensor.name, tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
