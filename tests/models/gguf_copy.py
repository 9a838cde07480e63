"""Copies of GGUF files with other keys and tensors."""
import gguf


def copy_model(source, target, keys=None, tensors=None, without=(), types=None):
    """keys, tensors: replaced or added, by name (keys without the architecture's prefix); types: {tensor: quantisation type} of
    tensors whose arrays hold bytes."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    keys = {f"{arch}.{name}": value for name, value in (keys or {}).items()}
    tensors = dict(tensors or {})
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in without:
            continue
        value, kind = keys.pop(name, field.contents()), field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool, list: writer.add_array}
    for name, value in keys.items():
        add[type(value)](name, value)
    for tensor in reader.tensors:
        if tensor.name not in without:
            data = tensors.pop(tensor.name, tensor.data)
            raw = (types or {}).get(tensor.name, tensor.tensor_type if data is tensor.data else None)
            writer.add_tensor(tensor.name, data, raw_dtype=raw)
    for name, data in tensors.items():
        writer.add_tensor(name, data, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
