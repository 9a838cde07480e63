"""Runs the C program test_tokenizer over many strings, makes strings, and makes GGUF files out of tokenizer.json."""
import json
import lzma
import os
import pathlib
import random
import struct
import subprocess
import unicodedata

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ATH_BUILD", REPO / "build")) / "tests" / "test_tokenizer"
SHARED = REPO.parent / "shared"
ADD_SPECIAL, PARSE_SPECIAL = 1, 2
SEED = 20260


def shared(path):
    """A file of the shared data, or the test is skipped."""
    if not (SHARED / path).exists():
        pytest.skip(f"no shared data: {path}")
    return SHARED / path


def run(args, strings=()):
    data = b"".join(struct.pack("<I", len(s)) + s for s in strings)
    done = subprocess.run([PROGRAM, *map(str, args)], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout.decode().split("\n")[:-1]


def encode(gguf, flags, strings):
    """[(ids, decoded bytes)] of strings, each str or bytes."""
    lines = run(["--encode", gguf, flags], [s.encode() if isinstance(s, str) else s for s in strings])
    assert len(lines) == len(strings)
    pairs = (line.split("\t") for line in lines)
    return [([int(i) for i in ids.split()], bytes.fromhex(text)) for ids, text in pairs]


def split(pre, strings):
    """The pieces of each string."""
    result = []
    for string, line in zip(strings, run(["--split", pre], [s.encode() for s in strings])):
        data, at, pieces = string.encode(), 0, []
        for size in map(int, line.split()):
            pieces.append(data[at : at + size].decode())
            at += size
        assert at == len(data)
        result.append(pieces)
    return result


FIXED = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n ", "\n  \n", "a\n", "a \n b", "x\t\ty", "a\x00b", "\x00", "\x0b\x0c\x1c\x85\u2028\u2029",
    "Hello world", " Hello, World!", "I'm you're HE'S it'll WE'VE i'd don't 'S 'Re 'lL 'ſ d'Artagnan ''s 'x ' s", "a'ſb 1'Sx x'RE'll're'vE'D'm'Tt",
    "123", "1234567", "3.14159 -1e10 0xFF", "1 22 333 4444 55555", "٣٤٥ ½ Ⅷ ²³", "$5 + 3 = 8 <tag> ^_^ ~`|`",
    "camelCaseWord HTTPServer ÉCOLE École éCOLE ЖУРНАЛ Журнал жУРНАЛ ǅungla ʰa ªº", "中文字符 日本語テキスト 한국어 텍스트 中A中 A中a 漢字かな交じり文", "ไทย ภาษา हिन्दी தமிழ் العربية עברית",
    "e\u0301 \u0301\u0301 a\u0301b \u0301a n\u0303o\u0302", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☃️ 🦙.cpp", "/path/to/file //x\n/ /\n a/\r\n/b", "def f(x):\n    return x  # comment\n\n\n\tif (a!=b) { c[0]++; }\r\n",
    "!@#$%^&*()_+-=[]{}\\|;:'\",.<>/?", "…—–“quoted”‘s’ „x“ «y»  　。、！？", "word\u00a0word\u2003word \u3000x \u200bzero\u200d", "a" * 300, " " * 300, "1" * 100, "\n" * 50, "=" * 80, "ab" * 100,
    "aͅ ͅ ſs KK Å", "µ ƻ ʔ", "\U0001d400\U0001d41a \U00010400\U00010428 \U0001e900", "\ufeffBOM", "￿ \U0010ffff \ue000",
]


def assigned(cp):
    return unicodedata.category(chr(cp)) not in ("Cn", "Cs")


def make_strings(n, specials=()):
    """FIXED and n more: every block of Unicode, mixtures of classes, pieces of real text, special tokens inline."""
    rng = random.Random(SEED)
    print("seed", SEED)
    points = [cp for cp in range(0x20000) if assigned(cp)] + [0x20000, 0x2A700, 0x30000, 0xE0020, 0xF0000, 0x10FFFD]
    blocks = {}
    for cp in points:
        blocks.setdefault(cp >> 7, []).append(chr(cp))
    strings = list(FIXED)
    for block in blocks.values():
        strings.append("".join(rng.choice(block) for _ in range(24)))
        strings.append("".join(rng.choice(block) + rng.choice(["", " ", "a", "1", "'s", "\n", "."]) for _ in range(12)))
    atoms = ["a", "B", "é", "É", "中", "가", "1", "٣", "½", " ", "  ", "\t", "\n", "\r\n", "'", "'s", "'LL", "!", "/", "$", "`", "\u0301", "ʰ", "ǅ", "ſ", "🙂", "\u200d", "\u00a0", "\u3000", "_", "の", "。", "\x00", "\x7f"]
    text = (SHARED / "data/wikitext-2/wiki.test.raw").read_text() if SHARED.exists() else "plain text " * 1000
    while len(strings) < n + len(FIXED):
        kind = len(strings) % 4
        if kind == 0:
            strings.append("".join(rng.choice(atoms) for _ in range(rng.randint(1, 40))))
        elif kind == 1:
            at = rng.randrange(len(text) - 400)
            strings.append(text[at : at + rng.randint(1, 400)])
        elif kind == 2:
            strings.append("".join(chr(rng.choice(points)) for _ in range(rng.randint(1, 30))))
        else:
            parts = [rng.choice(atoms) * rng.randint(1, 5) for _ in range(rng.randint(1, 12))]
            if specials:
                parts[len(parts) // 2 :: 3] = [rng.choice(specials) for _ in parts[len(parts) // 2 :: 3]]
            strings.append("".join(parts))
    return strings


def write_bpe_gguf(path, pre, tokens, merges, types=None, **ids):
    """A GGUF file without tensors. ids: bos=..., eos=..."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [1] * len(tokens))
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for name, value in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def load_json(name):
    """tokenizer.json and tokenizer_config.json of data/tokenizers."""
    packed = shared(f"data/tokenizers/{name}.tokenizer.json.xz")
    config = json.loads(shared(f"data/tokenizers/{name}.tokenizer_config.json").read_text())
    return lzma.open(packed, "rt").read(), config


def gguf_from_json(path, pre, text, config):
    data = json.loads(text)
    tokens = {i: (token, 1) for token, i in data["model"]["vocab"].items()}
    ids = {}
    for added in data["added_tokens"]:
        tokens[added["id"]] = (added["content"], 3 if added["special"] else 4)
        ids[added["content"]] = added["id"]
    roles = {r: ids[config[f"{r}_token"]] for r in ("bos", "eos") if config.get(f"{r}_token")}
    order = [tokens[i] for i in range(len(tokens))]
    return write_bpe_gguf(path, pre, [t for t, _ in order], data["model"]["merges"], [k for _, k in order], **roles)
