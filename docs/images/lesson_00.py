#!/usr/bin/env python3
"""Draws the pictures of lessons 00 and 01 beside this file: docs/images/lesson_00.py

Sizes, shares and numbers in them are computed here. The pictures are 700 pixels wide and have a dark mode.
"""

from picture import Picture

# The small program's four layers, in elements of 4 bytes.
LAYERS = [13 * 35, 36 * 30, 31 * 31, 32 * 11]


def number(value):
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def why():
    """Model states of 7 billion parameters in float32 with AdamW, on each of eight GPUs."""
    picture = Picture("lesson_00_why", 200, "7 billion parameters: 112 GB under DDP, 14 GB under ZeRO-3 on 8 GPUs")
    left, scale, copy, ranks = 76, 4.9, 7 * 4, 8
    picture.text(10, 20, "7 billion parameters, float32, AdamW: GB on each of 8 GPUs", "name")
    stages = [("DDP", 1, 1, 1), ("ZeRO-1", 1, 1, ranks), ("ZeRO-2", 1, ranks, ranks), ("ZeRO-3", ranks, ranks, ranks)]
    for row, (name, *divisors) in enumerate(stages):
        x, y, total = left, 38 + 34 * row, 0
        picture.text(10, y + 17, name)
        for kind, word, copies, divisor in zip(("parameters", "gradients", "optimizer"),
                                               ("parameters", "gradients", "moments"), (1, 1, 2), divisors):
            size = copies * copy / divisor
            # The line at 80 GB goes through the middle of the longest box: its text stands on the left.
            inside = f"{word} {size:g}" if size > 20 else ""
            picture.box(x, y, scale * size - 1, 26, kind, inside if copies == 1 else "")
            if copies == 2 and inside:
                picture.text(x + scale * 10, y + 17, inside, "inside")
            x += scale * size
            total += size
        picture.text(x + 6, y + 17, f"{total:g}")
    limit = left + scale * 80
    picture.path(f"M{limit:g} 30V174")
    picture.text(limit, 192, "80 GB: the memory of a large GPU", "middle")
    picture.save()


def gradients():
    """Weight, bias, and the gradient of (w x + b - t)^2 on each rank."""
    w, b = 1, 0
    samples = [(1, 3), (2, 4)]
    each = [(2 * (w * x + b - t) * x, 2 * (w * x + b - t)) for x, t in samples]
    mean = [sum(column) / len(each) for column in zip(*each)]
    updated = [w - 0.1 * mean[0], b - 0.1 * mean[1]]
    return samples, each, mean, updated


def cells(picture, x, y, values, held, kind, width=42):
    for i, value in enumerate(values):
        picture.box(x + i * width, y, width - 2, 30, kind if i in held else "absent", number(value) if i in held else "")


def exchange(picture, begin, end, text):
    """A collective of two ranks, whose rows are at 44 and 114."""
    middle = (begin + end) / 2
    for y in (59, 129):
        picture.arrow(begin, y, end, y)
    picture.path(f"M{middle:g} 59V129")
    picture.text(middle, 170, text, "middle")


def step_00():
    """A step of DDP with two numbers, w and b, on two ranks."""
    samples, each, mean, updated = gradients()
    picture = Picture("lesson_00_step", 240, "One step of DDP with a weight and a bias on two ranks")
    for x, heading in ((90, "sample"), (190, "gradient"), (333, "mean, own half"), (480, "mean"), (630, "new w, b")):
        picture.text(x, 24, heading, "name middle")
    for rank, (x, t) in enumerate(samples):
        y = 44 + 70 * rank
        picture.text(10, y + 20, f"rank {rank}")
        picture.text(90, y + 20, f"x = {x}, t = {t}", "middle")
        cells(picture, 148, y, each[rank], {0, 1}, "gradients")
        cells(picture, 292, y, mean, {rank}, "gradients")
        cells(picture, 438, y, mean, {0, 1}, "gradients")
        picture.arrow(528, y + 15, 580, y + 15)
        cells(picture, 586, y, updated, {0, 1}, "parameters")
    exchange(picture, 236, 287, "reduce-scatter")
    exchange(picture, 381, 433, "all-gather")
    picture.text(554, 170, "update", "middle")
    picture.path("M222 178V184H446V178")
    picture.text(334, 202, "together an all-reduce", "middle")
    picture.text(10, 230, "Both ranks begin with w = 1, b = 0. The update is SGD with a learning rate of 0.1.")
    picture.save()


def step_01():
    """The same step under ZeRO-1: rank 0 owns w, rank 1 owns b."""
    _, each, mean, updated = gradients()
    picture = Picture("lesson_01_step", 196, "One step of ZeRO-1: rank 0 owns the weight, rank 1 the bias")
    for x, heading in ((110, "gradient"), (280, "mean, own"), (450, "new, own"), (622, "new w, b")):
        picture.text(x, 24, heading, "name middle")
    for rank in range(2):
        y = 44 + 70 * rank
        picture.text(10, y + 20, f"rank {rank}")
        cells(picture, 68, y, each[rank], {0, 1}, "gradients")
        cells(picture, 238, y, mean, {rank}, "gradients")
        picture.arrow(330, y + 15, 400, y + 15)
        cells(picture, 408, y, updated, {rank}, "parameters")
        cells(picture, 580, y, updated, {0, 1}, "parameters")
    exchange(picture, 158, 230, "reduce to the owner")
    picture.text(365, 170, "update", "middle")
    exchange(picture, 498, 572, "broadcast by the owner")
    picture.text(10, 190, "The numbers of chapter 00's step. Rank 0 owns w, rank 1 owns b.")
    picture.save()


def ring():
    """An all-reduce of three numbers in a ring of three ranks."""
    ranks, width, gap, left = 3, 30, 38, 58
    picture = Picture("lesson_00_ring", 300, "A ring all-reduce of three numbers on three ranks")
    held = [[(10 * (rank + 1) + chunk + 1, "gradients") for chunk in range(ranks)] for rank in range(ranks)]
    states, names = [[list(row) for row in held]], ["start"]
    for turn in range(2 * (ranks - 1)):
        scatter = turn < ranks - 1
        moved = []
        for rank in range(ranks):
            chunk = (rank - turn) % ranks if scatter else (rank + 1 - (turn - ranks + 1)) % ranks
            moved.append(((rank + 1) % ranks, chunk, held[rank][chunk][0]))
        for to, chunk, value in moved:
            if scatter:
                value += held[to][chunk][0]
            complete = not scatter or turn == ranks - 2
            held[to][chunk] = (value, "optimizer" if complete else "shards")
        states.append([list(row) for row in held])
        names.append(f"round {turn + 1}")
    for column, (name, state) in enumerate(zip(names, states)):
        x = left + column * (ranks * width + gap)
        picture.text(x + ranks * width / 2, 22, name, "name middle")
        for rank, row in enumerate(state):
            y = 36 + 58 * rank
            if column == 0:
                picture.text(8, y + 20, f"rank {rank}")
            else:
                source = (rank - 1) % ranks
                picture.path(f"M{x - gap + 1:g} {36 + 58 * source + 15}L{x - 6:g} {y + 15}")
                picture.parts.append(f'<circle class="head" cx="{x - 5:g}" cy="{y + 15}" r="3.5"/>')
            for chunk, (value, kind) in enumerate(row):
                picture.box(x + chunk * width, y, width - 2, 30, kind, number(value))
    half = ranks * width + gap
    for first, text in ((1, "reduce-scatter"), (3, "all-gather")):
        begin, end = left + first * half, left + (first + 2) * half - gap
        picture.path(f"M{begin} 196V202H{end}V196")
        picture.text((begin + end) / 2, 220, text, "middle")
    for rank in range(ranks):
        picture.box(180 + 130 * rank, 238, 70, 26, "absent", f"rank {rank}")
        if rank:
            picture.arrow(120 + 130 * rank, 251, 175 + 130 * rank, 251)
    picture.path("M510 251H535V230H155V251H172")
    picture.parts.append('<path class="head" d="M178 251l-7 -4v8z"/>')
    picture.text(8, 290, "Yellow: a rank's own number. Brown: a sum of two. Green: the sum of all. A dot: received in this round.")
    picture.save()


def owners():
    """Who holds what of the small program's layers on two ranks, after a step."""
    picture = Picture("lesson_01_owners", 246, "Under DDP both ranks hold all moments, under ZeRO-1 each half of them")
    left, scale, gap = 62, 0.0446, 12
    starts = []
    x = left
    for heading, copies in (("parameters", 1), ("gradients", 1), ("moments", 2)):
        width = copies * scale * sum(LAYERS)
        starts.append((x, copies, heading))
        picture.text(x + width / 2, 20, heading, "name middle")
        x += width + gap
    for row, (heading, sharded) in enumerate([("00: every rank holds all moments", False),
                                              ("01: a layer's moments are at its owner", True)]):
        top = 42 + 106 * row
        picture.text(left, top, heading)
        for rank in range(2):
            y, held = top + 10 + 38 * rank, 0
            picture.text(10, y + 20, f"rank {rank}")
            for x, copies, kind in starts:
                for layer, size in enumerate(LAYERS):
                    width = copies * scale * size
                    mine = kind != "moments" or not sharded or layer % 2 == rank
                    drawn = "optimizer" if kind == "moments" else kind
                    picture.box(x, y, width - 1.5, 30, drawn if mine else "absent", str(layer) if mine else "")
                    held += 4 * copies * size * mine
                    x += width
            picture.text(692, y + 20, f"{held:,} bytes", "end")
    picture.save()


def load():
    """What three ranks take in and send while one gradient of n bytes is averaged and its parameter is made new.

    A rank takes in, and at the same time sends, n bytes in a tick.
    """
    ranks, left, row_height = 3, 130, 33
    others = ranks - 1
    part = others / ranks  # of an all-reduce each rank takes in and sends so much in each half
    at_once = [(rank, way, half * part, part, kind) for rank in range(ranks) for way in ("in", "out")
               for half, kind in enumerate(("gradients", "parameters"))]
    by_owner = []
    for other in range(1, ranks):  # rank 0 is the owner
        begin = other - 1
        by_owner += [(0, "in", begin, 1, "gradients"), (other, "out", begin, 1, "gradients"),
                     (0, "out", others + begin, 1, "parameters"), (other, "in", others + begin, 1, "parameters")]
    picture = Picture("lesson_01_load", 306, "An all-reduce loads all ranks, reduce and broadcast load the owner")
    scale = (690 - left) / (2 * others)
    panels = [("all-reduce: reduce-scatter, all-gather", at_once), ("reduce to rank 0, broadcast from it", by_owner)]
    for panel, (heading, spans) in enumerate(panels):
        top = 22 + 140 * panel
        end = max(begin + length for _, _, begin, length, _ in spans)
        sent = sum(length for _, way, _, length, _ in spans if way == "out")
        picture.text(8, top, heading, "name")
        picture.text(690, top, f"{number(round(end, 2))} ticks, {number(round(sent, 2))} n bytes sent in all", "end")
        for rank in range(ranks):
            y = top + 12 + row_height * rank
            picture.text(8, y + 18, f"rank {rank}")
            for line, (way, word) in enumerate((("in", "takes in"), ("out", "sends"))):
                picture.text(left - 8, y + 11 + 14 * line, word, "end")
                for of_rank, of_way, begin, length, kind in spans:
                    if of_rank == rank and of_way == way:
                        picture.rect(left + scale * begin, y + 14 * line, scale * length - 1, 12, kind)
    picture.legend(300, [("gradients", "gradients", 100), ("parameters", "averages of gradients, or new parameters", 0)])
    picture.save()


if __name__ == "__main__":
    for draw in (why, step_00, ring, owners, step_01, load):
        draw()
