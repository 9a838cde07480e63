#!/usr/bin/env python3
"""Decode and prefill against depth, from the CSV of `athanor bench --curve` or `versus.py --curve`.

    plot.py CURVE.csv [MORE.csv ...] -o curve.svg [--table athanor:f16,athanor:turbo3,llama.cpp:f16]       # or .png

A line per cache type; llama.cpp's, where the files have them, are dashed. --table prints the figures of some lines in Markdown.
Needs matplotlib.
"""
import argparse
import csv
import pathlib

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "athanor"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of backend)

COLOURS = {"f16": "#555555", "bf16": "#888888", "q8_0": "#1b6ca8", "q5_0": "#117a8b", "q4_0": "#8e44ad", "turbo4": "#b9770e",
           "turbo3": "#c0392b", "turbo3_tcq": "#27864a", "turbo2": "#7f4f24"}
OTHER = "#e377c2"


def read(paths):
    """{(engine, type): rows by depth}, in the order of the files."""
    lines = {}
    for path in paths:
        for row in csv.DictReader(path.open()):
            kind = row["type_k"] if row["type_k"] == row["type_v"] else f"{row['type_k']}/{row['type_v']}"
            lines.setdefault((row["engine"], kind), []).append(row)
    if not lines:
        raise SystemExit("there are no rows in " + ", ".join(map(str, paths)))
    return {key: sorted(rows, key=lambda r: int(r["depth"])) for key, rows in lines.items()}


def draw(axis, lines, column, title):
    for (engine, kind), rows in lines.items():
        points = [(int(r["depth"]), float(r[column])) for r in rows if float(r[column] or 0) > 0]
        if points:
            axis.plot(*zip(*points), label=f"{engine} {kind}", color=COLOURS.get(kind, OTHER), marker="o", markersize=3,
                      linestyle="-" if engine == "athanor" else "--")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.set_title(title)
    axis.set_xlabel("tokens in the cache")
    axis.set_ylabel("tokens per second")
    axis.grid(True, which="both", color="#dddddd", linewidth=0.5)
    top = max(int(r["depth"]) for rows in lines.values() for r in rows)
    ticks = [top * i // 4 for i in range(5)]
    axis.set_xticks(ticks, [f"{t // 1024}K" if t >= 1024 else str(t) for t in ticks])


def print_table(lines, names):
    """A row per depth: decode of each line, then prefill of each."""
    keys = [tuple(name.split(":")) for name in names.split(",")]
    titles = [f"`{kind}`" if engine == "athanor" else f"{engine} `{kind}`" for engine, kind in keys]
    print("| tokens in the cache | " + " | ".join(f"{word}{t}" for word in ("decode ", "prefill ") for t in titles) + " |")
    print("|---" * (2 * len(keys) + 1) + "|")
    rows = {key: {int(r["depth"]): r for r in lines.get(key, [])} for key in keys}
    for depth in sorted({d for of_line in rows.values() for d in of_line}):
        cells = [f"{float(rows[key][depth][column]):.0f}" if depth in rows[key] else ""
                 for column in ("tg_ts", "pp_ts") for key in keys]
        print(f"| {depth} | " + " | ".join(cells) + " |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("csv", nargs="+", type=pathlib.Path)
    ap.add_argument("-o", "--output", required=True, type=pathlib.Path)
    ap.add_argument("--table", metavar="ENGINE:TYPE,...", help="print these lines as a table")
    a = ap.parse_args()
    lines = read(a.csv)
    if a.table:
        print_table(lines, a.table)
    first = next(iter(lines.values()))[0]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharex=True)
    draw(axes[0], lines, "tg_ts", "decode")
    draw(axes[1], lines, "pp_ts", "prefill, 512 tokens")
    figure.suptitle(f"{first['model']}, {first['cpu']}, {first['threads']} threads", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0, 0.84, 1))
    figure.savefig(a.output, metadata={"Date": None} if a.output.suffix == ".svg" else None, dpi=150)


if __name__ == "__main__":
    main()
