"""Training over slow links: what the engine's settings do there, and how modes compare.

    ./run links [--rates 100mbit,1gbit,unlimited] [--steps 8] [--quick]
    ./run links --modes engine3,hsdp3 [--hosts 2] [--ranks-per-host 2] [--rates 100mbit,1gbit] [--rounds 3]
    ./run links --rates 1gbit --trace out/trace.json

Hosts are Linux namespaces, joined by a switch. What leaves a host passes a token bucket, so that a
link has as many bits a second as --rates says in either direction. What ranks of one host send to
each other stays in its namespace and has no limit.

Without --modes, bucket size, lookahead and stage vary on two hosts of one rank each. Every mode is
trained at every speed, and for each there is printed

    step       seconds of a step: mean over ranks of the median, the first step left out
    exposed    of it, seconds in which nothing was computed because something had to arrive first
    compute    a step without any communication, both ranks at once
    link       what the link needs for the bytes of a step and their headers; no overlap gets below
               the larger of compute and link
    peak       the allocator's peak within a step, of the larger rank
    counted    bytes that a rank sends in a step, by the ladder's own counters, mean over ranks
    interface  bytes that arrived at the switch for each step, frame headers included
    headers    66 bytes for each frame. Full frames have 4.6 %; acknowledgements of what came the other
               way, one for about every second frame, are frames too. Where the token bucket takes pieces of
               up to 64 KiB whole (from some 250 Mbit/s), and where there is none, a piece is one
               frame with one header, as where a network card cuts the frames: a few tenths of a %.
    rest       what remains: Gloo's own few bytes a message and segments that TCP sent once more

What is not headers must be what was counted; the command fails where it is not. The first step and
what comes before and after training cancel out: they are in a run of one step as well, whose bytes
are taken off. That run has a faster link and larger frames. So a step has headers in the proportion
of the whole run.

With --modes, these modes of the ladder are compared, the first with itself and the others. A round
measures the links, and trains each mode once at every rate; the first step of a run is not timed.
The table of a rate has, for each mode, medians over the rounds of

    step       seconds of a step, with the least and the most of the rounds
    ratio      the same, divided by what the first mode took in that round
    counted    bytes that the ranks of a host send to other hosts in a step, by the ladder's counters
    interface  bytes that arrived at the switch from this host, without the headers of the frames
    headers    66 bytes for each frame, as above
    compute    a step without any communication, all ranks at once, over no link
    wire       the bytes counted, divided by the measured rate of the link
    step/wire  1.15 or less: the step is within 15 % of what the wire alone needs

The bytes are those of the host that sends most. The command fails where counted and interface do not
fit, and where the weights of a mode depend on the rate or the round.

With --trace nothing is measured: chapter 04 and the engine are trained at the first speed, and the last step
of each is traced, for ./run timeline.

Needs root and iproute2; without them it says so and ends with exit code 77.
"""

import argparse
import array
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "hosts"), str(ROOT / "tools" / "data")]

import prepare  # noqa: E402
import compare_modes  # noqa: E402
from hosts import Failure, Network, Program, Skip, check_machine, succeed_together  # noqa: E402
from links_report import figures, label, table, wrong_bytes, wrong_speed, wrong_weights  # noqa: E402

SKIPPED, INTERRUPTED = 77, 130
MOST_RANKS = 64  # as the ladder
FIRST_PORT = 29500
RATE_SECONDS = 4  # of sending, to measure a rate
RUN_LIMIT_S, LONGEST_LIMIT_S = 900, 86400
# Runs of one step, of which only the bytes are of interest. With links that have no limit TCP often
# sends segments twice, as a core that computes acknowledges late, and the bytes would say less.
BASE_MBIT = compare_modes.BASE_MBIT
SLOW_MBIT = 500

# Bytes over seconds of computing depend on the tokens of a step and not on the size of a model: a
# parameter costs 6 flops a token, and 4 to 6 bytes a step. With 256 tokens a core of today needs
# about as long for the one as 1 Gbit/s for the other. The size is then a question of patience:
# 6.5 million parameters are 26 MB and 2 s a step at 100 Mbit/s, where smollm2-135m takes 43 s, and
# tiny, with two layers and 0.4 MB, would measure how fast processes wake up. A layer is
# 3.06 MiB; its smallest tensor that is worth sending 0.25 MiB.
SHAPE = {"vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 704}
MODELS = ("links", "tiny", "llama-20m", "smollm2-135m", "smollm2-360m")
BUCKETS, QUICK_BUCKETS = [0.25, 0.5, 1.0, 2.0, 25.0], [0.25, 25.0]
LOOKAHEADS, QUICK_LOOKAHEADS = [0, 1, 2, 4], [0, 1, 2]
TRACED, TRACED_STEPS = "tensor_zero3,engine3", 3
WITHOUT_OVERLAP = ("ddp", "tensor_zero1", "tensor_zero2", "tensor_zero3")
WITH_OVERLAP = ("engine0", "engine1", "engine2", "engine3")
DEFAULT_BUCKET, DEFAULT_LOOKAHEAD = 25.0, 1
# Gradients in flight at once: two layers. The engine's default, 50 MiB, is little more than one
# layer of smollm2-360m, but twice the gradients of so small a model: it would bound nothing.
IN_FLIGHT_MIB = 6.0

# What options are where they are not given, without --modes and with it; and those that only one of the two has.
SETTINGS = {"hosts": 2, "ranks_per_host": 1, "rates": [100.0, 1000.0, None], "model": "links", "steps": 8,
            "bucket_stage": "engine3", "buckets": BUCKETS, "lookaheads": LOOKAHEADS, "in_flight": IN_FLIGHT_MIB,
            "json": "out/links.json"}
COMPARISON = {"hosts": 2, "ranks_per_host": 2, "rates": [100.0, 1000.0], "model": "llama-20m", "steps": 3,
              "rounds": 3, "json": "out/links_modes.json"}
ENGINE_ONLY = ("bucket_stage", "buckets", "lookaheads", "in_flight", "quick", "trace")
COMPARISON_ONLY = ("hosts", "ranks_per_host", "rounds")


# ---- what is trained -----------------------------------------------------------------------------


def write_model(folder):
    """A model of SHAPE with random values, as transformers saves it."""
    hidden, mlp = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    shapes = {"model.embed_tokens.weight": (SHAPE["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(SHAPE["num_hidden_layers"]):
        part = f"model.layers.{layer}."
        shapes |= {f"{part}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{part}mlp.{name}_proj.weight": (mlp, hidden) for name in ("gate", "up")}
        shapes |= {f"{part}mlp.down_proj.weight": (hidden, mlp)}
        shapes |= {f"{part}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    header, values, source = {}, array.array("f"), random.Random(42)
    for name, shape in shapes.items():
        begin = 4 * len(values)
        if len(shape) == 1:  # of a norm
            values.extend([1.0] * shape[0])
        else:
            values.extend(source.random() * 0.07 - 0.035 for _ in range(shape[0] * shape[1]))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(values)]}
    folder.mkdir(exist_ok=True)
    config = {**SHAPE, "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())


def panels(options):
    """What is drawn: for each panel its points, a mode at a place of the horizontal axis."""
    def engine(stage, setting="", value=0, default=0):
        in_flight = f"{stage}:in_flight_mib={options.in_flight:g}"
        return in_flight if value == default else f"{in_flight}:{setting}={value:g}"

    drawn = {
        "bucket_mib": [{"x": mib, "mode": engine(options.bucket_stage, "bucket_mib", mib, DEFAULT_BUCKET)}
                       for mib in options.buckets],
        "lookahead": [{"x": units, "mode": engine("engine3", "lookahead", units, DEFAULT_LOOKAHEAD)}
                      for units in options.lookaheads],
        "stage": [{"x": x, "mode": engine(stage)} for x, stage in enumerate(WITH_OVERLAP)],
    }
    if not options.quick:
        drawn["stage"] += [{"x": x, "mode": mode} for x, mode in enumerate(WITHOUT_OVERLAP)]
    return drawn


def modes_of(drawn):
    """Every mode once, in the order of the panels."""
    return list(dict.fromkeys(point["mode"] for points in drawn.values() for point in points))


# ---- one run -------------------------------------------------------------------------------------


class Bench:
    """Runs the ladder on hosts with a network of a given speed."""

    def __init__(self, options, folder):
        self._options, self._folder, self._runs = options, folder, 0
        # Copies: all modes are to be trained by one program on one text, though one may be built and
        # the other written anew meanwhile.
        self._ladder = shutil.copy2(options.ladder, folder / "ladder")
        self._text = shutil.copy2(ROOT / "docs/decisions.md", folder / "text.md")
        self._words = ["--model", options.model]
        if options.model == "links":
            write_model(folder / "model")
            self._words = ["--weights", folder / "model"]

    def run(self, mbit, mode, steps, compute=False, trace=None):
        """Trains, writes a trace if `trace` names its file, and gives the ladder's figures and what each host sent, from start to end."""
        name = self._name(mbit, mode)
        report, limit = self._folder / f"{name}.json", limit_s(mbit)
        command = [self._ladder, *self._words, "--data", self._text, "--modes", mode,
                   "--steps", steps, "--seq-len", self._options.seq_len, "--batch", self._options.batch,
                   "--timeout", limit, "--json", report]
        if not compute:
            command.append("--no-compute-alone")
        if trace:
            command += ["--trace", trace]
        with self._network(mbit) as (stack, network):
            before = [network.wire_from(host) for host in network.hosts]
            count = self._options.hosts * self._options.ranks_per_host
            ranks = [stack.enter_context(contextlib.closing(self._start(name, network, rank, command)))
                     for rank in range(count)]
            succeed_together(ranks, limit)
            network.check_empty()
            wires = [network.wire_from(host).since(then) for host, then in zip(network.hosts, before)]
        return json.loads(report.read_text()), wires

    def link_rate(self, mbit):
        """Bytes of payload a second that a link carries while all hosts send; of the slowest link."""
        size = max(1 << 20, int(RATE_SECONDS * mbit * 1e6 / 8)) if mbit else 1 << 30
        name = self._name(mbit, "rate")
        with self._network(mbit) as (stack, network):
            programs = []
            for host, following in zip(network.hosts, network.hosts[1:] + network.hosts[:1]):
                command = host.command(sys.executable, ROOT / "tools/links/link_rate.py", host.address,
                                       following.address, size)
                log = self._folder / f"{name}.{host.name}.log"
                programs.append(stack.enter_context(contextlib.closing(
                    Program(f"{name}, {host.name}", command, log, os.environ))))
            succeed_together(programs, limit_s(mbit))
            return min(float(program.said()) for program in programs)

    def _name(self, mbit, what):
        self._runs += 1
        return f"{self._runs:03d}.{label(mbit)}.{what}".replace(" ", "").replace("/", "_")

    @contextlib.contextmanager
    def _network(self, mbit):
        """Hosts with links of this rate, and the stack on which they are: both end with the context."""
        with contextlib.ExitStack() as stack:
            # Like machines, hosts share no core, if there are enough.
            cores = len(os.sched_getaffinity(0)) // self._options.hosts
            network = Network(stack, self._options.hosts, max(1, min(cores, self._options.ranks_per_host)))
            for host in network.hosts if mbit else []:
                network.limit(host, mbit)
            yield stack, network

    def _start(self, name, network, rank, command):
        here = self._options.ranks_per_host
        host = network.hosts[rank // here]
        # Pictures of single runs are not wanted, so there is no Python to draw them.
        variables = dict(os.environ, OMP_NUM_THREADS="1", ZERO_PYTHON="false", TMPDIR=str(self._folder),
                         RANK=str(rank), WORLD_SIZE=str(self._options.hosts * here),
                         LOCAL_RANK=str(rank % here), LOCAL_WORLD_SIZE=str(here),
                         MASTER_ADDR=network.hosts[0].address,
                         MASTER_PORT=str(FIRST_PORT), GLOO_SOCKET_IFNAME="eth0")
        log = self._folder / f"{name}.rank{rank}.log"
        return Program(f"{name}, rank {rank}", host.command(*command), log, variables)


def limit_s(mbit):
    """How long a run may take: longer where links are slower than 100 Mbit/s."""
    return min(LONGEST_LIMIT_S, RUN_LIMIT_S * max(1, 100 / mbit)) if mbit else RUN_LIMIT_S


def steps_at(mbit, steps):
    """A link that is slow decides alone how long a step takes, and hardly varies."""
    return max(2, steps // 2) if mbit and mbit < SLOW_MBIT else steps


# ---- all runs ------------------------------------------------------------------------------------


def measure(bench, options, modes):
    """Trains every mode at every speed; gives the rows of the tables, and a step of computing alone."""
    rows = []
    document, _ = bench.run(None, "ddp", options.steps, compute=True)
    compute = document["compute_seconds"]
    print(f"nothing sent: {compute:.3f} s a step; now {len(modes)} modes for one step each", flush=True)
    base = {mode: bench.run(BASE_MBIT, mode, 1)[1] for mode in modes}
    for mbit in options.rates:
        for mode in modes:
            document, wires = bench.run(mbit, mode, steps_at(mbit, options.steps))
            rows.append(figures(mbit, document, wires, base[mode]))
            print(f"{label(mbit)}, {mode}: {rows[-1]['step_seconds']:.3f} s a step", flush=True)
    return rows, {"compute_seconds": compute, "parameters": document["parameters"],
                  "parameter_bytes": document["parameter_bytes"]}


def report(options, drawn, rows, facts):
    """Prints tables, writes figures, draws; gives what is wrong with the figures."""
    for mbit in options.rates:
        print(f"\n{label(mbit)}, {steps_at(mbit, options.steps)} steps\n")
        print(table([row for row in rows if row["mbit_per_s"] == mbit], facts["compute_seconds"]))
    write_figures(options, {**facts, "world_size": options.hosts * options.ranks_per_host, "rates": options.rates,
                            "bucket_stage": options.bucket_stage, "in_flight_mib": options.in_flight,
                            "panels": drawn, "runs": rows})
    return [*wrong_rows(rows), *wrong_weights(rows)]


def report_comparison(options, document):
    """The same for modes beside each other."""
    document["summary"] = compare_modes.summarize(document)
    print(f"\n{document['parameters']:,} parameters, {options.hosts} hosts of {options.ranks_per_host} ranks, "
          f"medians of {options.rounds} rounds\n\n{compare_modes.tables(document)}")
    write_figures(options, {**document, "steps": options.steps})
    # Modes add in different orders, or round; but each does the same at every rate.
    return [*wrong_rows(document["runs"]), *wrong_weights(document["runs"], lambda row: f"with {row['mode']}")]


def wrong_rows(rows):
    return [wrong for row in rows for wrong in wrong_bytes(row) + wrong_speed(row)]


def write_figures(options, found):
    """Writes what was found, with how it was measured, and draws it."""
    document = {"model": options.model, "batch_size": options.batch, "sequence_length": options.seq_len, **found,
                "command": ["./run", "links", *sys.argv[1:]]}
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)
    print(f"\nfigures: {path}", flush=True)
    drawing = subprocess.run([sys.executable, ROOT / "tools/plots/plot_links.py", path], check=False)
    if drawing.returncode != 0:
        print("No picture was made.")


def write_traces(bench, options):
    bench.run(options.rates[0], TRACED, TRACED_STEPS, trace=Path(options.trace).resolve())
    print(f"traces of the last step at {label(options.rates[0])}: {options.trace}, with .MODE.rankR before .json")


# ---- options -------------------------------------------------------------------------------------


def positive(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def several(one):
    """Reads a list of what `one` reads, each once."""
    def read(text):
        return list(dict.fromkeys(one(word) for word in text.split(",")))
    read.__name__ = "list"
    return read


def rate(word):
    """Mbit/s of "100", "100mbit" or "0.1gbit"; None: unlimited."""
    if word == "unlimited":
        return None
    found = re.fullmatch(r"(\d+\.?\d*)(mbit|gbit)?", word.lower())
    mbit = float(found[1]) * (1000 if found[2] == "gbit" else 1) if found else 0
    if not 1 <= mbit <= 100_000:
        raise argparse.ArgumentTypeError(
            f"'{word}': a link has 1 to 100000 Mbit/s, as 100mbit, 1gbit or 100, or is unlimited")
    return mbit


def mode_name(word):
    if not word:
        raise argparse.ArgumentTypeError("a name of a mode is empty; as in engine3,hsdp3")
    return word


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(prog="./run links", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    add = parser.add_argument
    add("--rates", type=several(rate), help="of the links (100mbit,1gbit,unlimited; with --modes 100mbit,1gbit)")
    add("--model", choices=MODELS,
        help="links has 6.5 million parameters, llama-20m 19.4 (links; with --modes llama-20m)")
    add("--seq-len", type=positive, default=256, help="tokens of a sample (256)")
    add("--batch", type=positive, default=1, help="samples a rank and step (1)")
    add("--steps", type=positive, help=f"of a run, the first not timed; without --modes half as many below "
        f"{SLOW_MBIT} Mbit/s (8; with --modes 3)")
    add("--json", type=prepare.name, help="where the figures go; pictures go beside them "
        f"({SETTINGS['json']}; with --modes {COMPARISON['json']})")
    add("--keep-logs", metavar="FOLDER", type=prepare.name, help="keep what every run said and measured here")
    add("--ladder", default=ROOT / "build/release/bin/ladder", type=Path, help=argparse.SUPPRESS)
    group = parser.add_argument_group("modes beside each other")
    group.add_argument("--modes", type=several(mode_name), help="of the ladder, as in engine3,hsdp3")
    group.add_argument("--hosts", type=positive, help="2 or more (2)")
    group.add_argument("--ranks-per-host", type=positive, metavar="N", help="(2)")
    group.add_argument("--rounds", type=positive, help="of all modes at all rates (3)")
    group = parser.add_argument_group("settings of the engine")
    group.add_argument("--bucket-stage", choices=WITH_OVERLAP, help="whose buckets vary (engine3)")
    group.add_argument("--buckets", type=several(float), help="MiB (0.25,0.5,1,2,25)")
    group.add_argument("--lookaheads", type=several(int), help="units (0,1,2,4)")
    group.add_argument("--in-flight", type=float,
                       help=f"MiB of gradients that an engine sends at once ({IN_FLIGHT_MIB:g})")
    group.add_argument("--quick", action="store_true", default=None, help="fewer points, and none without overlap")
    group.add_argument("--trace", metavar="FILE.json", type=prepare.name,
                       help=f"trace {TRACED} at the first of --rates instead")
    options = parser.parse_args(words)
    complete(parser, options)
    return options


def complete(parser, options):
    """Sets what was not given; refuses what does not go together."""
    defaults, only_other = (COMPARISON, ENGINE_ONLY) if options.modes else (SETTINGS, COMPARISON_ONLY)
    for name in only_other:
        if getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} goes only {'without' if options.modes else 'with'} --modes")
    if options.quick:
        defaults = defaults | {"buckets": QUICK_BUCKETS, "lookaheads": QUICK_LOOKAHEADS}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    least = 2 if options.modes else 3
    if options.steps < least:
        parser.error(f"--steps: at least {least} are needed, the first of a run does not count")
    if options.hosts < 2:
        parser.error("--hosts: at least 2 are needed, or there is no link")
    if (ranks := options.hosts * options.ranks_per_host) > MOST_RANKS:
        parser.error(f"--hosts {options.hosts} of --ranks-per-host {options.ranks_per_host} are {ranks} ranks; "
                     f"at most {MOST_RANKS} are possible")
    if not options.ladder.is_file():
        parser.error(f"{options.ladder} is not there: ./run build ladder builds it")
    options.ladder = options.ladder.resolve()


# ---- the program ---------------------------------------------------------------------------------


def main():
    options = parse_arguments()
    # As after a failure, everything that was started is ended, hosts and links too.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(f"ended by {signal.Signals(number).name}"))
    try:
        check_machine("tc")
        with contextlib.ExitStack() as stack:
            folder = options.keep_logs or stack.enter_context(tempfile.TemporaryDirectory(prefix="zero-links-"))
            folder = Path(folder).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            bench = Bench(options, folder)
            if options.modes:
                wrong = report_comparison(options, compare_modes.measure(bench, options))
            elif options.trace:
                wrong = write_traces(bench, options) or []
            else:
                drawn = panels(options)
                wrong = report(options, drawn, *measure(bench, options, modes_of(drawn)))
    except Skip as reason:
        print(f"NOT MEASURED: {reason}", file=sys.stderr)
        return SKIPPED
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended by ctrl-C; hosts and links are gone", file=sys.stderr)
        return INTERRUPTED
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
