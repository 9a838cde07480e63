"""64-bit ARM under qemu: the kernels' tests and whole models, on CPUs with and without the newer instructions.

ATH_ARM  build made with tools/aarch64.cmake (default build/arm); ./test makes it where the cross tools can be had.
"""
import json
import shutil
import subprocess

import pytest

from conftest import ROOT, folder, run
from golden import Golden, logits, mean_kld

BUILD = folder("ATH_ARM", ROOT / "build/arm")
LIBRARIES = ROOT / ".cache/arm64"
CPUS = {"max": "neon dotprod i8mm", "neoverse-n1": "neon dotprod", "cortex-a57": "neon"}
PROGRAMS = sorted(p.name for p in (BUILD / "tests").glob("test_*"))

pytestmark = pytest.mark.skipif(not (BUILD / "bin/athanor").exists() or not shutil.which("qemu-aarch64"),
                                reason=f"no qemu-aarch64, or no ARM build in {BUILD}")


def qemu(cpu):
    return ["qemu-aarch64", "-cpu", cpu, "-L", str(LIBRARIES)]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_c(program, cpu):
    """All versions on the first CPU; on the others, whether the chosen ones run there: fewer shapes do."""
    quick = [] if cpu == "max" or program != "test_attention" else ["--quick"]
    done = subprocess.run([*qemu(cpu), str(BUILD / "tests" / program), *quick], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=600)
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text[-6000:]
    assert f"CPU: {CPUS[cpu]}\n" in text


def compare_with_native(cpu, path, model, tokens, args, athanor_release, tmp_path):
    """Logits on cpu, which are bit for bit those of this machine (without its matrix products), and what --json-stats says
    of the run."""
    def emulated(*args):
        run(BUILD, *args, "--json-stats", tmp_path / "stats.json", prefix=qemu(cpu))

    got = logits(emulated, path, tokens, tmp_path, *args, n_vocab=model.n_vocab)
    want = logits(athanor_release, path, tokens, tmp_path, *args, "--isa", "avx512", n_vocab=model.n_vocab)
    assert got.tobytes() == want.tobytes()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert f"CPU, {CPUS[cpu]}," in stats["device"]
    return got, stats


@pytest.mark.parametrize("cpu", CPUS)
def test_golden(cpu, golden, athanor_release, tmp_path):
    model = Golden(golden / "llama")
    got, _ = compare_with_native(cpu, model.folder / "model-q8_0.gguf", model, model.tokens, (), athanor_release, tmp_path)
    want = model.reference("logits-q8_0.f32")
    assert abs(got - want).max() < 0.6 and mean_kld(want, got) < 4e-3  # the limits of test_golden.py


@pytest.mark.parametrize("cpu, k, v", [("max", "turbo3", "turbo4_tcq"), ("cortex-a57", "turbo4", "turbo2")])
def test_compressed_cache(cpu, k, v, golden, athanor_release, tmp_path):
    """Prefill, then decode of the last 20 tokens, one row per pass."""
    model = Golden(golden / "qwen3")
    _, stats = compare_with_native(cpu, model.folder / "model-q8_0.gguf", model, model.shuffled(800),
                                   ("-ctk", k, "-ctv", v, "--decode-from", 780), athanor_release, tmp_path)
    assert stats["share_compressed"] >= 0.5
