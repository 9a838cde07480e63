"""Random bytes that are sane blocks of any weight type, for tests of mixed files: no encoder is needed, and every code occurs."""
import gguf
import numpy as np

# type: (places of 16-bit scales in a block, factor of the second one, which is a minimum's: it takes the mean away)
SCALES = {
    "Q4_0": ((0,), 0), "Q4_1": ((0, 2), -7.5), "Q5_0": ((0,), 0), "Q5_1": ((0, 2), -15.5), "Q8_0": ((0,), 0), "Q2_K": ((80, 82), 1.5),
    "Q3_K": ((108,), 0), "Q4_K": ((0, 2), 7.5), "Q5_K": ((0, 2), 15.5), "Q6_K": ((208,), 0), "IQ2_XXS": ((0,), 0), "IQ2_XS": ((0,), 0),
    "IQ2_S": ((0,), 0), "IQ3_XXS": ((0,), 0), "IQ3_S": ((0,), 0), "IQ1_S": ((0,), 0), "IQ4_NL": ((0,), 0), "IQ4_XS": ((0,), 0),
}


def random_blocks(rng, name, shape, rms):
    """Bytes of a tensor of that type, whose values have about that root mean square."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    if name == "MXFP4":
        data[..., 0] = 127 + np.round(np.log2(rms / 2.9)).astype(int)
        return data.reshape(*shape[:-1], -1), kind

    def scale(d):
        places, minimum = SCALES[name]
        for at, value in zip(places, (d, d * minimum)):
            data[..., at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    scale(0.01)
    flat = data.reshape(*shape[:-1], -1)
    scale(0.01 * rms / np.sqrt((gguf.dequantize(flat, kind).astype(np.float64) ** 2).mean()))
    return data.reshape(*shape[:-1], -1), kind
