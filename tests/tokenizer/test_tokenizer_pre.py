"""Pre-tokenizers: pieces against the regular expressions that they stand for, run by Python's `regex` and by Hugging
Face tokenizers, and ids with BPEs trained here; character classes against Hugging Face's over all of Unicode."""
import json

import numpy as np
import pytest
from tokenizer_driver import encode, make_strings, run, shared, split, write_bpe_gguf

regex = pytest.importorskip("regex")
tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, pre_tokenizers  # noqa: E402

C = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
X, U, W = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
KU, KW = (c[:-1] + r"&&[^\p{Han}]]" for c in (U, W))
CASED_LLM = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
CJK = "[一-龥ࠀ-一가-\ud7ff]+"
PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "qwen35": [C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "tekken": [f"{X}{U}*{W}+|{X}{U}+{W}*|\\p{{N}}{SYMBOLS}{SPACES}"],
    "gpt-4o": [f"{X}{U}*{W}+{C}?|{X}{U}+{W}*{C}?|\\p{{N}}{{1,3}}{SYMBOLS}{SPACES}"],
    "kimi-k2": [
        rf"[\p{{Han}}]+|{X}{KU}*{KW}+{C}?|{X}{KU}+{KW}*{C}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
    ],
    "seed-coder": [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES],
    "deepseek-llm": [
        r"[\r\n]", rf"\s?[{CASED_LLM}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
        + SPACES,
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "gemma4": [r"[^\n]+|[\n]+"],
}
SAME_ROWS = {
    "llama3": "llama-bpe", "dbrx": "llama-bpe", "smaug-bpe": "llama-bpe", "glm4": "llama-bpe", "chatglm-bpe": "llama-bpe",
    "deepseek-r1-qwen": "qwen2", "stablelm2": "qwen2", "olmo": "gpt-2", "jina-v2-code": "gpt-2", "mpt": "gpt-2",
    "starcoder": "smollm", "refact": "smollm", "command-r": "smollm", "llama4": "gpt-4o", "hunyuan-dense": "deepseek-v3",
}
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"]  # bits 0..8 of the C program's classes


def huggingface(patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])


def apply(compiled, text):
    """Matches and gaps of each pattern, applied to the pieces of the one before."""
    pieces = [text] if text else []
    for pattern in compiled:
        result = []
        for piece in pieces:
            at = 0
            for match in pattern.finditer(piece):
                if match.end() > match.start():
                    result += [piece[at : match.start()], match.group()]
                    at = match.end()
            result.append(piece[at:])
        pieces = [p for p in result if p]
    return pieces


@pytest.fixture(scope="module")
def strings():
    return make_strings(2000)


@pytest.mark.parametrize("pre", PATTERNS)
def test_pieces(pre, strings):
    theirs = huggingface(PATTERNS[pre])
    for string, pieces in zip(strings, split(pre, strings)):
        assert pieces == [p for p, _ in theirs.pre_tokenize_str(string)], repr(string)


@pytest.mark.parametrize("pre", PATTERNS)
def test_pieces_by_regex(pre, strings):
    """`regex` has a later Unicode, which moved U+0295 to another category."""
    compiled = [regex.compile(p, regex.V1) for p in PATTERNS[pre]]
    here = [s for s in strings if "ʕ" not in s]
    for string, pieces in zip(here, split(pre, here)):
        assert pieces == apply(compiled, string), repr(string)


@pytest.mark.parametrize("pre,row", SAME_ROWS.items())
def test_other_names(pre, row, strings):
    assert split(pre, strings[:400]) == split(row, strings[:400])


@pytest.mark.parametrize("pre", ["gpt-2", "qwen35", "tekken", "gpt-4o", "deepseek-v3", "deepseek-coder", "falcon"])
def test_ids_of_trained_bpe(pre, strings, tmp_path):
    text = shared("data/wikitext-2/wiki.test.raw").read_text()[:60000]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre == "tekken"))
    theirs.pre_tokenizer = pre_tokenizers.Sequence([huggingface(PATTERNS[pre]), byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    theirs.train_from_iterator([text, *strings], trainer)
    theirs.save(str(tmp_path / "bpe.json"))
    model = json.loads((tmp_path / "bpe.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    path = write_bpe_gguf(tmp_path / "bpe.gguf", pre, tokens, model["merges"], bos=0, eos=0)
    for string, (ids, decoded) in zip(strings, encode(path, 0, strings)):
        assert ids == theirs.encode(string).ids, repr(string)
        assert decoded == string.encode()


def test_classes_over_all_of_unicode():
    classes = np.array([int(line) for line in run(["--classes"])], dtype=np.uint32)
    points = np.array([cp for cp in range(0x110000) if not 0xD800 <= cp < 0xE000], dtype="<u4")
    everything = points.tobytes().decode("utf-32-le")
    wanted = [rf"\p{{{c}}}" for c in CATEGORIES]
    bits = list(range(len(CATEGORIES)))
    for pattern, bit in ((r"\s", 11), (r"[\r\n]", 12), (r"[0-9]", 15), (r"[A-Za-z]", 16), (r"[!-/:-@\[-`{-~]", 17),
                         (r"[$+<=>^~|]", 18), (r"\p{Han}", 21), (CJK[:-1], 22), (r"[一-龥぀-ゟ゠-ヿ]", 23),
                         (f"[{CASED_LLM}]", 24), ("[!-/:-~！-／：-～‘-‟　-。]", 25)):  # fmt: skip
        wanted.append(pattern)
        bits.append(bit)
    for pattern, bit in zip(wanted, bits):
        literal = "\\p" not in pattern and "\\s" not in pattern  # then the version of Unicode is no matter
        if literal:
            others = regex.sub(pattern + "+", "", everything)
        else:
            others = tokenizers.normalizers.Replace(Regex(pattern + "+"), "").normalize_str(everything)
        theirs = np.frombuffer(others.encode("utf-32-le"), dtype="<u4")
        ours = points[(classes[points] >> bit & 1) == 0]
        assert np.array_equal(ours, theirs), (pattern, sorted(map(hex, set(ours.tolist()) ^ set(theirs.tolist())))[:20])
    categories = sum((classes >> bit & 1) for bit in range(11))
    assert (categories == 1).all()
    assert np.flatnonzero(classes >> 13 & 1).tolist() == [0x20]
