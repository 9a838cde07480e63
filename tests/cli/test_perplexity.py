"""llama-perplexity: against numpy over athanor logits, and its file of log-probabilities against the documented layout."""
import json
import re
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

from conftest import BUILD

TEXT = "the hand and the water of the old house by the sea were never as cold as this. "


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    rng = np.random.default_rng(5)
    words = TEXT.split()
    file.write_text(" ".join(rng.choice(words, 600)) + "\n")
    return file


def ids_of(athanor, model, *args):
    return json.loads(athanor("-m", model, "--ids", *args, program="llama-tokenize").stdout)


def log_probs(athanor, model, ids, tmp_path, *args):
    """[n][n_vocab] in double."""
    out = tmp_path / "rows.f32"
    athanor("logits", "-m", model, "--ids", " ".join(map(str, ids)), "-o", out, *args)
    x = np.fromfile(out, "<f4").reshape(len(ids), -1).astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def windows_of(ids, n_ctx, bos):
    for at in range(0, len(ids) // n_ctx * n_ctx, n_ctx):
        window = list(ids[at:at + n_ctx])
        if bos is not None:
            window[0] = bos
        yield window


def nlls(athanor, model, window, first, tmp_path, *args):
    lp = log_probs(athanor, model, window, tmp_path, *args)
    return -lp[np.arange(first, len(window) - 1), window[first + 1:]]


def perplexity(athanor, *args, **kw):
    return athanor(*args, program="llama-perplexity", **kw)


def stripped(text, tmp_path):
    """The text without its last newline, as -f reads it."""
    file = tmp_path / "stripped.txt"
    file.write_bytes(text.read_bytes()[:-1])
    return file


@pytest.mark.parametrize("name, bos, cache", [("qwen3", None, "f16"), ("llama", 1, "turbo3")])
def test_perplexity_is_numpys(name, bos, cache, athanor, golden, text, tmp_path):
    model = golden / name / "model.gguf"
    types = ("-ctk", cache, "-ctv", cache)
    report = tmp_path / "ppl.json"
    done = perplexity(athanor, "-m", model, "-f", text, "-c", 512, "--chunks", 2, "--json", report, *types)
    ids = ids_of(athanor, model, "-f", stripped(text, tmp_path))
    assert len(ids) >= 1024
    if bos is not None:
        assert ids[0] == bos
    nll = np.concatenate([nlls(athanor, model, w, 256, tmp_path, *types) for w in windows_of(ids[:1024], 512, bos)])
    assert nll.size == 510
    out = done.stdout.decode()
    first, both = (float(x) for x in re.findall(r"\[\d\]([\d.]+),", out))
    assert first == pytest.approx(np.exp(nll[:255].mean()), abs=1e-4 * first)
    ppl, error = map(float, re.search(r"^Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)$", out, re.M).groups())
    assert ppl == both == pytest.approx(np.exp(nll.mean()), abs=1e-4 * ppl)
    assert error == pytest.approx(ppl * nll.std() / np.sqrt(nll.size - 1), rel=1e-3)
    assert "seconds per pass - ETA" in done.stderr.decode()
    r = json.loads(report.read_text())
    assert (r["type_k"], r["n_ctx"], r["chunks"], r["tokens"]) == (cache, 512, 2, 510)
    assert r["ppl"] == pytest.approx(ppl, abs=1e-4)


def test_stride_and_output_type(athanor, golden, text, tmp_path):
    model = golden / "qwen3/model.gguf"
    ids = ids_of(athanor, model, "-f", stripped(text, tmp_path))
    done = perplexity(athanor, "-m", model, "-f", text, "-c", 192, "--ppl-stride", 128, "--chunks", 2, "--ppl-output-type", 1)
    nll = np.concatenate([nlls(athanor, model, ids[at:at + 256], 127, tmp_path) for at in (0, 128)])
    rows = [line.split() for line in done.stdout.decode().splitlines() if re.match(r" *\d+  ", line)]
    assert [int(r[0]) for r in rows] == [0, 128]
    assert float(rows[1][1]) == pytest.approx(np.exp(nll.mean()), rel=1e-4) and nll.size == 256
    done = perplexity(athanor, "-m", model, "-f", text, "-c", 256, "--chunks", 1, "--ppl-output-type", 1)
    at, ppl, mean, error = done.stdout.decode().splitlines()[0].split()
    nll = nlls(athanor, model, ids[:256], 128, tmp_path)
    assert (at, float(mean)) == ("0", pytest.approx(nll.mean(), abs=1e-5))


# ---- the file of log-probabilities

def read_base(path):
    """Header, tokens and rows of log-probabilities, by the layout that llama.cpp's files have."""
    data = path.read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunk = struct.unpack_from("<3i", data, 8)
    tokens = np.frombuffer(data, "<i4", n_ctx * n_chunk, 20).reshape(n_chunk, n_ctx)
    words = 2 * ((n_vocab + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", -1, 20 + tokens.nbytes).reshape(n_chunk, n_ctx - 1 - n_ctx // 2, words)
    scale, least = (np.ascontiguousarray(rows[..., i:i + 2]).view("<f4") for i in (0, 2))
    return tokens, scale * rows[..., 4:4 + n_vocab].astype(np.float64) + least, scale


def write_base(path, windows, rows, n_vocab):
    """rows: per window [scored][n_vocab] log-probabilities."""
    with open(path, "wb") as f:
        f.write(b"_logits_" + struct.pack("<3i", len(windows[0]), n_vocab, len(windows)))
        f.write(np.array(windows, "<i4").tobytes())
        for lp in np.concatenate(rows):
            least = max(lp.min(), lp.max() - 16)
            scale = np.float32((lp.max() - least) / 65535)
            q = np.rint((lp.clip(least) - least) / max(scale, np.float32(1e-30)))
            f.write(np.array([scale, least], "<f4").tobytes() + q.astype("<u2").tobytes() + b"\0\0" * (n_vocab % 2))


def test_base_file_is_read_by_the_documented_layout(athanor, golden, text, tmp_path):
    model, base = golden / "llama/model.gguf", tmp_path / "base.bin"
    perplexity(athanor, "-m", model, "-f", text, "-c", 256, "--chunks", 2, "--save-all-logits", base)
    tokens, lp, scale = read_base(base)
    ids = ids_of(athanor, model, "-f", stripped(text, tmp_path))
    assert tokens.shape == (2, 256) and tokens.ravel().tolist() == ids[:512]
    for w, window in enumerate(windows_of(ids[:512], 256, 1)):
        want = log_probs(athanor, model, window, tmp_path)[128:255]
        want = np.maximum(want, want.max(1, keepdims=True) - 16)
        assert np.abs(lp[w] - want).max() <= 0.51 * scale.max() + 2e-6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.bin", "rows.f32", "stripped.txt", "text.txt"]


def test_divergence_from_a_foreign_file(athanor, golden, text, tmp_path):
    """A file that numpy wrote; turbo2 measured against it by both."""
    model, base, report = golden / "qwen3/model.gguf", tmp_path / "base.bin", tmp_path / "kld.json"
    ids = ids_of(athanor, model, "-f", text)
    windows = list(windows_of(ids[:1024], 512, None))
    p = [log_probs(athanor, model, w, tmp_path)[256:511] for w in windows]
    write_base(base, windows, p, p[0].shape[1])
    run = lambda *types: perplexity(athanor, "-m", model, "--kl-divergence", "--kl-divergence-base", base, "--json", report,
                                    *types).stdout.decode()
    run()
    same = json.loads(report.read_text())
    assert abs(same["kld_mean"]) < 1e-6 and same["kld_max"] < 16 / 65535  # a step of the file
    assert same["top1"] == 1
    types = ("-ctk", "turbo2", "-ctv", "turbo2")
    out = run(*types)
    q = np.concatenate([log_probs(athanor, model, w, tmp_path, *types)[256:511] for w in windows])
    p = np.concatenate(p)
    kld = (np.exp(p) * (p - q)).sum(1)
    got = json.loads(report.read_text())
    assert got["kld_mean"] == pytest.approx(kld.mean(), rel=2e-3) and kld.mean() > 1e-3
    assert got["kld_se"] == pytest.approx(kld.std() / np.sqrt(kld.size - 1), rel=5e-3)
    assert got["kld_median"] == pytest.approx(np.median(kld), rel=5e-3)
    assert got["kld_p99"] == pytest.approx(np.quantile(kld, 0.99), rel=5e-3)
    assert got["top1"] == pytest.approx((p.argmax(1) == q.argmax(1)).mean())
    next_ids = np.concatenate([w[257:] for w in windows])
    at = np.arange(len(next_ids))
    dp = np.exp(q[at, next_ids]) - np.exp(p[at, next_ids])
    assert got["p_diff_rms"] == pytest.approx(np.sqrt((dp ** 2).mean()), rel=5e-3)
    held = np.maximum(p, p.max(1, keepdims=True) - 16)  # as deep as the file goes
    assert got["ppl_ratio"] == pytest.approx(np.exp((held - q)[at, next_ids].mean()), rel=1e-3)
    assert same["ppl_ratio"] == pytest.approx(np.exp((held - p)[at, next_ids].mean()), rel=1e-3)
    for line in ("Mean PPL(Q) ", "Mean PPL(base) ", "Cor(ln(PPL(Q)), ln(PPL(base)))", "Mean    KLD:", "Maximum KLD:", "99.9%   KLD:",
                 "Median  KLD:", "Mean    Δp:", "RMS Δp    :", "Same top p:"):
        assert line in out, line
    assert len([line for line in out.splitlines() if re.match(r" +[12]  +[\d.]+ ± ", line)]) == 2


# ---- tasks

def score(athanor, model, ids, start, end, tmp_path):
    lp = log_probs(athanor, model, ids, tmp_path)
    return lp[np.arange(start - 1, end - 1), ids[start:end]].mean()


def common(lists):
    n = 0
    while n < min(map(len, lists)) - 1 and len({x[n] for x in lists}) == 1:
        n += 1
    return n


def best(athanor, model, texts, tmp_path):
    ids = [ids_of(athanor, model, "-p", t) for t in texts]
    start = max(common(ids), 1)
    return int(np.argmax([score(athanor, model, x, start, len(x), tmp_path) for x in ids]))


STARTS = ["the hand of", "the water and the house", "a sea, "]
ENDS = [["the sea was cold", "house", "a b c", "never"], ["xyz", "the old house", "hand", "7"], ["water", "and", "cold cold", "this"]]


def share(done):
    return float(re.search(r"score\(\d+ tasks\): ([\d.]+)", done.stdout.decode()).group(1))


def test_hellaswag_and_multiple_choice(athanor, golden, tmp_path):
    model = golden / "qwen3/model.gguf"
    guesses = [best(athanor, model, [f"{s} {e}" for e in ends], tmp_path) for s, ends in zip(STARTS, ENDS)]
    right = [guesses[0], (guesses[1] + 1) % 4, guesses[2]]
    lines = tmp_path / "hellaswag.txt"
    lines.write_text("".join(f"{s}\n{r}\n" + "\n".join(ends) + "\n" for s, r, ends in zip(STARTS, right, ENDS)))
    done = perplexity(athanor, "-m", model, "-f", lines, "--hellaswag")
    assert share(done) == pytest.approx(200 / 3, abs=1e-3) and len(done.stdout.splitlines()) == 5

    def string(s):
        return struct.pack("<I", len(s)) + s.encode()

    def answers(texts, labels):
        return struct.pack("<I", len(texts)) + b"".join(map(string, texts)) + struct.pack(f"<{len(labels)}i", *labels)

    tasks = [string(s) + answers(ends, [int(i == r) for i in range(4)]) + answers(ends[:1], [1]) for s, ends, r in zip(STARTS, ENDS, right)]
    file = tmp_path / "tasks.bin"
    starts = np.cumsum([4 + 4 * len(tasks)] + [len(t) for t in tasks[:-1]])
    file.write_bytes(struct.pack("<I", len(tasks)) + starts.astype("<u4").tobytes() + b"".join(tasks))
    assert share(perplexity(athanor, "-m", model, "-bf", file, "--multiple-choice")) == pytest.approx(200 / 3, abs=1e-3)
    assert "3 tasks" in perplexity(athanor, "-m", model, "-bf", file, "--multiple-choice", "--multiple-choice-tasks", 99).stdout.decode()
    assert "(2 tasks" in perplexity(athanor, "-m", model, "-bf", file, "--multiple-choice", "--multiple-choice-tasks", 2).stdout.decode()
    file.write_bytes(file.read_bytes()[:-3])
    assert "cut short" in error(athanor, "-m", model, "-bf", file, "--multiple-choice")
    lines.write_text("a\n7\nb\nc\nd\ne\n")
    assert "second line" in error(athanor, "-m", model, "-f", lines, "--hellaswag")
    lines.write_bytes(b"a\n1\nb\nc\nd\ne\n\0a\n1\nb\nc\nd\ne\n")
    assert "NUL byte at offset 12" in error(athanor, "-m", model, "-f", lines, "--hellaswag")
    lines.write_bytes(b"1,a _ b,c,d,1\n\0")
    assert "NUL byte at offset 14" in error(athanor, "-m", model, "-f", lines, "--winogrande")


def test_winogrande(athanor, golden, tmp_path):
    model = golden / "qwen3/model.gguf"
    rng = np.random.default_rng(3)
    words = "hand water house old sea never cold this that because".split()
    # three tokens follow the choice, so that the last one, which is left out, would decide now and then
    rows = [("the " + " ".join(rng.choice(words, 2)) + ", _ " + "".join(rng.choice(list("aehnortx.!?"), 2)), *rng.permutation(words)[:2])
            for _ in range(20)]
    guesses = []
    for sentence, *choices in rows:
        before, after = sentence.split("_")
        ids = [ids_of(athanor, model, "-p", before + c + after) for c in choices]
        starts = [common(ids)] * 2
        if min(map(len, ids)) > starts[0] + 3:  # enough to leave the choice itself out
            starts = [min(len(ids_of(athanor, model, "-p", before + c)), len(x) - 1) for c, x in zip(choices, ids)]
        ends = [max(len(x) - 1, s + 1) for x, s in zip(ids, starts)]
        guesses.append(int(np.argmax([score(athanor, model, x, s, e, tmp_path) for x, s, e in zip(ids, starts, ends)])))
    file = tmp_path / "w.csv"
    lines = [f'{i},"{s}",{a},"{b}",{g + 1}\r\n' for i, ((s, a, b), g) in enumerate(zip(rows, guesses))]
    file.write_text("".join(lines))
    assert share(perplexity(athanor, "-m", model, "-f", file, "--winogrande")) == 100 and len(set(guesses)) == 2
    file.write_text('5,"a ""cold"" _, sea and hand",old,house,1\n5,"a ""cold"" _, sea and hand",old,house,2\n')
    assert share(perplexity(athanor, "-m", model, "-f", file, "--winogrande")) == 50
    file.write_text("1,no gap,a,b,1\n")
    assert "line 1" in error(athanor, "-m", model, "-f", file, "--winogrande")


# ---- what is refused, what is interrupted

def error(athanor, *args):
    done = perplexity(athanor, *args, check=False)
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr.decode()
    return errors[0]


def test_bad_input(athanor, golden, text, tmp_path):
    model, base = golden / "qwen3/model.gguf", tmp_path / "base.bin"
    assert "at least 1024" in error(athanor, "-m", model, "-p", "short")
    assert "--ppl-stride" in error(athanor, "-m", model, "-f", text, "-c", 256, "--ppl-stride", 2000)
    assert "one of them" in error(athanor, "-m", model, "-f", text, "-c", 256, "--ppl-stride", 8, "--kl-divergence-base", base)
    assert "--kl-divergence-base FILE" in error(athanor, "-m", model, "--kl-divergence")
    kl = ("--kl-divergence", "--kl-divergence-base", base)
    assert "base.bin" in error(athanor, "-m", model, *kl)
    base.write_bytes(b"PK\3\4" * 99)
    assert "no file of log-probabilities" in error(athanor, "-m", model, *kl)
    write_base(base, [[1] * 16], [np.zeros((7, 320))], 320)
    whole = base.read_bytes()
    for size in (7, 15, 19, 40, len(whole) - 1):
        base.write_bytes(whole[:size])
        assert "base.bin" in error(athanor, "-m", model, *kl)
    for at, value in ((8, 2), (8, 1 << 30), (12, -1), (12, 319), (16, 1 << 24), (20, 320)):
        base.write_bytes(whole[:at] + struct.pack("<i", value) + whole[at + 4:])
        assert "base.bin" in error(athanor, "-m", model, *kl)
    assert "no tasks" in error(athanor, "-m", model, "--hellaswag")
    for most in (2**63 - 1, -1, 2**30):
        assert f"-c {most} is out of range" in error(athanor, "-m", model, "-f", text, "-c", most, "--ppl-stride", 4)
    assert "--ppl-stride" in error(athanor, "-m", model, "-f", text, "-c", 256, "--ppl-stride", 2**63 - 1)


def test_rows_that_are_no_distributions(athanor, golden, tmp_path):
    """The last row of the second window, made hostile; heads that rounding may leave are taken."""
    model, base = golden / "qwen3/model.gguf", tmp_path / "base.bin"
    write_base(base, [list(range(1, 17))] * 2, [np.full((7, 320), -np.log(320))] * 2, 320)
    whole = base.read_bytes()
    at = len(whole) - 2 * (320 + 4)
    def with_row(scale, least, first=0):
        base.write_bytes(whole[:at] + struct.pack("<2fH", scale, least, first) + whole[at + 10:])
        return "-m", model, "--kl-divergence", "--kl-divergence-base", base
    nan, inf = float("nan"), float("inf")
    for row in ((nan, -5), (inf, -5), (0, nan), (0, -inf), (0, inf), (-1e-5, -5), (1e30, -5, 1), (0, 0.01), (16 / 65535, -15.9, 65535),
                (0, -7), (3e38, -5, 65535)):
        assert "base.bin: the row of window 2, position 14 " in error(athanor, *with_row(*row)), row
    for row in ((0, -5.76832), (16 / 65535, -16 + 1e-5, 65535), (1e30, -5)):
        perplexity(athanor, *with_row(*row))


def test_interrupt(golden, text, tmp_path):
    report, base = tmp_path / "ppl.json", tmp_path / "base.bin"
    text.write_text(text.read_text() * 200)
    command = [BUILD / "bin/llama-perplexity", "-m", golden / "qwen3/model.gguf", "-f", text, "-c", "256", "--json", report,
               "--kl-divergence-base", base]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(20)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Final estimate: PPL" in out
    assert json.loads(report.read_text())["chunks"] >= 1 and not base.exists()
