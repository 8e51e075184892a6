"""./run links --modes: modes beside each other on several hosts of several ranks, over links of some rates."""

import statistics

from links_report import HEADERS, aligned, figures, label

BASE_MBIT = 1000  # of the runs of one step, whose bytes are taken off


def measure(bench, options):
    """Runs all modes once a round at every rate; gives the document of figures, without its summary."""
    # First of all, so that a mode that the ladder does not know ends the command.
    base = {mode: bench.run(BASE_MBIT, mode, 1)[1] for mode in options.modes}
    rows, compute, rates = [], [], {mbit: [] for mbit in options.rates}
    for number in range(1, options.rounds + 1):
        document, _ = bench.run(None, options.modes[0], options.steps, compute=True)
        compute.append(document["compute_seconds"])
        print(f"round {number}: nothing sent, {compute[-1]:.3f} s a step", flush=True)
        for mbit in options.rates:
            rates[mbit].append(bench.link_rate(mbit))
            print(f"round {number}, {label(mbit)}: {rates[mbit][-1] * 8e-6:.1f} Mbit/s measured", flush=True)
            for mode in options.modes:
                document, wires = bench.run(mbit, mode, options.steps)
                rows.append({"round": number, **figures(mbit, document, wires, base[mode])})
                print(f"round {number}, {label(mbit)}, {mode}: {rows[-1]['step_seconds']:.3f} s a step", flush=True)
    return {"parameters": document["parameters"], "parameter_bytes": document["parameter_bytes"],
            "modes": options.modes, "hosts": options.hosts, "ranks_per_host": options.ranks_per_host,
            "rounds": options.rounds, "compute_seconds": compute,
            "links": [{"mbit_per_s": mbit, "bytes_per_second": found} for mbit, found in rates.items()],
            "runs": rows}


def busiest_host(row):
    return max(row["hosts"], key=lambda host: host["counted_bytes"])


def summarize(document):
    """A line for each mode at each rate: medians over rounds, and the least and the most."""
    lines = []
    for link in document["links"]:
        mbit, rate = link["mbit_per_s"], statistics.median(link["bytes_per_second"])
        at_rate = [row for row in document["runs"] if row["mbit_per_s"] == mbit]
        steps = {mode: [row["step_seconds"] for row in at_rate if row["mode"] == mode]
                 for mode in document["modes"]}
        for mode, seconds in steps.items():
            # Of one round, as the machine may be slower in another.
            ratios = [mine / first for mine, first in zip(seconds, steps[document["modes"][0]])]
            hosts = [busiest_host(row) for row in at_rate if row["mode"] == mode]
            counted, payload, frames = (statistics.median(host[key] for host in hosts)
                                        for key in ("counted_bytes", "payload_bytes", "frames"))
            step, wire = statistics.median(seconds), counted / rate
            lines.append({
                "mode": mode, "mbit_per_s": mbit, "measured_mbit_per_s": rate * 8e-6,
                "step_seconds": step, "step_seconds_min": min(seconds), "step_seconds_max": max(seconds),
                "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
                "counted_bytes": counted, "payload_bytes": payload, "header_bytes": HEADERS * frames,
                "compute_seconds": statistics.median(document["compute_seconds"]),
                "wire_seconds": wire, "step_over_wire": step / wire if wire else None})
    return lines


def table(lines):
    """Aligned text of the lines of one rate."""
    def cells(line):
        over = line["step_over_wire"]
        return [line["mode"], *(f"{line[key]:.3f}" for key in (
            "step_seconds", "step_seconds_min", "step_seconds_max", "ratio", "ratio_min", "ratio_max")),
            *(f"{line[key]:.0f}" for key in ("counted_bytes", "payload_bytes", "header_bytes")),
            *(f"{line[key]:.3f}" for key in ("compute_seconds", "wire_seconds")), f"{over:.2f}" if over else "-"]

    head = [["mode", "step", "least", "most", "ratio", "least", "most", "counted", "interface", "headers",
             "compute", "wire", "step"],
            ["", "s", "s", "s", "", "", "", "bytes", "bytes", "bytes", "s", "s", "/wire"]]
    return aligned(head + [cells(line) for line in lines])


def tables(document):
    """One for each rate."""
    texts = []
    for link in document["links"]:
        lines = [line for line in document["summary"] if line["mbit_per_s"] == link["mbit_per_s"]]
        texts.append(f"{label(link['mbit_per_s'])}: {lines[0]['measured_mbit_per_s']:.1f} Mbit/s of payload measured\n\n"
                     f"{table(lines)}")
    return "\n\n".join(texts)
