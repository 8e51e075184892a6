#!/usr/bin/env python3
"""Draws memory against communication from the JSON that the planner wrote.

One line a world size, from DDP to ZeRO-3: model states of a rank over the bytes that it sends in a
step. The world size that was asked about is drawn strong, with what lies beside the line; the memory
of the device is a dashed line.
"""

from plot_style import (
    CATEGORY_COLOURS,
    QUIET_COLOUR,
    TEXT_COLOUR,
    BadInput,
    field,
    number,
    plt,
    run,
)

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

GB = 1e9
STAGE_COLOURS = {
    "DDP": TEXT_COLOUR,
    "ZeRO-1": CATEGORY_COLOURS["optimizer"],
    "ZeRO-2": CATEGORY_COLOURS["gradients"],
    "ZeRO-3": CATEGORY_COLOURS["parameters"],
}
BESIDE_COLOUR = CATEGORY_COLOURS["communication"]


def read_points(mapping, key, where):
    points = []
    for position, row in enumerate(field(mapping, key, list, where)):
        place = f"point {position} of {where}"
        points.append(
            (
                field(row, "name", str, place),
                number(row, "sent_bytes", place) / GB,
                number(row, "model_state_bytes", place) / GB,
            )
        )
    if not points:
        raise BadInput(f"{where} has no point")
    return points


def read_curves(document):
    curves = {}
    for position, curve in enumerate(field(document, "curves", list, "the plan")):
        where = f"curve {position}"
        curves[int(number(curve, "world_size", where))] = read_points(curve, "points", where)
    return curves


def colour_of(name):
    if name not in STAGE_COLOURS:
        raise BadInput(f"there is no stage '{name}'")
    return STAGE_COLOURS[name]


def draw_curve(axes, ranks, points, strong):
    colour = TEXT_COLOUR if strong else "#bbbbbb"
    sent = [x for _, x, _ in points]
    held = [y for _, _, y in points]
    axes.plot(sent, held, color=colour, linewidth=1.6 if strong else 1, zorder=3 if strong else 2)
    for name, x, y in points:
        axes.plot(x, y, marker="o", markersize=9 if strong else 5, zorder=5 if strong else 3,
                  color=colour_of(name), alpha=1 if strong else 0.45, markeredgecolor="white",
                  markeredgewidth=0.8)
    name, x, y = points[-1]
    axes.annotate(f"N = {ranks}", (x, y), xytext=(9, 0), textcoords="offset points", va="center",
                  fontsize=9, color=colour if strong else QUIET_COLOUR,
                  fontweight="bold" if strong else "normal")


def draw_legend(figure, memory):
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="", markersize=8, label=name)
        for name, colour in STAGE_COLOURS.items()
    ]
    handles.append(
        Line2D([], [], color=BESIDE_COLOUR, marker="D", linestyle="", markersize=7,
               label="beside the line")
    )
    if memory is not None:
        handles.append(
            Line2D([], [], color=TEXT_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2,
                   label=f"memory, {memory:,.2f} GB")
        )
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), columnspacing=1.6,
                  handletextpad=0.4, bbox_to_anchor=(0.5, 0.0))


def draw(document):
    curves = read_curves(document)
    ranks = int(number(document, "world_size", "the plan"))
    if ranks not in curves:
        raise BadInput(f"the plan is for {ranks} ranks, but has no curve for them")
    beside = read_points(document, "beside", "the plan")
    memory = document.get("memory_bytes")
    memory = None if memory is None else number(document, "memory_bytes", "the plan") / GB

    figure, axes = plt.subplots(figsize=(9, 6.2))
    axes.set_yscale("log")
    for size, points in curves.items():
        draw_curve(axes, size, points, strong=size == ranks)
    for name, x, y in beside:
        axes.plot(x, y, marker="D", markersize=7, color=BESIDE_COLOUR, markeredgecolor="white",
                  markeredgewidth=0.8, zorder=6)
        axes.annotate(name, (x, y), xytext=(-9, -1), textcoords="offset points", ha="right",
                      va="center", fontsize=9, color=BESIDE_COLOUR)
    if memory is not None:
        axes.axhline(memory, color=TEXT_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1)

    axes.set_xlim(0, 1.12 * max(x for points in curves.values() for _, x, _ in points))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.3g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("GB that a rank sends in a step")
    axes.set_ylabel("GB of model states a rank")
    axes.grid(axis="both")
    policy = field(document, "policy", dict, "the plan")
    figure.suptitle(f"Memory against communication, {field(document, 'model', str, 'the plan')}",
                    x=0.02, y=0.975, ha="left", fontsize=14, fontweight="bold")
    axes.set_title(
        f"{int(number(document, 'parameters', 'the plan')):,} parameters, "
        f"{field(policy, 'name', str, 'the policy')}, N ranks; from DDP down to ZeRO-3; GB = 10^9 bytes",
        fontsize=10, color=QUIET_COLOUR, pad=10,
    )
    draw_legend(figure, memory)
    figure.tight_layout(rect=(0, 0.05, 1, 0.985))
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/plan.json", draw)
