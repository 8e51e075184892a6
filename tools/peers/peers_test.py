"""How ./run peers starts processes; nothing is trained here.

    python tools/peers/peers_test.py
"""

import os
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers  # noqa: E402


def end_with(code):
    os._exit(code)


def sleep_for_ever():
    while True:
        time.sleep(3600)


def refuse(what):
    raise peers.Failure(f"no {what}")


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
    def test_give_what_the_function_gives(self):
        self.assertEqual(peers.in_a_child(sum, [1, 2, 3]), 6)

    def test_throw_what_the_function_throws(self):
        with self.assertRaisesRegex(peers.Failure, "no weights"):
            peers.in_a_child(refuse, "weights")

    def test_that_die_are_named(self):
        with self.assertRaisesRegex(peers.Failure, "die: its process has died"):
            peers.in_a_child(die)


if __name__ == "__main__":
    unittest.main()
