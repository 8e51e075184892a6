"""The figures of ./run links: what they are made of, what must hold for them, and their table."""

# TCP over IPv4 over Ethernet with time stamps: 14 + 20 + 32 bytes before 1448 bytes of payload.
HEADERS, SEGMENT = 66, 1448
GAP = 12  # bytes by which an acknowledgement is longer that reports one gap (SACK, RFC 2018)
FASTER_THAN_LINK = 0.9


def label(mbit):
    if mbit is None:
        return "unlimited"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def link_seconds(host, mbit):
    """What a link needs for a step of this host's ranks; nothing where there is no limit.

    The switch may have seen many segments as one frame, but the token bucket counts their headers.
    """
    wire = max(host["interface_bytes"], host["counted_bytes"] * (SEGMENT + HEADERS) / SEGMENT)
    return wire * 8 / (mbit * 1e6) if mbit else 0.0


def payload(wire):
    return wire.bytes - HEADERS * wire.frames


def figures(mbit, document, wires, base_wires):
    """One line of the table. `base_wires`: of a run of the same mode for one step. Each host has as many ranks.

    Of what both runs sent only the payload cancels out: the run of one step has a faster link and so larger frames.
    A step has frames in the proportion of the whole run.
    """
    mode, steps = document["modes"][0], document["steps"]
    counted_steps = steps - 1  # the others are in the run of one step too
    ranks_per_host = len(mode["ranks"]) // len(wires)
    hosts = []
    for number, (wire, base) in enumerate(zip(wires, base_wires)):
        of_a_step = (payload(wire) - payload(base)) / counted_steps
        share = of_a_step / payload(wire)
        ranks = mode["ranks"][number * ranks_per_host:][:ranks_per_host]
        hosts.append({"host": number, "counted_bytes": sum(rank["sent_between_hosts_bytes"] for rank in ranks),
                      "payload_bytes": of_a_step, "interface_bytes": share * wire.bytes, "frames": share * wire.frames,
                      "run_frames": wire.frames, "again": wire.again, "again_in_base": base.again})
    return {"mode": mode["mode"], "mbit_per_s": mbit, "steps": steps, "step_seconds": mode["step_seconds"],
            "waiting_seconds": mode["communication_seconds"],
            "link_seconds": max(link_seconds(host, mbit) for host in hosts),
            "peak_mib": mode["peak_mib_max"], "digest": mode["digest"], "hosts": hosts}


# ---- what must hold ------------------------------------------------------------------------------


def wrong_bytes(row):
    """What does not fit between the ladder's counters and those of the switch, for each host.

    Beside what was counted there may be Gloo's headers (about 50 bytes a message, of which a bucket
    makes a few), what starts and ends a run (64 KiB, as in tests/network), and segments that were
    sent once more, in this run or in the one whose bytes were taken off. Where another host has sent
    segments once more, this one may have reported gaps in its frames.
    """
    wrong, steps = [], row["steps"] - 1
    for host in row["hosts"]:
        counted, sent = host["counted_bytes"] * steps, host["payload_bytes"] * steps
        least = counted - SEGMENT * host["again_in_base"]
        most = counted + SEGMENT * host["again"] + (64 << 10) + counted // 500
        if any(other["again"] for other in row["hosts"] if other is not host):
            most += GAP * host["run_frames"]
        if not least <= sent <= most:
            wrong.append(
                f"{row['mode']} at {label(row['mbit_per_s'])}: host {host['host']} counted {counted:.0f} bytes "
                f"in {steps} steps, the switch received {sent:.0f} without headers; {least:.0f} to {most:.0f} fit")
    return wrong


def wrong_speed(row):
    """A step that is over before a link of this speed can have carried it."""
    if row["step_seconds"] >= FASTER_THAN_LINK * row["link_seconds"]:
        return []
    return [f"{row['mode']} at {label(row['mbit_per_s'])}: a step took {row['step_seconds']:.3f} s, the link needs "
            f"{row['link_seconds']:.3f} s for its bytes: it is faster than it should be"]


def wrong_weights(rows, alike=lambda row: f"after {row['steps']} steps"):
    """Rows of which `alike` gives the same text train to the same weights: by default all of as many steps."""
    digests = {}
    for row in rows:
        digests.setdefault(alike(row), {}).setdefault(row["digest"], []).append(
            f"{row['mode']} at {label(row['mbit_per_s'])}")
    return [f"{which} the weights differ: {found}" for which, found in digests.items()
            if len(found) > 1 or None in found]  # None: the ranks differ


# ---- the tables ----------------------------------------------------------------------------------


def cells(row, compute):
    def mean(key):
        return sum(host[key] for host in row["hosts"]) / len(row["hosts"])

    counted, wire, headers = mean("counted_bytes"), mean("interface_bytes"), HEADERS * mean("frames")
    return [row["mode"], f"{row['step_seconds']:.3f}", f"{row['waiting_seconds']:.3f}", f"{compute:.3f}",
            f"{row['link_seconds']:.3f}" if row["mbit_per_s"] else "-", f"{row['peak_mib']:.2f}",
            f"{counted:.0f}", f"{wire:.0f}", f"{100 * (wire / counted - 1):.2f}",
            f"{100 * headers / counted:.2f}", f"{100 * (wire - headers - counted) / counted:.3f}"]


def aligned(lines):
    """Text of lines of cells: the first column begins in one place, the others end in one."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *(
        cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip() for line in lines)


def table(rows, compute):
    """Aligned text; `rows` are of one speed."""
    head = [["mode", "step", "exposed", "compute", "link", "peak", "counted", "interface", "differ", "headers", "rest"],
            ["", "s", "s", "s", "s", "MiB", "bytes", "bytes", "%", "%", "%"]]
    return aligned(head + [cells(row, compute) for row in rows])
