"""The programs of ./run gpu without a GPU: what each says there, and the models of both sides on the CPU.

    python tools/gpu/programs_test.py PROGRAMS
"""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gpu  # noqa: E402

PROGRAMS = None
SMALL = ["--device", "cpu", "--model", "tiny", "--batch", "2", "--seq-len", "16", "--steps", "2"]


def said(*command):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise AssertionError(f"{command} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return gpu.last_json(ended.stdout)


class WithoutAGpu(unittest.TestCase):
    def test_each_step_says_that_there_is_none(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            out = Path(folder)
            # To import torch alone may take longer than a step's limit on a busy machine.
            steps = [step._replace(limit=600) for step in gpu.all_steps(PROGRAMS, out)]
            rows = gpu.run_all(steps, dict(os.environ, CUDA_VISIBLE_DEVICES=""), out)
        self.assertEqual([row for row in rows if not row["result"].startswith("no GPU: ")], [])
        self.assertEqual(gpu.exit_code(rows), gpu.SKIPPED)


class OnTheCpu(unittest.TestCase):
    def test_all_ways_of_the_library_have_the_same_loss(self):
        figures = [said(PROGRAMS / "device_step", "--mode", mode, *SMALL)
                   for mode in ("plain", "engine0", "engine1", "engine2", "engine3")]
        self.assertEqual(len({one["loss"] for one in figures}), 1, figures)
        self.assertTrue(all(one["tokens/s"] > 0 and one["peak MiB"] > 0 for one in figures), figures)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_pytorch_trains_the_same_shape(self):
        ours = said(PROGRAMS / "device_step", *SMALL)["loss"]
        for mode in ("plain", "keep", "reshard"):
            theirs = said(sys.executable, HERE / "torch_step.py", "--mode", mode, *SMALL)["loss"]
            self.assertAlmostEqual(theirs, ours, delta=0.3, msg=mode)  # other random weights, near ln 256


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv.pop()).resolve()
    unittest.main()
