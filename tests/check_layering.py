#!/usr/bin/env python3
"""Checks what no compiler sees: which folder includes which, what library code may not call, plain style.

Usage: check_layering.py [ROOT]. Prints one line per offence and exits with 1 if there is any.
"""
import re
import sys
from pathlib import Path

# Folder of src/ -> folders whose headers it may include, besides its own and include/athanor.
LAYERS = {
    "base": [],
    "codec": ["base"],
    "gguf": ["base", "codec"],
    "kernels": ["base", "codec"],
    "device": ["base", "codec", "kernels"],
    "kv": ["base", "codec", "kernels", "device"],
    "models": ["base", "codec", "kernels", "device", "kv", "gguf"],
    "tokenizer": ["base", "gguf"],
    "sample": ["base"],
    "engine": ["base", "codec", "gguf", "kernels", "device", "kv", "models", "tokenizer", "sample"],
}
PUBLIC = "athanor"  # include/athanor, open to everyone
C_SUFFIXES = {".c", ".h", ".def"}
STYLED_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".cmake"}
STYLED_FOLDERS = ("src", "include", "tools", "tests", "reference", "bench")
UNIQUE_FOLDERS = ("src", "tools", "tests")
NOT_UNIQUE = {"__init__.py", "conftest.py", "README.md", "CMakeLists.txt"}  # names that tools prescribe

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
FORBIDDEN = re.compile(
    r"\b(printf|vprintf|puts|putchar|perror|exit|_exit|_Exit|quick_exit|abort|getenv|secure_getenv)\s*\("
    r"|\b(?:v?fprintf|fputs|fputc|putc|fwrite)\s*\([^;]*\b(stdout|stderr)\b"
)
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


def files_below(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def blank(match):
    """What a comment or a string becomes: its newlines, so that line numbers stay."""
    return " " + "\n" * match.group().count("\n")


def check_include(root, path, quote, target):
    """Returns why path may not include target, or None."""
    where = path.relative_to(root).parts
    head, slash, _ = target.partition("/")
    if quote == "<" and head not in LAYERS and head != "tools":
        return None  # a system header
    if head == PUBLIC and slash:
        return None
    if where[0] == "include":
        return "public headers include public headers only"
    if where[0] == "tools":
        generated = not slash and target.endswith(".inc")  # text that the build turns into C
        if head == "tools" and slash or generated or not slash and (path.parent / target).is_file():
            return None
        return "tools see include/athanor and tools only"
    layer = where[1]
    if not slash:
        return "write it as folder/name"
    if head not in LAYERS:
        return f"{head} is no folder of src"
    if head != layer and head not in LAYERS[layer]:
        return f"{layer} may include {', '.join([layer] + LAYERS[layer])}"
    return None


def check_includes(root):
    for path in files_below(root, ("src", "include", "tools")):
        where = path.relative_to(root)
        if path.suffix not in C_SUFFIXES:
            continue
        if where.parts[0] == "src" and (len(where.parts) < 3 or where.parts[1] not in LAYERS):
            yield f"{where}: no folder of the layer table; add it to LAYERS"
            continue
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            reason = check_include(root, path, match[1], match[2])
            if reason:
                yield f"{where}:{line_of(text, match.start())}: includes {match[2]}: {reason}"


def check_calls(root):
    for path in files_below(root, ("src",)):
        if path.suffix not in C_SUFFIXES:
            continue
        text = COMMENT_OR_STRING.sub(blank, path.read_text(encoding="utf-8"))
        for match in FORBIDDEN.finditer(text):
            name = match[1] or match[2]
            yield f"{path.relative_to(root)}:{line_of(text, match.start())}: library code uses {name}"


def check_style(root):
    paths = [p for p in files_below(root, STYLED_FOLDERS) if p.suffix in STYLED_SUFFIXES]
    paths += [p for p in (root / "CMakeLists.txt", root / "demo", root / "test") if p.is_file()]
    for path in paths:
        where = path.relative_to(root)
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            yield f"{where}: not UTF-8"
            continue
        if text and not text.endswith("\n"):
            yield f"{where}: no newline at the end"
        if text.endswith("\n\n"):
            yield f"{where}: blank lines at the end"
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line:
                yield f"{where}:{number}: tab"
            if line != line.rstrip():
                yield f"{where}:{number}: trailing blank"


def check_names(root):
    seen = {}
    for path in files_below(root, UNIQUE_FOLDERS):
        where = path.relative_to(root)
        if path.name in NOT_UNIQUE or path.suffix not in STYLED_SUFFIXES:
            continue
        if path.name in seen:
            yield f"{where}: the name is taken by {seen[path.name]}"
        seen.setdefault(path.name, where)


def check(root):
    """All offences below root, as lines of text."""
    root = Path(root)
    found = []
    for rule in (check_includes, check_calls, check_style, check_names):
        found += rule(root)
    return found


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / "src").is_dir():
        print(f"{root}: no src folder there", file=sys.stderr)
        return 1
    found = check(root)
    for offence in found:
        print(offence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
