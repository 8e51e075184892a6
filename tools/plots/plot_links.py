#!/usr/bin/env python3
"""Draws what bucket size, lookahead and stage do to a step, or modes beside each other, from the JSON of ./run links.

One line a speed of the links; with --modes one line a mode, step against rate. Dashes: what a link needs for the bytes alone, in its colour, and
computing alone in grey. No overlap gets below the higher of the two.
"""

from plot_style import (
    CATEGORY_COLOURS,
    PAGE_WIDTH,
    QUIET_COLOUR,
    TEXT_COLOUR,
    BadInput,
    field,
    number,
    plt,
    run,
)

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

RATE_COLOURS = [CATEGORY_COLOURS[name] for name in
                ("communication", "parameters", "optimizer", "gradients", "activations")]
MODE_COLOURS = [*RATE_COLOURS, "#CC79A7", "#222222"]
BELOW = {"linewidth": 1, "linestyle": (0, (4, 3)), "alpha": 0.7}
LATE = "without overlap"
MARKERS = "osD^v"


def rate_name(mbit):
    if mbit is None:
        return "unlimited"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def read_rates(document):
    rates = field(document, "rates", list, "the report")
    if not rates:
        raise BadInput("the report has no speed of links")
    return rates


def read_runs(document):
    """The figures of a mode at a speed, by both; checked before a picture is begun."""
    runs = {}
    for position, row in enumerate(field(document, "runs", list, "the report")):
        mode = field(row, "mode", str, f"run {position}")
        mbit = field(row, "mbit_per_s", (int, float, type(None)), f"run {position}")
        where = f"{mode} at {rate_name(mbit)}"
        runs[mbit, mode] = {key: number(row, key, where)
                            for key in ("step_seconds", "link_seconds", "peak_mib")}
    return runs


def read_points(document, panel):
    points = field(field(document, "panels", dict, "the report"), panel, list, "the panels")
    return [(number(point, "x", f"a point of {panel}"), field(point, "mode", str, f"a point of {panel}"))
            for point in points]


def line_of(runs, mbit, points, key):
    """Paths and values, sorted by place."""
    missing = [mode for _, mode in points if (mbit, mode) not in runs]
    if missing:
        raise BadInput(f"the report has no run of {missing[0]} at {rate_name(mbit)}")
    return zip(*sorted((x, runs[mbit, mode][key]) for x, mode in points))


def draw_lines(axes, document, points, key="step_seconds", late=False):
    runs, rates = read_runs(document), read_rates(document)
    if not points:
        return
    for mbit, colour, marker in zip(rates, RATE_COLOURS, MARKERS):
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.8}
        if late:
            style |= {"linewidth": 1, "linestyle": ":", "markerfacecolor": "white"}
        axes.plot(*line_of(runs, mbit, points, key), **style)
        if key == "step_seconds" and mbit is not None and not late:
            axes.plot(*line_of(runs, mbit, points, "link_seconds"), color=colour, **BELOW)


def set_time_axis(panels, compute):
    """One logarithmic axis for all panels, whose limits are known when all of them are drawn."""
    for axes in panels:
        axes.axhline(compute, color=QUIET_COLOUR, **BELOW)
        axes.set_yscale("log")
        axes.grid(axis="y")
    low, high = panels[0].get_ylim()
    ticks = [base * step for base in (0.01, 0.1, 1, 10, 100) for step in (1, 1.5, 2, 3, 5, 7)]
    for axes in panels:
        axes.set_yticks([tick for tick in ticks if low <= tick <= high])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def draw_buckets(axes, document):
    points = read_points(document, "bucket_mib")
    draw_lines(axes, document, points)
    axes.set_xscale("log")
    axes.set_xticks([x for x, _ in points])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)  # small buckets lie close together
    axes.set_xlabel("largest bucket, MiB")
    axes.set_title(f"bucket size, {field(document, 'bucket_stage', str, 'the report')}")


def draw_lookahead(axes, peaks, document):
    points = read_points(document, "lookahead")
    draw_lines(axes, document, points)
    draw_lines(peaks, document, points, "peak_mib")
    peaks.set_xticks([x for x, _ in points])
    peaks.set_xlabel("units gathered ahead")
    peaks.set_ylabel("peak, MiB")
    peaks.grid(axis="y")
    axes.tick_params(axis="x", labelbottom=False)
    axes.set_title("lookahead, engine3")


def draw_stages(axes, document):
    points = read_points(document, "stage")
    draw_lines(axes, document, [point for point in points if point[1].startswith("engine")])
    draw_lines(axes, document, [point for point in points if not point[1].startswith("engine")], late=True)
    axes.set_xticks(sorted({x for x, _ in points}))
    axes.set_xlabel("stage")
    axes.set_title("stage")


def draw_legend(figure, document):
    rates = [
        Line2D([], [], color=colour, marker=marker, markersize=5, linewidth=1.8, label=rate_name(mbit))
        for mbit, colour, marker in zip(read_rates(document), RATE_COLOURS, MARKERS)
    ]
    lines = [
        Line2D([], [], color=TEXT_COLOUR, linewidth=1, linestyle=":", marker="o", markerfacecolor="white",
               markersize=5, label=LATE),
        Line2D([], [], color=TEXT_COLOUR, label="the link alone", **BELOW),
        Line2D([], [], color=QUIET_COLOUR, label="computing alone (grey)", **BELOW),
    ]
    for handles, height in ((rates, 0.055), (lines, 0.0)):
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), columnspacing=1.6,
                      handletextpad=0.6, bbox_to_anchor=(0.5, height))


def draw_modes(document):
    """Step time against the measured rate, one line a mode, with the least and the most of the rounds."""
    lines = field(document, "summary", list, "the report")
    keys = ("measured_mbit_per_s", "step_seconds", "step_seconds_min", "step_seconds_max", "wire_seconds",
            "compute_seconds")
    figure, axes = plt.subplots(figsize=(PAGE_WIDTH, 5.2))
    modes = list(dict.fromkeys(field(line, "mode", str, "a line of the summary") for line in lines))
    if not modes:
        raise BadInput("the report has no modes")
    for position, mode in enumerate(modes):
        rates, steps, least, most, wires, compute = zip(*sorted(
            tuple(number(line, key, mode) for key in keys) for line in lines if line["mode"] == mode))
        colour = MODE_COLOURS[position % len(MODE_COLOURS)]
        axes.plot(rates, steps, color=colour, marker=MARKERS[position % len(MARKERS)], markersize=6, linewidth=1.8,
                  label=mode)
        axes.vlines(rates, least, most, color=colour, linewidth=1.2)
        axes.plot(rates, wires, color=colour, **BELOW)
    axes.set_xscale("log")
    axes.set_xticks(rates)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    set_time_axis([axes], compute[0])
    axes.set_xlabel("measured rate of the link, Mbit/s")
    axes.set_ylabel("seconds of a step")
    hosts, ranks = (int(number(document, key, "the report")) for key in ("hosts", "ranks_per_host"))
    axes.set_title(f"{number(document, 'parameters', 'the report') / 1e6:.1f} million parameters, {hosts} hosts of "
                   f"{ranks} ranks", fontsize=12, fontweight="bold")
    below = [Line2D([], [], color=TEXT_COLOUR, label="the wire alone", **BELOW),
             Line2D([], [], color=QUIET_COLOUR, label="computing alone (grey)", **BELOW)]
    axes.legend(handles=axes.get_legend_handles_labels()[0] + below, loc="upper center",
                bbox_to_anchor=(0.5, -0.12), ncols=4)
    figure.tight_layout()
    return figure


def draw(document):
    if "summary" in document:
        return draw_modes(document)
    if len(read_rates(document)) > len(RATE_COLOURS):
        raise BadInput(f"only {len(RATE_COLOURS)} speeds can be told apart in a picture")
    compute = number(document, "compute_seconds", "the report")
    figure = plt.figure(figsize=(PAGE_WIDTH, 5.6))
    grid = figure.add_gridspec(3, 3)
    buckets = figure.add_subplot(grid[:, 0])
    ahead = figure.add_subplot(grid[:2, 1], sharey=buckets)
    peaks = figure.add_subplot(grid[2, 1], sharex=ahead)
    stages = figure.add_subplot(grid[:, 2], sharey=buckets)
    draw_buckets(buckets, document)
    draw_lookahead(ahead, peaks, document)
    draw_stages(stages, document)
    set_time_axis((buckets, ahead, stages), compute)
    buckets.set_ylabel("seconds of a step")
    parameters = number(document, "parameters", "the report")
    tokens = int(number(document, "batch_size", "the report") * number(document, "sequence_length", "the report"))
    figure.suptitle(f"Slow links: {parameters / 1e6:.1f} million parameters, two hosts, {tokens} tokens a rank",
                    x=0.02, y=0.975, ha="left", fontsize=12, fontweight="bold")
    draw_legend(figure, document)
    figure.tight_layout(rect=(0, 0.11, 1, 0.985))
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/links.json", draw)
