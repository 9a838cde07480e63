"""What all Python tests share: where the programs and the test data are.

ATH_BUILD    build with sanitizers (default build/test, else build): C test programs and the program under test
ATH_RELEASE  release build (default build): for tests that would take too long under sanitizers
ATH_SHARED   folder with golden models and vocabularies (default ../shared); tests that need it are skipped without
"""
import importlib
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def folder(variable, *defaults):
    if variable in os.environ:
        return pathlib.Path(os.environ[variable])
    return next((p for p in defaults if p.exists()), defaults[-1])


BUILD = folder("ATH_BUILD", ROOT / "build/test", ROOT / "build")
RELEASE = folder("ATH_RELEASE", ROOT / "build")
SHARED = folder("ATH_SHARED", ROOT.parent / "shared")


@pytest.fixture(scope="session")
def athanor():
    """The program under sanitizers: athanor(*args) -> CompletedProcess with bytes."""
    return lambda *args, **kw: run(BUILD, *args, **kw)


@pytest.fixture(scope="session")
def athanor_release():
    return lambda *args, **kw: run(RELEASE, *args, **kw)


def run(build, *args, program="athanor", prefix=(), check=True, **kw):
    command = [*prefix, str(build / "bin" / program), *map(str, args)]
    kw.setdefault("stdin", subprocess.DEVNULL)
    kw.setdefault("timeout", 300)
    if "input" in kw:
        del kw["stdin"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if check:
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr.decode(errors='replace')}"
    return done


@pytest.fixture(scope="session")
def golden():
    path = SHARED / "data/golden"
    if not path.exists():
        pytest.skip(f"no golden models in {path}")
    return path


@pytest.fixture(scope="session")
def made_models(tmp_path_factory):
    return tmp_path_factory.mktemp("vectors"), {}


@pytest.fixture
def family(request, made_models):
    """family(name), for tests/models: the vector set of that name, or what make_NAME.py makes, else the golden model (skipped without them)."""
    from golden import Golden
    from vector import NAMES, Vector

    def find(name):
        folder, made = made_models
        by_script = (ROOT / f"tests/models/make_{name}.py").exists()
        if name not in NAMES and not by_script:
            return Golden(request.getfixturevalue("golden") / name)
        if name not in made:
            made[name] = Golden(importlib.import_module(f"make_{name}").write_folder(folder / name)) if by_script else Vector(name, folder)
        return made[name]
    return find
