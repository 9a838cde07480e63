"""The repository keeps its own rules (check_layering.py), and the check sees each kind of offence."""
import subprocess
import sys
from pathlib import Path

import pytest

from check_layering import check

ROOT = Path(__file__).resolve().parent.parent

CLEAN = {
    "include/athanor/athanor.h": '#include "athanor/athanor_error.h"\n#include <stdint.h>\n',
    "src/base/error.h": '#include "athanor/athanor_error.h"\n',
    "src/base/log.c": '/* never printf("x") or\n * exit() */\nint x = snprintf(buf, 8, "exit(1)");\n',
    "src/codec/kv_type.h": '#include "base/error.h"\n#include "codec/blocks.h"\n',
    "src/kernels/c/dot_c.c": '#include "kernels/dot.h"\n#include "codec/blocks.h"\n#include <sys/random.h>\n',
    "src/models/llama.c": '#include "gguf/gguf.h"\n#include "kv/kv.h"\n#include "base/error.h"\n',
    "src/engine/engine.c": '#include "sample/sample.h"\n#include "tokenizer/tokenizer.h"\n',
    "tools/main.c": '#include "athanor/athanor.h"\n#include "tools/args.h"\n#include "args.h"\n'
    'int y = printf("x");\n',
    "tools/args.h": "int z;\n",
    "tests/kv/test_kv.c": '#include "kv/kv.h"\n',
}

# File, its text, and what the line about it has to say.
OFFENCES = [
    ("src/base/bad.c", '#include "codec/blocks.h"\n', "src/base/bad.c:1: includes codec/blocks.h"),
    ("src/codec/bad.c", '\n  # include "gguf/gguf.h"\n', "src/codec/bad.c:2: includes gguf/gguf.h"),
    ("src/gguf/bad.c", '#include "kernels/dot.h"\n', "includes kernels/dot.h"),
    ("src/kernels/x86/bad_avx2.c", '#include "device/device.h"\n', "includes device/device.h"),
    ("src/device/bad.h", '#include "kv/kv.h"\n', "includes kv/kv.h"),
    ("src/kv/bad.c", '#include "gguf/gguf.h"\n', "includes gguf/gguf.h"),
    ("src/models/bad.c", '#include "tokenizer/tokenizer.h"\n', "includes tokenizer/tokenizer.h"),
    ("src/tokenizer/bad.c", '#include "codec/blocks.h"\n', "includes codec/blocks.h"),
    ("src/sample/bad.c", '#include <gguf/gguf.h>\n', "includes gguf/gguf.h"),
    ("src/engine/bad.c", '#include "tools/args.h"\n', "tools is no folder of src"),
    ("src/engine/bad.c", '#include "engine.h"\n', "write it as folder/name"),
    ("src/extra/bad.c", "int a;\n", "no folder of the layer table"),
    ("src/bad.c", "int a;\n", "no folder of the layer table"),
    ("tools/bad.c", '#include "base/error.h"\n', "tools see include/athanor and tools only"),
    ("tools/bad.c", '#include "absent.h"\n', "tools see include/athanor and tools only"),
    ("include/athanor/bad.h", '#include "base/error.h"\n', "public headers include public headers only"),
    ("src/kv/bad.c", 'int f(void) {\n    printf ("x");\n}\n', "src/kv/bad.c:2: library code uses printf"),
    ("src/kv/bad.c", '// it\'s\nvoid f(void) { exit(1); }\n', "library code uses exit"),
    ("src/kv/bad.c", "void f(void) { abort(); }\n", "library code uses abort"),
    ("src/kv/bad.c", 'char *x = getenv("X");\n', "library code uses getenv"),
    ("src/kv/bad.c", 'int x = fprintf(stderr, "x");\n', "library code uses stderr"),
    ("src/kv/bad.c", "\tint a;\n", "src/kv/bad.c:1: tab"),
    ("src/kv/bad.c", "int a; \n", "src/kv/bad.c:1: trailing blank"),
    ("src/kv/bad.c", "int a;\r\n", "trailing blank"),
    ("tests/bad.py", "a = 1", "tests/bad.py: no newline at the end"),
    ("tests/bad.py", "a = 1\n\n", "tests/bad.py: blank lines at the end"),
    ("tests/kv/log.c", "int a;\n", "tests/kv/log.c: the name is taken by src/base/log.c"),
]


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def run(root):
    command = [sys.executable, ROOT / "tests" / "check_layering.py", root]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_repository_keeps_its_rules():
    assert check(ROOT) == []


def test_a_clean_tree_passes(tmp_path):
    write_tree(tmp_path, CLEAN)
    result = run(tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("name, text, message", OFFENCES)
def test_an_offence_is_found(tmp_path, name, text, message):
    write_tree(tmp_path, CLEAN | {name: text})
    lines = check(tmp_path)
    assert len(lines) == 1, lines
    assert message in lines[0]
    assert lines[0].startswith(name)


def test_an_offence_fails_the_script(tmp_path):
    name, text, message = OFFENCES[0]
    write_tree(tmp_path, CLEAN | {name: text})
    result = run(tmp_path)
    assert result.returncode == 1
    assert message in result.stdout


def test_a_wrong_root_is_an_error(tmp_path):
    result = run(tmp_path / "absent")
    assert result.returncode == 1
    assert "no src folder" in result.stderr
