#!/usr/bin/env python3
"""Draws memory timelines: what the allocator holds along one step, a picture of each file.

Reads {"model": …, "modes": [{"mode": "ddp", "samples": [{"t": seconds, "parameters": bytes,
"gradients": …, "optimizer": …, "communication": …, "activations": …, "other": …}, …], "marks":
[{"t": seconds, "label": "forward"}, …]}, …]} from one or more files of the same model. A sample
holds until the next one; a category that it leaves out counts as 0. A mark begins a phase. All
pictures have the same axes.
"""

import argparse
import json
from pathlib import Path

from plot_style import (
    CATEGORY_COLOURS, MIB, PAGE_WIDTH, QUIET_COLOUR, TEXT_COLOUR, errors_of, plt, save)

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

# From the bottom: what does not change along a step first, so that what does is not shifted by it.
STACK = ("optimizer", "parameters", "gradients", "communication", "activations", "other")


def total(sample):
    return sum(sample[name] for name in CATEGORY_COLOURS)


def read_mode(row):
    start = row["samples"][0]["t"]
    samples = [{"t": sample["t"] - start, **{name: sample.get(name, 0) / MIB for name in CATEGORY_COLOURS}}
               for sample in row["samples"]]
    marks = sorted((mark["t"] - start, mark["label"]) for mark in row["marks"])
    return {"name": row["mode"], "peak": max(map(total, samples)), "samples": samples,
            "marks": marks, "end": samples[-1]["t"]}


def read_memory_timeline(path):
    """The mode of one file, and what the memory timeline is of."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    return (read_mode(document["modes"][0]), f" of {document['model']} on {document['world_size']} ranks")


def draw_areas(axes, mode, categories):
    times = [sample["t"] for sample in mode["samples"]]
    values = [[sample[name] for sample in mode["samples"]] for name in categories]
    axes.stackplot(times, values, colors=[CATEGORY_COLOURS[name] for name in categories],
                   step="post", linewidth=0, rasterized=len(times) > 1000)
    axes.step(times, [total(sample) for sample in mode["samples"]], where="post",
              color=TEXT_COLOUR, linewidth=0.7)


def draw_marks(figure, axes, mode):
    """A line where a phase begins, its name above the panel: left of the line where it would leave
    the picture, one level up where it would run into another."""
    renderer = figure.canvas.get_renderer()
    boxes = []
    for at, label in mode["marks"]:
        axes.axvline(at, color=TEXT_COLOUR, linewidth=0.8, linestyle=(0, (1, 2)))
        text = axes.annotate(label, (at, 1.0), xycoords=("data", "axes fraction"),
                             xytext=(2, 3), textcoords="offset points", fontsize=8,
                             color=QUIET_COLOUR, annotation_clip=False)
        x = 2
        if text.get_window_extent(renderer).x1 > axes.get_window_extent(renderer).x1:
            text.set_horizontalalignment("right")
            x = -2
        level = -1
        while level < 0 or any(box.overlaps(text.get_window_extent(renderer)) for box in boxes):
            level += 1
            text.set_position((x, 3 + 10 * level))
        boxes.append(text.get_window_extent(renderer).expanded(1.05, 1.0))


def draw_panel(figure, axes, mode, categories, reference):
    draw_areas(axes, mode, categories)
    draw_marks(figure, axes, mode)
    said = f"peak {amount(mode['peak'])} MiB"
    if reference is not None and reference["name"] != mode["name"]:
        axes.axhline(reference["peak"], color=QUIET_COLOUR, linewidth=0.9, linestyle=(0, (5, 3)))
        said += f", {mode['peak'] / reference['peak']:.2f} of {reference['name']}'s (dashed)"
    axes.text(0.995, 0.97, said, transform=axes.transAxes, ha="right", va="top", fontsize=9,
              color=TEXT_COLOUR, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})
    axes.set_ylabel(mode["name"].replace("_", "_\n").replace(":", ":\n"), rotation=0, ha="right",
                    va="center", fontsize=12, fontweight="bold", labelpad=10)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y")


def amount(mib):
    return f"{mib:,.0f}" if mib >= 1000 else f"{mib:.1f}"


def draw(mode, every, subject):
    """The mode, on axes that fit the modes `every`."""
    categories = [name for name in STACK
                  if any(sample[name] > 0 for each in every for sample in each["samples"])]
    reference = next((each for each in every if each["name"] == "ddp"), None)
    figure, axes = plt.subplots(figsize=(PAGE_WIDTH, 4))
    axes.set_xlim(0, max(each["end"] for each in every) or 1.0)
    axes.set_ylim(0, 1.3 * max(each["peak"] for each in every))
    figure.subplots_adjust(left=0.17, right=0.98, top=1 - 0.85 / 4, bottom=0.95 / 4)
    draw_panel(figure, axes, mode, categories, reference)
    axes.set_xlabel("seconds since the step began")
    figure.suptitle(f"One step{subject}: MiB that a rank's allocator holds", x=0.02, ha="left",
                    y=1 - 0.2 / 4, va="top", fontsize=12, fontweight="bold")
    handles = [Patch(color=CATEGORY_COLOURS[name], label=name) for name in categories]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=9,
                  handlelength=1.6, columnspacing=1.4)
    return figure


def write_all(arguments):
    timelines = [read_memory_timeline(path) for path in arguments.json]
    every = [mode for mode, _ in timelines]
    for path, (mode, subject) in zip(arguments.json, timelines):
        prefix = f"{arguments.out}_{Path(path).stem}" if arguments.out else str(Path(path).with_suffix(""))
        save(draw(mode, every, subject), prefix)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="*", default=["out/memory_timeline.json"],
                        help="memory timelines of the same model (default: out/memory_timeline.json)")
    parser.add_argument("--out", metavar="PREFIX", help="pictures are PREFIX_FILE (default: as the JSON)")
    arguments = parser.parse_args()
    with errors_of(parser, ", ".join(arguments.json)):
        write_all(arguments)


if __name__ == "__main__":
    main()
