"""What ./run gpu makes of steps that pass, fail, take too long or say nonsense; no GPU is needed.

    python tools/gpu/gpu_test.py
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import gpu  # noqa: E402

NO_GPU = "import sys; sys.exit('x: there is no usable GPU (no driver); the backend gloo trains on the CPU')"


def step(name, program, limit=60, figures=gpu.last_json):
    return gpu.Step(name, [sys.executable, "-c", program], limit, figures)


class Steps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name) / "out"

    def run_all(self, *steps):
        """The rows of fake steps, each checked against the files."""
        with contextlib.redirect_stdout(io.StringIO()):
            rows = gpu.run_all(steps, dict(os.environ), self.out)
        self.assertEqual(json.loads((self.out / "gpu.json").read_text())["rows"], rows)
        self.assertIn(gpu.table(steps, rows), (self.out / "gpu.txt").read_text())
        self.assertEqual([row["step"] for row in rows], [one.name for one in steps])
        return rows

    def result_of(self, *words, **more):
        return self.run_all(step("it", *words, **more))[0]["result"]

    def test_fail_alone_and_in_order(self):
        earlier = f"import json; rows = json.load(open({str(self.out / 'gpu.json')!r}))['rows']\n" \
                  "print(json.dumps({'rows': len(rows)}))"
        rows = self.run_all(
            step("good", "print('words'); print('{\"tokens/s\": 12345.6, \"ok\": true}'); print('more words')"),
            step("bad", "print('before'); raise SystemExit('the reason')"),
            step("slow", "import time; print('{\"n\": 1}', flush=True); time.sleep(1000)", limit=0.5),
            step("nonsense", "print('{\"n\": NaN}')"),
            gpu.Step("missing", ["/nowhere/program"], 9, gpu.last_json),
            step("earlier rows are there", earlier))
        self.assertEqual([row["result"] for row in rows],
                         ["passed", "failed: exit code 1: the reason", "failed: over its limit of 0.5 s",
                          'failed: bad figures: {"n": NaN}',
                          "failed: [Errno 2] No such file or directory: '/nowhere/program'", "passed"])
        self.assertEqual(rows[0]["figures"], {"tokens/s": 12345.6, "ok": True})
        self.assertEqual(rows[-1]["figures"], {"rows": 5})
        self.assertIn("before", rows[1]["said"])
        self.assertIn("| good | passed | 12,346 tokens/s, ok: yes |", (self.out / "gpu.txt").read_text())
        self.assertEqual(gpu.exit_code(rows), 1)
        self.assertEqual(gpu.exit_code([rows[0], rows[-1]]), 0)

    def test_with_figures_that_are_none_fail(self):
        for said in ("{}", '{"n": 0}', '{"n": -1}', '{"n": Infinity}', '{"n": null}', '{"n": [1]}'):
            self.assertEqual(self.result_of(f"print('{said}')"), f"failed: bad figures: {said}")
        for said in ("words", "", "[1]"):
            self.assertEqual(self.result_of(f"print('{said}')"), f"failed: no figures: {said}")
        said = "[==========] 0 tests from 0 test suites ran. (0 ms total)\\n[  PASSED  ] 0 tests."
        self.assertEqual(self.result_of(f"print('{said}')", figures=gpu.tests), 'failed: bad figures: {"tests": 0}')

    def test_over_their_limit_leave_no_process(self):
        pid = self.out / "pid"
        self.result_of("import subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\n"
                       f"open({str(pid)!r}, 'w').write(str(child.pid))\ntime.sleep(1000)", limit=5)
        status, deadline = Path(f"/proc/{pid.read_text()}/status"), time.monotonic() + 60
        with contextlib.suppress(OSError):  # it is gone
            while "\nState:\tZ" not in status.read_text():
                self.assertLess(time.monotonic(), deadline, "its child runs on")
                time.sleep(0.02)

    def test_may_be_skipped_with_the_reason(self):
        said = "a.cpp:12: Skipped\\nthere is no GPU 1: there is one"
        rows = self.run_all(step("two", f"print('{said}'); raise SystemExit(77)"))
        self.assertEqual(rows[0]["result"], "skipped: there is no GPU 1: there is one")
        self.assertEqual(gpu.exit_code(rows), 0)

    def test_that_need_more_gpus_are_skipped(self):
        result = self.result_of("raise SystemExit('ladder: rank 0: ranks 0 and 1 would both use a, GPU 1f: give each')")
        self.assertEqual(result, "skipped: ranks would share a GPU, which takes NCCL 2.30 and "
                                 "NCCL_MULTI_RANK_GPU_ENABLE=1")

    def test_without_a_gpu_say_so(self):
        rows = self.run_all(step("one", NO_GPU), step("two", NO_GPU))
        self.assertEqual({row["result"] for row in rows}, {"no GPU: no driver"})
        self.assertEqual(gpu.exit_code(rows), 77)
        self.assertEqual(gpu.exit_code([*rows, {"result": "passed"}]), 1, "a GPU that some do not see")

    def test_the_trace_must_have_what_the_gpu_did(self):
        trace = next(one for one in gpu.all_steps(Path("bin"), self.out) if one.name == "ladder, trace")
        self.out.mkdir()
        for kinds, result in ((["cpu_op", "kernel", "gpu_memcpy"], "passed"),
                              (["cpu_op"], 'failed: bad figures: {"operations": 2, "kernels": 0, "copies": 0}')):
            events = [{"cat": kind} for kind in 2 * kinds]
            (self.out / "trace.engine3.rank0.json").write_text(json.dumps({"traceEvents": events}))
            self.assertEqual(gpu.judge(trace, 0, "")[0], result)

    def test_of_two_ranks_say_what_a_rank_holds_beside_ddp(self):
        two = next(one for one in gpu.all_steps(Path("bin"), self.out) if one.name == "ladder, tiny, two ranks")
        self.out.mkdir()
        modes = [{"mode": mode, "ranks": [{"parameter_mib": p, "gradient_mib": g, "optimizer_mib": o, "total_mib": 99}]}
                 for mode, p, g, o in (("ddp", 4, 4, 8), ("zero1", 4, 4, 4), ("zero2", 4, 2, 4), ("zero3", 2, 2, 4))]
        (self.out / "two.json").write_text(json.dumps({"modes": modes}))
        self.assertEqual(gpu.judge(two, 0, ""), ("passed", {"modes": 4, "ddp MiB": 16, "of it zero1": 0.75,
                                                            "of it zero2": 0.625, "of it zero3": 0.5}))
        for held in ([], [dict(modes[0], ranks=[{"parameter_mib": 0, "gradient_mib": 0, "optimizer_mib": 0}])]):
            (self.out / "two.json").write_text(json.dumps({"modes": held}))
            self.assertEqual(gpu.judge(two, 0, "said")[0], "failed: no figures: said")

    def test_write_files_of_their_own(self):
        files = [word for one in gpu.all_steps(Path("/bin"), self.out) for word in one.command
                 if isinstance(word, Path) and self.out in word.parents]
        self.assertEqual(len(set(files)), len(files), files)
        self.assertIn(self.out / "trace.json", files)

    def test_take_ten_minutes_at_most(self):
        steps = gpu.all_steps(Path("bin"), Path("out"))
        self.assertLessEqual(sum(one.limit for one in steps), 600)
        self.assertEqual(len({one.name for one in steps}), len(steps))


class Document(unittest.TestCase):
    def test_has_the_table_of_the_results(self):
        results = ROOT / "docs" / "figures" / "gpu.json"
        rows = json.loads(results.read_text())["rows"] if results.exists() else []
        table = gpu.table(gpu.all_steps(Path("bin"), Path("out")), rows)
        text = (ROOT / "docs" / "gpu.md").read_text()
        self.assertIn(f"\n\n{table}\n", text, "./run gpu --table prints it")
        self.assertEqual(text.count("not run yet |"), table.count("not run yet |"))


class Pack(unittest.TestCase):
    def test_of_another_torch_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            packed = Path(folder) / "torch"
            packed.write_text("2.11.0\n")
            with unittest.mock.patch("importlib.metadata.version", return_value="2.15.0+cu130"), \
                    unittest.mock.patch("importlib.util.find_spec") as find:
                find.return_value.submodule_search_locations = ["/somewhere/torch"]
                with self.assertRaisesRegex(SystemExit, "for torch 2.11.0, and .* has 2.15.0"):
                    gpu.environment(packed)
                packed.write_text("2.15.1\n")
                self.assertTrue(gpu.environment(packed)["LD_LIBRARY_PATH"].startswith("/somewhere/torch/lib:"))
            with unittest.mock.patch("importlib.util.find_spec", return_value=None):
                with self.assertRaisesRegex(SystemExit, "has none"):
                    gpu.environment(packed)


if __name__ == "__main__":
    unittest.main()
