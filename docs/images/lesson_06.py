#!/usr/bin/env python3
"""Draws the pictures of lesson 06 beside this file: docs/images/lesson_06.py

The timetables of the pipeline are computed here, by the rules of 06_device_mesh/pipeline_schedule.cpp. The pictures are
700 pixels wide and have a dark mode.
"""

from picture import WIDTH, Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "shards", "optimizer", "forward", "backward")


def halves(picture, x, y, width, height, kind, label, mine):
    """Two halves of something, of which a rank holds one."""
    for half in (0, 1):
        picture.box(x + half * (width + 2), y, width, height, kind if half == mine else "absent",
                    label if half == mine else "")


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


def tensor():
    """A column-parallel and a row-parallel matrix on two tensor ranks."""
    picture = Picture("lesson_06_tensor", 330, "A column-parallel and a row-parallel matrix on two tensor ranks")
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
    picture.text(76, 322, "Backward is the same from right to left: its all-reduce stands on the left, for the gradient of x.")
    picture.save()


def activations():
    """The checkpoints of four layers on two tensor ranks, whole and in parts."""
    picture = Picture("lesson_06_activations", 316, "Checkpoints on two tensor ranks: whole copies, or a part on each")
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


def stage_actions(gpipe, stage, stages, micro_batches):
    """As stage_actions() without a tied weight: pairs of F or B and the micro-batch."""
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
    picture = Picture("lesson_06_pipeline", 340, "Timetables of GPipe and 1F1B: the same time, fewer micro-batches in flight")
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


if __name__ == "__main__":
    for draw in (mesh, hsdp, tensor, activations, pipeline):
        draw()
