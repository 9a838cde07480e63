#!/usr/bin/env python3
"""Token ids and logits against llama.cpp (PyPI package llama-cpp-python) on a real model.

    peer_logits.py --athanor build/bin/athanor --text wiki.test.raw MODEL.gguf [MODEL.gguf ...]

For each model, and exit 1 if one of these fails:
- the ids of the prompts below are equal;
- on a copy of the model with its weights as F32, where neither engine rounds activations, the mean KL divergence of our
  next-token distributions from llama.cpp's is below 1e-5 (f16 cache): the same model is computed;
- on the model itself our distance from that exact copy is not above llama.cpp's;
- on the model itself the mean KL divergence from llama.cpp's is below 0.002. Both round activations to 8 bits, and errors
  of many layers go their own ways, so this cannot get below llama.cpp's own distance from the exact copy.
2,000 tokens of the text in two windows; the exact copy gets the first window. Prints all figures.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import tempfile

import gguf
import llama_cpp as L
import numpy as np

N_WINDOWS, WINDOW, BATCH = 2, 1000, 512
LIMIT, LIMIT_F32 = 0.002, 1e-5

PROMPTS = [
    "Hello", " Hello", "Hello ", "", " ", "   ", "\n", "\n\n\n", "\t\t x", "a\r\nb",
    "The quick brown fox jumps over the lazy dog.", "It's they'll we've I'm DON'T", "1 12 123 1234 12345 3.14159",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "#include <stdio.h>\nint main(void) {\n\tprintf(\"%d\\n\", 0x1F);\n}\n", "SELECT * FROM t WHERE a >= 10 AND b != 'x';",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\"}}", "<div class=\"x\">&nbsp;</div>", "https://example.com/a?b=c&d=%20#e",
    "Grüße aus Köln, schöne Straße!", "Ça va très bien, où est l'été ?", "El niño comió jalapeños mañana.",
    "Привет, как дела? Съешь ещё этих мягких булок.", "Γειά σου Κόσμε, αβγδ", "שלום עולם", "مرحبا بالعالم، كيف حالك؟",
    "हिन्दी में लिखना", "বাংলা ভাষা", "ภาษาไทยไม่มีช่องว่าง", "こんにちは世界、カタカナ漢字", "你好，世界！今天天气很好。", "안녕하세요 세계",
    "Tiếng Việt có dấu", "Türkçe İıŞş", "zażółć gęślą jaźń", "🙂🚀👩‍👩‍👧‍👦🇩🇪 emoji", "e\u0301 vs é, ﬁ ligature, ½ ² ™",
    "\u200bzero\u200dwidth\ufeff", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "x" + " " * 40 + "y",
    "a  b   c    d     e", "----====****____####", "!!!???...,,,;;;:::", "CamelCase snake_case kebab-case UPPER",
    "∑∫√∞ ≤ ≥ ≠ α→β ∀x∈ℝ", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<|endoftext|> <bos><eos><pad> </s> <unk> <0x41>",
    "[INST] no special here [/INST]", "The end.\n\nThe  next\tparagraph\u00a0starts \u3000here.\n",
]
assert len(PROMPTS) == 50 == len(set(PROMPTS))


QUIET = L.llama_log_callback(lambda level, text, user: None)


class Peer:
    """exact: keys and values are kept as f32, and attention is the plain one."""

    def __init__(self, path, exact=False):
        self.exact = exact
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp doesn't load {path}")
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        data = text.encode()
        ids = (L.llama_token * (len(data) + 16))()
        n = L.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def logits(self, tokens):
        """Yields [rows][n_vocab], batch by batch, of one context."""
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = len(tokens) + 24, BATCH, BATCH, 2, 2
        if self.exact:
            params.type_k = params.type_v = 0  # F32
            params.flash_attn_type = 0
        context = L.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("llama.cpp makes no context")
        for at in range(0, len(tokens), BATCH):
            part = tokens[at:at + BATCH]
            batch = L.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, at + i, 1, 1
                batch.seq_id[i][0] = 0
            if L.llama_decode(context, batch):
                raise SystemExit("llama_decode failed")
            rows = ctypes.cast(L.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
            yield np.ctypeslib.as_array(rows, (len(part), self.n_vocab))
            L.llama_batch_free(batch)
        L.llama_free(context)


def run(args, **kw):
    done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, args))}\n{done.stderr.decode()}")
    return done.stdout


def our_ids(athanor, model, text):
    out = run([athanor, "tokenize", "-m", model, "--ids", "--stdin"], input=text.encode())
    return [int(t) for t in out.decode().strip("[]\n").split(",") if t.strip()]


def compare_ids(athanor, model, peer):
    wrong = 0
    for prompt in PROMPTS:
        ours, theirs = our_ids(athanor, model, prompt), peer.tokenize(prompt)
        if ours != theirs:
            wrong += 1
            print(f"  {prompt!r}\n    ours   {ours}\n    theirs {theirs}")
    print(f"  token ids: {len(PROMPTS) - wrong} of {len(PROMPTS)} prompts equal")
    return wrong == 0


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


class Divergence:
    """Mean KLD of candidate rows from reference rows."""

    def __init__(self):
        self.klds, self.same = [], []

    def add(self, reference, candidate):
        for at in range(0, len(reference), 16):
            p, q = log_softmax(reference[at:at + 16]), log_softmax(candidate[at:at + 16])
            self.klds += (np.exp(p) * (p - q)).sum(axis=1).tolist()
            self.same += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()

    def mean(self):
        return float(np.mean(self.klds))

    def __str__(self):
        k = np.array(self.klds)
        return (f"mean KLD {k.mean():.2e}, median {np.median(k):.2e}, largest {k.max():.2e}, "
                f"same top token {100 * np.mean(self.same):.2f} % of {len(k)}")


def write_f32(model, path):
    """The same model with all weights as F32."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def our_logits(athanor, model, window, out, n_vocab):
    ids = out.with_suffix(".ids")
    ids.write_text(" ".join(map(str, window)))
    run([athanor, "logits", "-m", model, "-f", ids, "-o", out, "-t", 2])
    return np.memmap(out, "<f4", "r").reshape(len(window), -1)[:, :n_vocab]


def compare_f32(athanor, model, window, folder, theirs, ours):
    """Both engines against the exact copy: theirs and ours are their logits of the model itself."""
    copy = folder / "f32.gguf"
    write_f32(model, copy)
    exact = our_logits(athanor, copy, window, folder / "exact.f32", theirs.shape[1])
    graph, our_distance, their_distance, at = Divergence(), Divergence(), Divergence(), 0
    for rows in Peer(copy).logits(window):
        graph.add(rows, exact[at:at + len(rows)])
        at += len(rows)
    our_distance.add(exact, ours)
    their_distance.add(exact, theirs)
    print(f"  weights as F32, ours from theirs: {graph}")
    print(f"  ours from exact:   {our_distance}")
    print(f"  theirs from exact: {their_distance}", flush=True)
    return graph.mean() < LIMIT_F32 and our_distance.mean() <= 1.05 * their_distance.mean()


def compare_logits(athanor, model, peer, text, folder):
    tokens = peer.tokenize(text)
    direct, ok = Divergence(), True
    for w in range(N_WINDOWS):
        window = tokens[w * WINDOW:(w + 1) * WINDOW]
        assert len(window) == WINDOW
        theirs = np.memmap(folder / "theirs.f32", "<f4", "w+", shape=(WINDOW, peer.n_vocab))
        at = 0
        for rows in peer.logits(window):
            theirs[at:at + len(rows)] = rows
            at += len(rows)
        ours = our_logits(athanor, model, window, folder / "ours.f32", peer.n_vocab)
        direct.add(theirs, ours)
        if w == 0:
            ok = compare_f32(athanor, model, window, folder, theirs, ours)
    print(f"  ours from theirs:  {direct}", flush=True)
    return ok and direct.mean() < LIMIT  # false for NaN


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+", type=pathlib.Path)
    ap.add_argument("--athanor", required=True, type=pathlib.Path)
    ap.add_argument("--text", required=True, type=pathlib.Path)
    a = ap.parse_args()
    L.llama_log_set(QUIET, ctypes.c_void_p(0))
    text = a.text.read_text()[:60000]
    ok = True
    for model in a.models:
        print(model.name, flush=True)
        peer = Peer(model)
        with tempfile.TemporaryDirectory() as folder:
            ok &= compare_ids(a.athanor, model, peer)
            ok &= compare_logits(a.athanor, model, peer, text, pathlib.Path(folder))
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
