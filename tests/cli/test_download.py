"""-hf, -hff, -mu and `athanor models` against a local hub that breaks off, stalls and lies."""
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BUILD
from hub_server import COMMIT, Hub

REPO = "some-one/Tiny-GGUF"


@pytest.fixture
def hub(golden):
    hub = Hub()
    model = (golden / "llama/model.gguf").read_bytes()
    hub.model = model
    hub.repos[REPO] = {"Tiny-Q8_0.gguf": model, "tiny-q4_k_m.gguf": model + b"\0" * 64, "mmproj-Q4_K_M.gguf": b"x" * 10,
                       "README.md": b"text"}
    yield hub
    hub.close()


def call(hub, tmp_path, *args, tool="inspect", env=None, start=False):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "HF_", "HUGGING", "XDG_"))}
    env = {**clean, "HF_ENDPOINT": hub.url, "HOME": str(tmp_path), "no_proxy": "*", **(env or {})}
    command = [str(BUILD / "bin/athanor"), tool, *map(str, args), *(["-p", "a"] if tool == "tokenize" else [])]
    if start:
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a shell in the background ignores it
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def folder(tmp_path):
    return tmp_path / ".cache/huggingface/hub/models--some-one--Tiny-GGUF"


def works(done):
    assert done.returncode == 0, done.stderr
    return done


def fails(done):
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr
    return errors[0]


def gets(hub, name):
    return [r for r in hub.requests if name in r[1] and r[0] == "GET"]


def test_layout_choice_and_second_run(hub, tmp_path):
    """The layout is the one that huggingface_hub reads and writes."""
    works(call(hub, tmp_path, "-hf", REPO))
    digest = hashlib.sha256(hub.repos[REPO]["tiny-q4_k_m.gguf"]).hexdigest()
    link = folder(tmp_path) / "snapshots" / COMMIT / "tiny-q4_k_m.gguf"
    assert os.readlink(link) == f"../../blobs/{digest}"
    assert (folder(tmp_path) / "refs/main").read_text() == COMMIT
    assert hashlib.sha256(link.read_bytes()).hexdigest() == digest
    assert sorted(p.name for p in (folder(tmp_path) / "blobs").iterdir()) == [digest]
    n = len(gets(hub, "resolve"))
    works(call(hub, tmp_path, "-hf", REPO))
    assert len(gets(hub, "resolve")) == n == 1
    works(call(hub, tmp_path, "-hf", REPO + ":q8_0"))
    works(call(hub, tmp_path, "-hf", REPO, "-hff", "Tiny-Q8_0.gguf"))
    assert len(gets(hub, "resolve")) == 2


def test_other_choices(hub, tmp_path):
    files = hub.repos[REPO]
    line = fails(call(hub, tmp_path, "-hf", REPO + ":Q5_K_M"))
    assert "has no Q5_K_M" in line and "Tiny-Q8_0.gguf" in line
    assert "has no other.gguf" in fails(call(hub, tmp_path, "-hf", REPO, "-hff", "other.gguf"))
    del files["tiny-q4_k_m.gguf"]
    hub.page_size = 1  # the listing comes in pages
    assert "Tiny-Q8_0" in works(call(hub, tmp_path, "-hf", REPO)).stdout
    files["sub folder/a b-F16.gguf"] = files.pop("Tiny-Q8_0.gguf")
    hub.commit = "f" * 40
    assert "sub folder/a b-F16.gguf" in works(call(hub, tmp_path, "-hf", REPO)).stdout
    assert (folder(tmp_path) / "snapshots" / hub.commit / "sub folder/a b-F16.gguf").is_symlink()
    hub.repos[REPO] = {"README.md": b"x"}
    assert "holds no GGUF file" in fails(call(hub, tmp_path, "-hf", REPO))
    assert "404" in fails(call(hub, tmp_path, "-hf", "no/body"))


@pytest.mark.parametrize("name", ["plain", "a/b/c", "../x/y", "a/..", "a/b:", "a/b:c/d", "a b/c", "/x", "x/", "-a/b", "a/b:" + "q" * 99])
def test_bad_names(hub, tmp_path, name):
    assert "expected USER/REPO" in fails(call(hub, tmp_path, "-hf", name))
    assert hub.requests == []


def test_several_sources(hub, tmp_path):
    assert "one of -m, -hf, -mu" in fails(call(hub, tmp_path, "-hf", REPO, "-m", "x.gguf"))
    assert "name that with -hf" in fails(call(hub, tmp_path, "-hff", "x.gguf"))
    works(call(hub, tmp_path, "-hf", REPO, env={"LLAMA_ARG_MODEL": "nothing.gguf"}))  # a flag beats a variable


def test_hostile_listing(hub, tmp_path):
    """Paths that leave the folder are not there; neither are files without a proper digest."""
    hub.repos[REPO] = {"../../../evil-Q4_K_M.gguf": b"x" * 10, "/abs-Q4_K_M.gguf": b"x" * 10, "a/../../b-Q4_K_M.gguf": b"x"}
    assert "holds no GGUF file" in fails(call(hub, tmp_path, "-hf", REPO))
    assert not list(tmp_path.rglob("*.gguf"))


def test_breaks_are_taken_up(hub, tmp_path):
    name = "tiny-q4_k_m.gguf"
    size = len(hub.repos[REPO][name])
    hub.faults[name].extend([("break", 1000), ("status", 503), ("break", 2000), ("break", 0), ("whole",)])
    works(call(hub, tmp_path, "-hf", REPO))
    assert [r[2] for r in gets(hub, "resolve")] == [None, "bytes=1000-", "bytes=1000-", "bytes=3000-", "bytes=3000-"]
    blob = next((folder(tmp_path) / "blobs").iterdir())
    assert blob.stat().st_size == size


def test_resume_in_a_later_run(hub, tmp_path):
    name = "tiny-q4_k_m.gguf"
    hub.faults[name].extend([("break", 5000)] + [("break", 0)] * 5)
    assert "error: " in fails(call(hub, tmp_path, "-hf", REPO))
    partial = next((folder(tmp_path) / "blobs").iterdir())
    assert partial.name.endswith(".incomplete") and partial.stat().st_size == 5000
    assert not (folder(tmp_path) / "refs").exists()
    done = works(call(hub, tmp_path, "-hf", REPO, tool="tokenize"))
    assert "going on after" in done.stderr and gets(hub, "resolve")[-1][2] == "bytes=5000-"


def test_stall(hub, tmp_path):
    hub.faults["tiny-q4_k_m.gguf"].append(("stall", 3000))
    begin = time.time()
    works(call(hub, tmp_path, "-hf", REPO, "--download-timeout", "1"))
    assert time.time() - begin < 20 and gets(hub, "resolve")[-1][2] == "bytes=3000-"
    assert "1 or more" in fails(call(hub, tmp_path, "-hf", REPO, "--download-timeout", "0"))


@pytest.mark.parametrize("off", [-100, 100])
def test_wrong_size(hub, tmp_path, off):
    hub.lies["tiny-q4_k_m.gguf"] = off
    line = fails(call(hub, tmp_path, "-hf", REPO))
    assert ("sends more" if off < 0 else "announced") in line
    assert not list(folder(tmp_path).rglob("*.gguf"))


def test_wrong_content(hub, tmp_path):
    hub.faults["tiny-q4_k_m.gguf"].append(("corrupt",))
    assert "SHA-256" in fails(call(hub, tmp_path, "-hf", REPO))
    assert not list((folder(tmp_path) / "blobs").iterdir())
    works(call(hub, tmp_path, "-hf", REPO))


def test_no_network(hub, tmp_path):
    assert "run once without --offline" in fails(call(hub, tmp_path, "-hf", REPO, "--offline"))
    works(call(hub, tmp_path, "-hf", REPO + ":Q8_0"))
    hub.close()
    assert "from the cache" in works(call(hub, tmp_path, "-hf", REPO + ":Q8_0")).stderr
    assert works(call(hub, tmp_path, "-hf", REPO, "--offline")).stderr == ""
    assert "connect" in fails(call(hub, tmp_path, "-hf", REPO + ":Q4_K_M"))


def test_token_stays_with_the_hub(hub, tmp_path):
    hub.token = "secret"
    assert "HF_TOKEN" in fails(call(hub, tmp_path, "-hf", REPO))
    other = Hub()  # files come from another host, as from a CDN
    other.repos, hub.cdn = hub.repos, other.url.replace("127.0.0.1", "localhost")
    try:
        works(call(hub, tmp_path, "-hf", REPO, env={"HF_TOKEN": "secret"}))
        assert other.requests and all(r[3] is None for r in other.requests)
        works(call(hub, tmp_path, "-hf", REPO + ":Q8_0", "-hft", "secret"))
        (tmp_path / ".cache/huggingface/token").write_text("secret\n")
        works(call(hub, tmp_path, "-hf", REPO))
        other.requests.clear()
        works(call(hub, tmp_path, "-mu", f"{other.url}/{REPO}/resolve/main/Tiny-Q8_0.gguf", "-hft", "secret"))
        assert other.requests and all(r[3] is None for r in other.requests)
    finally:
        other.close()


def test_split_model(hub, golden, tmp_path):
    parts = {f"T-Q4_K_M-0000{i}-of-00003.gguf": bytes(random.Random(i).randbytes(5000)) for i in (1, 2, 3)}
    hub.repos[REPO] = dict(parts)
    fails(call(hub, tmp_path, "-hf", REPO))  # random bytes are no model, but all of them came
    got = {p.name: p.read_bytes() for p in (folder(tmp_path) / "snapshots" / COMMIT).iterdir()}
    assert got == parts
    del hub.repos[REPO]["T-Q4_K_M-00002-of-00003.gguf"]
    assert "parts of the split model are missing" in fails(call(hub, tmp_path, "-hf", REPO))


def test_two_processes(hub, tmp_path):
    hub.slow = 0.02
    hub.repos[REPO]["tiny-q4_k_m.gguf"] += b"\0" * (1 << 21)
    both = [call(hub, tmp_path, "-hf", REPO, tool="tokenize", start=True) for _ in range(2)]
    errors = [p.communicate(timeout=60)[1].decode() for p in both]
    assert [p.returncode for p in both] == [0, 0], errors
    assert len(gets(hub, "resolve")) == 1 and sum("waiting for it" in e for e in errors) == 1


def test_disk_full(hub, tmp_path):
    """The listing says more than any disk has: refused before a byte comes. A disk that fills up: what came is kept."""
    hub.lies["tiny-q4_k_m.gguf"] = 1 << 49
    assert "make room" in fails(call(hub, tmp_path, "-hf", REPO))
    assert gets(hub, "resolve") == []
    hub.lies.clear()
    cache = tmp_path / "small"
    cache.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", cache], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted")
    try:
        hub.repos[REPO]["tiny-q4_k_m.gguf"] = bytes(1 << 20)
        assert "make room" in fails(call(hub, tmp_path, "-hf", REPO, env={"HF_HUB_CACHE": str(cache)}))
        url = f"{hub.url}/{REPO}/resolve/main/tiny-q4_k_m.gguf"
        assert "make room" in fails(call(hub, tmp_path, "-mu", url, env={"LLAMA_CACHE": str(cache)}))
    finally:
        subprocess.run(["umount", cache], check=True)


def test_url(hub, tmp_path):
    url = f"{hub.url}/{REPO}/resolve/main/Tiny-Q8_0.gguf?download=true"
    path = tmp_path / ".cache/llama.cpp/Tiny-Q8_0.gguf"
    hub.faults["Tiny-Q8_0.gguf"].append(("break", 1000))
    works(call(hub, tmp_path, "-mu", url))
    assert path.read_bytes() == hub.model
    n = len(gets(hub, "resolve"))
    works(call(hub, tmp_path, "-mu", url))
    assert len(gets(hub, "resolve")) == n  # same ETag: asked for by HEAD alone
    hub.repos[REPO]["Tiny-Q8_0.gguf"] = hub.model + bytes(32)
    works(call(hub, tmp_path, "-mu", url))
    assert path.read_bytes() == hub.model + bytes(32)
    hub.close()
    works(call(hub, tmp_path, "-mu", url, "--offline"))
    assert "from the cache" in works(call(hub, tmp_path, "-mu", url, tool="tokenize")).stderr
    assert "expected http" in fails(call(hub, tmp_path, "-mu", "ftp://host/x.gguf"))


def test_interrupt_keeps_what_came(hub, tmp_path):
    hub.faults["tiny-q4_k_m.gguf"].append(("stall", 3000))
    run = call(hub, tmp_path, "-hf", REPO, start=True)
    for _ in range(200):
        partial = list(folder(tmp_path).glob("blobs/*.incomplete"))
        if partial and partial[0].stat().st_size == 3000:
            break
        time.sleep(0.05)
    run.send_signal(2)
    run.communicate(timeout=20)
    assert run.returncode == -2 and partial[0].stat().st_size == 3000
    works(call(hub, tmp_path, "-hf", REPO))
    assert gets(hub, "resolve")[-1][2] == "bytes=3000-"


def test_models_command(hub, tmp_path):
    assert "no models in" in works(call(hub, tmp_path, tool="models")).stdout
    works(call(hub, tmp_path, "-hf", REPO))
    works(call(hub, tmp_path, "-hf", REPO + ":Q8_0"))
    works(call(hub, tmp_path, "-mu", f"{hub.url}/{REPO}/resolve/main/Tiny-Q8_0.gguf"))
    text = works(call(hub, tmp_path, tool="models")).stdout
    assert text.count(REPO) == 2 and "in 3 files" in text
    names = [m["name"] for m in json.loads(works(call(hub, tmp_path, "--json", tool="models")).stdout)]
    assert len(names) == 3
    assert "not in the cache" in fails(call(hub, tmp_path, "--remove", REPO + ":Q2_K", tool="models"))
    works(call(hub, tmp_path, "--remove", REPO + ":Q4_K_M", tool="models"))
    assert [p.stat().st_size for p in (folder(tmp_path) / "blobs").iterdir()] == [len(hub.model)]
    # a blob that another snapshot needs stays
    other = folder(tmp_path) / "snapshots" / ("a" * 40)
    shutil.copytree(folder(tmp_path) / "snapshots" / COMMIT, other, symlinks=True)
    works(call(hub, tmp_path, "--remove", REPO, tool="models"))
    assert (other / "Tiny-Q8_0.gguf").exists()
