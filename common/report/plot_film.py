#!/usr/bin/env python3
"""Draws the memory film: what the allocator holds along one step, one panel a mode.

Reads {"modes": [{"mode": "ddp", "samples": [{"t": seconds, "parameters": bytes, "gradients": ...,
"optimizer": ..., "communication": ..., "activations": ..., "other": ...}, ...],
"marks": [{"t": seconds, "label": "forward"}, ...]}, ...]}. A sample holds until the next one; a
category that it leaves out counts as 0. A mark begins a phase. All panels have the same axes.
"""

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from plot_style import (
    CATEGORY_COLOURS,
    MIB,
    QUIET_COLOUR,
    TEXT_COLOUR,
    BadInput,
    field,
    number,
    plt,
    run,
)

# More points than this cannot be told apart across a panel.
MOST_BINS = 1500


def thinned(samples):
    """At most two samples for each of MOST_BINS slices of time: the fullest and the emptiest, so
    that no peak and no valley is lost."""
    if len(samples) <= 2 * MOST_BINS:
        return samples
    first, last = samples[0]["t"], samples[-1]["t"]
    width = (last - first) / MOST_BINS or 1.0
    bins = {}
    for sample in samples:
        bins.setdefault(int((sample["t"] - first) / width), []).append(sample)
    kept = [samples[0]]
    for _, members in sorted(bins.items()):
        chosen = {id(pick): pick for pick in (min(members, key=total), max(members, key=total))}
        kept += sorted(chosen.values(), key=lambda sample: sample["t"])
    return kept + [samples[-1]]


def total(sample):
    return sum(sample[name] for name in CATEGORY_COLOURS)


def read_mode(row, position):
    name = field(row, "mode", str, f"mode {position}")
    where = f"mode '{name}'"
    samples = []
    for index, raw in enumerate(field(row, "samples", list, where)):
        at = f"sample {index} of {where}"
        sample = {"t": number(raw, "t", at)}
        for category in CATEGORY_COLOURS:
            sample[category] = number(raw, category, at) / MIB if category in raw else 0.0
        if samples and sample["t"] < samples[-1]["t"]:
            raise BadInput(f"{at} is earlier than the one before")
        samples.append(sample)
    if len(samples) < 2:
        raise BadInput(f"{where} has fewer than two samples")
    marks = []
    for index, mark in enumerate(row.get("marks") or []):
        at = f"mark {index} of {where}"
        marks.append((number(mark, "t", at), field(mark, "label", str, at)))
    start = samples[0]["t"]
    for sample in samples:
        sample["t"] -= start
    marks = sorted((at - start, label) for at, label in marks)
    return {"name": name, "peak": max(map(total, samples)), "samples": thinned(samples),
            "marks": marks, "end": samples[-1]["t"]}


def draw_areas(axes, mode, categories):
    times = [sample["t"] for sample in mode["samples"]]
    values = [[sample[name] for sample in mode["samples"]] for name in categories]
    axes.stackplot(times, values, colors=[CATEGORY_COLOURS[name] for name in categories],
                   step="post", linewidth=0, rasterized=len(times) > 1000)
    axes.step(times, [total(sample) for sample in mode["samples"]], where="post",
              color=TEXT_COLOUR, linewidth=0.7)


def draw_marks(figure, axes, mode):
    """A line where a phase begins, its name above the panel; names that would run into each other
    go one level up."""
    renderer = figure.canvas.get_renderer()
    level_ends = []
    for at, label in mode["marks"]:
        axes.axvline(at, color=TEXT_COLOUR, linewidth=0.8, linestyle=(0, (1, 2)))
        text = axes.annotate(label, (at, 1.0), xycoords=("data", "axes fraction"),
                             xytext=(2, 3), textcoords="offset points", fontsize=8,
                             color=QUIET_COLOUR, annotation_clip=False)
        box = text.get_window_extent(renderer)
        level = next((i for i, end in enumerate(level_ends) if box.x0 > end + 4), len(level_ends))
        level_ends[level:level + 1] = [box.x1]
        text.set_position((2, 3 + 10 * level))


def draw_panel(figure, axes, mode, categories, reference):
    draw_areas(axes, mode, categories)
    draw_marks(figure, axes, mode)
    if reference is not None and reference["name"] != mode["name"]:
        axes.axhline(reference["peak"], color=QUIET_COLOUR, linewidth=0.9, linestyle=(0, (5, 3)))
    axes.text(0.995, 0.93, f"peak {mode['peak']:,.0f} MiB", transform=axes.transAxes, ha="right",
              va="top", fontsize=9, color=TEXT_COLOUR)
    axes.set_ylabel(mode["name"].replace("_", "_\n").replace(":", ":\n"), rotation=0, ha="right", va="center", fontsize=12,
                    fontweight="bold", labelpad=10)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y")


def draw(document):
    rows = field(document, "modes", list, "the film")
    if not rows:
        raise BadInput("the film has no mode")
    modes = [read_mode(row, position) for position, row in enumerate(rows)]
    categories = [name for name in CATEGORY_COLOURS
                  if any(sample[name] > 0 for mode in modes for sample in mode["samples"])]
    if not categories:
        raise BadInput("no sample of the film holds any memory")
    reference = next((mode for mode in modes if mode["name"] == "ddp"), None)

    figure, all_axes = plt.subplots(len(modes), 1, figsize=(10, 1.2 + 2.1 * len(modes)),
                                    sharex=True, sharey=True, squeeze=False)
    all_axes = all_axes[:, 0]
    all_axes[0].set_xlim(0, max(mode["end"] for mode in modes) or 1.0)
    all_axes[0].set_ylim(0, 1.15 * max(mode["peak"] for mode in modes))
    figure.subplots_adjust(left=0.135, right=0.98, top=1 - 0.85 / figure.get_figheight(),
                           bottom=0.95 / figure.get_figheight(), hspace=0.32)
    for axes, mode in zip(all_axes, modes):
        draw_panel(figure, axes, mode, categories, reference)
    all_axes[-1].set_xlabel("seconds since the step began")

    model = document.get("model")
    subject = f" of {model}" if isinstance(model, str) else ""
    figure.suptitle(f"One step{subject}: MiB that a rank's allocator holds", x=0.02, ha="left",
                    y=1 - 0.2 / figure.get_figheight(), va="top", fontsize=14, fontweight="bold")
    handles = [Patch(color=CATEGORY_COLOURS[name], label=name) for name in categories]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles))
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/film.json", draw)
