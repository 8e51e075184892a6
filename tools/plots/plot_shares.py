#!/usr/bin/env python3
"""Draws how evenly the ranks share a model, from the JSON that `./run step 04 shares --json` wrote.

One panel a world size. A bar is a rank, as high as what it holds in fair shares; the fullest rank
decides how much memory every machine must have.
"""

from plot_style import CATEGORY_COLOURS, PAGE_WIDTH, QUIET_COLOUR, TEXT_COLOUR, plt, run

KINDS = [
    ("by_count", "whole parameters, equal numbers", CATEGORY_COLOURS["other"]),
    ("by_size", "whole parameters, largest first", CATEGORY_COLOURS["gradients"]),
    ("split", "every tensor split", CATEGORY_COLOURS["parameters"]),
]


def draw_panel(axes, ranks, row, fair):
    width = 0.8 / len(KINDS)
    tallest = 0.0
    for position, (key, _, colour) in enumerate(KINDS):
        shares = sorted((share / fair for share in row[key]), reverse=True)
        left = [rank + (position - 1) * width for rank in range(ranks)]
        axes.bar(left, shares, width=width, color=colour, linewidth=0)
        if shares[0] > 1.1:  # a share that is fair says so by itself
            axes.annotate(f"{shares[0]:.2f}", (left[0] - width / 2, shares[0]), xytext=(0, 2), ha="left",
                          textcoords="offset points", fontsize=8, color=TEXT_COLOUR)
        tallest = max(tallest, shares[0])
    axes.axhline(1, color=TEXT_COLOUR, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_title(f"{ranks} ranks", fontsize=10)
    axes.set_xticks([])
    axes.set_xlabel("ranks, fullest first", color=QUIET_COLOUR, fontsize=8.5)
    axes.grid(axis="y")
    return tallest


def draw(document):
    rows = document["rows"]
    figure, panels = plt.subplots(1, len(rows), figsize=(PAGE_WIDTH, 3.4), sharey=True, squeeze=False)
    tallest = max(draw_panel(axes, row["ranks"], row, document["parameter_bytes"] / row["ranks"])
                  for axes, row in zip(panels[0], rows))
    panels[0][0].set_ylim(0, 1.08 * tallest)
    panels[0][0].set_ylabel("parameters held, in fair shares")
    figure.suptitle(f"{document['model']}: who holds how much", x=0.01,
                    ha="left", fontsize=11)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour, label=label) for _, label, colour in KINDS]
    figure.legend(handles=handles, loc="lower center", ncols=len(KINDS), bbox_to_anchor=(0.5, 0.0))
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/shares.json", draw)
