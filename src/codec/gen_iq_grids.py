#!/usr/bin/env python3
"""Writes iq_grids.h, the codebooks of the IQ types, from the tables of the `gguf` package.

usage: gen_iq_grids.py [OUTPUT]     (default: iq_grids.h beside this script)
"""
import pathlib
import sys

import numpy as np
from gguf import quants

HEADER = """\
/* Codebooks of the IQ weight types. Written by gen_iq_grids.py: do not edit.
 *
 * An entry packs eight elements (four for IQ3), one a byte, the first in the lowest; IQ1's are signed. */
#ifndef ATH_CODEC_IQ_GRIDS_H
#define ATH_CODEC_IQ_GRIDS_H

#include <stdint.h>
"""

GRIDS = [
    ("iq2_xxs_grid", quants.IQ2_XXS),
    ("iq2_xs_grid", quants.IQ2_XS),
    ("iq2_s_grid", quants.IQ2_S),
    ("iq3_xxs_grid", quants.IQ3_XXS),
    ("iq3_s_grid", quants.IQ3_S),
    ("iq1_grid", quants.IQ1_S),
]


def table(name, ctype, items, per_line):
    lines = [f"\nstatic const {ctype} ath_{name}[{len(items)}] = {{"]
    lines += ["    " + ", ".join(items[i:i + per_line]) + "," for i in range(0, len(items), per_line)]
    return "\n".join(lines + ["};", ""])


def grid(name, quant):
    quant.init_grid()
    n_entries, n_elements = quant.grid_shape
    packed = quant.grid.reshape(n_entries, n_elements).astype(np.int8).view(f"<u{n_elements}").ravel()
    items = [f"0x{entry:0{2 * n_elements}x}" for entry in packed]
    return table(name, f"uint{8 * n_elements}_t", items, {8: 5, 4: 8}[n_elements])


def main():
    default = pathlib.Path(__file__).with_name("iq_grids.h")
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    text = HEADER + "".join(grid(name, quant) for name, quant in GRIDS)
    text += table("iq4_values", "int8_t", [str(value) for value in quants.IQ4_NL.kvalues], 16)
    output.write_text(text + "\n#endif\n")


main()
