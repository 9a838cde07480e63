"""Ids against the expected ones of real vocabularies, and against Hugging Face tokenizers."""
import os

import pytest
from test_tokenizer_pre import PATTERNS
from tokenizer_driver import ADD_SPECIAL, PARSE_SPECIAL, encode, gguf_from_json, load_json, make_strings, run, shared, write_bpe_gguf


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2", "deepseek-coder"])
def test_expected_ids(name):
    gguf = shared(f"data/vocab/{name}.gguf")
    cases = shared(f"data/vocab/{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = shared(f"data/vocab/{name}.gguf.out").read_text().split("\n")
    cases = cases[: len(cases) - (cases[-1] == "")]
    expected = expected[: len(cases)]
    assert len(cases) == len(expected) >= 40
    for case, line, (ids, text) in zip(cases, expected, encode(gguf, 0, cases)):
        assert ids == [int(i) for i in line.split()], repr(case)
        assert text == case.encode()


PRES = {"qwen3": "qwen2", "llama3_1": "llama-bpe"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A GGUF file of the vocabulary in each tokenizer.json, and the json."""
    files = {}
    for name, pre in PRES.items():
        text, config = load_json(name)
        path = tmp_path_factory.mktemp("vocab") / f"{name}.gguf"
        files[name] = gguf_from_json(path, pre, text, config), text
    return files


@pytest.mark.parametrize("name", PRES)
def test_same_as_huggingface(name, made):
    tokenizers = pytest.importorskip("tokenizers")
    gguf, text = made[name]
    theirs = tokenizers.Tokenizer.from_str(text)
    theirs.normalizer = None  # Qwen's NFC is no part of a GGUF file
    specials = [t.content for t in theirs.get_added_tokens_decoder().values()][:40] + ["</s>", "<|im_end", "|>"]
    strings = make_strings(2400, specials)
    expected = [e.ids for e in theirs.encode_batch(strings, add_special_tokens=False)]
    for string, ids, (ours, decoded) in zip(strings, expected, encode(gguf, PARSE_SPECIAL, strings)):
        assert ours == ids, repr(string)
        assert decoded == string.encode()


def test_bad_utf8_round_trips():
    for name in ("llama-spm", "gpt-2"):  # in deepseek-coder the byte C0's token is the same as the character À's
        strings = [bytes([b]) for b in range(256)] + [bytes([b]) * 3 + b"a" for b in range(128, 256)]
        strings += [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\xe4\xb8", b"\xf0\x9f\x98", b"x\x00\xffy"]
        for string, (_, decoded) in zip(strings, encode(shared(f"data/vocab/{name}.gguf"), 0, strings)):
            assert decoded == string


def test_info(made):
    lines = dict(line.split(" ", 1) for line in run(["--info", made["llama3_1"][0]]))
    assert lines["bos"] == "128000" and lines["add_bos"] == "1" and lines["eot"] == "128009"
    assert lines["eog"] == "128001 128009"  # <|end_of_text|>, <|eot_id|>
    lines = dict(line.split(" ", 1) for line in run(["--info", made["qwen3"][0]]))
    assert lines["eos"] == "151645" and lines["add_bos"] == "0"
    assert set(lines["eog"].split()) == {"128247", "151643", "151645", "151662", "151663", "151664"}


@pytest.mark.skipif("ATH_SMOLLM2" not in os.environ, reason="ATH_SMOLLM2 names no model file")
def test_same_as_llama_cpp():
    llama_cpp = pytest.importorskip("llama_cpp")
    path = os.environ["ATH_SMOLLM2"]
    theirs = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    strings = [s for s in make_strings(3000, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]) if s and "\x00" not in s]
    for flags in (0, PARSE_SPECIAL, ADD_SPECIAL | PARSE_SPECIAL):
        for string, (ours, _) in zip(strings, encode(path, flags, strings)):
            ids = theirs.tokenize(string.encode(), add_bos=bool(flags & ADD_SPECIAL), special=bool(flags & PARSE_SPECIAL))
            assert ours == ids, repr(string)


# ---- vocabularies whose pre-tokenizer has an unknown name

UNKNOWN = ("--override-kv", "tokenizer.ggml.pre=str:of-tomorrow")
TEXT = "It's 12345 o'clock, WE'RE late!\n\n\n  def f(x):\n\treturn x[1]  # Größe, año, 你好世界, Привет\r\n\r\n $9.99 ... \n"


@pytest.mark.parametrize("name, taken, cut", [("gpt-2", "gpt-2", 0), ("deepseek-coder", "deepseek-coder", 0), ("llama3_1", "llama3", 0), ("qwen3", "qwen35", 6)])
def test_what_fits_a_vocabulary(name, taken, cut, made, athanor_release):
    """Qwen 3 cuts letters from their marks, and its vocabulary holds 1,673 tokens with both: Qwen 3.5's way fits it better."""
    path = made[name][0] if name in made else shared(f"data/vocab/{name}.gguf")
    right = athanor_release("tokenize", "-m", path, "-p", TEXT, "--ids")
    got = athanor_release("tokenize", "-m", path, "-p", TEXT, "--ids", "--closest-pre", *UNKNOWN)
    assert got.stdout == right.stdout and len(right.stdout.split()) > 40
    assert f'"of-tomorrow" is not known: using "{taken}", which cuts {cut} of'.encode() in got.stderr
    assert b"warning" not in athanor_release("tokenize", "-m", path, "-p", TEXT, "--ids", "--closest-pre").stderr


def test_refused_with_the_list(athanor_release):
    done = athanor_release("tokenize", "-m", shared("data/vocab/gpt-2.gguf"), "-p", TEXT, *UNKNOWN, check=False)
    assert done.returncode == 1 and not done.stdout
    message = done.stderr.decode().split("error: ")[1]
    assert "of-tomorrow" in message and "--closest-pre" in message and message.endswith("gemma4\n")
    for name in PATTERNS:
        assert f" {name}" in message or name == "llama-bpe"


def test_a_vocabulary_that_nothing_fits(tmp_path, athanor_release):
    tokens = [chr(c) for c in range(33, 127)] + ["Ġ"] + [f"{a}Ġ{b}1" for a in "abcdef" for b in "ghijkl"]
    path = write_bpe_gguf(tmp_path / "v.gguf", "of-tomorrow", tokens, ["a b"])
    done = athanor_release("tokenize", "-m", path, "-p", "a b", "--closest-pre", check=False)
    assert done.returncode == 1 and b"no other fits the vocabulary: each cuts 36 or more of its 131 tokens" in done.stderr


def test_the_finest_of_those_that_fit(tmp_path, athanor_release):
    """Tokens of one digit leave it open whether numbers are cut into threes, or at all: every digit by itself is safe."""
    tokens = [chr(c) for c in range(33, 127)] + ["Ġ", "he", "the", "Ġthe", "ing", "Ċ", "ĊĊ", "ĊĠĠ", "ThE", "'s", "ings"]
    path = write_bpe_gguf(tmp_path / "v.gguf", "of-tomorrow", tokens, ["h e"])
    done = athanor_release("tokenize", "-m", path, "-p", "a", "--closest-pre")
    assert b'using "smollm", which cuts 0 of the vocabulary\'s 105 tokens' in done.stderr, done.stderr
