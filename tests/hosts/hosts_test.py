"""The ladder on several hosts, as torchrun and mpirun start it there.

    hosts_test.py --ladder PATH NAME     one test; exit code 0: passed, 1: failed, 77: skipped
    hosts_test.py --list                 the names

Needs root, Linux's namespaces and iproute2. The variable ZERO_PYTHON names a Python with torchrun.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts import LIMIT_S, Failure, Network, Program, Skip, check_machine

FAILED, SKIPPED = 1, 77
RANKS = 4
PORT = 29500
MODES, STEPS = ("ddp", "zero3", "engine3"), 4
# Enough for what is sent to be more than what launchers and stores say to each other.
GROUP_STEPS = 30
# How long ranks wait for each other when a link is cut, and how soon after that they must end.
CUT_TIMEOUT_S, GRACE_S = 5, 5
# The same when torchrun starts ranks again. After a cut TCP tries again at about 6, 13 and 25 s, so that
# ranks that notice it between 16 and 25 s wait at most 9 s for those behind the link, and begin seconds
# apart on a busy machine.
RESTART_TIMEOUT_S = 16
# Long enough to be cut, or killed, before the end; progress is shown ten times on the way.
CUT_STEPS, RESTARTED_STEPS, CHECKPOINT_EVERY = 1000, 150, 10


class Scene:
    """What a test works with; all that it starts ends with `stack`."""

    def __init__(self, stack, ladder):
        self._stack, self._ladder = stack, ladder
        self.programs = []
        # Hosts have the files of this machine, as on machines that mount the same ones.
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zero-hosts-")))

    def network(self, hosts):
        return Network(self._stack, hosts)

    def start(self, name, command, **variables):
        environment = dict(os.environ, OMP_NUM_THREADS="1", ZERO_PYTHON="false",
                           TMPDIR=str(self.folder), **variables)
        program = Program(name, command, self.folder / f"{name}.log", environment)
        self.programs.append(program)
        return self._stack.enter_context(contextlib.closing(program))

    def ladder(self, report, modes, steps, *more, timeout=30):
        """Words that train the tiny model on this file's own text. Figures go to `report`."""
        return [self._ladder, "--model", "tiny", "--seq-len", 16, "--no-compute-alone",
                "--data", Path(__file__).resolve(), "--timeout", timeout,
                "--modes", ",".join(modes), "--steps", steps, "--json", self.folder / report, *more]

    def figures(self, report):
        return json.loads((self.folder / report).read_text())

    def digest(self, report, modes):
        """The digest of the final weights, which must be the same on all ranks and in all modes."""
        found = {f"{mode['mode']}, rank {rank['rank']}": rank["digest"]
                 for mode in self.figures(report)["modes"] if mode["mode"] in modes for rank in mode["ranks"]}
        expected = [f"{mode}, rank {rank}" for mode in modes for rank in range(RANKS)]
        if list(found) != expected or len(set(found.values())) != 1:
            raise Failure(f"{report}: one digest is expected for all of {expected}, not {found}")
        return found[expected[0]]

    def check_against_one_host(self, report, modes, steps, *rounded):
        """Trains once more, all ranks on one host and without a launcher: to the same weights, which all
        `modes` have; each of `rounded` has others."""
        command = self.ladder("one_host.json", [*modes, *rounded], steps, "--nproc", RANKS)
        self.start("one host", command).succeed()
        for alike in [modes, *([mode] for mode in rounded)]:
            several, one = self.digest(report, alike), self.digest("one_host.json", alike)
            if several != one:
                raise Failure(f"{alike}: the digest of the final weights is {several}, and {one} on one host")

    def check_wire(self, network, report):
        """Every host has sent a copy of the weights a step at least, or they went another way."""
        figures = self.figures(report)
        least = figures["parameter_bytes"] * figures["steps"] * len(figures["modes"])
        for host in network.hosts:
            sent = network.bytes_from(host)
            print(f"{host.name} sent {sent / 2**20:.1f} MiB, at least {least / 2**20:.1f} expected")
            if sent < least:
                raise Failure(f"{host.name} sent {sent} bytes by network, which cannot be all")


# ---- torchrun ------------------------------------------------------------------------------------


def python_with_torchrun():
    python = os.environ.get("ZERO_PYTHON", "")
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if not shutil.which(python) or subprocess.run([python, "-c", look], timeout=LIMIT_S,
                                                  check=False).returncode != 0:
        raise Skip(f"ZERO_PYTHON='{python}' is no Python with torchrun")
    return python


def start_torchrun(scene, network, command, *options, **variables):
    """An agent on every host, each with as many ranks as make RANKS in all."""
    hosts, python = network.hosts, python_with_torchrun()
    return [
        scene.start(f"torchrun on {host.name}", host.command(
            python, "-m", "torch.distributed.run", "--nnodes", len(hosts), "--node-rank", number,
            "--nproc-per-node", RANKS // len(hosts), "--master-addr", hosts[0].address,
            "--master-port", PORT, *options, "--no-python", *command), GLOO_SOCKET_IFNAME="eth0",
            **variables)
        for number, host in enumerate(hosts)
    ]


def train_on(hosts):
    """Under torchrun, with ranks on so many hosts."""
    def test(scene):
        network = scene.network(hosts)
        agents = start_torchrun(scene, network, scene.ladder("several.json", MODES, STEPS))
        for agent in agents:
            agent.succeed()
        network.check_empty()
        scene.check_wire(network, "several.json")
        scene.check_against_one_host("several.json", MODES, STEPS)
    return test


def check_bytes_of_hosts(network, figures, copies):
    """Each of two hosts of two ranks has sent so many copies of the weights in each step, by account of
    its ranks and of the switch, and next to nothing to itself by TCP. `copies`: of modes that come first."""
    weights = figures["parameter_bytes"]
    for number, host in enumerate(network.hosts):
        counted = 0
        for mode, of_hosts in itertools.zip_longest(figures["modes"], copies):
            by_ranks = sum(rank["sent_between_hosts_bytes"] for rank in mode["ranks"][2 * number:][:2])
            # Host 0 sends the first values, too.
            counted += by_ranks * GROUP_STEPS + (weights if number == 0 else 0)
            if of_hosts is None:
                continue
            expected = of_hosts[number] * weights
            # Padding, and what ranks tell each other about losses and norms.
            if not expected <= by_ranks <= 1.05 * expected + 4096:
                raise Failure(f"{mode['mode']}: the ranks of {host.name} counted {by_ranks} bytes a step, "
                              f"{expected} is the formula")
        sent, inside = network.bytes_from(host), host.bytes_inside()
        print(f"{host.name} sent {sent / 2**20:.1f} MiB, {counted / 2**20:.1f} MiB without headers, "
              f"and {inside / 2**20:.1f} MiB to itself")
        # Padding, headers, acknowledgements, and what launchers, stores and losses take.
        if not counted <= sent <= 1.25 * counted + (2 << 20):
            raise Failure(f"{host.name} sent {sent} bytes by network, its ranks counted {counted}")
        # Several copies a step move inside a host.
        if inside > weights * GROUP_STEPS:
            raise Failure(f"{host.name} sent {inside} bytes to itself by TCP")


def train_over_hosts(scene):
    """Each piece goes to another host once, and sums go from host to host."""
    network, modes, rounded = scene.network(2), ["engine1", "engine3"], "zeropp:group_size=2"
    command = scene.ladder("several.json", [*modes, rounded], GROUP_STEPS)
    agents = start_torchrun(scene, network, command, ZERO_BETWEEN_HOSTS="hierarchical")
    for agent in agents:
        agent.succeed()
    network.check_empty()
    figures = scene.figures("several.json")
    # A rank sends (N-1)/N of what is gathered, and of V, which is reduced; stage 3 gathers the root once.
    gathers = [mode["sent_in_v"] * RANKS / (RANKS - 1) - 1 for mode in figures["modes"][:len(modes)]]
    # A reduce-scatter: V from the first host, V (R-1)/R from the last. An all-gather: (R-1)/R of it.
    check_bytes_of_hosts(network, figures, [(1 + in_v / 2, 0.5 + in_v / 2) for in_v in gathers])
    scene.check_against_one_host("several.json", modes, GROUP_STEPS, rounded)


def train_in_groups(scene):
    """Hosts as groups that share model states: gradients go between them, and nothing else does.

    Inside a host nothing goes by TCP, although the hosts are joined by it: a group of its ranks has
    a transport of its own.
    """
    network, modes = scene.network(2), ["hsdp3:shard_size=host"]
    command = scene.ladder("groups.json", ["hsdp3"], GROUP_STEPS, "--shard-size", "host")
    agents = start_torchrun(scene, network, command)
    for agent in agents:
        agent.succeed()
    network.check_empty()
    # 2 (V/S) (R-1)/R of each of S = 2 ranks.
    check_bytes_of_hosts(network, scene.figures("groups.json"), [(1, 1)])
    # Two groups of two ranks on one host add in the same order.
    command = scene.ladder("one_host.json", ["hsdp3"], GROUP_STEPS, "--shard-size", 2, "--nproc", RANKS)
    scene.start("one host", command).succeed()
    if scene.digest("groups.json", modes) != scene.digest("one_host.json", ["hsdp3:shard_size=2"]):
        raise Failure("the weights differ from those of the same groups on one host")


def started_again(what, happens):
    """torchrun starts all ranks again after what `happens`, and they go on from the last checkpoint."""
    def test(scene):
        network = scene.network(2)
        folder, modes = scene.folder / "checkpoint", ["engine3"]
        command = scene.ladder("restarted.json", modes, RESTARTED_STEPS, "--checkpoint", folder,
                               "--checkpoint-every", CHECKPOINT_EVERY, "--auto-resume",
                               timeout=RESTART_TIMEOUT_S)
        agents = start_torchrun(scene, network, command, "--max-restarts", 1)
        agents[0].wait_until((folder / "manifest.json").exists, "its first checkpoint")
        happens(network, agents)
        for agent in agents:
            agent.succeed()
        network.check_empty()
        went_on = re.search(r"goes on after step \d+ ", agents[0].said())
        if went_on is None:
            agents[0].fail("did not go on from a checkpoint")
        print(f"{what}, the run {went_on[0]}of {RESTARTED_STEPS}")
        scene.check_against_one_host("restarted.json", modes, RESTARTED_STEPS)
    return test


def rank_is_killed(network, _agents):
    kill_rank(3, network.hosts[1])


def link_is_away(network, agents):
    """The link is cut until ranks on both sides have noticed."""
    network.cut(network.hosts[1])
    for agent in agents:
        # In a collective, or in the store, which is where a checkpoint is agreed on.
        agent.wait_until(
            lambda agent=agent: re.search(r"nothing from rank|connection to rank|no answer within|"
                                          r"the store through which ranks meet is gone",
                                          agent.said()), "an error of its ranks")
    network.mend(network.hosts[1])


def kill_rank(rank, host):
    """Kills the process that the launcher has started as this rank: the first one of them."""
    for pid in sorted(host.processes()):
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            os.kill(pid, signal.SIGKILL)
            return
    raise Failure(f"no rank {rank} runs on {host.name}: {host.processes()}")


# ---- by hand -------------------------------------------------------------------------------------


def link_is_cut(scene):
    """All ranks end in time and say why, those that can still reach each other too.

    Without torchrun, which ends the others on its host when the first has ended.
    """
    network = scene.network(RANKS)
    command = scene.ladder("cut.json", ["engine3"], CUT_STEPS, timeout=CUT_TIMEOUT_S)
    ranks = [
        scene.start(f"rank {number}", host.command(*command), RANK=str(number),
                    WORLD_SIZE=str(RANKS), MASTER_ADDR=network.hosts[0].address,
                    MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME="eth0")
        for number, host in enumerate(network.hosts)
    ]
    ranks[0].wait_until(lambda: f"/{CUT_STEPS}" in ranks[0].said(), "its first steps")
    network.cut(network.hosts[2])
    deadline = time.monotonic() + CUT_TIMEOUT_S + GRACE_S
    for rank in ranks:
        code = rank.end(deadline - time.monotonic())
        pattern = rf"{rank.name}: .* in step \d+: (nothing from|the connection to) rank \d [^;]*"
        reason = re.search(pattern, rank.said())
        if code == 0 or reason is None:
            rank.fail(f"ended with exit code {code}, and not because a rank cannot be reached")
        print(f"{rank.name}: {reason[0]}")
    network.check_empty()


# ---- mpirun --------------------------------------------------------------------------------------


def check_mpirun():
    said = shutil.which("mpirun") and subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, timeout=LIMIT_S,
        check=False).stdout
    if not said or "Open" not in said:
        raise Skip("there is no mpirun of Open MPI")


def way_to_hosts(scene, network):
    """A program that is called like ssh, with an address and a command, and takes its place."""
    file = scene.folder / "way-to-hosts"
    cases = "\n".join(f"{host.address}) way='{' '.join(host.command())}';;"
                      for host in network.hosts)
    file.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\nshift\nexec $way sh -c "$*"\n')
    file.chmod(0o755)
    return str(file)


def mpirun(scene):
    """Training under Open MPI, whose mpirun is started at the switch."""
    check_mpirun()
    network = scene.network(RANKS)
    way = way_to_hosts(scene, network)
    variables = {"MASTER_ADDR": network.hosts[0].address, "GLOO_SOCKET_IFNAME": "eth0"}
    # Open MPI 4 reads some of these, Open MPI 5 the others.
    settings = {"OMPI_MCA_plm_rsh_agent": way, "PRTE_MCA_plm_ssh_agent": way,
                "OMPI_MCA_oob_tcp_if_include": "10.213.0.0/24",
                "PRTE_MCA_prte_if_include": "10.213.0.0/24"}
    exports = [word for name in [*variables, "OMP_NUM_THREADS"] for word in ("-x", name)]
    command = ["mpirun", "--allow-run-as-root", "-np", RANKS, "--host",
               ",".join(f"{host.address}:1" for host in network.hosts), *exports,
               *scene.ladder("several.json", MODES, STEPS)]
    scene.start("mpirun", network.switch.command_in_network(*command), **variables,
                **settings).succeed()
    network.check_empty()
    scene.check_wire(network, "several.json")
    scene.check_against_one_host("several.json", MODES, STEPS)


# ---- the program ---------------------------------------------------------------------------------

TESTS = {
    "four_hosts": train_on(4),
    "two_hosts_of_two_ranks": train_on(2),
    "groups": train_in_groups,
    "hierarchical": train_over_hosts,
    "link_is_cut": link_is_cut,
    "rank_is_killed": started_again("rank 3 was killed", rank_is_killed),
    "link_is_away": started_again("the link was cut for a while", link_is_away),
    "mpirun": mpirun,
}


def run(name, ladder):
    """Makes the test; gives the exit code."""
    started = time.monotonic()
    try:
        check_machine()
        with contextlib.ExitStack() as stack:
            scene = Scene(stack, ladder)
            try:
                TESTS[name](scene)
            except Failure:
                # The first program that failed is often not the one that began it.
                for program in scene.programs:
                    print(f"---- {program.name} said:\n{program.said()[-4000:]}")
                raise
    except Skip as reason:
        print(f"NOT TESTED: {name}: {reason}")
        return SKIPPED
    except Failure as failure:
        print(f"FAILED: {name}: {failure}")
        return FAILED
    print(f"passed: {name}, {time.monotonic() - started:.0f} s")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ladder", type=Path, help="the program")
    parser.add_argument("--list", action="store_true", help="print the names of the tests")
    parser.add_argument("name", nargs="?", choices=TESTS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(TESTS))
        return 0
    if options.name is None or options.ladder is None or not options.ladder.is_file():
        parser.error("--ladder with a program and the name of a test are needed")
    # As after a failure, everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    return run(options.name, options.ladder.resolve())


if __name__ == "__main__":
    sys.exit(main())
