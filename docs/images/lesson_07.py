#!/usr/bin/env python3
"""Draws the pictures of lesson 07 beside this file: docs/images/lesson_07.py

The rounded numbers are computed here, as 07_zero_plus_plus/minimal.cpp and qgz.cpp do. The pictures are 700 pixels wide
and have a dark mode.
"""

from picture import Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "forward", "backward")
    own_style = "<style>.backward { fill: #afb8c1; }</style>"  # light enough for dark text


def parts(picture, x, y, width, count, mine, kind, label=""):
    """`count` equal parts of something `width` wide, of which those in `mine` are there."""
    each = width / count
    for part in range(count):
        there = part in mine
        picture.box(x + each * part, y, each - 2, 24, kind if there else "absent", label if there else "")


def frames(picture, top, height):
    """Two groups of two ranks. Returns the left edge of what each rank holds."""
    for group in (0, 1):
        picture.rect(8 + 346 * group, top, 338, height, "absent")
        picture.text(177 + 346 * group, top - 8, f"group {group} (a host)", "middle")
    return (22, 184, 368, 530)


def wire():
    """Two hosts of two ranks, and what travels between them in a step of the programs of 04 and hpz.cpp."""
    picture = Picture("lesson_07_wire", 288, "What leaves a host: without and with a second shard")
    for row, (title, held, total, inside) in enumerate((
            ("chapter 04: backward gathers from all ranks", "11,408", "34,224", False),
            ("hpZ: backward gathers inside the host", "17,112", "22,816", True))):
        top = 24 + 132 * row
        picture.text(8, top, f"{title}; {total} bytes leave a host", "name")
        for host in (0, 1):
            left = 8 + 488 * host
            picture.rect(left, top + 10, 196, 94, "absent")
            picture.text(left + 8, top + 28, f"host {host}")
            for place in (0, 1):
                x = left + 10 + 92 * place
                picture.box(x, top + 36, 84, 26, "parameters", f"rank {2 * host + place}")
                picture.text(x, top + 78, f"{held}")
            if inside:
                picture.text(left + 8, top + 96, "backward gathers here")
        ways = ["forward gathers", "gradients"] if inside else ["forward gathers", "backward gathers", "gradients"]
        for line, way in enumerate(ways):
            y = top + 32 + 28 * line
            picture.text(350, y, f"{way}: 11,408", "middle")
            picture.arrow(210, y + 6, 490, y + 6)
            picture.path(f"M210 {y + 6}l7 -4v8z", "head")
    picture.text(8, 280, "Bytes: a rank's weights, gradients and moments at rest; from host to host in a step, sent directly.")
    picture.save()


def second_shard():
    """A weight on four ranks in forward and backward under hpZ."""
    picture = Picture("lesson_07_hpz", 330, "hpZ: forward gathers from all ranks, backward inside a group")
    width = 148
    xs = frames(picture, 26, 256)
    for rank, x in enumerate(xs):
        middle = x + width / 2 - 1
        picture.text(middle, 46, f"rank {rank}", "middle")
        parts(picture, x, 54, width, 4, (rank,), "parameters", "1/4")
        picture.arrow(middle, 82, middle, 98)
        picture.arrow(middle, 126, middle, 140)
        picture.box(x, 144, width - 2, 24, "forward", "whole: forward")
        picture.arrow(middle, 172, middle, 188)
        parts(picture, x, 192, width, 2, (rank % 2,), "shards", "1/2")
        picture.arrow(middle, 220, middle, 228)
        picture.arrow(middle, 244, middle, 250)
        picture.box(x, 254, width - 2, 24, "backward", "whole: backward")
    picture.box(18, 100, 664, 24, "absent", "all-gather from all ranks: between hosts, too")
    for group in (0, 1):
        picture.box(18 + 346 * group, 229, 318, 15, "absent", "all-gather inside")
    picture.legend(304, [("parameters", "primary shard: updated and saved", 240),
                         ("shards", "secondary shard: kept until the weights change", 300)])
    picture.text(76, 322, "Dashed parts are on other ranks. The whole weight is there while its layer computes.")
    picture.save()


def quantized(values, most=127):
    scale = max(map(abs, values)) / most
    return scale, [round(value / scale) for value in values]


def blocks():
    """Two blocks of four values in 8 bits, and what every rank computes with."""
    picture = Picture("lesson_07_blocks", 262, "Blocks of weights become whole numbers and a scale, and values again")
    blocks_of_values = ([0.3149, -0.862, 0.0512, 1.27], [0.00225, -0.0254, 0.01065, 0.0])
    rows = ((34, "weights of the owner", "exact: AdamW updates these"), (112, "what travels", "1 byte a value, 4 a scale"),
            (190, "what all compute with", "the owner, too"))
    for y, name, note in rows:
        picture.text(8, y + 10, name, "name")
        picture.text(8, y + 26, note)
    for number, values in enumerate(blocks_of_values):
        left, each = 204 + 250 * number, 60
        picture.text(left + 2 * each, 20, f"block {number}", "middle")
        scale, numbers = quantized(values)
        for k, (value, q) in enumerate(zip(values, numbers)):
            x = left + each * k
            picture.box(x, 34, each - 2, 26, "parameters", f"{value:g}")
            picture.box(x, 112, each - 2, 26, "gradients", f"{q}")
            picture.box(x, 190, each - 2, 26, "forward", f"{q * scale:.4g}")
            picture.arrow(x + 29, 64, x + 29, 84)
            picture.arrow(x + 29, 142, x + 29, 186)
        picture.text(left + 2 * each, 104, f"scale {scale:.4g}", "middle")
    picture.text(204, 236, "Each value is wrong by at most half a scale. The largest of a block is 127 or -127.")
    picture.text(204, 254, "The scale of block 1 is 50 times smaller than that of block 0.")
    picture.save()


def two_hops():
    """The gradient of a unit on 2 x 2 ranks: an all-to-all inside groups, then one between them."""
    picture = Picture("lesson_07_qgz", 376, "qgZ: two all-to-alls in 4 bits, sums in float32")
    width = 148
    xs = frames(picture, 26, 318)
    for rank, x in enumerate(xs):
        middle, each = x + width / 2 - 1, width / 4
        place, group = rank % 2, rank // 2
        picture.text(middle, 46, f"rank {rank}", "middle")
        for shard in range(4):
            picture.box(x + each * shard, 54, each - 2, 24, "gradients", f"{'abcd'[shard]}{rank}")
        picture.arrow(middle, 82, middle, 98)
        picture.text(middle, 119, "to local rank 0: a c", "middle")
        picture.text(middle, 135, "to local rank 1: b d", "middle")
        picture.arrow(middle, 142, middle, 158)
        for half in (0, 1):
            name = "abcd"[place + 2 * half]
            picture.box(x + 74 * half, 162, 72, 24, "gradients", f"{name}{2 * group} + {name}{2 * group + 1}")
        picture.text(middle, 204, "sums in float32", "middle")
        picture.arrow(middle, 212, middle, 228)
        picture.text(middle, 249, f"to group 0: {'abcd'[place]}", "middle")
        picture.text(middle, 265, f"to group 1: {'abcd'[place + 2]}", "middle")
        picture.arrow(middle, 272, middle, 288)
        picture.box(x, 292, width - 2, 24, "shards", f"mean of {'abcd'[rank]}")
        picture.text(middle, 333, "divided by 4", "middle")
    for group in (0, 1):
        picture.rect(18 + 346 * group, 102, 318, 38, "absent")
        picture.text(177 + 346 * group, 97, "first all-to-all: 4 bits", "middle")
    picture.rect(14, 232, 672, 38, "absent")
    picture.text(350, 227, "second all-to-all: 4 bits", "middle")
    picture.text(8, 366, "a to d are the shards of ranks 0 to 3. Each value is rounded twice, and one sum for each shard leaves a group.")
    picture.save()


def numbers():
    """A block of two elements on 2 x 2 ranks: rounded, added up, rounded, added up, divided."""
    picture = Picture("lesson_07_numbers", 322, "qgZ: a block of two gradient elements through both all-to-alls")
    gradients = ((7, 2.4), (14, -3.1), (-7, 0.4), (3.5, 3))
    rows = ((44, "gradient"), (92, "4 bits, scale"), (152, "sum of the group"), (200, "4 bits, scale"), (260, "average"))
    for y, name in rows:
        picture.text(8, y + 17, name, "name")

    def pair(x, y, kind, values):
        for k, value in enumerate(values):
            picture.box(x + 50 * k, y, 48, 26, kind, f"{value:g}")

    def rounded(x, y, values):
        scale, whole = quantized(values, 7)
        pair(x, y, "parameters", whole)
        picture.text(x + 49, y + 42, f"x {scale:g}", "middle")
        return [number * scale for number in whole]

    total = [0, 0]
    for host in (0, 1):
        sums = [0, 0]
        for place in (0, 1):
            rank = 2 * host + place
            x = 140 + 140 * rank
            picture.text(x + 49, 34, f"rank {rank}", "middle")
            pair(x, 44, "gradients", gradients[rank])
            sums = [a + b for a, b in zip(sums, rounded(x, 92, gradients[rank]))]
        x = 210 + 280 * host
        pair(x, 152, "gradients", sums)
        total = [a + b for a, b in zip(total, rounded(x, 200, sums))]
    pair(350, 260, "shards", [value / 4 for value in total])
    exact = [sum(values) / 4 for values in zip(*gradients)]
    picture.text(458, 277, "exact: " + ", ".join(f"{value:g}" for value in exact))
    picture.text(8, 314, "The first all-to-all sends the upper numbers and scales inside the groups, the second the lower ones.")
    picture.save()


if __name__ == "__main__":
    for draw in (wire, second_shard, blocks, two_hops, numbers):
        draw()
