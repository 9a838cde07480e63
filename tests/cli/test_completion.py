"""llama-cli and llama-completion: text, streaming, stops, context shift, Ctrl+C, and what they refuse."""
import json
import os
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from conftest import BUILD


@pytest.fixture
def model(golden):
    return golden / "qwen3/model.gguf"


@pytest.fixture
def complete(athanor, model, tmp_path):
    """complete(*args) -> (stdout, stderr as text, stats)."""
    def call(*args, **kw):
        stats = tmp_path / "stats.json"
        stats.unlink(missing_ok=True)
        kw.setdefault("program", "llama-completion")
        done = athanor("-m", model, "--json-stats", stats, *args, **kw)
        return done.stdout, done.stderr.decode(errors="replace"), json.loads(stats.read_text())
    return call


def next_ids(athanor, model, ids, tmp_path, *args):
    """Arg-max after the last of ids, in one prefill."""
    out = tmp_path / "next.f32"
    athanor("logits", "-m", model, "--ids", " ".join(map(str, ids)), "-o", out, "--last", 1, *args)
    return int(np.fromfile(out, "<f4").argmax())


def test_text_and_echo(complete):
    prompt = 'the "hand" and\nwater'
    whole, err, stats = complete("-p", prompt.replace("\n", "\\n"), "-n", 5, "--temp", 0)
    only, _, again = complete("-p", prompt, "-n", 5, "--temp", 0, "--no-display-prompt", program="llama-cli")
    assert whole == prompt.encode() + only and stats["ids"] == again["ids"] and len(stats["ids"]) == 5
    assert stats["stop"] == "limit"
    raw, _, stats = complete("-p", "a\\nb", "-n", 0, "--no-escape")
    assert raw == b"a\\nb" and stats["ids"] == []
    for line in ("model ", "device ", "matmul ", "attention ", "cache ", "prompt eval time =", "       eval time =",
                 "tokens per second", "total time ="):
        assert line in err, line
    assert "K f16, V f16" in err


def test_prompt_sources(complete, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"the water\n\n")
    text, _, a = complete("-f", file, "-n", 2, "--temp", 0)
    assert text.startswith(b"the water\n") and not text.startswith(b"the water\n\n")
    assert complete("-p", "the water\\n", "-n", 2, "--temp", 0)[2]["prompt_ids"] == a["prompt_ids"]
    binary = complete("-bf", file, "-n", 0)
    assert binary[0] == b"the water\n\n"
    assert complete("-f", "-", "-n", 2, "--temp", 0, input=b"the water\n\n")[2]["ids"] == a["ids"]


def test_startup_block_and_stats(complete):
    _, err, stats = complete("-ngl", 99, "-fa", 1, "-c", 512, "-ctk", "turbo3", "-ctv", "q8_0", "-p", "the hand " * 60, "-n", 9,
                             "--ignore-eos", "-s", 5)
    assert "-ngl 99: this build has no GPU support" in err and "without effect" not in err
    assert "K turbo3, V q8_0" in err and "at -c 512" in err
    assert (stats["type_k"], stats["type_v"], stats["n_ctx"]) == ("turbo3", "q8_0", 512)
    assert stats["prompt_tokens"] == len(stats["prompt_ids"]) and stats["eval_tokens"] == 8
    assert 0 < stats["bytes_per_token"] < stats["bytes_per_token_f16"] and stats["cache_bytes"] > 0
    assert len(stats["layers"]) == 2 and stats["k_rows_f16"] > 0
    for side in ("k_rows_compressed", "k_rows_f16", "v_rows_compressed", "v_rows_f16"):
        assert sum(layer[side] for layer in stats["layers"]) == stats[side]
    for key in ("prompt_ms", "eval_ms", "total_ms", "load_ms", "prompt_tokens_per_second", "eval_tokens_per_second"):
        assert stats[key] > 0, key
    assert f"{100 * stats['share_compressed']:.1f} % of the rows read were compressed" in err


def test_greedy_is_the_arg_max(complete, athanor, model, tmp_path):
    _, _, stats = complete("-p", "the hand", "-n", 6, "--temp", 0, "-ctk", "f32", "-ctv", "f32", "--ignore-eos")
    for i, id in enumerate(stats["ids"]):
        ids = stats["prompt_ids"] + stats["ids"][:i]
        assert next_ids(athanor, model, ids, tmp_path, "-ctk", "f32", "-ctv", "f32") == id


def test_seeds(complete):
    args = ("-p", "the", "-n", 16, "--temp", 1.5, "--ignore-eos")
    a, b, c = (complete(*args, "-s", s)[2]["ids"] for s in (7, 7, 8))
    assert a == b != c
    _, err, first = complete(*args)
    seed = err.split("seed ")[1].split(":")[0]
    assert complete(*args, "--seed", seed)[2]["ids"] == first["ids"]


def test_sampler_flags(complete):
    base = ("-p", "the", "-n", 8, "-s", 3)
    greedy = complete(*base, "--temp", 0)[2]["ids"]
    assert complete(*base, "--top-k", 1)[2]["ids"] == greedy
    assert complete(*base, "--samplers", "top_k;temperature", "--top_k=1")[2]["ids"] == greedy
    assert complete(*base, "--sampler-seq", "k", "--top-k", 1)[2]["ids"] == greedy
    assert set(complete(*base, "-l", "40+1000")[2]["ids"]) == {40}
    assert greedy[0] not in complete(*base, "--temp", 0, "-l", f"{greedy[0]}-inf")[2]["ids"][:1]
    repeats = complete("-p", "the", "-n", 60, "--temp", 0, "--dry-multiplier", 50, "--ignore-eos")[2]["ids"]
    plain = complete("-p", "the", "-n", 60, "--temp", 0, "--ignore-eos")[2]["ids"]
    assert len(set(repeats)) > len(set(plain))


def test_end_of_text(complete, athanor, model):
    eos = 318
    text, _, stats = complete("-p", "the", "-n", 20, "-l", f"{eos}+1000")
    assert text == b"the [end of text]\n" and stats["ids"] == [eos] and stats["stop"] == "end of text"
    text, _, stats = complete("-p", "the", "-n", 5, "-l", f"{eos}+1000", "--ignore-eos")
    assert b"[end" not in text and stats["stop"] == "limit" and eos not in stats["ids"]


def test_reverse_prompt(complete, athanor, model):
    ids = athanor("-m", model, "--ids", "-p", "aba", program="llama-tokenize").stdout
    a, b = json.loads(ids)[:2]
    text, _, stats = complete("-p", "x", "-n", 200, "-s", 1, "-l", f"{a}+10000", "-l", f"{b}+10000", "--temp", 100,
                              "--samplers", "temperature", "-r", "never", "-r", "abbab", "--no-display-prompt")
    assert stats["stop"] == "reverse prompt" and text.endswith(b"abbab") and text.count(b"abbab") == 1


def test_streams_whole_characters(model, athanor, tmp_path):
    """Random runs of the two bytes of "é": nothing that has been read may end within a character."""
    first, second = json.loads(athanor("-m", model, "--ids", "-p", "é", program="llama-tokenize").stdout)
    stats = tmp_path / "stats.json"
    command = [BUILD / "bin/llama-cli", "-m", model, "-p", "", "-n", "120", "-s", "4", "--samplers", "temperature", "--temp", "100",
               "-l", f"{first}+10000", "-l", f"{second}+10000", "--json-stats", stats, "--no-display-prompt", "-p", "x"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps the writes apart, however late we read
    process = subprocess.Popen(list(map(str, command)), stdout=theirs, stderr=subprocess.DEVNULL)
    theirs.close()
    got, ends = b"", []
    while chunk := ours.recv(4096):
        got += chunk
        ends.append(got)
    ours.close()
    assert process.wait() == 0
    ids = json.loads(stats.read_text())["ids"]
    assert got == bytes({first: 0xC3, second: 0xA9}[i] for i in ids)
    assert len(ends) > 20 and not [e for e in ends if e[-1] == 0xC3 and got[len(e):len(e) + 1] == b"\xA9"]


def test_context_full(complete):
    _, err, stats = complete("-p", "the hand", "-c", 256, "-n", -1, "--temp", 0, "--ignore-eos")
    assert stats["stop"] == "context full" and len(stats["prompt_ids"]) + len(stats["ids"]) == 257
    assert "the context of 256 tokens is full" in err
    _, _, stats = complete("-p", "the hand", "-c", 256, "-n", -2, "--temp", 0, "--ignore-eos", "--context-shift")
    assert stats["stop"] == "context full"


@pytest.mark.parametrize("keep, cache", [(0, "f16"), (5, "turbo3"), (-1, "q8_0")])
def test_context_shift_equals_a_fresh_prefill(keep, cache, complete, athanor, model, tmp_path):
    types = ("-ctk", cache, "-ctv", cache)
    _, err, stats = complete("-p", "the hand and the water " * 8, "-c", 256, "-n", 256, "--temp", 0, "--ignore-eos",
                             "--repeat-penalty", 1.0, "--context-shift", "--keep", keep, *types)
    assert stats["context_shifts"] >= 1 and stats["stop"] == "limit"
    prompt, ids = stats["prompt_ids"], stats["ids"]
    n_keep = len(prompt) if keep < 0 else keep
    text = (prompt + ids)[:257] # the last one was to be the 257th
    dropped = (257 - n_keep) // 2
    shifted = text[:n_keep] + text[n_keep + dropped:]
    assert f"context full: {n_keep} tokens kept, {dropped} dropped" in err
    assert next_ids(athanor, model, shifted, tmp_path, *types) == ids[257 - len(prompt)]


def test_interrupt(model, tmp_path):
    stats = tmp_path / "stats.json"
    command = [BUILD / "bin/llama-cli", "-m", model, "-p", "the", "-n", "100000", "--context-shift", "--ignore-eos",
               "--json-stats", stats]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.1)
    process.stdout.read(50)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"eval time" in err
    assert json.loads(stats.read_text())["stop"] == "interrupted"


def test_reader_that_leaves(model, tmp_path):
    command = [BUILD / "bin/llama-cli", "-m", model, "-p", "the", "-n", "20000", "--context-shift", "--ignore-eos"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141 and b"error" not in err


def error_of(done):
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr.decode()
    return errors[0]


def test_bad_input(athanor, model, golden, tmp_path):
    def refused(*args, path=model):
        return error_of(athanor("-m", path, "-p", "the", "-n", 1, *args, program="llama-cli", check=False))

    whole = model.read_bytes()
    for name, data, word in (("cut", whole[:5000], ""), ("short", whole[:-1000], ""), ("foreign", b"PK\3\4" * 99, "GGUF"),
                             ("empty", b"", ""), ("swapped", whole[:4] + whole[4:8][::-1] + whole[8:], "endian")):
        file = tmp_path / name
        file.write_bytes(data)
        line = refused(path=file)
        assert str(file) in line and word in line
    assert "/no/such" in refused(path="/no/such")
    known = refused("--override-kv", "general.architecture=str:mamba9")
    assert "mamba9" in known and {"gemma3", "gemma4", "glm4"} <= set(known.split())
    types = refused("-ctk", "turbo5")
    assert "turbo5" in types and "turbo4" in types and "iq4_nl" in types
    assert "out of range" in refused("-c", -5)
    assert "no/such" in refused("--json-stats", "/no/such/x") and "no/such" in refused("--log-file", "/no/such/x")
    assert "--kv-layers" in refused("--kv-layers", "99:k=f16")
    assert "-l" in refused("-l", "3") and "no such token" in refused("-l", "999999+1")
    assert "foo" in refused("--samplers", "foo")
    assert "mirostat" in refused("--mirostat", 7)
    assert "-n" in refused("-n", -3)
    assert "MiB" in refused("-c", 4000000000)
    big = tmp_path / "big.txt"
    big.write_text("the hand " * 300)
    line = error_of(athanor("-m", model, "-f", big, "-c", 256, program="llama-cli", check=False))
    assert "a context of 256 takes prompts of up to 252" in line
    assert "/no/such" in error_of(athanor("-m", model, "-f", "/no/such", program="llama-cli", check=False))
    assert "several" in refused("-f", big)
    assert "no model" in error_of(athanor("-p", "x", program="llama-cli", check=False))
    with open("/dev/full", "w") as full:
        done = subprocess.run([BUILD / "bin/llama-cli", "-m", model, "-p", "the", "-n", "3"], stdout=full, stderr=subprocess.PIPE)
    assert "standard output" in error_of(done)


def test_log_levels(complete, tmp_path):
    for quiet in (("--log-disable",), ("-lv", 0), ("-lv", 1)):
        assert complete("-p", "the", "-n", 2, *quiet)[1] == ""
    log = tmp_path / "log.txt"
    _, err, _ = complete("-p", "the", "-n", 2, "--log-file", log, "--log-prefix", "--log-timestamps")
    assert log.read_text() == err and all(line.split()[1] in "EWID" for line in err.splitlines())
    assert "eval time" not in complete("-p", "the", "-n", 2, "--no-perf")[1]
