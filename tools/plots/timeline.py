#!/usr/bin/env python3
"""Says how much of a step's communication overlaps with computing, from traces of one rank each.

Reads what `./run ladder --trace` writes: Chrome traces with the ranges forward, backward and
optimizer, with every collective as a pair of events "b" and "e" of category "collective", named
"OPERATION PURPOSE", and with every stretch that the training thread spent in communication as an
event "X" of category "exposed". Needs nothing but Python, and for --picture matplotlib.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

RANGES = ("forward", "backward", "optimizer")
PURPOSES = ("parameter", "gradient", "control", "setup")
STEP_PURPOSES = PURPOSES[:2]  # what a step sends; the rest is a few bytes of agreement
GROUPS = {"parameter": ("parameter",), "gradient": ("gradient",), "both": STEP_PURPOSES}
TOO_LITTLE, WRONG = 1, 2  # exit codes

MEANING = """\
in flight  from the start of a collective until its wait() has returned
exposed    the training thread starts a collective, waits for one, or takes what has come (progress)
compute    forward, backward and optimizer, without what is exposed
overlap    collectives are in flight and the rank computes; share: of the time they are in flight

In flight does not mean that bytes move. Ranks of one host copy from each other's memory, and only
inside wait() and progress(), on the core that would compute otherwise. Over TCP (ZERO_TRANSPORT=tcp)
Gloo's threads move bytes meanwhile, and may be done long before the wait. A large share says that
collectives start early and are waited for late. Whether that saves time is seen in what is exposed
and in how long the step takes."""


class BadTrace(Exception):
    """The input is not what is needed; the message says what is wrong."""


@dataclass(frozen=True)
class Stretch:
    start: int  # nanoseconds
    end: int
    name: str  # of a range; the purpose of a collective, or what was exposed ("progress" has none)
    bytes: int = 0


@dataclass(frozen=True)
class Trace:
    file: str
    mode: str
    rank: int | None
    ranges: list
    exposed: list
    collectives: list

    def extent(self):
        """When the first thing of the step begins and when the last one ends."""
        every = self.ranges + self.exposed + self.collectives
        return min(each.start for each in every), max(each.end for each in every)


def named(stretches, names):
    return [each for each in stretches if each.name in names]


def seconds_in(*inside, outside=()):
    """How long some stretch of every list of `inside` lasts while none of `outside` does."""
    lists = [*inside, outside]
    edges = [(at, index, change) for index, stretches in enumerate(lists) for each in stretches
             for at, change in ((each.start, 1), (each.end, -1))]
    depths, total, last = [0] * len(lists), 0, 0
    for at, index, change in sorted(edges):
        if all(depths[:-1]) and not depths[-1]:
            total += at - last
        depths[index] += change
        last = at
    return total / 1e9


def mode_and_rank(path):
    """From NAME.MODE.rankR.json; of another name, all of it and no rank."""
    match = re.fullmatch(r"(?:.*\.)?([^.]+)\.rank(\d+)\.json", Path(path).name)
    # The ladder writes the colon before a variant as a hyphen, which is in no mode's name.
    return (match[1].replace("-", ":", 1), int(match[2])) if match else (Path(path).stem, None)


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def stretch(event, name):
    start = nanoseconds(event["ts"])
    return Stretch(start, start + nanoseconds(event["dur"]), name)


def purpose_of(said):
    purpose = said.rpartition(" ")[2]
    if said != "progress" and purpose not in PURPOSES:
        raise ValueError(f"'{said}' ends with none of {', '.join(PURPOSES)}")
    return purpose


def paired(edges, first):
    """The collectives that begin and end with these events. One from the step before, whose start
    was not recorded, counts from the first moment that was."""
    begun, collectives = {}, []
    for event in sorted(edges, key=lambda event: event["ts"]):
        name = event["name"]
        if event["ph"] == "b":
            begun[name, event["id"]] = event
            continue
        begin = begun.pop((name, event["id"]))
        span = [max(first, nanoseconds(each["ts"])) for each in (begin, event)]
        collectives.append(Stretch(*span, purpose_of(name), begin["args"]["bytes"]))
    if begun or not collectives:
        raise ValueError(f"these collectives never end: {list(begun)}" if begun else "it has no collectives")
    return collectives


def trace_of(path):
    # Decimal: microseconds since the machine started, to the nanosecond, need it.
    document = json.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    ranges, exposed, edges = [], [], []
    for event in document["traceEvents"]:
        phase, category, name = event.get("ph"), event.get("cat"), event.get("name")
        # By category: with a GPU a range has a second event, for the time its kernels took.
        if (phase, category) == ("X", "user_annotation") and name in RANGES:
            ranges.append(stretch(event, name))
        elif (phase, category) == ("X", "exposed"):
            exposed.append(stretch(event, purpose_of(name)))
        elif category == "collective":
            edges.append(event)
    if not ranges:
        raise ValueError(f"it has none of the ranges {', '.join(RANGES)}")
    first = min(each.start for each in ranges + exposed)
    return Trace(str(path), *mode_and_rank(path), ranges, exposed, paired(edges, first))


def read_trace(path):
    try:
        return trace_of(path)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadTrace(f"'{path}' is no trace of ./run ladder --trace: {error!r}") from error


def measure(trace):
    """The figures of one rank, as they go into the JSON."""
    start, end = trace.extent()
    figures = {"file": trace.file, "mode": trace.mode, "rank": trace.rank,
               "step_seconds": (end - start) / 1e9,
               "compute_seconds": seconds_in(trace.ranges, outside=trace.exposed),
               "exposed_seconds": seconds_in(trace.exposed),
               "progress_seconds": seconds_in(named(trace.exposed, ("progress",)))}
    for group, purposes in GROUPS.items():
        collectives = named(trace.collectives, purposes)
        in_flight = seconds_in(collectives)
        overlap = seconds_in(collectives, trace.ranges, outside=trace.exposed)
        figures[group] = {"collectives": len(collectives),
                          "bytes": sum(each.bytes for each in collectives),
                          "in_flight_seconds": in_flight,
                          "exposed_seconds": seconds_in(named(trace.exposed, purposes)),
                          "overlap_seconds": overlap,
                          "overlap_share": overlap / in_flight if in_flight else None}
    return figures


COLUMNS = ("mode", "rank", "step", "compute", "exposed", "progress", "purpose", "number", "MiB",
           "in flight", "exposed", "overlap", "share")
FOOTER = """
Times in ms. Exposed: of a purpose, starting its collectives and waiting for them; of the step, also
all others' and progress. In flight does not mean that bytes move: see --help."""


def names(every):
    """What to call each: its mode, or its file where another is of the same mode and rank."""
    known = [(figures["mode"], figures["rank"]) for figures in every]
    return [figures["file"].removesuffix(f".rank{rank}.json")
            if known.count((mode, rank)) > 1 else mode
            for figures, (mode, rank) in zip(every, known)]


def milliseconds(value):
    return f"{value * 1e3:.2f}"


def rows_of(figures, name):
    """Three rows, one for each group; what is of the whole step stands in the first."""
    begin = [name, "-" if figures["rank"] is None else str(figures["rank"]),
             *(milliseconds(figures[f"{each}_seconds"]) for each in ("step", "compute", "exposed", "progress"))]
    for group in GROUPS:
        of, share = figures[group], figures[group]["overlap_share"]
        times = (of[f"{each}_seconds"] for each in ("in_flight", "exposed", "overlap"))
        yield [*begin, group, str(of["collectives"]), f"{of['bytes'] / 2**20:.2f}",
               *map(milliseconds, times), "-" if share is None else f"{share:.3f}"]
        begin = [""] * len(begin)


def table(every):
    """Names and purposes are aligned to the left."""
    rows = [COLUMNS, *(row for pair in zip(every, names(every)) for row in rows_of(*pair))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) if name in ("mode", "purpose") else cell.rjust(width)
                       for cell, width, name in zip(row, widths, COLUMNS)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], FOOTER])


def shortfalls(every, required):
    """A line for each rank that does not overlap as much as is required."""
    for figures in every:
        share = figures["both"]["overlap_share"]
        if share is None:
            yield f"'{figures['file']}': no collective of parameters or gradients is in flight"
        elif share < required:
            yield (f"'{figures['file']}': collectives of parameters and gradients overlap with "
                   f"compute for {share:.3f} of the time they are in flight, not {required:g}")


def write_picture(traces, every, path):
    try:
        import plot_timeline  # here: without a picture, matplotlib is not needed
    except SystemExit as error:
        raise BadTrace(f"--picture: {error}") from error
    plot_timeline.write(traces, every, names(every), path)


def share_of_time(text):
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=MEANING,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a trace, NAME.MODE.rankR.json")
    parser.add_argument("--picture", metavar="FILE.png", help="draws the steps; .svg goes beside")
    parser.add_argument("--require", metavar="SHARE", type=share_of_time, help="exit code 1 unless in each "
                        "file at least this share of the time in which collectives of parameters "
                        "and gradients are in flight overlaps with compute")
    if any(word.partition("=")[0] == "--json" for word in sys.argv):
        parser.error("--json was removed: the tables have the figures")
    arguments = parser.parse_args()
    try:
        traces = [read_trace(path) for path in arguments.files]
        every = [measure(trace) for trace in traces]
        print(table(every))
        if arguments.picture:
            write_picture(traces, every, arguments.picture)
    except (BadTrace, OSError) as error:
        said = error if isinstance(error, BadTrace) else f"'{error.filename}': {error.strerror}"
        print(f"{parser.prog}: error: {said}", file=sys.stderr)
        sys.exit(WRONG)
    short = [] if arguments.require is None else list(shortfalls(every, arguments.require))
    for line in short:
        print(f"{parser.prog}: error: {line}", file=sys.stderr)
    sys.exit(TOO_LITTLE if short else 0)


if __name__ == "__main__":
    main()
