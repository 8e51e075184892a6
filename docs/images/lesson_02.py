#!/usr/bin/env python3
"""Draws the pictures of lessons 02 and 03 beside this file: docs/images/lesson_02.py

Sizes, bytes, waits and the deadlock in them are computed here. The pictures are 700 pixels wide and have a dark mode.
"""

from picture import WIDTH, Picture as Paper

LAYERS = [4 * 13 * 35, 4 * 36 * 30, 4 * 31 * 31, 4 * 32 * 11]  # the small program's weights, in bytes
RANKS = 2


class Picture(Paper):
    own_style = """<style>
    .strong { font-weight: 600; }
    .gathered { fill: #56b4e9; }
    .forward { fill: #d0d7de; }
    .backward { fill: #8c959f; }
    .update { fill: #00795a; }
    .waits { fill: #cf222e; }
  </style>"""

    def layers(self, x, y, kinds, strong=False):
        """Four boxes, a layer each, and below them the bytes of those that are held."""
        for layer, kind in enumerate(kinds):
            self.box(x + 14 * layer, y, 13, 22, kind, str(layer) if kind != "absent" else "")
        held = sum(size for size, kind in zip(LAYERS, kinds) if kind != "absent")
        self.text(x + 28, y + 37, f"{held:,}", "middle strong" if strong else "middle")


def owner(layer):
    return layer % RANKS


def bytes_of(held):
    return sum(LAYERS[layer] for layer in held)


def backward():
    """Which gradients a rank holds while backward runs, in the small programs of chapters 01 and 02."""
    picture = Picture("lesson_02_backward", 310, "Gradients held in backward: chapter 01 keeps all, chapter 02 its own")
    left, step = 66, 79
    for column, layer in enumerate(reversed(range(len(LAYERS)))):
        picture.text(left + 2 * step * column + 68, 20, f"layer {layer}", "name middle")
        for half, word in enumerate(("made", "sent")):
            picture.text(left + step * (2 * column + half) + 28, 38, word, "middle")
    for row, (chapter, rank) in enumerate(((1, 0), (1, 1), (2, 0), (2, 1))):
        y = 48 + 58 * row
        picture.text(8, y + 8, f"0{chapter}")
        picture.text(8, y + 23, f"rank {rank}")
        held, moments = set(), []
        for layer in reversed(range(len(LAYERS))):
            held = held | {layer}
            moments.append(held)
            if chapter == 2 and owner(layer) != rank:
                held = held - {layer}
            moments.append(held)
        peak = max(map(bytes_of, moments))
        for column, held in enumerate(moments):
            kinds = ["gradients" if layer in held else "absent" for layer in range(len(LAYERS))]
            picture.layers(left + step * column, y, kinds, strong=bytes_of(held) == peak)
    picture.text(8, 300, "A box is the gradient of a layer. Below: bytes held, in bold the most. "
                         "Rank 0 owns layers 0 and 2.")
    picture.save()


def order():
    """Two ranks average gradients a, b and c. Rank 1 has no b. Collectives match by order."""
    values = [{"c": 2, "b": 4, "a": 8}, {"c": 6, "a": 2}]
    picture = Picture("lesson_02_order", 232, "Collectives match by order: all ranks need the same one")
    left, step = 62, 210
    panels = [("Each rank reduces what it has", [list(have) for have in values]),
              ("One order, c b a, and zeros for what a rank does not have", [list("cba")] * RANKS)]
    for row, (heading, orders) in enumerate(panels):
        y = 20 + 106 * row
        picture.text(8, y, heading, "name")
        for rank in range(RANKS):
            picture.text(8, y + 26 + 30 * rank, f"rank {rank}")
        for call in range(3):
            names = [order[call] if call < len(order) else None for order in orders]
            numbers = [have.get(name, 0) for have, name in zip(values, names)]
            right = len(set(names)) == 1
            for rank, name in enumerate(names):
                label = f"{name}: {numbers[rank]}" if name else "no third call"
                kind = "absent" if name is None else "gradients" if right else "waits"
                picture.box(left + step * call, y + 8 + 30 * rank, 104, 26, kind, label)
            result = (f"mean {sum(numbers) / RANKS:g}" if right else
                      "waits forever" if None in names else f"{sum(numbers) / RANKS:g}: wrong")
            picture.text(left + step * call + 110, y + 41, result, "strong" if right else "")
    picture.text(8, 224, "A box is a call of reduce with the rank's own gradient, a number here. Time runs to the right.")
    picture.save()


def whole_weights():
    """Which weights a rank holds along a step, in the small programs of chapters 02 and 03."""
    picture = Picture("lesson_03_weights", 252, "Weights held along a step: chapter 03 has its own and the one in use")
    order = [None, *range(len(LAYERS)), *reversed(range(len(LAYERS))), None]
    left, step = 66, 64
    picture.text(left + 3 * step - 4, 20, "forward", "name middle")
    picture.text(left + 7 * step - 4, 20, "backward", "name middle")
    rows = [("02, any rank", None), ("03, rank 0", 0), ("03, rank 1", 1)]
    for column, layer in enumerate(order):
        picture.text(left + step * column + 28, 38, "rest" if layer is None else f"layer {layer}", "middle")
    for row, (name, rank) in enumerate(rows):
        y = 48 + 58 * row
        for line, word in enumerate(name.split(", ")):
            picture.text(8, y + 8 + 15 * line, word)
        moments = []
        for used in order:
            moments.append(["parameters" if rank is None or owner(layer) == rank else
                            "gathered" if layer == used else "absent" for layer in range(len(LAYERS))])
        totals = [sum(size for size, kind in zip(LAYERS, kinds) if kind != "absent") for kinds in moments]
        for column, kinds in enumerate(moments):
            picture.layers(left + step * column, y, kinds, strong=min(totals) < totals[column] == max(totals))
    picture.legend(242, [("parameters", "held all the time", 150),
                         ("gathered", "gathered for this layer, then dropped", 260)])
    picture.text(500, 242, "Below: bytes of weights")
    picture.save()


def step_of(chapter, reduction=1, gather=1, forward=2, backward=4, update=1):
    """A step of rank 0 with four equal layers, as (begin, end, row, kind, label). It waits for every collective."""
    spans, now = [], 0
    layers = range(len(LAYERS))

    def compute(kind, label, duration):
        nonlocal now
        spans.append((now, now + duration, "computes", kind, label))
        now += duration

    def send(kind, label, duration):
        nonlocal now
        spans.append((now, now + duration, "network", kind, label))
        spans.append((now, now + duration, "computes", "waits", ""))
        now += duration

    for layer in layers:
        if chapter == 3:
            send("parameters", layer, gather)
        compute("forward", layer, forward)
    for layer in reversed(layers):
        if chapter == 3:
            send("parameters", layer, gather)
        compute("backward", layer, backward)
        if chapter != 1:
            send("gradients", layer, reduction)
    if chapter == 1:
        for layer in reversed(layers):
            send("gradients", layer, reduction)
    for layer in layers:
        if owner(layer) == 0:
            compute("update", layer, update)
    if chapter != 3:
        for layer in reversed(layers):
            send("parameters", layer, gather)
    return spans, now


def times(name, chapters, title):
    """Steps of two chapters, one above the other: computing, waiting, and what is on the network."""
    picture = Picture(name, 246, title)
    steps = {heading: step_of(chapter) for chapter, heading in chapters.items()}
    left = 76
    scale = (WIDTH - 10 - left) / max(end for _, end in steps.values())
    for row, (heading, (spans, end)) in enumerate(steps.items()):
        y = 22 + 102 * row
        waits = sum(stop - start for start, stop, _, kind, _ in spans if kind == "waits")
        picture.text(8, y, heading, "name")
        picture.text(690, y, f"{end:g} ticks, {waits:g} of them waiting", "end")
        for line, word in enumerate(("computes", "network")):
            picture.text(8, y + 27 + 30 * line, word)
            top = y + 10 + 30 * line
            for start, stop, where, kind, label in spans:
                if where == word:
                    picture.box(left + scale * start, top, scale * (stop - start) - 1, 24, kind, str(label))
    picture.legend(226, [("forward", "forward", 84), ("backward", "backward", 92), ("update", "update", 80),
                         ("waits", "waits", 70), ("parameters", "parameters", 106), ("gradients", "gradients", 90)])
    picture.text(76, 242, "The numbers in the boxes are layers. Rank 0 owns layers 0 and 2.")
    picture.save()


def run_ranks(programs, collective=1.5):
    """Runs one program a rank. A collective starts when both ranks have called it; different ones never start.

    Returns spans as (rank, begin, end, kind, label) and, if they are stuck, what each rank waits in.
    """
    now, spans = [0.0] * len(programs), []
    queues = [list(program) for program in programs]
    while any(queues):
        for rank, queue in enumerate(queues):
            while queue and queue[0][0] == "backward":
                kind, label, duration = queue.pop(0)
                spans.append((rank, now[rank], now[rank] + duration, kind, label))
                now[rank] += duration
        if not any(queues):
            break
        calls = [queue[0] for queue in queues]
        if len({label for _, label in calls}) > 1:
            return spans, now, [label for _, label in calls]
        start = max(now)
        for rank, queue in enumerate(queues):
            kind, label = queue.pop(0)
            if start > now[rank]:
                spans.append((rank, now[rank], start, "waits", ""))
            spans.append((rank, start, start + collective, kind, label))
            now[rank] = start + collective
    return spans, now, None


def deadlock():
    """Backward of layers 2 and 1 on two ranks. Rank 1 does not take the branch of layer 2 that has b."""
    gather_2, gather_1 = ("parameters", "gather 2"), ("parameters", "gather 1")
    reductions = [("gradients", "reduce b"), ("gradients", "reduce w")]
    backward_1 = ("backward", "backward 1", 4)
    rank_0 = [gather_2, ("backward", "backward 2", 4), *reductions, gather_1, backward_1]
    late = [gather_2, ("backward", "backward 2, no b", 3), gather_1, backward_1, *reductions]
    in_turn = [gather_2, ("backward", "backward 2, no b", 3), *reductions, gather_1, backward_1]
    branches("lesson_03_deadlock", "Rank 1 keeps its reductions for later: both ranks wait forever", [rank_0, late],
             "w and b: gradients of layer 2. Rank 1 does not take the branch with b. Red: the rank waits.")
    branches("lesson_03_in_turn", "Rank 1 sends zeros for b, then w, before the next gather", [rank_0, in_turn],
             "The same backward. Red: the rank waits.")


def branches(name, title, programs, below):
    """What two ranks run, and where they are stuck."""
    picture = Picture(name, 146, title)
    left = 62
    scale = (WIDTH - 10 - left) / 14  # the length of the longer one
    spans, now, stuck = run_ranks(programs)
    picture.text(8, 22, title, "name")
    for rank in range(RANKS):
        top = 34 + 38 * rank
        picture.text(8, top + 19, f"rank {rank}")
        for of_rank, begin, end, kind, label in spans:
            if of_rank == rank:
                picture.box(left + scale * begin, top, scale * (end - begin) - 1, 30, kind, label)
        if stuck:
            begin = left + scale * now[rank]
            text = f"in {stuck[rank]!r}: rank {1 - rank} never calls it".replace("'", "")
            picture.box(begin, top, WIDTH - 10 - begin, 30, "waits", text)
    picture.text(8, 136, below)
    picture.save()


if __name__ == "__main__":
    backward()
    order()
    times("lesson_02_time", {1: "01: all reductions after backward", 2: "02: each gradient leaves inside backward"},
          "A step of chapters 01 and 02: the same waiting, in other places")
    whole_weights()
    deadlock()
    times("lesson_03_time", {2: "02: parameters stay whole", 3: "03: parameters are gathered twice"},
          "A step of chapters 02 and 03: gathers add exposed communication")
