#!/usr/bin/env python3
"""Draws the memory timeline: what the allocator holds along one step, one panel a mode.

Reads {"model": …, "modes": [{"mode": "ddp", "samples": [{"t": seconds, "parameters": bytes,
"gradients": …, "optimizer": …, "communication": …, "activations": …, "other": …}, …], "marks":
[{"t": seconds, "label": "forward"}, …]}, …]} from one or more files of the same model. A sample
holds until the next one; a category that it leaves out counts as 0. A mark begins a phase. All
panels, and with --each all pictures, have the same axes.
"""

import argparse
import json
from pathlib import Path

from plot_style import (
    CATEGORY_COLOURS, MIB, PAGE_WIDTH, QUIET_COLOUR, TEXT_COLOUR, BadInput, errors_of, plt, save)

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
    """The modes of one file, and what the memory timeline is of."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    return ([read_mode(row) for row in document["modes"]],
            f" of {document['model']} on {document['world_size']} ranks")


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


def draw(shown, every, subject):
    """The modes `shown`, on axes that fit the modes `every`."""
    categories = [name for name in STACK
                  if any(sample[name] > 0 for mode in every for sample in mode["samples"])]
    reference = next((mode for mode in every if mode["name"] == "ddp"), None)
    panel = 1.9 if len(shown) > 1 else 2.6
    figure, all_axes = plt.subplots(len(shown), 1, figsize=(PAGE_WIDTH, 1.4 + panel * len(shown)),
                                    sharex=True, sharey=True, squeeze=False)
    height = figure.get_figheight()
    all_axes = all_axes[:, 0]
    all_axes[0].set_xlim(0, max(mode["end"] for mode in every) or 1.0)
    all_axes[0].set_ylim(0, 1.3 * max(mode["peak"] for mode in every))
    figure.subplots_adjust(left=0.17, right=0.98, top=1 - 0.85 / height, bottom=0.95 / height,
                           hspace=0.32)
    for axes, mode in zip(all_axes, shown):
        draw_panel(figure, axes, mode, categories, reference)
    all_axes[-1].set_xlabel("seconds since the step began")
    figure.suptitle(f"One step{subject}: MiB that a rank's allocator holds", x=0.02, ha="left",
                    y=1 - 0.2 / height, va="top", fontsize=12, fontweight="bold")
    handles = [Patch(color=CATEGORY_COLOURS[name], label=name) for name in categories]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=9,
                  handlelength=1.6, columnspacing=1.4)
    return figure


def write_all(arguments):
    memory_timelines = [read_memory_timeline(path) for path in arguments.json]
    subjects = sorted({subject for _, subject in memory_timelines})
    if len(subjects) > 1:
        raise BadInput("these memory timelines are not of the same thing: one is" + ", one is".join(subjects))
    every = [mode for modes, _ in memory_timelines for mode in modes]
    pictures = [("", every)]
    if arguments.each:
        pictures = [("_" + Path(path).stem, modes)
                    for path, (modes, _) in zip(arguments.json, memory_timelines)]
    prefix = arguments.out or str(Path(arguments.json[0]).with_suffix(""))
    kinds = (arguments.only,) if arguments.only else ("png", "svg")
    for name, shown in pictures:
        save(draw(shown, every, subjects[0]), prefix + name, kinds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="*", default=["out/memory_timeline.json"],
                        help="memory timelines of the same model (default: out/memory_timeline.json)")
    parser.add_argument("--out", metavar="PREFIX", help="begins the names of the pictures (default: "
                        "as the first JSON)")
    parser.add_argument("--each", action="store_true",
                        help="a picture of each file, PREFIX_FILE, instead of one of all")
    parser.add_argument("--only", choices=("png", "svg"), help="not both")
    arguments = parser.parse_args()
    with errors_of(parser, ", ".join(arguments.json)):
        write_all(arguments)


if __name__ == "__main__":
    main()
