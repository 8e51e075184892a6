#!/usr/bin/env python3
"""Draws the pictures of lesson 08 beside this file: docs/images/lesson_08.py

The pictures are 700 pixels wide and have a dark mode.
"""

from picture import Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "forward", "backward")


def halves(picture, x, y, width, height, kind, label, mine):
    """Two halves of something, of which a rank holds one."""
    for half in (0, 1):
        picture.box(x + half * (width + 2), y, width, height, kind if half == mine else "absent",
                    label if half == mine else "")


def tensor():
    """A column-parallel and a row-parallel matrix on two tensor ranks."""
    picture = Picture("lesson_08_tensor", 350, "A column-parallel and a row-parallel matrix on two tensor ranks")
    for rank in (0, 1):
        top = 40 + 128 * rank
        picture.text(8, top - 8, f"tensor rank {rank}", "name")
        picture.box(8, top + 20, 68, 48, "forward", "x")
        picture.text(91, top + 49, "·", "middle")
        # P is cut by columns, Q by rows.
        for half in (0, 1):
            mine = half == rank
            picture.box(106 + 42 * half, top + 4, 40, 80, "parameters" if mine else "absent",
                        f"P{rank}" if mine else "")
            picture.box(256 + 42 * half, top + 20, 40, 48, "backward" if mine else "absent",
                        f"f(xP{rank})" if mine else "")
            picture.box(376, top + 4 + 41 * half, 68, 39, "parameters" if mine else "absent",
                        f"Q{rank}" if mine else "")
        picture.arrow(192, top + 44, 250, top + 44)
        picture.text(357, top + 49, "·", "middle")
        picture.arrow(450, top + 44, 478, top + 44)
        picture.box(482, top + 20, 68, 48, "gradients", f"term {rank}")
        picture.arrow(554, top + 44, 574, top + 44)
        picture.arrow(602, top + 44, 618, top + 44)
        picture.box(622, top + 20, 68, 48, "forward", "y")
    picture.box(578, 40, 24, 212, "absent", "+")
    picture.text(584, 270, "all-reduce", "middle")
    picture.text(42, 270, "the same x", "middle")
    picture.text(146, 270, "cut by columns", "middle")
    picture.text(297, 270, "half the features", "middle")
    picture.text(410, 270, "cut by rows", "middle")
    picture.text(508, 270, "a term of y", "middle")
    picture.text(658, 270, "the same y", "middle")
    picture.legend(300, [("parameters", "held by this rank, for good", 190), ("absent", "held by the other rank", 170)])
    picture.text(76, 342, "In the small program P and Q have 6,140 bytes; rank 0 holds 3,096, and the all-reduce sends 1,920.")
    picture.text(76, 322, "This is forward. Backward goes from right to left: where is its all-reduce? (exercise 08a)")
    picture.save()


def activations():
    """The checkpoints of four layers on two tensor ranks, whole and in parts."""
    picture = Picture("lesson_08_activations", 316, "Checkpoints on two tensor ranks: whole copies, or a part on each")
    left, width, step = 150, 112, 136
    for row, (heading, parts) in enumerate((("checkpoints: each rank keeps the same 4 A", False),
                                            ("partitioned (Pa): each rank keeps 2 A", True))):
        top = 18 + 122 * row
        picture.text(8, top, heading, "name")
        for rank in (0, 1):
            y = top + 14 + 38 * rank
            picture.text(8, y + 19, f"tensor rank {rank}")
            for layer in range(4):
                x = left + step * layer
                if parts:
                    halves(picture, x, y, (width - 2) / 2, 28, "parameters", f"1/2 of {layer}", rank)
                else:
                    picture.box(x, y, width, 28, "parameters", f"input of layer {layer}")
    picture.path("M8 254.5L692 254.5")
    picture.text(8, 284, "backward of a layer")
    x = left
    for kind, label, size in (("parameters", "1/2 of 3", 66), ("absent", "all-gather", 90), ("parameters", "input of 3", 90),
                              ("forward", "forward again", 110), ("backward", "backward", 84)):
        picture.box(x, 266, size, 28, kind, label)
        x += size + 24
        if kind != "backward":
            picture.arrow(x - 22, 280, x - 3, 280)
    picture.save()


def ulysses():
    """What four ranks hold before and after the all-to-all."""
    picture = Picture("lesson_08_ulysses", 268, "An all-to-all turns some positions of all heads into all positions of some heads")
    size, kinds = 20, ("parameters", "gradients", "optimizer", "shards")
    for left, heading, own in ((24, "16 positions x 8 heads, cut by positions", lambda p, h: p // 4),
                               (420, "the same, cut by heads", lambda p, h: h // 2)):
        picture.text(left, 20, heading, "name")
        for position in range(16):
            for head in range(8):
                rank = own(position, head)
                picture.rect(left + position * 17, 50 + head * size, 16, size - 1, kinds[rank])
        picture.text(left + 8 * 17, 42, "positions", "middle")
        place = f"translate({left - 6} {50 + 4 * size}) rotate(-90)"
        picture.parts.append(f'<text class="middle" transform="{place}">heads</text>')
    picture.text(350, 122, "all-to-all", "middle")
    picture.arrow(308, 132, 392, 132)
    picture.legend(236, [(kind, f"rank {rank}", 80) for rank, kind in enumerate(kinds)])
    picture.text(76, 258, "32 numbers a position: a rank has 512 bytes on both sides, and sends 384 of them.")
    picture.save()


if __name__ == "__main__":
    for draw in (tensor, activations, ulysses):
        draw()
