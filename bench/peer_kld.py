#!/usr/bin/env python3
"""What llama.cpp's cache types do to its output: KL divergence from its own f16 cache, measured as athanor quality measures ours.

    peer_kld.py -m MODEL.gguf --text FILE [-c 2048] [--chunks 8] [--types q8_0,q4_0] [--all-rows] [-o FILE]

Needs llama-cpp-python, a black box. The same windows as athanor quality's: the text tokenized whole and cut into windows of -c
tokens, the first replaced by the beginning-of-text token where the model wants one; positions c/2 to c-2 are scored
(--all-rows: all, for the KLD by position). Flash attention is on for every type, f16 included. Writes one JSON object with
the names of athanor quality's report. LLAMA_ATTN_ROT_DISABLE=1 in the environment switches off the rotation that llama.cpp
applies to quantised caches.
"""
import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import pickle
import sys

import llama_cpp as L
import numpy as np

BATCH, BINS, BLOCK, ROWS, LEAST = 512, 32, 32, 32, -16
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}


class Peer:
    def __init__(self, path, threads):
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # no repacking and no AMX, which a virtual machine may refuse: the figures are the same
        self.threads = threads
        self.model = L.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp can't load it")
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        data = text.encode()
        ids = (L.llama_token * (len(data) + 16))()
        n = L.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return np.array(ids[:n])

    def windows(self, text, n_ctx, chunks):
        ids = self.tokenize(text)
        windows = [ids[w * n_ctx:(w + 1) * n_ctx].copy() for w in range(min(chunks, len(ids) // n_ctx))]
        if L.llama_vocab_get_add_bos(self.vocab):
            for w in windows:
                w[0] = L.llama_vocab_bos(self.vocab)
        return windows

    def context(self, cache, n_ctx):
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, BATCH, BATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = TYPES[cache]
        params.flash_attn_type = 1
        context = L.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit(f"llama.cpp refuses a context with a cache of {cache}")
        return context

    def logits(self, context, tokens, first):
        """Yields (position, logits) of rows first and later, some at a time."""
        L.llama_memory_clear(L.llama_get_memory(context), True)
        for at in range(0, len(tokens), BATCH):
            part = tokens[at:at + BATCH]
            batch = L.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), at + i, 1, at + i >= first
                batch.seq_id[i][0] = 0
            if L.llama_decode(context, batch):
                raise SystemExit("llama_decode failed")
            begin = max(at, first)
            n = at + len(part) - begin
            if n > 0:
                rows = ctypes.cast(L.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
                rows = np.ctypeslib.as_array(rows, (n, self.n_vocab))
                for r in range(0, n, ROWS):
                    yield begin + r, rows[r:r + ROWS]
            L.llama_batch_free(batch)


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)


class Scores:
    def __init__(self, n_ctx):
        self.n_ctx, self.kld, self.position, self.same, self.ratio = n_ctx, [], [], [], []

    def add(self, position, base, rows, following):
        """base, rows: log-probabilities; base ones below e^-16 don't count, as in llama.cpp's files."""
        terms = np.where(base > LEAST, np.exp(base) * (base - rows), 0)
        self.kld += terms.sum(axis=1, dtype=np.float64).tolist()
        self.same += (base.argmax(axis=1) == rows.argmax(axis=1)).tolist()
        at = np.arange(len(rows))
        self.ratio += (base[at, following] - rows[at, following]).tolist()
        self.position += range(position, position + len(rows))

    def result(self):
        kld, position = np.maximum(self.kld, 0), np.array(self.position)
        late = position >= self.n_ctx // 2
        scored = kld[late]
        blocks = scored[:len(scored) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
        bins = position * BINS // (self.n_ctx - 1)
        ratio = np.exp(np.mean(np.array(self.ratio)[late]))
        mean, error = [], []
        for b in range(BINS):
            part = kld[bins == b]
            pieces = part[:len(part) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
            mean.append(float(part.mean()) if len(part) else None)
            error.append(float(pieces.std(ddof=1) / len(pieces) ** 0.5) if len(pieces) > 1 else 0)
        return dict(kld_mean=float(scored.mean()), kld_se=float(blocks.std(ddof=1) / len(blocks) ** 0.5),
                    kld_median=float(np.median(scored)), kld_p99=float(np.quantile(scored, 0.99)),
                    top1=float(np.mean(np.array(self.same)[late])), ppl_ratio=float(ratio), kld_bins=mean, kld_bins_se=error)


def measure(model, text, n_ctx, chunks, types, all_rows, threads, saved):
    """saved: file of finished windows, so that a run that was stopped goes on; None: none. One of other settings is left out."""
    peer = Peer(model, threads)
    windows = peer.windows(text, n_ctx, chunks)
    first = 0 if all_rows else n_ctx // 2
    contexts = {t: peer.context(t, n_ctx) for t in ("f16", *types)}
    base = np.empty((n_ctx - 1 - first, peer.n_vocab), np.float32)
    scores = {t: Scores(n_ctx) for t in types}
    nll, done = [], 0
    ids = np.concatenate(windows).astype("<i4").tobytes()
    result = dict(model=str(model), context=n_ctx, windows=len(windows), ids_sha256=hashlib.sha256(ids).hexdigest(),
                  rotation="LLAMA_ATTN_ROT_DISABLE" not in os.environ)
    settings = dict(result, types=types, first=first)
    if saved and saved.exists():
        of, *rest = pickle.loads(saved.read_bytes())
        if of == settings:
            done, nll, scores = rest
    for w, window in enumerate(windows):
        if w < done:
            continue
        for position, rows in peer.logits(contexts["f16"], window[:-1], first):
            base[position - first:position - first + len(rows)] = log_softmax(rows)
        following = window[first + 1:]
        nll += (-base[np.arange(len(base)), following])[n_ctx // 2 - first:].tolist()
        for t in types:
            for position, rows in peer.logits(contexts[t], window[:-1], first):
                at = position - first
                scores[t].add(position, base[at:at + len(rows)], log_softmax(rows), following[at:at + len(rows)])
        if saved:
            saved.write_bytes(pickle.dumps((settings, w + 1, nll, scores)))
        print(f"window {w + 1} of {len(windows)}: " + ", ".join(
            f"{t} {np.mean(s.kld):.5f}" for t, s in scores.items()), flush=True, file=sys.stderr)
    return dict(result, ppl=float(np.exp(np.mean(nll))), types=[dict(type=t, **s.result()) for t, s in scores.items()])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-m", "--model", required=True, type=pathlib.Path)
    ap.add_argument("--text", required=True, type=pathlib.Path)
    ap.add_argument("-c", type=int, default=2048)
    ap.add_argument("--chunks", type=int, default=8)
    ap.add_argument("--types", default="q8_0,q4_0")
    ap.add_argument("--all-rows", action="store_true")
    ap.add_argument("-t", type=int, default=2)
    ap.add_argument("-o", type=pathlib.Path, help="write there instead of to standard output; finished windows are kept beside it")
    a = ap.parse_args()
    quiet = L.llama_log_callback(lambda level, text, user: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    text = a.text.read_bytes().decode()
    saved = a.o and a.o.with_suffix(".windows")
    result = json.dumps(measure(a.model, text, a.c, a.chunks, a.types.split(","), a.all_rows, a.t, saved))
    if a.o:
        a.o.write_text(result)
        saved.unlink(missing_ok=True)
    else:
        print(result)


if __name__ == "__main__":
    main()
