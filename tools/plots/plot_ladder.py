#!/usr/bin/env python3
"""Draws the memory ladder from the JSON that the ladder program wrote.

One stacked bar a mode: parameters, gradients and optimizer, means over the ranks; the formula's
total as a line across the bar, the peak of a step as a diamond, the fullest rank as a triangle.
"""

from plot_style import CATEGORY_COLOURS, PAGE_WIDTH, QUIET_COLOUR, TEXT_COLOUR, plt, run

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

STATES = (
    ("parameters", "parameter_mib"),
    ("gradients", "gradient_mib"),
    ("optimizer", "optimizer_mib"),
)
BAR_WIDTH = 0.62
PEAK_COLOUR = "#CC79A7"


def draw_bars(axes, modes):
    places = range(len(modes))
    below = [0.0] * len(modes)
    for name, key in STATES:
        heights = [mode[key] for mode in modes]
        axes.bar(places, heights, BAR_WIDTH, bottom=below, color=CATEGORY_COLOURS[name], edgecolor="white", linewidth=1)
        for place, height, base in zip(places, heights, below):
            if height > 0.05 * axes.get_ylim()[1]:
                axes.text(
                    place, base + height / 2, f"{height:,.2f}", ha="center", va="center",
                    color="black" if name == "gradients" else "white", fontsize=9,
                )
        # The fullest rank's part, where it differs enough to be seen.
        for place, mode, base in zip(places, modes, below):
            axes.plot(
                place - BAR_WIDTH / 2 - 0.035, base + mode[key + "_max"], marker=">", markersize=4.5,
                color=CATEGORY_COLOURS[name], markeredgewidth=0, clip_on=False,
            )
        below = [base + height for base, height in zip(below, heights)]


def draw_marks(axes, modes):
    top = axes.get_ylim()[1]
    for place, mode in enumerate(modes):
        half = BAR_WIDTH / 2 + 0.07
        axes.hlines(mode["formula_mib"], place - half, place + half, color=TEXT_COLOUR,
                    linewidth=1.6, zorder=4)
        axes.vlines(place, mode["total_mib"], mode["peak_mib"], color=PEAK_COLOUR, linewidth=1.2,
                    linestyle=(0, (2, 2)), zorder=3)
        axes.plot(place, mode["peak_mib"], marker="D", markersize=7, color=PEAK_COLOUR,
                  markeredgecolor="white", markeredgewidth=0.8, zorder=5)
        above = max(mode["peak_mib"], mode["total_mib"], mode["formula_mib"]) + 0.025 * top
        if mode["ratio"] is not None:
            axes.text(place, above + 0.045 * top, f"{mode['ratio']:.3f}", ha="center", va="bottom",
                      fontsize=15, fontweight="bold")
        axes.text(place, above, f"{mode['total_mib']:,.2f} MiB", ha="center", va="bottom",
                  fontsize=9, color=QUIET_COLOUR)


def draw_legend(figure):
    handles = [Patch(color=CATEGORY_COLOURS[name], label=name) for name, _ in STATES]
    handles += [
        Line2D([], [], color=TEXT_COLOUR, linewidth=1.6, label="formula"),
        Line2D([], [], color=PEAK_COLOUR, marker="D", markeredgecolor="white", linestyle="",
               markersize=7, label="peak of a step"),
        Line2D([], [], color=QUIET_COLOUR, marker=">", linestyle="", markersize=5,
               label="fullest rank"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), columnspacing=1.2,
                  handletextpad=0.6, bbox_to_anchor=(0.5, 0.0))


def draw(document):
    modes, ranks = document["modes"], document["world_size"]
    figure, axes = plt.subplots(figsize=(max(PAGE_WIDTH, 1.9 * len(modes) + 0.4), 6.2))
    highest = max(max(mode["peak_mib_max"], mode["total_mib_max"]) for mode in modes)
    axes.set_ylim(0, 1.17 * highest)
    axes.set_xlim(-0.6, len(modes) - 0.4)
    draw_bars(axes, modes)
    draw_marks(axes, modes)

    axes.set_xticks(range(len(modes)), [mode["mode"] for mode in modes], fontsize=11)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("MiB a rank, mean over ranks")
    axes.grid(axis="y")
    figure.suptitle(f"Memory of {document['model']} on {ranks} rank{'' if ranks == 1 else 's'}", x=0.02,
                    y=0.975, ha="left", fontsize=14, fontweight="bold")
    axes.set_title(
        f"{document['parameters']:,} parameters; model states at rest, and their ratio to DDP's",
        fontsize=10, color=QUIET_COLOUR, pad=10,
    )
    draw_legend(figure)
    figure.tight_layout(rect=(0, 0.05, 1, 0.985))
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/ladder.json", draw)
