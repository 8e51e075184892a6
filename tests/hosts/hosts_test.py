"""The ladder under torchrun, started twice on this machine, as on two hosts of two ranks.

    hosts_test.py LADDER     exit code 0: passed, 1: failed, 77: skipped

The variable ZERO_PYTHON names a Python with torchrun.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FAILED, SKIPPED = 1, 77
HOSTS, RANKS, STEPS = 2, 4, 4
LIMIT_S = 120


def python_with_torchrun():
    python = os.environ.get("ZERO_PYTHON", "")
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    found = shutil.which(python) and subprocess.run([python, "-c", look], timeout=LIMIT_S, check=False)
    if not found or found.returncode != 0:
        print(f"NOT TESTED: ZERO_PYTHON='{python}' is no Python with torchrun")
        sys.exit(SKIPPED)
    return python


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ladder_command(ladder, report, modes):
    """Trains the tiny model on this file's own text."""
    return [ladder, "--model", "tiny", "--seq-len", "16", "--no-compute-alone", "--timeout", "30",
            "--data", str(Path(__file__).resolve()), "--modes", modes, "--steps", str(STEPS), "--json", str(report)]


def run_together(commands):
    environment = dict(os.environ, OMP_NUM_THREADS="1", ZERO_PYTHON="false")
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env=environment, start_new_session=True) for command in commands]
    try:
        said = [program.communicate(timeout=LIMIT_S)[0] for program in programs]
    finally:
        for program in programs:
            if program.poll() is None:
                os.killpg(program.pid, 9)
    if any(program.returncode for program in programs):
        sys.exit("FAILED: " + "\n----\n".join(said))


def digests(report):
    """Of the final weights, by mode without its options; the same on all ranks."""
    found = {}
    for mode in report["modes"]:
        of_ranks = {rank["digest"] for rank in mode["ranks"]}
        if len(mode["ranks"]) != RANKS or len(of_ranks) != 1:
            sys.exit(f"FAILED: {mode['mode']}: {RANKS} ranks with one digest are expected, not {of_ranks}")
        found[mode["mode"].split(":")[0]] = of_ranks.pop()
    return found


def check_bytes(report):
    """What left each host: of hsdp3 an all-reduce of each shard, and no parameters."""
    weights = report["parameter_bytes"]
    for mode in report["modes"]:
        for host in range(HOSTS):
            here = RANKS // HOSTS
            sent = sum(rank["sent_between_hosts_bytes"] for rank in mode["ranks"][host * here:][:here])
            # Directly: S (R-1)/R of each gather and reduction. Stage 3 gathers the root only once.
            least, most = {"hsdp3": (1, 1), "zero3": (2, 3.1)}[mode["mode"].split(":")[0]]
            if not least * weights <= sent <= 1.05 * most * weights + 4096:
                sys.exit(f"FAILED: {mode['mode']}: {sent} bytes left host {host}, not {least} to {most} "
                         f"times {weights}")


def main():
    ladder = str(Path(sys.argv[1]).resolve())
    python, port = python_with_torchrun(), str(free_port())
    with tempfile.TemporaryDirectory(prefix="zero-hosts-") as folder:
        several, one = Path(folder) / "several.json", Path(folder) / "one.json"
        agent = [python, "-m", "torch.distributed.run", "--nnodes", str(HOSTS), "--nproc-per-node", str(RANKS // HOSTS),
                 "--master-addr", "127.0.0.1", "--master-port", port, "--no-python", "--node-rank"]
        modes = "zero3,hsdp3:shard_size="
        run_together([[*agent, str(host), *ladder_command(ladder, several, modes + "host")] for host in range(HOSTS)])
        run_together([[*ladder_command(ladder, one, modes + "2"), "--nproc", str(RANKS)]])
        report, alone = json.loads(several.read_text()), json.loads(one.read_text())
    check_bytes(report)
    if digests(report) != digests(alone):
        sys.exit(f"FAILED: the weights are {digests(report)}, and {digests(alone)} on one host")
    if any(rank["sent_between_hosts_bytes"] for mode in alone["modes"] for rank in mode["ranks"]):
        sys.exit("FAILED: one host has sent to another")
    print("passed")


if __name__ == "__main__":
    main()
