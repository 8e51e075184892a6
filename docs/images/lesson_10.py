#!/usr/bin/env python3
"""Draws the pictures of lesson 10 beside this file: docs/images/lesson_10.py

Bytes and times in them are computed here. The pictures are 700 pixels wide and have a dark mode.
"""

from picture import Picture as Paper


class Picture(Paper):
    kinds = ("head", "parameters", "gradients", "optimizer", "padding", "forward", "backward", "update", "waits")


def memory(parameters=13, ranks=8, device=24):
    """GB of a rank under ZeRO-3 in mixed precision, with the optimizer's states on the device and in CPU memory."""
    each = {"parameters": 2 * parameters / ranks, "gradients": 2 * parameters / ranks, "optimizer": 12 * parameters / ranks}
    picture = Picture("lesson_10_memory", 226, "Model states of a rank with and without offload")
    left, scale = 104, 20

    def bar(y, kinds):
        x = left
        for kind in kinds:
            picture.box(x, y, scale * each[kind] - 1, 34, kind, f"{each[kind]:g}")
            x += scale * each[kind]
        picture.text(x + 6, y + 21, f"{sum(each[kind] for kind in kinds):g} GB", "name")

    picture.text(8, 41, "device")
    bar(20, each)
    picture.text(8, 109, "device")
    bar(88, ["parameters", "gradients"])
    picture.text(8, 149, "CPU memory")
    bar(128, ["optimizer"])
    limit = left + scale * device
    picture.path(f"M{limit} 8V124", "absent")
    picture.text(limit - 6, 76, f"a device of {device} GB ends here", "end")
    picture.legend(188, [("parameters", "parameters", 100), ("gradients", "gradients", 94),
                         ("optimizer", "master weights and moments, of AdamW", 250)])
    picture.text(76, 214, f"{parameters} billion parameters under ZeRO-3 on {ranks} ranks, in mixed precision, without padding.")
    picture.save()


def in_turn(layers, read, update, write):
    """Spans (begin, end, kind, layer) of rank and disk if a layer is read, updated and written, then the next one."""
    rank, disk, now = [], [], 0
    for layer in range(layers):
        disk.append((now, now + read, "forward", layer))
        rank.append((now + read, now + read + update, "update", layer))
        disk.append((now + read + update, now + read + update + write, "backward", layer))
        now += read + update + write
    return rank, disk


def at_once(layers, read, update, write):
    """The same for the small program, whose first read hides behind backward, before time 0."""
    rank, disk, now = [], [], 0
    written = 0  # when the disk has written the layer before the last one
    for layer in range(layers):
        disk_free = written
        if layer > 0:
            disk.append((disk_free, disk_free + write, "backward", layer - 1))
            disk_free += write
        if layer + 1 < layers:
            disk.append((disk_free, disk_free + read, "forward", layer + 1))
            disk_free += read
        rank.append((now, now + update, "update", layer))
        now = written = max(now + update, disk_free)
    disk.append((now, now + write, "backward", layers - 1))
    return rank, disk


def tiles(layers=4, read=1, update=2, write=1):
    picture = Picture("lesson_10_tiles", 268, "The update of four layers: in turn, and with reads ahead and writes behind")
    left, scale = 62, 36
    for row, (heading, (rank, disk)) in enumerate((("One after the other", in_turn(layers, read, update, write)),
                                                   ("Read ahead, write behind", at_once(layers, read, update, write)))):
        top = 20 + 112 * row
        end = max(span[1] for span in rank + disk)
        picture.text(8, top, heading, "name")
        picture.text(left + 16 * scale, top, f"{end} units", "end")
        for lane, (name, spans) in enumerate((("rank", rank), ("disk", disk))):
            y = top + 12 + 34 * lane
            picture.text(8, y + 18, name)
            picture.rect(left, y, scale * end, 26, "absent")
            for begin, stop, kind, layer in spans:
                picture.box(left + scale * begin, y, scale * (stop - begin) - 1, 26, kind, str(layer))
    picture.legend(238, [("update", "update, 2 units", 128), ("forward", "read, 1 unit", 104), ("backward", "write, 1 unit", 112),
                         ("absent", "waits", 60)])
    picture.text(76, 260, "The numbers in the boxes are layers. Below, layer 0 was read during backward.")
    picture.save()


def delay(compute=3, host=2, steps=5, first=3):
    """Device and CPU in time: without delay, and with it from step `first` on."""
    picture = Picture("lesson_10_delay", 268, "Steps on the device and updates on the CPU, without and with a delay of one step")
    left, scale = 62, 24
    for row, (heading, first_delayed) in enumerate((("The device waits for the CPU", steps + 1),
                                                    (f"Delayed by one step from step {first} on", first))):
        top = 20 + 112 * row
        now, device, on_host = 0, [], []
        for step in range(1, steps + 1):
            device.append((now, now + compute, step))
            if step > first_delayed:
                on_host.append((now, now + host, step - 1))
            now += compute
            if step < first_delayed:
                on_host.append((now, now + host, step))
                now += host
        if first_delayed <= steps:
            on_host.append((now, now + host, steps))
            now += host
        picture.text(8, top, heading, "name")
        picture.text(left + scale * (compute + host) * steps, top, f"{now} units", "end")
        for lane, (name, kind, spans) in enumerate((("device", "parameters", device), ("CPU", "update", on_host))):
            y = top + 12 + 34 * lane
            picture.text(8, y + 18, name)
            picture.rect(left, y, scale * now, 26, "absent")
            for begin, stop, step in spans:
                picture.box(left + scale * begin, y, scale * (stop - begin) - 1, 26, kind, str(step))
    picture.legend(238, [("parameters", "forward and backward of a step, 3 units", 268),
                         ("update", "update with its gradient, 2 units", 226), ("absent", "waits", 60)])
    picture.text(76, 260, "The numbers in the boxes are steps. Below, step 4 computes while the CPU updates with gradient 3.")
    picture.save()


if __name__ == "__main__":
    memory()
    tiles()
    delay()
