#!/usr/bin/env python3
"""Draws the pictures of lesson 09 beside this file: docs/images/lesson_09.py

The timetables are computed here, by the rules of 09_pipeline/pipeline_schedule.cpp. The pictures are 700 pixels wide
and have a dark mode.
"""

from picture import Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "forward", "backward")


def stage_actions(gpipe, stage, stages, micro_batches):
    """As stage_actions(): pairs of F or B and the micro-batch."""
    first = min(micro_batches if gpipe else stages - 1 - stage, micro_batches)
    actions = [("F", m) for m in range(first)]
    for m in range(micro_batches):
        if m + first < micro_batches:
            actions.append(("F", m + first))
        actions.append(("B", m))
    return actions


def in_time(schedule, slots):
    """(begin, end, kind, micro-batch) by stage; an action begins when its stage is free and its message is there."""
    ended, timed = {}, [[] for _ in schedule]
    while any(len(timed[s]) < len(actions) for s, actions in enumerate(schedule)):
        for s, actions in enumerate(schedule):
            while len(timed[s]) < len(actions):
                kind, m = actions[len(timed[s])]
                source = s - 1 if kind == "F" else s + 1
                if 0 <= source < len(schedule) and (source, kind, m) not in ended:
                    break
                begin = max(timed[s][-1][1] if timed[s] else 0, ended.get((source, kind, m), 0))
                ended[s, kind, m] = begin + slots[kind]
                timed[s].append((begin, begin + slots[kind], kind, m))
    return timed


def in_flight(actions):
    now = most = 0
    for kind, _ in actions:
        now += 1 if kind == "F" else -1
        most = max(most, now)
    return most


def pipeline():
    """GPipe above 1F1B: four stages, six micro-batches."""
    stages, micro_batches, slots = 4, 6, {"F": 1, "B": 2}
    picture = Picture("lesson_09_pipeline", 340, "Timetables of GPipe and 1F1B: the same time, fewer micro-batches in flight")
    left, right = 62, 640
    for row, (heading, gpipe) in enumerate((("GPipe: all forwards, then all backwards", True),
                                            ("1F1B: one forward, one backward", False))):
        schedule = [stage_actions(gpipe, s, stages, micro_batches) for s in range(stages)]
        timed = in_time(schedule, slots)
        length = max(actions[-1][1] for actions in timed)
        busy = sum(end - begin for actions in timed for begin, end, _, _ in actions)
        scale = (right - left) / length
        top = 20 + 152 * row
        picture.text(8, top, heading, "name")
        picture.text(right, top, f"{length} slots, bubble {1 - busy / (length * stages):.0%}", "end")
        picture.text(692, top, "holds", "end")
        for s, actions in enumerate(timed):
            y = top + 10 + 30 * s
            picture.text(8, y + 17, f"stage {s}")
            picture.rect(left, y, right - left, 24, "absent")
            for begin, end, kind, m in actions:
                picture.box(left + scale * begin, y, scale * (end - begin) - 1, 24,
                            "parameters" if kind == "F" else "gradients", str(m))
            picture.text(680, y + 17, str(in_flight(schedule[s])), "end")
    picture.legend(316, [("parameters", "forward", 84), ("gradients", "backward, twice as long", 182),
                         ("absent", "nothing to do", 104)])
    picture.text(76, 334, "The numbers in the boxes are micro-batches. Holds: micro-batches in flight, at most.")
    picture.save()


def step():
    """A step of y = w2 (w1 x) on two stages, under 1F1B; the numbers are computed here."""
    weights, samples = (2, 3), ((1, 5), (2, 11))
    inputs = [(x, weights[0] * x) for x, _ in samples]  # of both stages, by micro-batch
    deltas = [2 * (weights[1] * h - t) for (_, h), (_, t) in zip(inputs, samples)]  # of the loss (y - t)^2
    slopes = [(weights[1] * delta, delta) for delta in deltas]  # gradients of both stages' outputs

    picture = Picture("lesson_09_step", 206, "A step of two stages and two micro-batches, with numbers")
    left, width, height, tops = 62, 90, 44, (10, 112)

    def box(s, slot, kind, *lines):
        picture.rect(left + width * slot, tops[s], width - 2, height, kind)
        for line, text in enumerate(lines):
            picture.text(left + width * (slot + 0.5) - 1, tops[s] + 18 + 18 * line, text,
                         "onlight" if kind == "gradients" else "inside")

    for s, actions in enumerate(in_time([stage_actions(False, s, 2, 2) for s in (0, 1)], {"F": 1, "B": 1})):
        picture.text(8, tops[s] + 18, f"stage {s}")
        picture.text(8, tops[s] + 36, f"w{s + 1} = {weights[s]}")
        for slot, _, kind, m in actions:
            x, factor = inputs[m][s], weights[s] if kind == "F" else slopes[m][s]
            box(s, slot, "parameters" if kind == "F" else "gradients", f"{kind}{m}", f"{factor} x {x} = {factor * x}")
            middle = left + width * slot + (60 if kind == "F" else 20)
            if kind == "F" and s == 1:
                picture.arrow(middle, tops[0] + height + 4, middle, tops[1] - 4)
            elif kind == "B" and s == 0:
                picture.path(f"M{middle} {tops[1] - 4}V{tops[0] + height + 4}")
                picture.path(f"M{middle} {tops[0] + height + 4}l-4 7h8z", "head")
            else:
                continue
            picture.text(middle + 8, (tops[0] + tops[1] + height) / 2 + 4, x if kind == "F" else factor)
        mean = sum(slope[s] * x[s] for slope, x in zip(slopes, inputs)) / len(samples)
        box(s, 6, "optimizer", "update", f"mean {mean:g}")
    picture.text(8, 180, "Boxes: forward is weight x input = output; backward is gradient of the output x input = gradient of the weight.")
    picture.text(8, 198, "Arrows: a stage sends its output down, and the gradient of its input up (here 2 x w2).")
    picture.save()


if __name__ == "__main__":
    pipeline()
    step()
