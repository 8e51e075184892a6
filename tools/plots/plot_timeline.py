"""Draws one step of each of several ranks: what was computed, what was in flight, what was exposed.

One panel a rank with three lanes; time runs alike in all panels. Concurrent collectives of a lane
lie one above the other.
"""

from pathlib import Path

from plot_style import CATEGORY_COLOURS, PAGE_WIDTH, QUIET_COLOUR, TEXT_COLOUR, plt, save

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

MS = 1e6  # nanoseconds

RANGE_COLOURS = {"forward": "#cfcfcf", "backward": "#9a9a9a", "optimizer": "#5f5f5f"}
PURPOSE_COLOURS = {
    "parameter": CATEGORY_COLOURS["parameters"],
    "gradient": CATEGORY_COLOURS["gradients"],
}
EXPOSED = {"facecolor": "#b2182b", "edgecolor": "white", "hatch": "//////", "linewidth": 0}

# From the top.
LANES = {"compute": 2.0, "parameter": 1.0, "gradient": 0.0}
LANE_NAMES = {"compute": "compute", "parameter": "parameters", "gradient": "gradients"}
LANE_HEIGHT = 0.8
EXPOSED_HEIGHT = 0.18  # in the lanes of collectives, below their bars
BARS_BOTTOM = 0.2

CAPTION = (
    "In flight: from the start of a collective until its wait() returned, which is not the time in "
    "which bytes move.\nExposed: the training thread starts collectives, waits for them or takes "
    "what has come.\n"
    "Overlap: the share of the time in flight in which the rank computes."
)


def in_rows(stretches):
    """Each with the lowest row that is free when it begins, and how many rows there are."""
    ends, placed = [], []
    for each in sorted(stretches, key=lambda each: (each.start, each.end)):
        row = next((row for row, end in enumerate(ends) if end <= each.start), len(ends))
        ends[row:row + 1] = [each.end]
        placed.append((each, row))
    return placed, len(ends)


def draw_bars(axes, stretches, origin, bottom, height, **style):
    """One patch collection, so that thousands of bars are one thing to draw."""
    bars = [((each.start - origin) / MS, (each.end - each.start) / MS) for each in stretches]
    axes.broken_barh(bars, (bottom, height), **style)


def draw_compute(axes, trace, origin):
    for name, colour in RANGE_COLOURS.items():
        ranges = [each for each in trace.ranges if each.name == name]
        draw_bars(axes, ranges, origin, LANES["compute"], LANE_HEIGHT, color=colour, linewidth=0)


def draw_collectives(axes, trace, origin, purpose):
    members = [each for each in trace.collectives if each.name == purpose]
    placed, rows = in_rows(members)
    height = (LANE_HEIGHT - BARS_BOTTOM) / max(rows, 1)
    for row in range(rows):
        # The edge keeps what is short visible.
        draw_bars(axes, [each for each, at in placed if at == row], origin,
                  LANES[purpose] + BARS_BOTTOM + row * height, height,
                  color=PURPOSE_COLOURS[purpose], linewidth=0.4)


def draw_exposed(axes, trace, origin):
    """Everything over the lane of compute, and under the other two what is of their purpose. No
    edges: a thousand of them would look like more time than they are."""
    for lane, bottom in LANES.items():
        whole = lane == "compute"
        exposed = [each for each in trace.exposed if whole or each.name == lane]
        draw_bars(axes, exposed, origin, bottom, LANE_HEIGHT if whole else EXPOSED_HEIGHT,
                  **EXPOSED)


def title_of(figures, name):
    return name if figures["rank"] is None else f"{name}, rank {figures['rank']}"


def summary_of(figures):
    shares = []
    for purpose in PURPOSE_COLOURS:
        share = figures[purpose]["overlap_share"]
        shares.append(f"{LANE_NAMES[purpose]} {'-' if share is None else f'{share:.2f}'}")
    return f"exposed {amount(figures['exposed_seconds'] * 1e3)} ms; overlap: {', '.join(shares)}"


def amount(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def draw_panel(axes, trace, figures, name):
    origin = trace.extent()[0]
    draw_compute(axes, trace, origin)
    for purpose in PURPOSE_COLOURS:
        draw_collectives(axes, trace, origin, purpose)
    draw_exposed(axes, trace, origin)
    axes.set_title(title_of(figures, name), fontsize=11, fontweight="bold")
    axes.annotate(summary_of(figures), (1, 1), xycoords="axes fraction", xytext=(0, 4),
                  textcoords="offset points", ha="right", fontsize=8.5, color=QUIET_COLOUR)
    axes.set_yticks([bottom + LANE_HEIGHT / 2 for bottom in LANES.values()],
                    [LANE_NAMES[lane] for lane in LANES])
    axes.set_ylim(-0.1, len(LANES) - 0.1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def handles():
    in_flight = [Patch(color=colour, label=f"{LANE_NAMES[purpose]} in flight")
                 for purpose, colour in PURPOSE_COLOURS.items()]
    ranges = [Patch(color=colour, label=name) for name, colour in RANGE_COLOURS.items()]
    return [*ranges, *in_flight, Patch(label="exposed", **EXPOSED)]


def draw(traces, every, names):
    """`every` has the figures of these traces, `names` what to call them."""
    figure, all_axes = plt.subplots(len(traces), 1, figsize=(PAGE_WIDTH, 2.1 + 1.55 * len(traces)),
                                    sharex=True, squeeze=False)
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.12, right=0.98, top=1 - 0.75 / height, bottom=1.55 / height,
                           hspace=0.3)
    for axes, *panel in zip(all_axes[:, 0], traces, every, names):
        draw_panel(axes, *panel)
    last = all_axes[-1, 0]
    last.set_xlim(0, max(figures["step_seconds"] for figures in every) * 1e3)
    last.xaxis.set_major_locator(MaxNLocator(8))
    last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    last.set_xlabel("ms since the step began")
    figure.suptitle("One step: what is computed and what is in flight", x=0.02, ha="left",
                    y=1 - 0.15 / height, va="top", fontsize=14, fontweight="bold")
    figure.legend(handles=handles(), loc="lower center", ncols=3,
                  bbox_to_anchor=(0.5, 0.53 / height))
    figure.text(0.02, 0.08 / height, CAPTION, fontsize=8, color=TEXT_COLOUR, va="bottom")
    return figure


def write(traces, every, names, path):
    """Writes the PNG and an SVG beside it."""
    with plt.rc_context({"hatch.linewidth": 0.6}):
        save(draw(traces, every, names), Path(path).with_suffix(""))
