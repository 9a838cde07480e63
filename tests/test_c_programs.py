"""Runs every C test program of the sanitizer build; a cmocka test that fails shows its output here."""
import subprocess

import pytest

from conftest import BUILD

PROGRAMS = sorted(p for p in (BUILD / "tests").glob("test_*") if p.is_file())


def test_there_are_programs():
    assert len(PROGRAMS) >= 8, f"C tests are not built in {BUILD}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_c(program):
    done = subprocess.run([str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text[-6000:]
