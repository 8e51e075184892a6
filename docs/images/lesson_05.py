#!/usr/bin/env python3
"""Draws the pictures of lesson 05 beside this file: docs/images/lesson_05.py

The times, waits and bytes in them are computed here: a rank that computes, and a link that carries one transfer at a
time, in the order of requests (as in tools/plan/exposed_time.hpp). The pictures are 700 pixels wide and have a
dark mode.
"""

from collections import deque

from picture import WIDTH, Picture as Paper


class Picture(Paper):
    kinds = ("parameters", "gradients", "forward", "backward", "update", "waits")


class Rank:
    """A rank that computes and waits, and its link. Spans are (begin, end, kind, label)."""

    def __init__(self):
        self.now, self.link_free = 0, 0
        self.computed, self.carried = [], []

    def start(self, kind, label, duration):
        """Starts a transfer, which waits for those before it; returns when it will be done."""
        begin = max(self.now, self.link_free)
        self.link_free = begin + duration
        self.carried.append((begin, self.link_free, kind, label))
        return self.link_free

    def wait(self, done):
        if done > self.now:
            self.computed.append((self.now, done, "waits", ""))
            self.now = done

    def compute(self, kind, label, duration):
        self.computed.append((self.now, self.now + duration, kind, label))
        self.now += duration

    def waited(self):
        return sum(end - begin for begin, end, kind, _ in self.computed if kind == "waits")


def small_program(overlaps, layers=4, gather=1, forward=2, backward=4, reduction=1, update=0.5):
    """A step of the small program of chapter 04, or of 05, which overlaps."""
    rank, reductions = Rank(), {}

    def run(order, before, kind, duration):
        gathers = {}
        for i, layer in enumerate(order):
            # Chapter 05 starts the gather of the next layer too; the first has no layer before it.
            for wanted in order[i:i + 2] if overlaps else [layer]:
                if wanted not in gathers:
                    gathers[wanted] = rank.start("parameters", wanted, gather)
            rank.wait(gathers[layer])
            rank.compute(kind, layer, duration)
            before(layer)

    def reduce(layer):
        reductions[layer] = rank.start("gradients", layer, reduction)
        if not overlaps:
            rank.wait(reductions[layer])

    run(list(range(layers)), lambda layer: None, "forward", forward)
    run(list(range(layers))[::-1], reduce, "backward", backward)
    for layer in range(layers):
        rank.wait(reductions[layer])
        rank.compute("update", "", update)
    return rank


def draw_rows(picture, rank, left, scale, y):
    """What the rank computes, above what the link carries."""
    for row, (name, spans) in enumerate((("computes", rank.computed), ("network", rank.carried))):
        top = y + 30 * row
        picture.text(8, top + 17, name)
        for begin, end, kind, label in spans:
            picture.box(left + scale * begin, top, scale * (end - begin) - 1, 24, kind, str(label))


def overlap():
    """A step of the small program under chapter 04, above one under chapter 05."""
    picture = Picture("lesson_05_overlap", 246, "One step: exposed communication in chapter 04, overlapped in 05")
    steps = [("04: every collective is waited for at once", small_program(False)),
             ("05: start early, wait late", small_program(True))]
    left = 76
    scale = (WIDTH - 10 - left) / max(rank.now for _, rank in steps)
    for row, (heading, rank) in enumerate(steps):
        y = 22 + 102 * row
        picture.text(8, y, heading, "name")
        picture.text(690, y, f"{rank.now:g} ticks, {rank.waited():g} of them waiting", "end")
        draw_rows(picture, rank, left, scale, y + 10)
    picture.legend(226, [("forward", "forward", 88), ("backward", "backward", 94), ("update", "update", 82),
                         ("waits", "waits", 74), ("parameters", "gather", 84),
                         ("gradients", "reduce-scatter", 120)])
    picture.text(76, 242, "The numbers in the boxes are layers.")
    picture.save()


def whole_gradients(units, most_in_flight):
    """Whole gradient buffers while each unit's backward fills one, with at most so many in flight (ReductionQueue)."""
    held, in_flight = [], deque()
    for unit in range(units):
        held.append(len(in_flight) + 1)
        while in_flight and len(in_flight) + 1 > most_in_flight:
            in_flight.popleft()  # waited for, and freed
        in_flight.append(unit)
        if most_in_flight == 0:
            in_flight.clear()  # waited for at once
    return held


def gradients():
    """Whole gradient buffers in backward: chapter 04, the class ShardedDataParallel, the small program."""
    units = 8
    picture = Picture("lesson_05_gradients", 214, "Whole gradient buffers held in backward: 1, at most 3, or all")
    left, bottom, step, high = 50, 178, 54, 17
    picture.text(8, 20, "Whole gradient buffers that a rank holds in backward, 8 equal units", "name")
    for count in (0, 1, 3, units):
        y = bottom - high * count
        picture.path(f"M{left:g} {y:g}L{left + units * step:g} {y:g}", "absent")
        picture.text(left - 8, y + 4, str(count), "end")
    for i, (kind, most) in enumerate((("backward", 0), ("gradients", 2), ("waits", units))):
        for unit, count in enumerate(whole_gradients(units, most)):
            picture.rect(left + unit * step + 6 + 14 * i, bottom - high * count, 13, high * count, kind)
    for unit in range(units):
        picture.text(left + (unit + 0.5) * step, bottom + 16, f"unit {units - 1 - unit}", "middle")
    for i, (kind, lines) in enumerate((("backward", ("chapter 04", "waits at once")),
                                       ("gradients", ("the class: at most", "2 in flight")),
                                       ("waits", ("small program:", "waits at the end")))):
        y = 56 + 42 * i
        picture.rect(500, y - 10, 14, 12, kind)
        for row, line in enumerate(lines):
            picture.text(520, y + 16 * row, line)
    picture.text(left, 210, "Each group of three bars: one unit's backward. One buffer is filled, the others travel.")
    picture.save()


def forward_pass(gathers, compute, lookahead):
    """Gathers `lookahead` units ahead (ShardedDataParallel::use). Returns the rank, and (begin, end, size) of each whole buffer."""
    rank, done, begun, buffers = Rank(), {}, {}, []
    for unit in range(len(gathers)):
        for wanted in range(unit, min(unit + lookahead + 1, len(gathers))):
            if wanted not in done:
                begun[wanted] = rank.now
                done[wanted] = rank.start("parameters", wanted, gathers[wanted])
        rank.wait(done[unit])
        rank.compute("forward", unit, compute)
        buffers.append((begun[unit], rank.now, gathers[unit]))
    return rank, buffers


def lookahead():
    """A forward pass whose unit 3 is three times as large, with lookahead 0, 1 and 2."""
    sizes, compute = [1, 1, 1, 3, 1, 1], 2
    picture = Picture("lesson_05_lookahead", 412, "A forward pass with lookahead 0, 1 and 2: time and whole buffers")
    passes = [(k, *forward_pass(sizes, compute, k)) for k in (0, 1, 2)]
    left = 76
    scale = (WIDTH - 10 - left) / max(rank.now for _, rank, _ in passes)
    for row, (k, rank, buffers) in enumerate(passes):
        y = 22 + 126 * row
        times = sorted({time for begin, end, _ in buffers for time in (begin, end)})
        held = [sum(size for begin, end, size in buffers if begin <= time < end) for time in times]
        picture.text(8, y, f"lookahead {k}", "name")
        picture.text(690, y, f"waits {rank.waited():g}, holds at most {max(held)}", "end")
        draw_rows(picture, rank, left, scale, y + 10)
        floor = y + 106
        picture.text(8, floor - 8, "whole")
        for begin, end, count in zip(times, times[1:], held):
            picture.rect(left + scale * begin, floor - 7 * count, scale * (end - begin), 7 * count, "parameters")
        picture.path(f"M{left:g} {floor + 0.5:g}L{left + scale * rank.now:g} {floor + 0.5:g}")
    picture.legend(404, [("forward", "forward", 88), ("waits", "waits", 74),
                         ("parameters", "gather; below: buffers that are whole or being filled", 0)])
    picture.save()


if __name__ == "__main__":
    for draw in (overlap, gradients, lookahead):
        draw()
