#!/usr/bin/env python3
"""Draws learning curves from the JSON that the ladder program wrote.

Above the loss of each mode, below its difference to the first mode's in percent; means over as many
steps as a twentieth of the run. If lines are equal, later ones are thinner, so that all show.
"""

from plot_style import CATEGORY_COLOURS, PAGE_WIDTH, QUIET_COLOUR, BadInput, plt, run

COLOURS = [QUIET_COLOUR, *(CATEGORY_COLOURS[name] for name in
                           ("parameters", "gradients", "optimizer", "communication"))]


def read_losses(document):
    """The losses of each mode by its name, equally many."""
    curves = {mode["mode"]: mode["losses"] for mode in document["modes"]}
    lengths = {len(losses) for losses in curves.values()}
    if len(curves) > len(COLOURS) or len(lengths) != 1 or lengths == {1}:
        raise BadInput(f"the report must have 1 to {len(COLOURS)} modes of equally many steps, two or more")
    return curves


def means(values, width):
    """Of each step and the `width` - 1 before it."""
    return [sum(values[k - width:k]) / width for k in range(width, len(values) + 1)]


def draw(document):
    curves = read_losses(document)
    first = next(iter(curves.values()))
    width = max(1, len(first) // 20)
    steps = range(width, len(first) + 1)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(PAGE_WIDTH, 5.6), height_ratios=(3, 2))
    for place, ((mode, losses), colour) in enumerate(zip(curves.items(), COLOURS)):
        mine, of_first = means(losses, width), means(first, width)
        equal_later = list(curves.values())[place + 1:].count(losses)
        line = {"color": colour, "linewidth": 1.4 + 1.6 * equal_later}
        above.plot(steps, mine, label=mode, **line)
        below.plot(steps, [100 * (a / b - 1) for a, b in zip(mine, of_first)], **line)
    above.set_ylabel("loss")
    above.legend()
    below.set_ylabel(f"% from {next(iter(curves))}")
    below.set_xlabel("step" if width == 1 else f"step; means over {width} steps")
    for axes in (above, below):
        axes.grid(axis="both")
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    run(__doc__.splitlines()[0], "out/ladder.json", draw)
