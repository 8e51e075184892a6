"""What the plots of this folder share: colours, fonts, reading JSON, saving pictures.

They import it before they import anything of matplotlib, so that it can say where that is missing.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

try:
    import matplotlib
except ImportError as error:
    sys.exit(
        f"a picture needs matplotlib, and {sys.executable or 'this Python'} cannot import it ({error}); "
        "./run installs it into .venv, anywhere else: python3 -m pip install matplotlib"
    )

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt  # noqa: E402

MIB = 2**20

# Inches of what stands in a lesson: pages show it 700 pixels wide, where 8 points are then 10 pixels.
PAGE_WIDTH = 8

# Okabe and Ito's palette, which colour-blind readers can tell apart; in the order of stacking.
CATEGORY_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "communication": "#D55E00",
    "activations": "#56B4E9",
    "other": "#999999",
}

TEXT_COLOUR = "#222222"
QUIET_COLOUR = "#666666"

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": TEXT_COLOUR,
        "axes.edgecolor": "#888888",
        "axes.labelcolor": TEXT_COLOUR,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "grid.color": "#dddddd",
        "grid.linewidth": 0.8,
        "xtick.color": TEXT_COLOUR,
        "ytick.color": TEXT_COLOUR,
        "legend.frameon": False,
        # The same numbers give the same file.
        "svg.hashsalt": "zero",
    }
)


class BadInput(Exception):
    """The JSON is not what the plot needs; the message says what is wrong."""


def save(figure, prefix):
    """Writes prefix.png and prefix.svg, and says so."""
    for kind, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
        path = Path(f"{prefix}.{kind}")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind, facecolor="white", **options)
        print(f"wrote {path}")
    plt.close(figure)


def run(description, default_json, draw):
    """The program around draw(document) -> figure: arguments, files, one-line errors.

    Exits with 1 for bad input and 2 for bad arguments."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("json", nargs="?", default=default_json, help="default: %(default)s")
    parser.add_argument(
        "--out", metavar="PREFIX", help="writes PREFIX.png and PREFIX.svg (default: as the JSON)"
    )
    arguments = parser.parse_args()
    with errors_of(parser, arguments.json):
        figure = draw(json.loads(Path(arguments.json).read_text(encoding="utf-8")))
        save(figure, arguments.out or Path(arguments.json).with_suffix(""))


@contextlib.contextmanager
def errors_of(parser, source):
    """Turns what is wrong with the JSON of `source` into one line on stderr and exit code 1."""
    try:
        yield
    except BadInput as error:
        said = str(error)
    except OSError as error:
        said = f"'{error.filename}': {error.strerror}"
    except (LookupError, TypeError, ValueError) as error:  # also what is no JSON
        said = f"'{source}' is not what this plot is made from: {error!r}"
    else:
        return
    print(f"{parser.prog}: error: {' '.join(said.split())}", file=sys.stderr)
    sys.exit(1)
