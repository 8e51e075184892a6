"""How ./run peers starts processes, sets them up and sums up rounds; nothing is trained here.

    python tools/peers/peers_test.py
"""

import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers  # noqa: E402


def end_with(code):
    os._exit(code)


def sleep_for_ever():
    while True:
        time.sleep(3600)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Ranks(unittest.TestCase):
    def test_that_all_end_well_give_nobody(self):
        ranks = [peers.FORK.Process(target=end_with, args=(0,)) for _ in range(3)]
        self.assertIsNone(peers.first_that_fails(ranks))
        self.assertEqual([rank.exitcode for rank in ranks], [0, 0, 0])

    def test_one_that_fails_ends_the_others(self):
        ranks = [peers.FORK.Process(target=sleep_for_ever), peers.FORK.Process(target=end_with, args=(3,)),
                 peers.FORK.Process(target=sleep_for_ever)]
        self.assertEqual(peers.first_that_fails(ranks), 1)
        self.assertEqual([rank.exitcode for rank in ranks], [-signal.SIGKILL, 3, -signal.SIGKILL])


class Children(unittest.TestCase):
    def test_that_die_are_named(self):
        with self.assertRaisesRegex(peers.Failure, "die: its process has died"):
            peers.in_a_child(die)


def options_of(*arguments):
    with mock.patch.object(sys, "argv", ["peers.py", "--ladder", __file__, *arguments]):
        return peers.parse_arguments()


def spin(ticks):
    """Uses the processor for so many of the system's ticks."""
    while sum(os.times()[:2]) * os.sysconf("SC_CLK_TCK") < ticks:
        pass


def grow_and_shrink():
    """MiB of the resident set that stay of 80 that were used and freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    before = resident_mib()
    blocks = [libc.malloc(20 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 20 << 20)
    for block in blocks:
        libc.free(block)
    return resident_mib() - before


def grow_and_shrink_in_a_program():
    path = str(Path(__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {path!r}); import peers_test; print(peers_test.grow_and_shrink())"
    return float(subprocess.run([sys.executable, "-c", code], env=peers.ENVIRONMENT, check=True,
                                capture_output=True, text=True).stdout)


def keep_and(function):
    peers.keep_the_heap()
    return function()


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Heap(unittest.TestCase):
    def test_stays_on_both_sides(self):
        for side in (grow_and_shrink, grow_and_shrink_in_a_program):
            with self.subTest(side.__name__):
                self.assertGreater(peers.in_a_child(keep_and, side), 78)
                self.assertLess(peers.in_a_child(side), 30)


class Others(unittest.TestCase):
    def test_have_what_is_neither_ours_nor_idle(self):
        with mock.patch.object(peers.Others, "_now", side_effect=[(100, 1000), (150, 1200)]):
            self.assertEqual(peers.Others().share(), 0.25)

    def test_are_not_the_children_that_have_ended(self):
        line = "cpu  1000 0 0 5000 0 0 0 0 0 0\n"
        with mock.patch.object(peers, "open", lambda *_, **__: io.StringIO(line), create=True):
            before, everything = peers.Others._now()
            child = peers.FORK.Process(target=spin, args=(30,))
            child.start()
            child.join()
            after, _ = peers.Others._now()
        self.assertEqual(everything, 6000)
        self.assertGreaterEqual(before - after, 29)


class Arguments(unittest.TestCase):
    def test_have_three_rounds_unless_others_are_named(self):
        self.assertEqual(options_of().rounds, 3)
        self.assertEqual(options_of("--rounds", "5").rounds, 5)

    def test_that_are_wrong_are_named(self):
        for arguments, message in ((("--rounds", "0"), "argument --rounds: 0 is less than 1"),
                                   (("--rounds", "two"), "argument --rounds: invalid positive value: 'two'"),
                                   (("--steps", "-1"), "argument --steps: -1 is less than 1"),
                                   (("--huge-pages",), "unrecognized arguments: --huge-pages"),
                                   (("--ours=zero3=zero3",), "--ours was removed: a pair has one mode"),
                                   (("--seq-len", "32"), "--seq-len was removed: samples have 128 tokens"),
                                   (("--nproc", "4"), "--nproc was removed: there are 2 ranks")):
            said = io.StringIO()
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
                options_of(*arguments)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(message, said.getvalue())


class Rounds(unittest.TestCase):
    def quietest(self, shares, rounds):
        run = [{"others": share, "round": index} for index, share in enumerate(shares)]
        asked = []
        found = peers.quietest(lambda index: asked.append(index) or run[index], rounds, 0.03)
        return [each["round"] for each in found], len(asked)

    def test_that_are_quiet_are_the_only_ones(self):
        self.assertEqual(self.quietest([0.02, 0.0, 0.03], 3), ([0, 1, 2], 3))

    def test_that_others_disturb_are_run_again(self):
        self.assertEqual(self.quietest([0.5, 0.01, 0.2, 0.02], 2), ([1, 3], 4))

    def test_are_the_least_disturbed_of_twice_as_many(self):
        self.assertEqual(self.quietest([0.5, 0.1, 0.01, 0.3], 2), ([2, 1], 4))

    def compare(self, ours, theirs):
        """The row of runs with these seconds of a step."""
        def run_of(seconds):
            return {"step_s": seconds, "hwm_mib": 1.0, "compute_s": 1.0, "losses": [1.0]}

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            work = Path(folder)
            (work / "ours").mkdir()
            (work / "torch.safetensors").touch()
            with (mock.patch.object(peers, "run_ours", side_effect=map(run_of, ours)),
                  mock.patch.object(peers, "run_torch", side_effect=map(run_of, theirs)),
                  mock.patch.object(peers.Others, "share", return_value=0.0),
                  mock.patch.object(peers, "in_a_child", return_value=0.0)):
                return peers.compare("ddp", options_of("--rounds", str(len(ours))), work)

    def test_are_summed_up_by_medians_and_spreads(self):
        row = self.compare(ours=[4.0, 1.0, 3.0], theirs=[4.0, 4.0, 6.0])
        self.assertEqual((row["ours"]["step_s"], row["torch"]["step_s"], row["ratio"]), (3.0, 4.0, 0.5))
        self.assertEqual(row["ratios"], [1.0, 0.25, 0.5])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            peers.print_table([row])
        self.assertRegex(said.getvalue(), r"3\.00 s +4\.00 s +0\.50 +0\.25-1\.00 ")


if __name__ == "__main__":
    unittest.main()
