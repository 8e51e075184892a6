"""./run links for real: modes beside each other on two hosts of two ranks, with a model that takes a second.

    python tools/links/links_run_test.py --ladder PROGRAM

Needs root, Linux's namespaces and tc; skipped, with the reason, without them (exit code 77).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from hosts import Network, Skip, check_machine  # noqa: E402

SKIPPED = 77
LIMIT_S = 300
LADDER = None
MODES = "engine3,hsdp3"


def descendants(pid):
    """Processes that `pid` has started, and what these have, while they run."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [child, *descendants(child)]
    return found


def networks_of(pids):
    """The network namespaces of processes, other than this one's."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found - {os.readlink("/proc/self/ns/net")}


def command_line(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} has not come in {LIMIT_S} s")
        time.sleep(0.02)


class RealRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="zero-links-run-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.json = self.folder / "links.json"

    def command(self, modes, *more):
        return [sys.executable, HERE / "links.py", "--ladder", LADDER, "--model", "tiny", "--seq-len", "16",
                "--rates", "100mbit", "--rounds", "1", "--modes", modes, "--json", self.json, *more]

    def run_to_end(self, modes, *more):
        return subprocess.run(self.command(modes, *more), capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def test_compares_modes(self):
        done = self.run_to_end(MODES, "--steps", "2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(self.json.read_text())
        v, lines = found["parameter_bytes"], found["summary"]
        self.assertEqual([line["mode"] for line in lines], MODES.split(","))
        # Per host and step: engine3 sends 2 V without the root once (a gather V/2, the reduction V), hsdp3 V. And
        # padding, losses, and norms.
        sent = [line["counted_bytes"] / v for line in lines]
        self.assertTrue(1.5 < sent[0] < 2.1, sent)
        self.assertTrue(1 <= sent[1] < 1.1, sent)
        self.assertTrue(all(line["payload_bytes"] > 0 and line["wire_seconds"] > 0 for line in lines), lines)
        self.assertTrue(self.json.with_suffix(".svg").is_file())

    def test_an_unknown_mode_is_named(self):
        done = self.run_to_end("engine3,hsdp9")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("unknown mode 'hsdp9'", done.stderr)
        self.assertFalse(self.json.exists())

    def interrupted(self, number):
        """Ends a run while its ranks train; gives the exit code when all of its hosts are gone."""
        with open(self.folder / "said", "w+") as said:
            running = subprocess.Popen(self.command(MODES, "--steps", "1000"), stdout=said, stderr=said)
            self.addCleanup(running.kill)
            networks = set()

            def trains():
                # The list of children may lack some while others end: what was seen once is kept.
                started = descendants(running.pid)
                networks.update(networks_of(started))
                return running.poll() is not None or any(
                    b"\0--steps\x001000\0" in command_line(pid) for pid in started) and len(networks) >= 3

            wait_for(trains, "a rank on two hosts and a switch")
            self.assertIsNone(running.poll(), (self.folder / "said").read_text())
            running.send_signal(number)
            code = running.wait(timeout=LIMIT_S)
            wait_for(lambda: not networks & networks_of(path.name for path in Path("/proc").glob("[0-9]*")),
                     "the end of its networks")
            return code

    def test_ctrl_c_leaves_nothing(self):
        self.assertEqual(self.interrupted(signal.SIGINT), 130)
        self.assertIn("ended by ctrl-C", (self.folder / "said").read_text())

    def test_a_signal_leaves_nothing(self):
        self.assertEqual(self.interrupted(signal.SIGTERM), 1)
        self.assertIn("ended by SIGTERM", (self.folder / "said").read_text())

    def test_even_a_kill_leaves_nothing(self):
        self.assertEqual(self.interrupted(signal.SIGKILL), -signal.SIGKILL)


def why_not():
    """Why there can be no run here, or ""."""
    try:
        check_machine("tc")
        with contextlib.ExitStack() as stack:
            network = Network(stack, 2)
            network.limit(network.hosts[0], 100)
    except Skip as reason:
        return str(reason)
    return ""


if __name__ == "__main__":
    if sys.argv[1:2] != ["--ladder"] or len(sys.argv) < 3:
        sys.exit("--ladder PROGRAM is needed")
    LADDER = sys.argv[2]
    if reason := why_not():
        print(f"NOT TESTED: {reason}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
