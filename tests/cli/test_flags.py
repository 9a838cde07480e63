"""Command lines: every row of tools/flags.def, and the parser's rules."""
import collections
import os
import pathlib
import re
import subprocess

import pytest

from conftest import BUILD, ROOT

PROGRAMS = {"C": "llama-cli", "T": "llama-tokenize", "L": "logits", "I": "inspect", "D": "distortion",
            "X": "llama-perplexity", "Q": "quality", "P": "plan", "M": "models", "B": "llama-bench"}
Flag = collections.namedtuple("Flag", "id programs kind effect names no_names env value standard group help")
VALUES = {"INT": "1", "FLOAT": "0.5", "TEXT": "x", "LIST": "x", "ON_OFF": "on", "BARE": "off"}


def table():
    text = re.sub(r'"\n +"', "", (ROOT / "tools/flags.def").read_text())  # literals that C joins
    string = r'"((?:[^"\\]|\\.)*)"'
    row = re.compile(r"^FLAG\((\w+), ([A-Z|]+), (\w+), (\w+),\s*" + r",\s*".join([string] * 5) + r",\s*(\w+),\s*" + string + r"\)", re.M)
    rows = [Flag(*m.groups()) for m in row.finditer(text)]
    assert len(rows) == len(re.findall(r"^FLAG\(", text, re.M)) > 150
    return [r._replace(programs=r.programs.split("|"), names=r.names.split(), no_names=r.no_names.split(), env=r.env.split())
            for r in rows]


FLAGS = table()


def value_of(flag):
    return flag.value.split("|")[0] if flag.kind == "CHOICE" else VALUES.get(flag.kind)


def call(program, *args, env=None, **kw):
    own = [program] if not program.startswith("llama-") else []
    binary = BUILD / "bin" / (program if not own else "athanor")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_")}
    done = subprocess.run([str(binary), *own, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                          env={**clean, **(env or {})}, **kw)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()


def fails(program, *args, **kw):
    """The one error line of a call that must fail."""
    code, _, err = call(program, *args, **kw)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 1 and len(errors) == 1, err
    return errors[0]


@pytest.mark.parametrize("letter", PROGRAMS)
def test_every_flag_is_accepted(letter):
    args, seen = [], set()
    for flag in (f for f in FLAGS if letter in f.programs and f.effect != "REFUSED" and f.id not in ("HELP", "VERSION")):
        for name in flag.names + flag.no_names:
            assert name not in seen, f"{name} stands twice"
            seen.add(name)
            args += [name] if flag.kind == "SWITCH" else [name, value_of(flag)]
    code, out, err = call(PROGRAMS[letter], *args, "--version")
    assert (code, err) == (0, "") and out.startswith("athanor ")


def test_every_refusal_is_one_sentence():
    refused = [f for f in FLAGS if f.effect == "REFUSED"]
    assert len(refused) > 25
    for flag in refused:
        name = flag.names[-1]
        line = fails("llama-cli", name, *([] if flag.kind == "SWITCH" else ["1"]))
        assert line == f"error: {name}: {flag.help}"


def test_every_variable_is_read():
    for flag in (f for f in FLAGS if "C" in f.programs and f.env):
        good = {name: "on" if flag.kind == "SWITCH" else value_of(flag) for name in flag.env}
        code, _, err = call("llama-cli", "--version", env=good)
        assert code == (flag.effect == "REFUSED"), err
        if flag.kind not in ("TEXT", "LIST"):
            assert flag.env[0] in fails("llama-cli", "--version", env={flag.env[0]: "surely-not"})


def test_every_bad_value_names_the_flag():
    for flag in (f for f in FLAGS if "C" in f.programs and f.kind in ("INT", "FLOAT", "CHOICE", "ON_OFF")):
        line = fails("llama-cli", flag.names[0], "surely-not")
        assert f"{flag.names[0]} expects" in line and flag.value in line and "surely-not" in line
    assert "expects" in fails("llama-cli", "-m")
    for flag in (f for f in FLAGS if "C" in f.programs and f.kind == "FLOAT"):
        for value in ("inf", "-inf", "nan", "1e39"):
            assert f"{flag.names[0]} expects" in fails("llama-cli", flag.names[0], value)


def test_limits_of_numbers(golden):
    model = golden / "qwen3/model.gguf"
    assert "expected 0 to 2147483647" in fails("llama-cli", "-m", model, "-p", "a", "--yarn-orig-ctx", 1 << 32)
    assert call("llama-cli", "-m", model, "-p", "a", "-n", 1, "--yarn-orig-ctx", 0)[0] == 0  # as trained


def test_unknown_flags_name_the_nearest():
    assert "the nearest known one is --temp " in fails("llama-cli", "--tempp", "1")
    assert "the nearest known one is --cache-type-k " in fails("llama-cli", "--cache-typ-k", "f16")
    assert "another one does" in fails("llama-cli", "--ids", "1")
    assert "is not a flag" in fails("llama-cli", "hello")
    assert "takes no value" in fails("llama-cli", "--no-perf=1")
    long = "--" + "x" * 5000
    assert "nearest" in fails("llama-cli", long)


def test_underscores_and_equals():
    assert call("llama-cli", "--ctx_size=5", "--no_display_prompt", "--version")[0] == 0
    assert "--ctx-size expects" in fails("llama-cli", "--ctx_size=a_b")
    assert '"a_b"' in fails("llama-cli", "--ctx_size=a_b")


def test_bare_flash_attention():
    for args in (["-fa"], ["-fa", "-c", "5"], ["-fa", "-1"], ["-fa", "enabled"], ["--flash-attn", "0"], ["-fa", "auto"]):
        assert call("llama-cli", *args, "--version")[0] == 0, args
    assert "is not a flag" in fails("llama-cli", "-fa", "perhaps", "--version")


def test_instruction_sets(golden):
    model = golden / "qwen3/model.gguf"
    devices = {}
    for isa in ("c", "0", "avx2", "0x1", "avx512", "15", "amx", "0x1f"):
        code, _, err = call("llama-cli", "-m", model, "-p", "a", "-n", "1", "--isa", isa)
        assert code == 0, err
        (devices[isa],) = re.findall(r"CPU, ([a-z0-9C ]+),", err)
    assert devices["c"] == devices["0"] == "plain C"
    assert devices["avx2"] == devices["0x1"] in ("avx2", "plain C")
    assert devices["avx512"] == devices["15"] and "amx" not in devices["15"]
    assert devices["amx"] == devices["0x1f"]
    for isa in ("sse2", "", "-1", "0x100000000", "3x"):
        assert "--isa" in fails("llama-cli", "-m", model, "-p", "a", "--isa", isa)


def test_placement(golden):
    model = golden / "qwen3/model.gguf"
    cpu = min(os.sched_getaffinity(0))
    run = ["llama-cli", "-m", model, "-p", "a", "-n", "8", "-t", "2", "--temp", "0"]
    texts = set()
    for args in ([], ["-C", hex(1 << cpu), "--poll", "0"], ["--cpu-range", f"{cpu}-{cpu}", "--cpu-strict", "1", "--prio", "-1"],
                 ["--cpu-mask", f"{1 << cpu:x}", "-Crb", f"{cpu}-{cpu}", "--poll-batch", "100", "-tb", "3"]):
        code, out, err = call(*run, *args)
        assert code == 0 and "warning" not in err, err
        texts.add(out)
    assert len(texts) == 1
    for args in (["-C", "0xg"], ["-C", ""], ["-Cr", "3"], ["-Cr", "5-2"], ["-Cr", "0-1024"], ["-Cb", "-1"], ["--prio", "4"],
                 ["--poll", "101"], ["--prio-batch", "-2"]):
        assert args[0] in fails(*run, *args)
    assert "may not run on CPU 1023" in fails(*run, "-C", "8" + "0" * 255)


def test_numa(golden):
    """Every mode says what it does here; on one node that is nothing."""
    run = ["llama-cli", "-m", golden / "qwen3/model.gguf", "-p", "a", "-n", "4", "--temp", "0"]
    nodes = list(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))
    texts = {call(*run)[1]}
    for mode in ("distribute", "isolate", "numactl"):
        code, out, err = call(*run, "--numa", mode)
        (line,) = [line for line in err.splitlines() if "--numa" in line]
        assert code == 0 and line.startswith(f"--numa {mode}: ") and ("one memory node" in line) == (len(nodes) < 2)
        texts.add(out)
    assert len(texts) == 1
    cpu = min(os.sched_getaffinity(0))
    assert "leave one of them out" in fails(*run, "--numa", "isolate", "-C", hex(1 << cpu))


def test_warnings(golden):
    model = golden / "qwen3/model.gguf"
    code, _, err = call("llama-cli", "-m", model, "-p", "a", "-n", "1", "-c", "512", "-c", "256", "--mlock", "-sm", "row", "-fa",
                        "--no-warmup", "-kvo", "--color")
    assert code == 0
    assert "warning: -c was given twice: the last one counts" in err
    assert "warning: without effect in this build: --mlock, -kvo, -sm, --color\n" in err
    code, _, err = call("llama-cli", "-m", model, "-p", "a", "-n", "1", "-c", "256", env={"LLAMA_ARG_CTX_SIZE": "512"})
    assert code == 0 and "-c takes the place of the variable LLAMA_ARG_CTX_SIZE" in err and "at -c 256" in err
    code, _, err = call("llama-cli", "-p", "a", "-n", "1", env={"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_MODEL": str(model)})
    assert code == 0 and "at -c 512" in err and "warning" not in err
    code, _, err = call("llama-cli", "-m", model, "-p", "a", "-n", "1", env={"LLAMA_ARG_NO_PERF": "1"})
    assert code == 0 and "eval time" not in err


@pytest.mark.parametrize("letter", PROGRAMS)
def test_help(letter):
    code, out, err = call(PROGRAMS[letter], "-h", "--no-such-flag")
    assert (code, err) == (0, "")
    assert out.startswith("usage: ")
    for flag in (f for f in FLAGS if letter in f.programs and f.effect != "REFUSED"):
        (line,) = [l for l in out.splitlines() if re.match(rf"  {re.escape(', '.join(flag.names + flag.no_names))}[ \n]", l)]
        if flag.standard and (flag.kind != "SWITCH" or flag.no_names):
            assert f"(default: {flag.standard})" in line


def test_commands():
    athanor = BUILD / "bin/athanor"
    done = subprocess.run([athanor, "insect"], capture_output=True)
    assert done.returncode == 1 and b'unknown command "insect"; there are completion, cli, tokenize' in done.stderr
    assert subprocess.run([athanor], capture_output=True).returncode == 1
    for args in (["--version"], ["-h"], ["cli", "--version"], ["completion", "-h"]):
        done = subprocess.run([athanor, *args], capture_output=True)
        assert done.returncode == 0 and done.stdout and not done.stderr
    done = subprocess.run([athanor, "logits", "-h"], capture_output=True)
    assert done.stdout.startswith(b"usage: athanor logits -m MODEL")
