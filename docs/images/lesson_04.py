#!/usr/bin/env python3
"""Draws the pictures of lesson 04 beside this file: docs/images/lesson_04.py

The sizes, shards and numbers in them are computed here. The pictures are 700 pixels wide and have a dark mode.
"""

from picture import Picture

ALIGNMENT = 64  # elements, as in common/zero/train/flat/shard_layout.hpp


def shard_of(sizes, ranks, alignment=ALIGNMENT):
    """Elements of a shard of the buffer in which these tensors lie (ShardLayout::shard)."""
    end = 0
    for size in sizes:
        end = -(-end // alignment) * alignment + size
    return -(-end // (ranks * alignment)) * alignment


def cut():
    """The small program's four layers on two ranks: whole layers, and shards."""
    sizes = [13 * 35, 36 * 30, 31 * 31, 32 * 11]
    picture = Picture("lesson_04_cut", 232, "Four layers on two ranks: whole layers in chapter 03, halves here")
    scale, left, gap = 0.155, 120, 6
    for row, (heading, cuts) in enumerate([("03: a layer has an owner", False), ("04: every tensor is cut", True)]):
        top = 24 + 110 * row
        picture.text(10, top, heading, "name")
        for rank in range(2):
            x, y, held = left, top + 14 + 38 * rank, 0
            picture.text(10, y + 20, f"rank {rank}")
            for layer, size in enumerate(sizes):
                width = scale * size
                picture.box(x, y, width, 30, "absent")
                if cuts:
                    picture.box(x + rank * width / 2, y, width / 2, 30, "parameters", str(layer))
                    held += shard_of([size], 2, alignment=1)
                elif layer % 2 == rank:
                    picture.box(x, y, width, 30, "parameters", f"layer {layer}")
                    held += size
                x += width + gap
            picture.text(690, y + 20, f"{4 * held:,} bytes", "end")
    picture.save()


def stages_1_and_2():
    """Five elements on two ranks through reduce-scatter, update (weight - gradient) and all-gather."""
    gradients = [[2, 4, 6, 8, 10, 0], [4, 0, 2, 4, 6, 0]]
    weights = [9, 9, 9, 9, 9, 0]
    mean = [sum(column) // 2 for column in zip(*gradients)]
    updated = [weight - step for weight, step in zip(weights, mean)]
    picture = Picture("lesson_04_flow", 218, "Reduce-scatter, update of the shard, all-gather, on two ranks")
    cell = 23
    columns = [(62, 6, "gradient"), (246, 3, "mean, own half"), (396, 3, "weight, own half"), (524, 6, "new weight")]
    for x, cells, heading in columns:
        picture.text(x + cells * cell / 2, 22, heading, "name middle")
    for rank in range(2):
        y = 44 + 84 * rank
        picture.text(10, y + 20, f"rank {rank}")
        half = slice(3 * rank, 3 * rank + 3)
        for (x, _, _), values, kind, first in zip(
                columns, (gradients[rank], mean[half], updated[half], updated),
                ("gradients", "gradients", "parameters", "parameters"), (0, 3 * rank, 3 * rank, 0)):
            for i, value in enumerate(values):
                pad = first + i == 5
                picture.box(x + i * cell, y, cell - 1, 30, "padding" if pad else kind, str(value))
        for start, end in ((203, 241), (318, 391), (468, 519)):
            picture.arrow(start, y + 15, end, y + 15)
    picture.path("M222 59V143M494 59V143")
    picture.text(222, 190, "reduce-scatter", "middle")
    picture.text(354, 190, "optimizer", "middle")
    picture.text(494, 190, "all-gather", "middle")
    picture.text(10, 210, "Grey: padding, one zero. Here the optimizer subtracts the gradient; every old weight was 9.")
    picture.save()


def gradients_in_backward():
    """What a rank holds of gradients in backward, by formula: six equal units, two ranks."""
    picture = Picture("lesson_04_gradients", 220, "Gradients in backward: stage 1 grows to F, stage 2 to 0.7 F")
    units, left, top, bottom, width = 6, 50, 34, 180, 480
    height, right = bottom - top, left + width + 8
    step = width / units

    def y(fraction):
        return bottom - height * fraction

    for fraction, label in ((0, "0"), (0.5, "F/2"), (1, "F")):
        picture.path(f"M{left} {y(fraction):g}H{left + width}", "absent")
        picture.text(left - 8, y(fraction) + 4, label, "end")
    for unit in range(units):
        x = left + unit * step
        picture.text(x + step / 2, bottom + 16, f"unit {units - 1 - unit}", "middle")
        # While a unit is reduced its buffer and its new shard are both there.
        for begin, share, shards in ((0, 0.7, unit), (0.7, 0.3, unit + 1)):
            held = shards / units / 2
            picture.rect(x + step * begin, y(held + 1 / units), step * share, height / units, "gradients")
            picture.rect(x + step * begin, y(held), step * share, height * held, "shards")
    path = f"M{left} {y(0):g}" + "".join(
        f"V{y((unit + 1) / units):g}H{left + (unit + 1) * step:g}" for unit in range(units))
    picture.path(path)
    picture.text(right, y(1) + 4, "stage 1 (line):")
    picture.text(right, y(1) + 20, "buffers of all units")
    picture.text(right, y(2 / 3) + 14, "stage 2 (areas):")
    picture.text(right, y(2 / 3) + 30, "one unit's buffer")
    picture.text(right, y(2 / 3) + 46, "and the shards")
    picture.text(left, 20, "Gradients of a rank in backward, by formula", "name")
    picture.text(left, 214, "Yellow: the buffer of the unit that runs. Brown: shards of units that are reduced.")
    picture.save()


def stage_3():
    """One unit through a step, on two ranks: which halves are held."""
    # Whether parameters are whole, and how much there is of gradients: 0 nothing, 1 the shard, 2 all.
    moments = [("at rest", 0, 0), ("gather", 1, 0), ("forward", 1, 0), ("reshard", 0, 0), ("gather", 1, 0),
               ("backward", 1, 2), ("reshard", 0, 2), ("reduce-", 0, 1), ("update", 0, 1)]
    picture = Picture("lesson_04_stage3", 262, "One unit through a step of stage 3 on two ranks")
    left, step, half = 76, 69, 27
    for column, (name, whole, gradient) in enumerate(moments):
        x = left + column * step
        picture.text(x + half, 20, name, "middle")
        if name == "reduce-":
            picture.text(x + half, 34, "scatter", "middle")
        for rank in range(2):
            for line, kind in enumerate(("parameters", "gradients", "optimizer")):
                y = 46 + 96 * rank + 26 * line
                held = {"parameters": {0, 1} if whole else {rank}, "optimizer": {rank},
                        "gradients": {0: set(), 1: {rank}, 2: {0, 1}}[gradient]}[kind]
                for part in range(2):
                    picture.box(x + part * half, y, half - 1, 20, kind if part in held else "absent")
    for rank in range(2):
        picture.text(8, 46 + 96 * rank + 41, f"rank {rank}", "name")
    picture.text(8, 238, "Two boxes side by side are one copy of the unit, cut in two.")
    picture.text(8, 255, "Blue: parameters. Yellow: gradients. Green: moments, which the first step makes.")
    picture.save()


def master_weights():
    """The types and bytes of one parameter on its way through a step."""
    picture = Picture("lesson_04_master", 250, "Master weights: float32 in the optimizer, bfloat16 elsewhere")
    picture.text(10, 22, "bfloat16, 2 bytes: what forward and backward use", "name")
    boxes = [(10, 36, 130, "parameters", "parameter, 2"), (220, 36, 130, "gradients", "gradient, 2"),
             (500, 36, 190, "gradients", "mean, own shard, 2"), (10, 176, 130, "parameters", "own shard, 2"),
             (220, 176, 190, "optimizer", "master weight, 4"), (500, 176, 190, "optimizer", "two moments, 4 + 4")]
    for x, y, width, kind, text in boxes:
        picture.box(x, y, width, 34, kind, text)
    picture.arrow(140, 53, 215, 53)
    picture.text(178, 90, "forward, backward", "middle")
    picture.arrow(350, 53, 495, 53)
    picture.text(423, 47, "reduce-scatter", "middle")
    picture.text(423, 90, "adds in float32", "middle")
    picture.arrow(595, 70, 595, 171)
    picture.text(587, 116, "AdamW widens the gradient to float32", "end")
    picture.parts.append('<path class="line" d="M500 193H410"/><path class="head" d="M410 193l7 -4v8z"/>')
    picture.text(455, 187, "update", "middle")
    picture.parts.append('<path class="line" d="M220 193H140"/><path class="head" d="M140 193l7 -4v8z"/>')
    picture.text(180, 187, "round", "middle")
    picture.parts.append('<path class="line" d="M75 176V70"/><path class="head" d="M75 70l-4 7h8z"/>')
    picture.text(85, 138, "all-gather", "")
    picture.text(10, 236, "float32 lives in the optimizer only, and only for the elements that this rank updates.")
    picture.save()


def checkpoint():
    """600 elements, saved by two ranks, loaded by three."""
    picture = Picture("lesson_04_checkpoint", 176, "600 elements saved by two ranks and loaded by three")
    left, scale, size = 120, 0.94, 600
    for row, (heading, ranks, kind) in enumerate([("saved by", 2, "parameters"), ("loaded by", 3, "optimizer")]):
        y, shard = 24 + 80 * row, shard_of([size], ranks)
        picture.text(10, y + 22, f"{heading} {ranks}", "name")
        for rank in range(ranks):
            begin, end = rank * shard, min(size, (rank + 1) * shard)
            picture.box(left + scale * begin, y, scale * (end - begin) - 2, 36, kind, f"{rank}: {begin} to {end}")
    edges = sorted({*range(0, size, shard_of([size], 2)), *range(0, size, shard_of([size], 3)), size})
    for begin, end in zip(edges, edges[1:]):
        x = left + scale * (begin + end) / 2
        picture.arrow(x, 62, x, 101)
    picture.text(10, 164, "A box is a rank and its elements. An arrow is one copy, from a file to a rank.")
    picture.save()


if __name__ == "__main__":
    for draw in (cut, stages_1_and_2, gradients_in_backward, stage_3, master_weights, checkpoint):
        draw()
