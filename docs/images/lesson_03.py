#!/usr/bin/env python3
"""Draws the picture of lesson 03.2 beside this file: docs/images/lesson_03.py

Layer 1 of 03_zero3/autograd.cpp on rank 0 of 2, which does not own it: who refers to the storage, and when it has bytes.
"""

from picture import WIDTH, Picture

ROWS, COLUMNS = 36, 30  # of the layer's weight
BYTES = 4 * ROWS * COLUMNS
# An event, whether autograd holds a saved tensor after it, and whether the storage has bytes then.
EVENTS = [
    (("at rest", ""), False, False),
    (("forward:", "gather"), False, True),
    (("", "product"), True, True),
    (("", "reshard"), True, False),
    (("backward:", "hook, gather"), True, True),
    (("", "product"), False, True),
    (("", "hook, reshard"), False, False),
]


def walk():
    picture = Picture("lesson_03_storage", 222, "A weight that autograd has saved: its storage loses its bytes and gets them back")
    left = 84
    step = (WIDTH - 8 - left) / len(EVENTS)
    for y, name in ((58, "tensors"), (116, "storage"), (168, "bytes")):
        picture.text(8, y + 4, name)
    for place, ((first, second), saved, filled) in enumerate(EVENTS):
        x, width = left + place * step, step - 14
        picture.text(x, 18, first, "name" if first else "")
        picture.text(x, 34, second)
        half = width / 2
        picture.box(x, 44, half - 2, 26, "optimizer", "p")
        if saved:
            picture.box(x + half + 2, 44, half - 2, 26, "padding", "saved")
        picture.arrow(x + half / 2, 70, x + half / 2, 102)
        if saved:
            picture.arrow(x + 1.5 * half, 70, x + 1.5 * half, 102)
        picture.box(x, 102, width, 26, "head", "storage")
        picture.box(x, 154, width, 26, "parameters" if filled else "absent", f"{BYTES:,}" if filled else "0")
        if filled:
            picture.arrow(x + half, 128, x + half, 154)
    picture.text(8, 210, "p: the parameter. saved: what autograd keeps of it for backward. Both refer to one storage all the time.")
    picture.save()


if __name__ == "__main__":
    walk()
