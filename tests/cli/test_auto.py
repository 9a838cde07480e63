"""-ctk auto -ctv auto, --kv-budget and athanor plan: the documented table, the user's own verdicts, and the floor of 3 bits."""
import importlib.util
import json
import os
import re

import pytest

from conftest import ROOT
from make_golden_like import Shape, make_model

spec = importlib.util.spec_from_file_location("quality_tables", ROOT / "bench/quality_tables.py")
quality_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quality_tables)


EXPECTED = {(k, v): kld for k, v, _, kld in quality_tables.expectations((ROOT / "tools/auto_expected.def").read_text())}


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path / "model.gguf", Shape(head_dim=128, context=4096))


@pytest.fixture
def plan(athanor, model, env):
    def call(*args):
        done = athanor("plan", "-m", model, "--json", *args, env=env)
        return json.loads(done.stdout)
    return call


def pair(t):
    return t["type_k"], t["type_v"]


def chosen(p):
    (one,) = [pair(t) for t in p["types"] if t["chosen"]]
    return one


def budget_for(p, k, v):
    (t,) = [t for t in p["types"] if pair(t) == (k, v)]
    return -(-t["bytes"] // 2**20)


def test_best_that_fits(plan):
    p = plan("-c", 65536)
    assert chosen(p) == ("f16", "f16") and p["context"] == 65536
    kld = [t["kld"] for t in p["types"]]
    assert kld == sorted(kld) and len(kld) >= 5
    sizes = [t["bytes"] for t in p["types"] if t["possible"]]
    assert min(sizes) < max(sizes) / 5
    for k, v in (("q8_0", "q8_0"), ("turbo4", "turbo4"), ("turbo3", "turbo3")):
        q = plan("-c", 65536, "--kv-budget", budget_for(p, k, v))
        got = next(t for t in q["types"] if t["chosen"])
        assert got["bytes"] <= q["budget_bytes"]
        # nothing better fits
        for t in q["types"]:
            if t["kld"] < got["kld"]:
                assert t["bytes"] > q["budget_bytes"]
        assert got["largest_context"] >= 65536


def test_largest_context_is_that_of_the_budget(plan):
    p = plan("-c", 1024, "--kv-budget", 3)
    for t in p["types"]:
        n = t["largest_context"]
        sizes = [next(x["bytes"] for x in plan("-c", m, "--kv-budget", 3)["types"] if pair(x) == pair(t)) for m in (n, n + 256)]
        assert n % 256 == 0 and sizes[0] <= 3 << 20 < sizes[1]


def test_entry_points_count(plan, athanor, model, env):
    """auto takes what fits with the entry points that are wanted."""
    every, none = plan("-c", 65536, "--kv-budget", 1000, "--entry-every", 1), plan("-c", 65536, "--kv-budget", 1000, "--entry-every", 0)
    assert all(a["bytes"] > b["bytes"] for a, b in zip(every["types"], none["types"]) if a["type_k"] != "f16")
    budget = budget_for(none, "turbo3_tcq", "turbo3_tcq")
    assert chosen(plan("-c", 65536, "--kv-budget", budget, "--entry-every", 0)) == ("turbo3_tcq", "turbo3_tcq")
    assert "nothing of 3 bits or more fits" in plan("-c", 65536, "--kv-budget", budget, "--entry-every", 1)["why"]
    done = athanor("plan", "-m", model, "--entry-every", -1, env=env, check=False)
    assert done.returncode == 1 and b"--entry-every -1" in done.stderr


def test_a_context_beyond_the_trained_one_is_said(athanor, model, env):
    run = lambda n: athanor("completion", "-m", model, "-p", "a", "-n", 1, "-c", n, env=env).stderr.decode()
    assert "a context of 8192 is more than the 4096 positions" in run(8192) and "trained on" not in run(4096)


def test_never_below_three_bits_unless_told(plan):
    p = plan("-c", 65536, "--kv-budget", 1)
    (t,) = [t for t in p["types"] if t["chosen"]]
    assert 3 <= t["bits_per_value"] < 4 and "nothing of 3 bits or more fits" in p["why"]
    q = plan("-c", 65536, "--kv-budget", 1, "--kv-allow-2bit")
    (t,) = [t for t in q["types"] if t["chosen"]]
    assert 2 <= t["bits_per_value"] < 3


def test_head_sizes_that_some_types_cannot_hold(athanor, tmp_path, env):
    model = make_model(tmp_path / "odd.gguf", Shape(head_dim=80))
    p = json.loads(athanor("plan", "-m", model, "--json", "--kv-budget", 1, "-c", 65536, env=env).stdout)
    assert not next(t for t in p["types"] if t["type_k"] == "q8_0")["possible"]
    assert chosen(p)[0].startswith("turbo3")


@pytest.fixture
def measure(athanor, model, env, tmp_path):
    """measure(types) lets athanor quality store verdicts, and returns their file."""
    def call(types="q8_0", context=512):
        done = athanor("quality", "-m", model, "-c", context, "--chunks", 1, "--greedy", 0, "--needles", 0, "--types", types, env=env)
        (file,) = (tmp_path / "cache/athanor/verdicts").glob("*.json")
        return file, done.stderr.decode()
    return call


def entry(name, verdict, kld, context=2048):
    return {"type": name, "verdict": verdict, "kld_mean": kld, "context": context}


def write_verdicts(file, *entries):
    file.write_text(json.dumps({"types": entries}))


def test_own_verdicts_count(plan, measure):
    p = plan("-c", 65536)
    budget = budget_for(p, "turbo3", "turbo3")
    before = plan("-c", 65536, "--kv-budget", budget)
    assert not any(t["measured"] for t in before["types"])
    names = sorted({t["type_k"] for t in p["types"]} - {"f16"})
    file, _ = measure(",".join(names), 512)
    assert all(t["measured"] for t in plan("-c", 512)["types"] if t["type_k"] == t["type_v"] != "f16")
    rest = [entry(n, "visible", 0.05) for n in names if n not in ("turbo3", "turbo4")]
    write_verdicts(file, *rest, entry("turbo3", "safe", 0.001), entry("turbo4", "visible", 0.05))
    q = plan("-c", 65536, "--kv-budget", budget)
    assert chosen(q) == ("turbo3", "turbo3") and "measured here 0.001" in q["why"]
    write_verdicts(file, *rest, entry("turbo3", "not recommended", 0.7), entry("turbo4", "not recommended", 0.7))
    q = plan("-c", 65536, "--kv-budget", budget)
    assert "turbo3" not in chosen(q) and "turbo4" not in chosen(q)


def test_a_verdict_counts_for_contexts_like_its_own(plan, measure):
    """As long as the wanted context, or 2,048 tokens; a bad one always."""
    file, _ = measure()
    for context, wanted, counts in ((512, 512, True), (512, 513, False), (2047, 65536, False), (2048, 65536, True), (2047, 2047, True)):
        for verdict in ("safe", "visible", "not recommended"):
            write_verdicts(file, entry("q8_0", verdict, 0.01, context))
            (q8_0,) = [t for t in plan("-c", wanted)["types"] if t["type_k"] == "q8_0"]
            if counts or verdict == "not recommended":
                assert (q8_0["measured"], q8_0["class"], q8_0["kld"]) == (True, verdict, 0.01)
            else:
                assert (q8_0["measured"], q8_0["class"], q8_0["kld"]) == (False, "safe", EXPECTED["q8_0", "q8_0"])


def test_expectations_sink_with_a_bad_verdict(plan, measure):
    """q8_0 alone is known, and bad: what the table puts below it is no better, and f16 is taken although it doesn't fit."""
    budget = budget_for(plan("-c", 65536), "turbo3", "turbo3")
    file, _ = measure()
    write_verdicts(file, entry("q8_0", "not recommended", 0.7))
    p = plan("-c", 65536, "--kv-budget", budget)
    assert chosen(p) == ("f16", "f16") and {t["class"] for t in p["types"]} == {"exact", "not recommended"}
    assert [t["kld"] for t in p["types"][1:]] == [0.7] * (len(p["types"]) - 1)


DAMAGED = ("", "{", "[1, 2]", '{"types": 3}')


def test_broken_verdicts_are_left_out(plan, measure):
    file, _ = measure()
    for text in (*DAMAGED, '{"types": [null, {"type": 5}, {"type": "turbo3", "kld_mean": "x", "verdict": 1}]}',
                 '{"types": [{"type": "nonsense/q8_0", "kld_mean": 0, "verdict": "safe", "context": 2048}]}'):
        file.write_text(text)
        assert chosen(plan("-c", 512)) == ("f16", "f16")


def test_verdicts_that_make_no_sense_are_refused(plan, athanor, model, env, measure):
    file, _ = measure()
    file.unlink()
    clean = plan("-c", 512, "--kv-budget", 100)["types"]
    good = {"type": '"q8_0"', "verdict": '"safe"', "kld_mean": "0.01", "context": "4096"}
    for change in ({"kld_mean": "-5"}, {"kld_mean": "1e999"}, {"kld_mean": "null"}, {"verdict": '"exact"'}, {"verdict": '"unknown"'},
                   {"verdict": '"good"'}, {"context": "1e999"}, {"context": "0"}):
        file.write_text('{"types": [{%s}]}' % ", ".join(f'"{key}": {value}' for key, value in {**good, **change}.items()))
        done = athanor("plan", "-m", model, "--json", "-c", 512, "--kv-budget", 100, env=env)
        assert json.loads(done.stdout)["types"] == clean, change
        assert done.stderr.decode().count("1 left out of its verdicts") == 1, change
    write_verdicts(file, entry("f16", "not recommended", 0.7), entry("f16/f16", "visible", 0.3), entry("q8_0", "safe", 0.01))
    done = athanor("plan", "-m", model, "--json", "-c", 512, env=env)  # what is refused by itself says nothing of others
    types = {pair(t): t for t in json.loads(done.stdout)["types"]}
    assert types["f16", "f16"]["class"] == "exact" and types["q8_0", "q8_0"]["measured"] and b"left out" not in done.stderr


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_kept_when_the_next_run_stores(measure, text):
    file, _ = measure()
    file.write_text(text)
    _, log = measure()
    aside = file.with_suffix(".json.bad")
    assert aside.read_text() == text and [t["type"] for t in json.loads(file.read_text())["types"]] == ["q8_0"]
    assert f"warning: {file} can't be read as verdicts: it is kept as {aside}" in log and "left out of the choice" not in log


@pytest.fixture
def auto(athanor, model, env):
    """The line about the choice."""
    def call(*args, check=True, path=model):
        done = athanor("-m", path, "-p", "a", "-n", 1, "-c", 4096, *args, program="llama-completion", env=env, check=check)
        lines = [line for line in done.stderr.decode().splitlines() if "auto cache: K" in line or line.startswith("error: ")]
        assert len(lines) == 1, done.stderr.decode()
        return lines[0]
    return call


def test_one_side_given(auto, measure):
    """The pair is as good as the worse of its types, unless the pair itself is known."""
    visible = f"(visible, mean KLD expected {EXPECTED['turbo2', 'turbo2']:.2g})"
    assert f"K turbo2, V f16 {visible}" in auto("-ctk", "turbo2", "-ctv", "auto")
    assert f"K f16, V turbo2 {visible}" in auto("-ctk", "auto", "-ctv", "turbo2")
    assert f"K turbo2, V turbo4_tcq {visible}: the best" in auto("-ctk", "turbo2", "-ctv", "auto", "--kv-budget", 1, "-c", 3072)
    assert "K f16, V f16 (the reference itself)" in auto("-ctk", "f16", "-ctv", "auto")
    row = f"(safe, mean KLD expected {EXPECTED['turbo4_tcq', 'turbo3_tcq']:.2g})"  # of exactly the pair
    assert f"K turbo4_tcq, V turbo3_tcq {row}" in auto("-ctk", "auto", "-ctv", "turbo3_tcq")
    unknown = "of unknown quality: q4_0 is neither in the table nor measured"
    assert f"K q4_0, V f16 ({unknown})" in auto("-ctk", "q4_0", "-ctv", "auto")
    assert f"K f16, V q4_0 ({unknown})" in auto("-ctk", "auto", "-ctv", "q4_0")

    file, _ = measure()
    write_verdicts(file, entry("turbo2/q8_0", "safe", 0.001))
    assert "K turbo2, V q8_0 (safe, mean KLD measured here 0.001)" in auto("-ctk", "turbo2", "-ctv", "auto")
    write_verdicts(file, entry("turbo2/f16", "not recommended", 0.5))
    assert f"K turbo2, V q8_0 {visible}" in auto("-ctk", "turbo2", "-ctv", "auto")
    write_verdicts(file, entry("q4_0", "visible", 0.03))
    assert "K q4_0, V f16 (visible, mean KLD expected 0.03)" in auto("-ctk", "q4_0", "-ctv", "auto")
    write_verdicts(file, entry("turbo2", "not recommended", 0.7))  # it was asked for all the same
    line = auto("-ctk", "turbo2", "-ctv", "auto")
    assert line.startswith("warning: ") and "K turbo2, V f16 (not recommended, mean KLD expected 0.7)" in line


def test_what_is_given_is_refused_in_its_own_words(auto, tmp_path):
    for args in (("-ctk", "nope", "-ctv", "auto"), ("-ctk", "auto", "-ctv", "nope"), ("-ctk", "auto", "--kv-layers", "0:k=nope")):
        assert "there is no cache type 'nope'" in auto(*args, check=False)
    assert '--kv-layers "x"' in auto("-ctk", "auto", "-ctv", "auto", "--kv-layers", "x", check=False)
    odd = make_model(tmp_path / "odd.gguf", Shape(head_dim=80))
    line = auto("-ctk", "q8_0", "-ctv", "auto", check=False, path=odd)
    assert "80" in line and "q8_0" in line and "auto finds" not in line


def test_the_cache_that_is_sized_is_the_one_that_is_opened(auto, golden, plan, model, tmp_path, env, athanor):
    stats, gemma = tmp_path / "s.json", golden / "gemma3/model.gguf"
    sizes = {}
    for args in ((), ("--swa-full",), ("--kv-layers", "5:k=f32,v=f32"), ("--entry-every", 1)):
        line = auto("-ctk", "auto", "-ctv", "turbo3", "-c", 65536, "--kv-budget", 40, "--json-stats", stats, *args, path=gemma)
        said, opened = float(re.search(r"([\d.]+) of 40 MiB", line)[1]), json.loads(stats.read_text())["cache_bytes_at_ctx"]
        assert opened / 2**20 == pytest.approx(said, abs=0.051), args
        rows = json.loads(athanor("plan", "-m", gemma, "--json", "-c", 65536, *args, env=env).stdout)["types"]
        sizes[args] = sum(t["bytes"] for t in rows)
    assert len(set(sizes.values())) == len(sizes) and min(sizes, key=sizes.get) == ()


def test_large_contexts_are_sized_at_once(golden, athanor, env):
    for name, *args in (("qwen35", "-c", 1), ("gemma3", "-c", 8192, "--kv-budget", 1000000), ("gemma3", "-c", 2**32)):
        p = json.loads(athanor("plan", "-m", golden / name / "model.gguf", "--json", *args, env=env, timeout=20).stdout)
        assert p["types"][0]["largest_context"] > 2**20
    for args in ((), ("-ctk", "auto", "-ctv", "auto")):
        done = athanor("-m", golden / "qwen35/model.gguf", "-p", "a", "-n", 1, "-c", 2**32, *args, program="llama-completion", env=env,
                       check=False, timeout=20)
        assert done.returncode == 1 and b"a context of 4294967296 tokens needs" in done.stderr


def test_completion_and_logits_take_it(athanor, model, env, tmp_path):
    stats = tmp_path / "s.json"
    def complete(*args, check=True):
        return athanor("-m", model, "-p", "a", "-n", 1, "--json-stats", stats, *args, program="llama-completion", env=env, check=check)
    err = complete("-ctk", "auto", "-ctv", "auto", "-c", 4096).stderr.decode()
    assert re.search(r"^auto cache: K f16, V f16 \(the reference itself\): the best that fits 4096 tokens into free memory", err, re.M)
    complete("-ctk", "auto", "-ctv", "turbo3", "-c", 4096, "--kv-budget", 2)
    s = json.loads(stats.read_text())
    assert s["type_v"] == "turbo3" and s["cache_bytes_at_ctx"] <= 2 << 20
    err = complete("-ctk", "auto", "-ctv", "auto", "-c", 4096, "--kv-budget", 1).stderr.decode()
    assert err.count("auto cache:") == 1 and "warning: auto cache:" in err and "3 bits or more fits 4096 tokens into --kv-budget" in err
    out = tmp_path / "o.f32"
    done = athanor("logits", "-m", model, "--ids", "1 2 3", "-o", out, "-ctk", "auto", "-ctv", "auto", env=env)
    assert b"auto cache: K f16" in done.stderr
    done = complete("-ctk", "auto", "--kv-budget", 0, check=False)
    assert done.returncode == 1 and b"--kv-budget expects" in done.stderr


def test_table_for_people(athanor, model, env):
    out = athanor("plan", "-m", model, "-c", 8192, "--kv-budget", 2, env=env).stdout.decode()
    assert out.startswith("context 8192 tokens, budget 2 MiB\n")
    assert len(re.findall(r"^\* ", out, re.M)) == 2 and "* auto: K " in out and "safe (about" in out


# ---- the table of expectations: written once by bench/quality_tables.py, for the program and for the document

def test_documented_expectations_are_those_of_the_program(plan):
    rows = quality_tables.expectations((ROOT / "tools/auto_expected.def").read_text())
    types = {pair(t): (t["class"], t["kld"]) for t in plan("-c", 512)["types"]}
    assert {(k, v): kld for k, v, _, kld in rows} == {p: kld for p, (_, kld) in types.items()} and len(rows) >= 10
    document = (ROOT / "docs/quality.md").read_text().split("<!-- begin expected -->")[1].split("<!-- end expected -->")[0]
    assert document.strip() == quality_tables.expected_table(rows)
    for line in document.strip().splitlines()[2:]:
        names, kind, _ = (cell.strip() for cell in line.strip("|").split("|"))
        k, _, v = names.partition(", ")
        assert types[k, v or k][0] == kind


class Measured:
    """Finished cells of two models."""
    models = {"a": None, "b": None}

    def __init__(self, cells):
        self.cells = cells

    def get(self, name):
        found = self.cells.get(name)
        return found and {"types": [{"type": t, "verdict": verdict, "kld_mean": kld} for t, verdict, kld in found]}


def test_expectations_are_the_worse_of_what_was_measured(tmp_path):
    path = tmp_path / "expected.def"
    path.write_text('/* head */\nEXPECT("f16", "f16", EXACT, 0)\nEXPECT("x", "x", SAFE, 0.001)\nEXPECT("y", "z", SAFE, 0.002)\n'
                    'EXPECT("z", "z", SAFE, 0.005)\n')
    cells = Measured({"a-int8": [("x", "safe", 0.0123), ("z", "safe", 0.1)], "b-int8": [("x", "visible", 0.01234)],
                      "a-more": [("y/z", "safe", 0.00456)], "b-more": [("y/z", "safe", 0.003)]})
    table = quality_tables.write_expectations(cells, path)
    assert path.read_text() == ('/* head */\nEXPECT("f16", "f16", EXACT, 0)\nEXPECT("y", "z", SAFE, 0.0046)\nEXPECT("z", "z", SAFE, 0.005)\n'
                                'EXPECT("x", "x", VISIBLE, 0.012)\n')
    assert table.splitlines()[2:] == ["| f16 | exact | 0 |", "| y, z | safe | 0.0046 |", "| z | safe | 0.005 |", "| x | visible | 0.012 |"]
