"""GGUF against Python's gguf package: its files read by us, our files read by it.

Needs the build folder (ATH_BUILD, default: build/ in the repository) for tests/test_gguf.
"""
import os
import pathlib
import subprocess

import gguf
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("ATH_BUILD", ROOT / "build")) / "tests" / "test_gguf"
DATA = ROOT.parent / "shared" / "data"
T = gguf.GGUFValueType

VALUES = {
    T.UINT8: [0, 7, 255],
    T.INT8: [-128, 0, 127],
    T.UINT16: [0, 500, 65535],
    T.INT16: [-32768, 5, 32767],
    T.UINT32: [0, 70000, 4294967295],
    T.INT32: [-(2**31), -3, 2**31 - 1],
    T.FLOAT32: [-1.5, float(np.float32(3.14159274)), float(np.float32(1e-40))],
    T.BOOL: [True, False, True],
    T.STRING: ["one", "", "drei é"],
    T.UINT64: [0, 1 << 40, 2**64 - 1],
    T.INT64: [-(2**63), -1, 2**63 - 1],
    T.FLOAT64: [-2.5, 1e300, 0.1],
}
# How test_gguf.c names them in its sample.
C_NAMES = {
    T.UINT8: "u8", T.INT8: "i8", T.UINT16: "u16", T.INT16: "i16", T.UINT32: "u32", T.INT32: "i32",
    T.FLOAT32: "f32", T.BOOL: "bool", T.UINT64: "u64", T.INT64: "i64", T.FLOAT64: "f64",
}


def parse_item(item_type, text):
    if item_type == T.STRING:
        return bytes.fromhex(text)
    if item_type in (T.FLOAT32, T.FLOAT64):
        return float.fromhex(text)
    return int(text)


def dump(path):
    """Our reader's view: {key: (type, item type, values)}, {tensor: (type, part, size, dims, first and last bytes)}."""
    run = subprocess.run([PROGRAM, "--dump", path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    keys, tensors = {}, {}
    for line in run.stdout.splitlines():
        kind, name, *rest = line.split("\t")
        if kind == "kv":
            item_type = T(int(rest[1]))
            values = [parse_item(item_type, text) for text in rest[3:]]
            assert len(values) == int(rest[2])
            keys[bytes.fromhex(name).decode()] = (T(int(rest[0])), item_type, values)
        else:
            dims = [int(d) for d in rest[3].split(",")]
            tensors[name] = (int(rest[0]), int(rest[1]), int(rest[2]), dims, bytes.fromhex(rest[4]))
    return keys, tensors


def as_dumped(values):
    return [v.encode() if isinstance(v, str) else v for v in values]


def ends(data):
    data = bytes(data)
    return data[:32] + data[-32:]


def make_writer(path, alignment=None, **options):
    writer = gguf.GGUFWriter(path, "llama", **options)
    if alignment:
        writer.add_custom_alignment(alignment)
    for value_type, values in VALUES.items():
        name = value_type.name.lower()
        writer.add_key_value(f"scalar.{name}", values[1], value_type)
        writer.add_key_value(f"array.{name}", values, T.ARRAY, sub_type=value_type)
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("alignment", [None, 64, 4096])
def test_their_file_is_read_by_us(tmp_path, alignment):
    path = tmp_path / "theirs.gguf"
    writer = make_writer(path, alignment)
    rng = np.random.default_rng(1)
    plain = {
        "f32": rng.standard_normal((5, 3), dtype=np.float32),
        "f16": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "four.dims": rng.standard_normal((2, 1, 3, 4), dtype=np.float32),
        "i8": rng.integers(-128, 127, 7, dtype=np.int8),
        "i64": rng.integers(-(2**60), 2**60, 3, dtype=np.int64),
        "f64": rng.standard_normal(1),
    }
    for name, array in plain.items():
        writer.add_tensor(name, array)
    blocks = rng.standard_normal((3, 256), dtype=np.float32)
    packed = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_1": gguf.GGMLQuantizationType.Q4_1}
    for name, quant in packed.items():
        plain[name] = gguf.quants.quantize(blocks, quant)
        writer.add_tensor(name, plain[name], raw_dtype=quant)
    finish(writer)

    keys, tensors = dump(path)
    assert keys["general.architecture"] == (T.STRING, T.STRING, [b"llama"])
    for value_type, values in VALUES.items():
        name = value_type.name.lower()
        assert keys[f"scalar.{name}"] == (value_type, value_type, as_dumped(values[1:2]))
        assert keys[f"array.{name}"] == (T.ARRAY, value_type, as_dumped(values))
    assert list(tensors) == list(plain)
    for name, array in plain.items():
        type_id, part, size, dims, data = tensors[name]
        shape = blocks.shape if name in packed else array.shape
        assert (part, size, dims) == (0, array.nbytes, list(shape[::-1])), name
        assert data == ends(array.tobytes()), name
    assert tensors["q8_0"][0] == 8 and tensors["q4_1"][0] == 3


def test_their_splits_are_read_by_us(tmp_path):
    writer = make_writer(tmp_path / "model.gguf", split_max_tensors=2)
    arrays = {f"t{i}": np.full((4, 8), i, dtype=np.float32) for i in range(5)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    finish(writer)
    keys, tensors = dump(tmp_path / "model-00001-of-00003.gguf")
    assert keys["split.count"][2] == [3]
    assert [tensors[f"t{i}"][1] for i in range(5)] == [0, 0, 1, 1, 2]
    for name, array in arrays.items():
        assert tensors[name][4] == ends(array.tobytes())


def test_their_big_endian_file_is_refused(tmp_path):
    path = tmp_path / "big.gguf"
    finish(make_writer(path, endianess=gguf.GGUFEndian.BIG))
    run = subprocess.run([PROGRAM, "--dump", path], capture_output=True, text=True)
    assert run.returncode == 1 and "big-endian" in run.stderr


def test_our_file_is_read_by_them(tmp_path):
    path = tmp_path / "ours.gguf"
    subprocess.run([PROGRAM, "--write", path], check=True)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == 32
    assert reader.fields["general.architecture"].contents() == "llama"
    for value_type, name in C_NAMES.items():
        scalar, array = reader.fields[f"test.{name}"], reader.fields[f"test.arr_{name}"]
        assert scalar.types == [value_type] and array.types == [T.ARRAY, value_type]
        assert scalar.contents() == VALUES[value_type][1]
        assert array.contents() == VALUES[value_type]
    assert reader.fields["test.string"].contents() == "Grüße"
    assert reader.fields["test.empty"].contents() == ""
    assert reader.fields["test.strings"].contents() == VALUES[T.STRING]
    a, b, c = reader.tensors
    assert (a.name, b.name, c.name) == ("a.weight", "b.weight", "c.weight")
    assert np.array_equal(a.data, np.arange(64, dtype=np.float32).reshape(2, 32) * 0.25)
    assert b.tensor_type == gguf.GGMLQuantizationType.Q4_K
    assert bytes(b.data) == bytes((i * 7 + 1) % 256 for i in range(144))
    assert c.data.tobytes() == bytes(range(0xF0, 0xF8))


MODELS = sorted(DATA.glob("golden/*/model.gguf")) + [DATA / "vocab" / "llama-spm.gguf"]


@pytest.mark.skipif(not DATA.exists(), reason="the shared data folder is not here")
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.parent.name if p.name == "model.gguf" else p.stem)
def test_real_files_read_alike(path):
    keys, tensors = dump(path)
    reader = gguf.GGUFReader(path)
    theirs = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(keys) == list(theirs)
    for name, field in theirs.items():
        value_type, item_type, values = keys[name]
        assert field.types[0] == value_type
        if len(field.types) > 1:  # the type of an empty array is not kept there
            assert field.types[1] == item_type
        raw = [field.parts[i] for i in field.data]
        expect = [bytes(p) if item_type == T.STRING else p[0].item() for p in raw]
        assert values == expect, name
    assert list(tensors) == [t.name for t in reader.tensors]
    for t in reader.tensors:
        expect = (int(t.tensor_type), 0, int(t.n_bytes), [int(d) for d in t.shape], ends(t.data.tobytes()))
        assert tensors[t.name] == expect, t.name
