#!/usr/bin/env python3
"""llama.cpp (PyPI package llama-cpp-python, a black box) with the commands of `athanor bench --commands`.

    peer_rounds.py --peer peer_bench.py -m MODEL.gguf [-t 2] [-ctk f16] [-ctv f16] [--fa 1] [--no-amx] [--states FOLDER] -c N

Lines of standard input say what to do: "depth N" fills the cache or goes back, "pp N" evaluates a prompt on top of it,
"tg N" single tokens; tests leave the depth as they found it. Each is answered with a line of JSON: ns, ts.
So versus.py can take turns with it while its cache stays filled. How a batch is evaluated comes from peer_bench.py.
To fill a quantised cache to 16,384 tokens takes llama.cpp ten minutes: with --states, a filled cache is kept in a file (of
llama.cpp's own, which holds the cache as it is) and read back the next time.
"""
import argparse
import ctypes
import importlib.util
import json
import sys
import time
from pathlib import Path

import llama_cpp as L

UBATCH = 512


def load_module(path):
    spec = importlib.util.spec_from_file_location("peer_bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SignalStack(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


def refuse_amx():
    """A signal stack that holds the registers of AVX-512 but not AMX's tiles: Linux then grants no thread of this process
    the tiles, and llama.cpp takes its other kernels. (Linux: Documentation/arch/x86/xstate.rst.)"""
    memory = ctypes.create_string_buffer(8192)
    if ctypes.CDLL(None).sigaltstack(ctypes.byref(SignalStack(ctypes.addressof(memory), 0, 8192)), None):
        raise SystemExit("AMX can't be turned off: no signal stack")
    return memory


class Peer:
    def __init__(self, a):
        self.bench = load_module(a.peer)
        self.signal_stack = refuse_amx() if a.no_amx else None
        L.llama_backend_init()
        self.silence = L.llama_log_callback(lambda level, text, data: None)
        L.llama_log_set(self.silence, ctypes.c_void_p(0))
        mp = L.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(a.model.encode(), mp)
        if not self.model:
            raise SystemExit(f"llama.cpp can't load {a.model}")
        cp = L.llama_context_default_params()
        cp.n_ctx = a.n_ctx
        cp.n_batch = cp.n_ubatch = UBATCH
        cp.n_threads = cp.n_threads_batch = a.threads
        cp.type_k, cp.type_v = self.bench.TYPES[a.type_k], self.bench.TYPES[a.type_v]
        cp.flash_attn_type = a.fa
        self.ctx = L.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise SystemExit("llama.cpp refuses this context")
        n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.tokens = [(i * 2654435761 >> 7) % min(n_vocab, 256) for i in range(a.n_ctx)]
        self.length = 0
        self.append(64, UBATCH)  # warms up
        self.back_to(0)
        self.states = a.states
        self.state_name = f"{Path(a.model).stem}-{a.type_k}-{a.type_v}-fa{a.fa}"

    def append(self, n, most):
        for end in range(self.length + n, self.length, -most)[::-1]:
            self.bench.decode(self.ctx, self.tokens[self.length:end], self.length, 0)
            self.length = end

    def fill(self, depth):
        """The cache to this depth: from the file of an earlier run, or by evaluating, which is then kept if it took long."""
        path = self.states and self.states / f"{self.state_name}-{depth}.state"
        if path and path.exists():
            loaded, n_loaded = (L.llama_token * depth)(), ctypes.c_size_t()
            if L.llama_state_load_file(self.ctx, str(path).encode(), loaded, depth, n_loaded) and list(loaded) == self.tokens[:depth]:
                self.length = depth
                return
            self.back_to(self.length)  # another version's file, or other tokens: what it brought goes
        start = time.monotonic()
        self.append(depth - self.length, UBATCH)
        if path and time.monotonic() - start > 10:
            path.parent.mkdir(parents=True, exist_ok=True)
            tokens = (L.llama_token * depth)(*self.tokens[:depth])
            if not L.llama_state_save_file(self.ctx, str(path.with_suffix(".partial")).encode(), tokens, depth):
                raise SystemExit(f"llama.cpp can't write {path}")
            path.with_suffix(".partial").rename(path)

    def back_to(self, depth):
        L.llama_memory_seq_rm(L.llama_get_memory(self.ctx), 0, depth, -1)
        self.length = depth

    def obey(self, word, n):
        depth, start = self.length, time.perf_counter_ns()
        if word == "depth" and n < depth:
            self.back_to(n)
        elif word == "depth":
            self.fill(n)
        else:
            self.append(n, {"pp": UBATCH, "tg": 1}[word])
        ns = time.perf_counter_ns() - start
        if word != "depth":
            self.back_to(depth)
        return {word: n, "ns": ns, "ts": n * 1e9 / ns}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", required=True, help="peer_bench.py")
    ap.add_argument("-m", "--model", required=True)
    ap.add_argument("-t", "--threads", type=int, default=2)
    ap.add_argument("-ctk", dest="type_k", default="f16")
    ap.add_argument("-ctv", dest="type_v", default="f16")
    ap.add_argument("--fa", type=int, default=1)
    ap.add_argument("--no-amx", action="store_true", help="for builds whose AMX code ends in an illegal instruction")
    ap.add_argument("--states", type=Path, help="folder of filled caches")
    ap.add_argument("-c", dest="n_ctx", type=int, required=True)
    peer = Peer(ap.parse_args())
    for line in sys.stdin:
        word, n = line.split()
        print(json.dumps(peer.obey(word, int(n))), flush=True)


if __name__ == "__main__":
    main()
