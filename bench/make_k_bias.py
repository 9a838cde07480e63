#!/usr/bin/env python3
"""A model with a bias on K like Qwen2.5's, made from one without: attn_k.bias, a constant on a few channels of some layers.

    make_k_bias.py MODEL.gguf OUT.gguf "LAYERS:CHANNELS=VALUE[;...]"

The text is that of athanor's --debug-k-bias, but the bias acts before the rotation, as a weight does, so that every
engine that loads attn_k.bias (llama.cpp: architecture llama) sees the same model. On channels of the slowest rotary pairs
(the last ones of a head) it turns little over thousands of tokens and stays a constant to a cache. LAYERS and CHANNELS are
lists like 0-1,-1 (negative: counted from the end); CHANNELS are those of every KV head.
"""
import argparse
import re

import gguf
import numpy as np


def numbers(text, n):
    """0-1,-1 as indices below n."""
    for part in text.split(","):
        first, last = re.fullmatch(r"(-?\d+)(?:-(-?\d+))?", part).groups()
        first, last = int(first) % n, int(last or first) % n
        yield from range(first, last + 1)


def bias_tables(spec, n_layers, n_kv_heads, head_dim):
    tables = {}
    for part in spec.split(";"):
        layers, channels, value = re.fullmatch(r"([^:]+):([^=]+)=(.+)", part).groups()
        for layer in numbers(layers, n_layers):
            table = tables.setdefault(layer, np.zeros((n_kv_heads, head_dim), np.float32))
            for channel in numbers(channels, head_dim):
                table[:, channel] += np.float32(value)
    return tables


def copy_fields(reader, writer, skip=("general.architecture",)):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in skip:
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])


def write(source, target, spec):
    reader = gguf.GGUFReader(source)
    arch = reader.get_field("general.architecture").contents()
    get = lambda key: reader.get_field(f"{arch}.{key}").contents()
    heads = get("attention.head_count")
    head_dim = get("attention.key_length") if reader.get_field(f"{arch}.attention.key_length") else get("embedding_length") // heads
    tables = bias_tables(spec, get("block_count"), get("attention.head_count_kv"), head_dim)
    writer = gguf.GGUFWriter(target, arch)
    copy_fields(reader, writer)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    for layer, table in sorted(tables.items()):
        writer.add_tensor(f"blk.{layer}.attn_k.bias", table.reshape(-1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("source")
    ap.add_argument("target")
    ap.add_argument("spec")
    a = ap.parse_args()
    write(a.source, a.target, a.spec)


if __name__ == "__main__":
    main()
