"""Hosts on this machine: Linux namespaces, a network between them, and programs.

A host has namespaces of its own for the network, the host name, processes and mounts, and some cores.
A pair of virtual interfaces (veth) joins it to a bridge in one more namespace, the switch. Ranks on
two hosts share nothing but that network and the files, as on machines with a common folder, and
find out for themselves that they cannot read each other's memory.

Nothing of it has a name outside of its namespace, so that two runs cannot collide. Namespaces go
with the process that holds them, and that one goes with this program, however it ends.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 60  # of every wait; nothing takes as long, not even on a busy machine


class Skip(Exception):
    """The test cannot be made here."""


class Failure(Exception):
    """The test was made, and what it found is wrong."""


def check_machine(*more):
    """Skips where hosts cannot be made: for want of rights, or of a program (`more` are needed too)."""
    if os.geteuid() != 0:
        raise Skip("this needs root (CAP_SYS_ADMIN for namespaces, CAP_NET_ADMIN for their links)")
    for program in ("ip", "nsenter", "taskset", "unshare", *more):
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed (packages iproute2 and util-linux)")


class Wire(NamedTuple):
    """What went from a host to the switch, as the switch counted it."""

    bytes: int
    frames: int  # a frame that the host's system hands over in one piece is one, however long
    again: int  # segments that the host's TCP sent once more, by its own count

    def since(self, before):
        return Wire(*(now - then for now, then in zip(self, before)))


class Host:
    """Namespaces, the process that holds them, and cores of this machine."""

    def __init__(self, name, address, cores):
        self.name, self.address, self._cores = name, address, ",".join(map(str, cores))
        # The shell is the first of its process namespace: all others there are killed with it. It
        # waits for input that never comes, and ends when nobody is left to send any.
        script = ('echo "$0" > /proc/sys/kernel/hostname && ip link set lo up && '
                  'echo ready && exec cat')
        self._unshare = subprocess.Popen(
            ["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", script, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True)
        if not select.select([self._unshare.stdout], [], [], LIMIT_S)[0]:
            self._unshare.kill()
        if self._unshare.stdout.readline() != "ready\n":
            raise Skip(f"namespaces are not allowed here: {self._unshare.stderr.read().strip()}")
        parent = self._unshare.pid
        self.pid = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())

    def close(self):
        """Ends the host with everything that runs on it."""
        self._unshare.stdin.close()
        self._unshare.wait(timeout=LIMIT_S)

    def command(self, *words):
        """What runs `words` on this host."""
        return ["taskset", "--cpu-list", self._cores,
                "nsenter", f"--target={self.pid}", "--net", "--uts", "--pid", "--mount", *words]

    def command_in_network(self, *words):
        """What runs `words` in this host's network, but among the processes of this machine."""
        return ["nsenter", f"--target={self.pid}", "--net", *words]

    def ip(self, *words):
        """Runs ip in this host's network; gives what it says."""
        done = subprocess.run(self.command_in_network("ip", *words), capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise Failure(f"'ip {' '.join(words)}' failed: {done.stderr.strip()}")
        return done.stdout

    def segments_sent_again(self):
        """How many segments TCP has sent once more in this host's network."""
        lines = Path(f"/proc/{self.pid}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])

    def bytes_inside(self):
        """What went over this host's loopback interface, which no frame leaves."""
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == "lo":
                return int(numbers.split()[8])
        raise Failure(f"{self.name} has no loopback interface")

    def processes(self):
        """Ids and command lines of what runs on this host, beside the process that holds it."""
        here = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end while it is looked at
                # One that has ended, and that nobody has waited for, has no command line.
                line = (folder / "cmdline").read_text().replace("\0", " ")
                if line and os.readlink(folder / "ns/pid") == here:
                    found[int(folder.name)] = line
        found.pop(self.pid, None)
        return found


class Network:
    """Hosts 10.213.0.1, 10.213.0.2, … and the switch between them, closed with `stack`."""

    def __init__(self, stack, hosts, cores_per_host=1):
        cores = sorted(os.sched_getaffinity(0))
        made = [Host("switch", "10.213.0.254", cores[:1])]
        stack.enter_context(contextlib.closing(made[0]))
        for k in range(hosts):
            own = {cores[i % len(cores)] for i in range(k * cores_per_host, (k + 1) * cores_per_host)}
            made.append(Host(f"host{k}", f"10.213.0.{k + 1}", sorted(own)))
            stack.enter_context(contextlib.closing(made[-1]))
        self.switch, *self.hosts = made
        try:
            self._connect()
        except Failure as failure:
            raise Skip(f"there can be no network between hosts: {failure}") from failure

    def _connect(self):
        self.switch.ip("link", "add", "bridge", "type", "bridge")
        self.switch.ip("address", "add", f"{self.switch.address}/24", "dev", "bridge")
        self.switch.ip("link", "set", "bridge", "up")
        for host in self.hosts:
            self.switch.ip("link", "add", host.name, "type", "veth",
                           "peer", "name", "eth0", "netns", str(host.pid))
            self.switch.ip("link", "set", host.name, "master", "bridge", "up")
            host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
            host.ip("link", "set", "eth0", "up")

    def cut(self, host):
        """Takes down the link between this host and the switch."""
        self.switch.ip("link", "set", host.name, "down")

    def mend(self, host):
        """Takes the link up again."""
        self.switch.ip("link", "set", host.name, "up")

    def limit(self, host, mbit_per_s):
        """Lets no more than this leave the host from now on, with all headers of the frames.

        The token bucket is as large as 2 ms of the link: a timer that comes late on a busy machine
        then loses nothing. What has to wait has room in the queue, so that nothing is dropped. TCP
        has the congestion control that is Linux's default: BBR, which a machine may have instead,
        leaves such a link idle for a part of the time when both ends send.
        """
        host.ip("route", "replace", "10.213.0.0/24", "dev", "eth0", "congctl", "cubic")
        bucket = max(32 << 10, int(mbit_per_s * 1e6 / 8 * 2e-3))
        command = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate",
                   f"{mbit_per_s}mbit", "burst", str(bucket), "limit", str(16 << 20)]
        done = subprocess.run(host.command_in_network(*command), capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise Skip(f"links cannot be limited here: {done.stderr.strip()}")

    def bytes_from(self, host):
        """How much the switch has received from this host."""
        return self.wire_from(host).bytes

    def wire_from(self, host):
        said = self.switch.ip("-json", "-statistics", "link", "show", host.name)
        received = json.loads(said)[0]["stats64"]["rx"]
        return Wire(received["bytes"], received["packets"], host.segments_sent_again())

    def check_empty(self):
        """Fails where anything still runs on a host that is not about to end."""
        limit = time.monotonic() + 5
        while left := {host.name: found for host in self.hosts if (found := host.processes())}:
            if time.monotonic() > limit:
                raise Failure(f"processes are left: {left}")
            time.sleep(0.05)


class Program:
    """A program in a process group of its own, whose output goes to a file."""

    def __init__(self, name, command, log, variables):
        self.name, self._log = name, log
        with open(log, "w") as out:
            self._process = subprocess.Popen([str(word) for word in command], stdout=out,
                                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                             env=variables, start_new_session=True)

    def close(self):
        """Kills it and its process group where it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=LIMIT_S)

    def said(self):
        return self._log.read_text(errors="replace")

    def fail(self, what):
        raise Failure(f"{self.name} {what}. It said:\n{self.said()[-4000:]}")

    def end(self, limit=LIMIT_S):
        """Waits for its end, `limit` seconds at most; gives the exit code."""
        try:
            return self._process.wait(timeout=max(0, limit))
        except subprocess.TimeoutExpired:
            self.fail("has not ended in time")

    def succeed(self):
        if (code := self.end()) != 0:
            self.fail(f"ended with exit code {code}")

    def has_succeeded(self):
        """Whether it is over; fails where it has ended otherwise."""
        if self._process.poll() is None:
            return False
        self.succeed()
        return True

    def wait_until(self, condition, what):
        """Waits until `condition()`, which must come while the program runs."""
        limit = time.monotonic() + LIMIT_S
        while not condition():
            if self._process.poll() is not None:
                self.fail(f"ended before {what}")
            if time.monotonic() > limit:
                self.fail(f"has run for {LIMIT_S} s before {what}")
            time.sleep(0.02)


def succeed_together(programs, limit):
    """Waits for the end of all of them, `limit` seconds at most, or for the first that fails."""
    deadline = time.monotonic() + limit
    while left := [program for program in programs if not program.has_succeeded()]:
        if time.monotonic() > deadline:
            left[0].fail(f"has not ended in {limit} s")
        time.sleep(0.02)
