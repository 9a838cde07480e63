"""Each architecture is in the places that CONTRIBUTING.md names: registry, document, README, reference logits."""
import pathlib
import re

import pytest

import vector
from test_golden import MODELS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = re.findall(r'^ *X\(\w+, "([^"]+)"\)', (ROOT / "src/models/registry.c").read_text(), re.MULTILINE)
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_readme_and_document(name):
    rows = re.findall(rf"^\|[^|]*`{re.escape(name)}`[^|]*\|.*\]\((docs/models/[^)]*)\) \|$", README, re.MULTILINE)
    assert len(rows) == 1, f"README.md has {len(rows)} rows of {name} in its table of models"
    assert name in (ROOT / rows[0]).read_text()


def test_count_in_readme():
    assert f"- {len(NAMES)} architectures" in README


def test_reference_logits(family):
    known = {family(model).info["arch"] for model in MODELS if model not in vector.NAMES}
    known |= {vector.recipe(name)["arch"] for name in vector.NAMES}
    assert set(NAMES) <= known
