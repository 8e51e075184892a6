#!/usr/bin/env python3
"""The first ten minutes on a GPU: ./run gpu, or python3 gpu.py in a folder that tools/gpu/pack made.

Runs the steps below in their order. Each has a limit of its own and fails alone. After each step all rows so far go to
gpu.json and gpu.txt in the folder of --out, so that what ends the run loses none. The exit code is 0 if all passed (a
step may be skipped, with its reason), 77 where there is no GPU, else 1.
"""

import _pydecimal
import argparse
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing
from collections import Counter
from pathlib import Path
from typing import Callable, NamedTuple

HERE = Path(__file__).resolve().parent
SKIPPED = 77
KEPT = 3000  # characters of what a step said that did not pass
NO_GPU = re.compile(r"there is no usable GPU \(([^.)]*)")
# NCCL may then give one GPU to several ranks. Their kernels wait for each other, so all must find room on it.
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
SHARED = re.compile(r"ranks \d+ and \d+ would both use ")
NOT_RUN = {"result": "not run yet", "figures": {}}


class Step(NamedTuple):
    """A command, and how the figures that it must give are found in what it said."""

    name: str
    command: list
    limit: float  # seconds
    figures: Callable[[str], dict]
    variables: dict = {}  # of its environment, if they are not set


def tests(said):
    return {"tests": int(re.search(r"\[  PASSED  \] (\d+) test", said)[1])}


def last_json(said):
    """The last line with an object; libraries may say something after it."""
    return json.loads(re.findall(r"^\{.*\}$", said, re.MULTILINE)[-1])


def texts():
    """Python's own, half a megabyte."""
    return [Path(module.__file__) for module in (_pydecimal, argparse, inspect, typing)]


def all_steps(programs, out):
    """The steps with the programs in one folder; files of their own go to another."""
    def program(name, *words):
        return [programs / name, *words]

    def ladder(name, *words, ranks=1, model="tiny", data=(__file__,)):
        return program("ladder_cuda", "--device", "cuda", "--nproc", str(ranks), "--model", model, "--data", *data,
                       "--no-compute-alone", "--json", out / f"{name}.json", *words)

    def modes_of(name):
        return json.loads((out / f"{name}.json").read_text())["modes"]

    def modes(name):
        return lambda _: {"modes": len(modes_of(name))}

    def shares(name, *of):
        """What a rank holds of the model states under these modes, beside the first one."""
        def figures(_):
            kinds = ("parameter_mib", "gradient_mib", "optimizer_mib")
            held = {mode["mode"]: sum(mode["ranks"][0][kind] for kind in kinds) for mode in modes_of(name)}
            first = next(iter(held))
            return {"modes": len(held), f"{first} MiB": held[first],
                    **{f"of it {mode}": held[mode] / held[first] for mode in of}}
        return figures

    def events(_):
        of = Counter(event.get("cat") for event in
                     json.loads((out / "trace.engine3.rank0.json").read_text())["traceEvents"])
        return {"operations": of["cpu_op"], "kernels": of["kernel"], "copies": of["gpu_memcpy"]}

    def suite(pattern):
        return program("cuda_test", "--gtest_brief=1", f"--gtest_filter={pattern}")

    def torch_step(mode):
        return [sys.executable, HERE / "torch_step.py", "--mode", mode]

    every = "ddp,zero1,zero2,zero3,tensor_zero3,engine0,engine1,engine2,engine3"
    to_host = "engine2:offload=host"
    steps = [
        Step("devices and storage", suite("Gpu/OneDevice.*"), 20, tests),
        Step("engine and streams, one rank over NCCL", suite("Gpu/EngineOn.*/N1:Gpu/StreamsOn.*/N1"), 40, tests),
        Step("facts of NCCL", [sys.executable, HERE / "nccl_facts.py"], 20, last_json),
        Step("ladder, tiny", ladder("tiny", "--modes", every), 25, modes("tiny")),
        Step("ladder, bf16", ladder("bf16", "--modes", every, "--dtype", "bf16"), 25, modes("bf16")),
        Step("ladder, trace", ladder("traced", "--modes", "engine3", "--trace", out / "trace.json"), 20, events),
        Step("ladder, offload to the host", ladder("host", "--modes", f"ddp,{to_host}", "--activation-checkpointing",
                                                   "--activations-on-host"), 20, shares("host", to_host)),
        Step("SmolLM2-360M, plain loop", program("device_step", "--mode", "plain"), 26, last_json)]
    steps += [Step(f"SmolLM2-360M, engine, stage {stage}", program("device_step", "--mode", f"engine{stage}"), 26,
                   last_json) for stage in range(4)]
    steps += [Step(f"SmolLM2-360M, PyTorch, {name}", torch_step(mode), 32, last_json)
              for mode, name in (("plain", "plain loop"), ("keep", "FSDP2, no reshard"), ("reshard", "FSDP2, reshard"))]
    large = ladder("large", "--modes", "ddp,engine3", "--dtype", "bf16", "--seq-len", "256", "--steps", "2",
                   ranks=2, model="smollm2-360m")
    # A stage sends 8 MiB at a time, more than NCCL's buffer has (NCCL_BUFFSIZE, 4 MiB).
    pipeline = ladder("pipeline", "--modes", "ddp,zero2", "--pp", "2", "--micro-batches", "4", "--batch", "16",
                      "--seq-len", "2048", "--steps", "1", ranks=4, data=texts())
    several = [
        Step("two ranks and three", suite("Gpu/EngineOn.*/N2:Gpu/*On.*/N3:GpuFault.*"), 64, tests),
        Step("ladder, tiny, two ranks", ladder("two", "--modes", every, ranks=2), 40,
             shares("two", "zero1", "zero2", "zero3")),
        Step("ladder, SmolLM2-360M, two ranks", large, 60, shares("large", "engine3")),
        Step("ladder, pipeline of two, four ranks", pipeline, 20, shares("pipeline", "zero2")),
        Step("ladder, layers in two parts, four ranks", ladder("tensor", "--modes", "ddp,engine3", "--tp", "2",
                                                               ranks=4), 20, shares("tensor", "engine3"))]
    return steps + [step._replace(variables=SHARING) for step in several]


def environment(pack):
    """That of the steps. Programs of a pack find LibTorch in this Python's torch, which must be of the same version."""
    variables = dict(os.environ, PYTHONUNBUFFERED="1", KINETO_LOG_LEVEL="9")
    if not pack.is_file():
        return variables
    packed, found = pack.read_text().strip(), importlib.util.find_spec("torch")
    version = importlib.metadata.version("torch") if found else "none"
    if version.split("+")[0].rpartition(".")[0] != packed.rpartition(".")[0]:
        sys.exit(f"gpu.py: these programs are for torch {packed}, and {sys.executable} has {version}: take the Python "
                 "of that one, or pack for this one (tools/gpu/pack PYTHON)")
    library = Path(found.submodule_search_locations[0]) / "lib"
    variables["LD_LIBRARY_PATH"] = f"{library}:{variables.get('LD_LIBRARY_PATH', '')}"
    return variables


def judge(step, code, said):
    """The result of a step that ended with `code`, and its figures."""
    last = said.strip().rpartition("\n")[2][:200]
    if code != 0 and (no_gpu := NO_GPU.search(said)):
        return "no GPU: " + no_gpu[1], {}
    if code != 0 and SHARED.search(said):
        return "skipped: ranks would share a GPU, which takes NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1", {}
    if code == SKIPPED:
        reason = re.search(r": Skipped\n(.+)", said)
        return "skipped: " + (reason[1] if reason else last), {}
    if code != 0:
        return f"failed: exit code {code}: {last}", {}
    try:
        figures = step.figures(said)
        bad = [name for name, value in figures.items() if not isinstance(value, (bool, str))
               and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0)]
    except (ArithmeticError, LookupError, OSError, StopIteration, TypeError, ValueError):
        return f"failed: no figures: {last}", {}
    if bad or not figures:
        return f"failed: bad figures: {json.dumps(figures)}", {}
    return "passed", figures


def run(step, variables):
    """The row of a step. What it started ends with it."""
    started, code = time.monotonic(), None
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.Popen([str(word) for word in step.command], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, env={**step.variables, **variables},
                                       start_new_session=True)
        except OSError as error:
            return {"step": step.name, "result": f"failed: {error}", "figures": {}}
        try:
            code = process.wait(step.limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        said = out.read()
    result, figures = (f"failed: over its limit of {step.limit:g} s", {}) if code is None else judge(step, code, said)
    row = {"step": step.name, "result": result, "figures": figures, "seconds": round(time.monotonic() - started, 1)}
    return row if result == "passed" else {**row, "said": said[-KEPT:]}


def text_of(name, value):
    if isinstance(value, bool):
        return f"{name}: {'yes' if value else 'no'}"
    if isinstance(value, str):
        return f"{name} {value}"
    return f"{value:{',.0f' if value >= 100 else '.4g'}} {name}"


def table(steps, rows):
    """A table in Markdown with a row for each step, also one that has not run."""
    found = {row["step"]: row for row in rows}
    lines = ["| step | result | figures |", "|---|---|---|"]
    for step in steps:
        row = found.get(step.name, NOT_RUN)
        figures = ", ".join(text_of(*item) for item in row["figures"].items())
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (step.name, row["result"], figures)) + " |")
    return "\n".join(lines) + "\n"


def run_all(steps, variables, out):
    """Runs the steps and writes what is known after each; the rows."""
    out.mkdir(parents=True, exist_ok=True)
    about = subprocess.run("nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo none", shell=True,
                           capture_output=True, text=True, check=False).stdout.strip()
    rows = []
    for step in steps:
        print(f"{step.name} (at most {step.limit:g} s) …", flush=True)
        rows.append(run(step, variables))
        print(f"  {rows[-1]['result']} {rows[-1]['figures'] or ''}", flush=True)
        (out / "gpu.json").write_text(json.dumps({"GPUs": about, "rows": rows}, indent=1) + "\n")
        (out / "gpu.txt").write_text(f"GPUs and driver: {about}\n\n{table(steps, rows)}")
    return rows


def exit_code(rows):
    if all(row["result"].startswith("no GPU") for row in rows):
        return SKIPPED
    return int(any(row["result"].startswith(("failed", "no GPU")) for row in rows))


def main():
    parser = argparse.ArgumentParser(prog="./run gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder for the results (out/gpu)")
    parser.add_argument("--only", default="", help="run the steps with this text in their name")
    parser.add_argument("--table", metavar="FILE", help="print the table of a gpu.json (-: of none), and run nothing")
    parser.add_argument("--programs", type=Path, default=HERE / "bin", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = all_steps(options.programs.resolve(), options.out.resolve())
    if options.table:
        rows = [] if options.table == "-" else json.loads(Path(options.table).read_text())["rows"]
        print(table(steps, rows), end="")
        return 0
    steps = [step for step in steps if options.only in step.name]
    if not steps:
        parser.error(f"--only {options.only}: no step has this in its name; ./run gpu --table - lists them")
    rows = run_all(steps, environment(HERE / "torch"), options.out)
    print(f"\n{(options.out / 'gpu.txt').read_text()}")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
