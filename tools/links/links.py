"""What the engine's settings do when links are slow: bucket size, lookahead and stage against step time.

    ./run links [--rates 100,1000,unlimited] [--steps 8] [--quick]
    ./run links --rates 1000 --trace out/trace.json

Two ranks, each on a host of its own (Linux namespaces), joined by a switch. What leaves a host
passes a token bucket, so that a link has as many Mbit/s as --rates says in either direction.
Every mode is trained at every speed, and for each there is printed

    step       seconds of a step: mean over ranks of the median, the first step left out
    exposed    of it, seconds in which nothing was computed because something had to arrive first
    compute    a step without any communication, both ranks at once
    link       what the link needs for the bytes of a step and their headers; no overlap gets below
               the larger of compute and link
    peak       the allocator's peak within a step, of the larger rank
    counted    bytes that a rank sends in a step, by the ladder's own counters, mean over ranks
    interface  bytes that arrived at the switch for each step, frame headers included
    headers    66 bytes for each frame. Full frames have 4.6 %; acknowledgements of what came the other
               way are frames too and about as much again. Where the token bucket takes pieces of
               up to 64 KiB whole (from some 250 Mbit/s), and where there is none, a piece is one
               frame with one header, as where a network card cuts the frames: a few tenths of a %.
    rest       what remains: Gloo's own few bytes a message and segments that TCP sent once more

What is not headers must be what was counted; the command fails where it is not. The first step and
what comes before and after training cancel out: they are in a run of one step as well, whose bytes
are taken off.

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
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "hosts"), str(ROOT / "tools" / "data")]

import prepare  # noqa: E402
from hosts import Failure, Network, Program, Skip, check_machine, succeed_together  # noqa: E402
from links_report import (  # noqa: E402
    figures, label, table, wrong_bytes, wrong_speed, wrong_weights,
)

SKIPPED = 77
RANKS = 2
FIRST_PORT = 29500
RUN_LIMIT_S = 900
# Runs of one step, of which only the bytes are of interest. With links that have no limit TCP often
# sends segments twice, as a core that computes acknowledges late, and the bytes would say less.
BASE_MBIT = 1000
SLOW_MBIT = 500

# Bytes over seconds of computing depend on the tokens of a step and not on the size of a model: a
# parameter costs 6 flops a token, and 4 to 6 bytes a step. With 256 tokens a core of today needs
# about as long for the one as 1 Gbit/s for the other. The size is then a question of patience:
# 6.5 million parameters are 26 MB and 2 s a step at 100 Mbit/s, where smollm2-135m takes 43 s, and
# tiny, with two layers and 0.4 MB, would measure how fast processes wake up. A layer is
# 3.06 MiB; its smallest tensor that is worth sending 0.25 MiB.
SHAPE = {"vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 704}
MODELS = ("links", "tiny", "smollm2-135m", "smollm2-360m")
BUCKETS, QUICK_BUCKETS = (0.25, 0.5, 1.0, 2.0, 25.0), (0.25, 25.0)
LOOKAHEADS, QUICK_LOOKAHEADS = (0, 1, 2, 4), (0, 1, 2)
TRACED, TRACED_STEPS = "tensor_zero3,engine3", 3
WITHOUT_OVERLAP = ("ddp", "tensor_zero1", "tensor_zero2", "tensor_zero3")
WITH_OVERLAP = ("engine0", "engine1", "engine2", "engine3")
DEFAULT_BUCKET, DEFAULT_LOOKAHEAD = 25.0, 1
# Gradients in flight at once: two layers. The engine's default, 50 MiB, is little more than one
# layer of smollm2-360m, but twice the gradients of so small a model: it would bound nothing.
IN_FLIGHT_MIB = 6.0


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
    """Runs the ladder on two hosts with a network of a given speed."""

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
        self._runs += 1
        name = f"{self._runs:03d}.{label(mbit)}.{mode}".replace(" ", "").replace("/", "_")
        report = self._folder / f"{name}.json"
        command = [self._ladder, *self._words, "--data", self._text, "--modes", mode,
                   "--steps", steps, "--seq-len", self._options.seq_len, "--batch", self._options.batch,
                   "--timeout", RUN_LIMIT_S, "--json", report]
        if not compute:
            command.append("--no-compute-alone")
        if trace:
            command += ["--trace", trace]
        with contextlib.ExitStack() as stack:
            network = Network(stack, RANKS)
            for host in network.hosts if mbit else []:
                network.limit(host, mbit)
            before = [network.wire_from(host) for host in network.hosts]
            ranks = [stack.enter_context(contextlib.closing(self._start(name, network, rank, command)))
                     for rank in range(RANKS)]
            succeed_together(ranks, RUN_LIMIT_S)
            network.check_empty()
            wires = [network.wire_from(host).since(then) for host, then in zip(network.hosts, before)]
        return json.loads(report.read_text()), wires

    def _start(self, name, network, rank, command):
        host = network.hosts[rank]
        # Pictures of single runs are not wanted, so there is no Python to draw them.
        variables = dict(os.environ, OMP_NUM_THREADS="1", ZERO_PYTHON="false", TMPDIR=str(self._folder),
                         RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR=network.hosts[0].address,
                         MASTER_PORT=str(FIRST_PORT), GLOO_SOCKET_IFNAME="eth0")
        log = self._folder / f"{name}.rank{rank}.log"
        return Program(f"{name}, rank {rank}", host.command(*command), log, variables)


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
    document = {"model": options.model, **facts, "world_size": RANKS, "batch_size": options.batch,
                "sequence_length": options.seq_len, "rates": options.rates, "bucket_stage": options.bucket_stage,
                "in_flight_mib": options.in_flight, "panels": drawn, "runs": rows,
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
    return [*(wrong for row in rows for wrong in wrong_bytes(row) + wrong_speed(row)), *wrong_weights(rows)]


def write_traces(bench, options):
    bench.run(options.rates[0], TRACED, TRACED_STEPS, trace=Path(options.trace).resolve())
    print(f"traces of the last step at {label(options.rates[0])}: {options.trace}, with .MODE.rankR before .json")


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(prog="./run links", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)

    def positive(text):
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"{number} is less than 1")
        return number

    def several(one):
        def read(text):
            return list(dict.fromkeys(one(word) for word in text.split(",")))
        read.__name__ = "list"
        return read

    def rate(word):
        mbit = None if word == "unlimited" else float(word)
        if mbit is not None and not 1 <= mbit <= 100_000:
            raise argparse.ArgumentTypeError(f"{word}: a link has 1 to 100000 Mbit/s, or is unlimited")
        return mbit

    parser.add_argument("--rates", type=several(rate), default=[100.0, 1000.0, None],
                        help="Mbit/s of the links (100,1000,unlimited)")
    parser.add_argument("--model", choices=MODELS, default="links", help="links has 6.5 million parameters (links)")
    parser.add_argument("--seq-len", type=positive, default=256, help="tokens of a sample (256)")
    parser.add_argument("--batch", type=positive, default=1, help="samples a rank and step (1)")
    parser.add_argument("--steps", type=positive, default=8,
                        help=f"of a run; half as many below {SLOW_MBIT} Mbit/s (8)")
    parser.add_argument("--bucket-stage", choices=WITH_OVERLAP, default="engine3", help="whose buckets vary (engine3)")
    parser.add_argument("--buckets", type=several(float), help="MiB (0.25,0.5,1,2,25)")
    parser.add_argument("--lookaheads", type=several(int), help="units (0,1,2,4)")
    parser.add_argument("--in-flight", type=float, default=IN_FLIGHT_MIB,
                        help=f"MiB of gradients that an engine sends at once ({IN_FLIGHT_MIB:g})")
    parser.add_argument("--quick", action="store_true", help="fewer points, and none without overlap")
    parser.add_argument("--json", type=prepare.name, default="out/links.json",
                        help="where the figures go; pictures go beside them")
    parser.add_argument("--trace", metavar="FILE.json", type=prepare.name,
                        help=f"trace {TRACED} at the first of --rates instead")
    parser.add_argument("--keep-logs", metavar="FOLDER", type=prepare.name,
                        help="keep what every run said and measured here")
    parser.add_argument("--ladder", default=ROOT / "build/release/bin/ladder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.buckets = options.buckets or list(QUICK_BUCKETS if options.quick else BUCKETS)
    options.lookaheads = options.lookaheads or list(QUICK_LOOKAHEADS if options.quick else LOOKAHEADS)
    if options.steps < 3:
        parser.error("--steps: at least 3 are needed, the first of a run does not count")
    if not options.ladder.is_file():
        parser.error(f"{options.ladder} is not there: ./run build ladder builds it")
    options.ladder = options.ladder.resolve()
    return options


def main():
    options = parse_arguments()
    # As after a failure, everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    drawn = panels(options)
    try:
        check_machine("tc")
        with contextlib.ExitStack() as stack:
            folder = options.keep_logs or stack.enter_context(tempfile.TemporaryDirectory(prefix="zero-links-"))
            folder = Path(folder).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            bench = Bench(options, folder)
            if options.trace:
                write_traces(bench, options)
                return 0
            rows, facts = measure(bench, options, modes_of(drawn))
    except Skip as reason:
        print(f"NOT MEASURED: {reason}", file=sys.stderr)
        return SKIPPED
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    wrong = report(options, drawn, rows, facts)
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
