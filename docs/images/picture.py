"""What the scripts of this folder draw with: boxes, texts, arrows, and an SVG file beside this one.

A picture is 700 pixels wide and has a dark mode. Places and sizes are in pixels, from the top left corner. The kind of a
box is what it stands for; it decides the colour.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WIDTH = 700

COLOURS = {
    "head": "#6e7781",
    "parameters": "#0072b2",
    "gradients": "#e69f00",
    "shards": "#9a6700",
    "optimizer": "#00795a",
    "padding": "#d0d7de",
    "forward": "#d0d7de",
    "backward": "#8c959f",
    "update": "#00795a",
    "waits": "#cf222e",
}
DARK_COLOURS = {"head": "#8b949e"}  # in the dark mode; the others stay as they are
# Text in a box is white, except on these.
LABELS = {"absent": "middle"} | dict.fromkeys(("gradients", "gathered", "padding", "forward", "backward"), "onlight")

STYLE = """
    text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
    .name { font-size: 14px; font-weight: 600; }
    .middle { text-anchor: middle; }
    .end { text-anchor: end; }
    .inside { fill: #ffffff; text-anchor: middle; }
    .onlight { fill: #1f2328; text-anchor: middle; }
    .page { fill: #ffffff; }
    .absent { fill: none; stroke: #6e7781; stroke-dasharray: 3 3; }
    .line { fill: none; stroke: #6e7781; stroke-width: 1.5; }
"""
DARK_STYLE = """\
      text { fill: #e6edf3; }
      .inside { fill: #ffffff; }
      .onlight { fill: #1f2328; }
      .page { fill: #0d1117; }
      .absent, .line { stroke: #8b949e; }
"""


def fills(colours, kinds, indent):
    return "".join(f"{indent}.{kind} {{ fill: {colours[kind]}; }}\n" for kind in kinds if kind in colours)


class Picture:
    """A lesson with other kinds of boxes derives a class of its own."""

    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "padding")
    own_style = ""  # an element <style> for kinds that only this lesson has

    def __init__(self, name, height, title):
        self.name, self.height, self.title = name, height, title
        self.parts = [self.own_style] if self.own_style else []

    def rect(self, x, y, width, height, kind):
        half = 0.5 if kind == "absent" else 0  # a line of one pixel is sharp between two pixels
        self.parts.append(f'<rect class="{kind}" x="{x + half:g}" y="{y + half:g}" '
                          f'width="{width - 2 * half:g}" height="{height - 2 * half:g}"/>')

    def text(self, x, y, text, kind=""):
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text{name} x="{x:g}" y="{y:g}">{text}</text>')

    def box(self, x, y, width, height, kind, text=""):
        self.rect(x, y, width, height, kind)
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, LABELS.get(kind, "inside"))

    def path(self, path, kind="line"):
        """`path`: what SVG has in the attribute d."""
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def arrow(self, x1, y1, x2, y2):
        """From the first point to the second, straight across or straight down."""
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")
        self.path(f"M{x2:g} {y2:g}l-7 -4v8z" if y1 == y2 else f"M{x2:g} {y2:g}l-4 -7h8z", "head")

    def legend(self, y, entries):
        """Boxes with their meaning. `entries`: the kind of a box, its meaning, and the pixels until the next."""
        x = 76
        for kind, meaning, width in entries:
            self.rect(x, y - 10, 14, 12, kind)
            self.text(x + 19, y, meaning)
            x += width

    def style(self):
        return (STYLE + fills(COLOURS, self.kinds, "    ") + "    @media (prefers-color-scheme: dark) {\n"
                + DARK_STYLE + fills(DARK_COLOURS, self.kinds, "      ") + "    }\n")

    def save(self):
        lines = "\n".join("  " + part for part in self.parts)
        (FOLDER / f"{self.name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
            f'viewBox="0 0 {WIDTH} {self.height}" role="img">\n  <title>{self.title}</title>\n'
            f'  <style>{self.style()}  </style>\n'
            f'  <rect class="page" width="{WIDTH}" height="{self.height}"/>\n{lines}\n</svg>\n')
