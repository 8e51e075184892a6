#!/usr/bin/env python3
"""Draws the pictures of lesson 06 beside this file: docs/images/lesson_06.py

The pictures are 700 pixels wide and have a dark mode.
"""

from picture import Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "forward", "backward")
    own_style = "<style>.backward { fill: #afb8c1; }</style>"  # light enough for dark text


def halves(picture, x, y, width, height, kind, label, mine):
    """Two halves of something, of which a rank holds one."""
    for half in (0, 1):
        picture.box(x + half * (width + 2), y, width, height, kind if half == mine else "absent",
                    label if half == mine else "")


def wire():
    """Two hosts of two ranks, and what travels between them in a step of the small programs."""
    picture = Picture("lesson_06_wire", 318, "What leaves a host: all ranks share the states, or groups of two do")
    for row, (title, parts, held, sent) in enumerate((
            ("chapter 04: four ranks share the states", 4, "11,408", "34,224"),
            ("here: groups of two, which hold copies", 2, "22,800", "11,400"))):
        top = 24 + 148 * row
        picture.text(8, top, title, "name")
        for host in (0, 1):
            left = 8 + 438 * host
            picture.rect(left, top + 10, 246, 108, "absent")
            picture.text(left + 8, top + 28, f"host {host}")
            for place in (0, 1):
                rank = 2 * host + place
                x, width = left + 10 + 116 * place, 104 // parts
                picture.text(x, top + 52, f"rank {rank}")
                for part in range(parts):
                    picture.rect(x + width * part, top + 60, width - 2, 26,
                                 "parameters" if part == rank % parts else "absent")
                picture.text(x, top + 104, f"holds {held}")
        picture.arrow(260, top + 54, 440, top + 54)
        picture.path(f"M440 {top + 84}H260")
        picture.path(f"M260 {top + 84}l7 -4v8z", "head")
        for y in (top + 47, top + 77):
            picture.text(350, y, f"{sent} bytes", "middle")
    picture.text(8, 310, "Bytes: of weights, gradients and moments at rest; sent in a step from host to host, directly.")
    picture.save()


def mesh():
    """Four ranks as 2 replicas x 2 shards, and what each holds."""
    picture = Picture("lesson_06_mesh", 366, "A mesh of 2 replicas x 2 shards: who holds what")
    picture.text(8, 20, "replica 2 x shard 2", "name")
    picture.text(600, 20, "axis shard: these ranks share one set of model states", "end")
    picture.arrow(610, 16, 690, 16)
    for replica in (0, 1):
        top = 36 + 150 * replica
        picture.rect(96, top, 596, 132, "absent")
        picture.text(8, top + 60, f"replica {replica}")
        picture.text(8, top + 76, "(a host, say)")
        for shard in (0, 1):
            x = 110 + 294 * shard
            picture.text(x, top + 20, f"rank {2 * replica + shard}", "name")
            picture.text(x + 60, top + 20, f"shard {shard}")
            for row, (kind, label) in enumerate((("parameters", "parameters"), ("gradients", "gradients"),
                                                 ("optimizer", "moments"))):
                halves(picture, x, top + 30 + 32 * row, 134, 22, kind, label, shard)
    picture.arrow(60, 120, 60, 172)
    picture.text(8, 140, "axis")
    picture.text(8, 156, "replica")
    picture.text(96, 344, "Coloured: held at rest at stage 3. Dashed: the other rank of the group has it.")
    picture.text(96, 360, "Ranks 0 and 2 hold the same, and so do ranks 1 and 3.")
    picture.save()


def hsdp():
    """A bucket of gradients: reduce-scatter inside the groups, all-reduce between them."""
    picture = Picture("lesson_06_hsdp", 296, "HSDP: reduce-scatter inside groups, all-reduce between groups")
    xs = (18, 178, 376, 536)  # of ranks 0 to 3
    for group in (0, 1):
        picture.rect(8 + 358 * group, 28, 326, 172, "absent")
        picture.text(171 + 358 * group, 20, f"replica {group}", "middle")
    for rank, x in enumerate(xs):
        picture.text(x + 73, 46, f"rank {rank}", "middle")
        for half, name in ((0, "a"), (1, "b")):
            picture.box(x + 74 * half, 54, 72, 24, "gradients", f"{name}{rank}")
        shard, first = rank % 2, rank // 2 * 2
        name = "ab"[shard]
        picture.box(x + 74 * shard, 166, 72, 24, "gradients", f"{name}{first} + {name}{first + 1}")
        picture.rect(x + 74 * (1 - shard), 166, 72, 24, "absent")
        picture.arrow(x + 73, 82, x + 73, 102)
        picture.arrow(x + 73, 142, x + 73, 162)
        picture.box(x + 74 * shard, 262, 72, 24, "shards", f"mean of {name}")
        picture.rect(x + 74 * (1 - shard), 262, 72, 24, "absent")
        picture.arrow(x + 36 + 74 * shard, 196, x + 36 + 74 * shard, 214)
        picture.arrow(x + 36 + 74 * shard, 240, x + 36 + 74 * shard, 258)
    for group in (0, 1):
        picture.box(18 + 358 * group, 106, 306, 34, "absent", "reduce-scatter in the group: a sum")
    picture.box(18, 216, 664, 22, "absent",
                "all-reduce between groups, of a (ranks 0, 2) and of b (ranks 1, 3): a sum, divided by 4 once")
    picture.save()


def late():
    """Backward of two buckets in two groups, in each of which a rank is late once."""
    picture = Picture("lesson_06_late", 248, "The all-reduce waited for in backward and after it")
    picture.kinds += ("waits",)
    unit, left, height = 42, 70, 26
    for row, (title, lanes) in enumerate((
            ("waited for in backward: 14 units", ((("backward", 4), ("waits", 3), ("late", 3), ("backward", 4)),
                                                  (("late", 3), ("backward", 4), ("backward", 4), ("waits", 3)))),
            ("waited for after backward: 11 units", ((("backward", 4), ("late", 3), ("backward", 4)),
                                                     (("late", 3), ("backward", 4), ("backward", 4)))))):
        top = 20 + 106 * row
        picture.text(8, top, title, "name")
        for group, lane in enumerate(lanes):
            y, x = top + 12 + 34 * group, left
            picture.text(8, y + 17, f"group {group}")
            for kind, units in lane:
                label = {"late": "a rank is late", "waits": "waits", "backward": "bucket"}[kind]
                picture.box(x, y, unit * units - 2, height, "forward" if kind == "late" else kind, label)
                x += unit * units
    picture.text(8, 236, "A group waits for its own late rank in both: each bucket is reduce-scattered inside the group.")
    picture.save()


if __name__ == "__main__":
    for draw in (wire, mesh, hsdp, late):
        draw()
