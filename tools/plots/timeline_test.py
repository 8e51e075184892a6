#!/usr/bin/env python3
"""timeline.py on traces made here, whose figures are known."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import timeline

PROGRAM = Path(__file__).with_name("timeline.py")
PROCESS = {"pid": 7, "tid": 7}
GATHER, REDUCE = "all_gather parameter", "reduce_scatter gradient"


def x(category, name, start, end):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, **PROCESS}


def phase(name, start, end):
    return x("user_annotation", name, start, end)


def exposed(name, start, end):
    return x("exposed", name, start, end)


def edge(which, name, number, at, **more):
    return {"ph": which, "cat": "collective", "id": number, "name": name, "ts": at, **PROCESS,
            **more}


def collective(name, number, start, end, size=8):
    return [edge("b", name, number, start, args={"bytes": size}), edge("e", name, number, end)]


FORWARD = phase("forward", 0, 1000)
HIDDEN = [FORWARD, exposed("start " + GATHER, 90, 100), *collective(GATHER, 1, 100, 400)]
HALF = [FORWARD, *collective(GATHER, 1, 100, 300), exposed("wait " + GATHER, 200, 300)]
NONE = [FORWARD, *collective(GATHER, 1, 100, 400), exposed("wait " + GATHER, 100, 400)]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="zero-timeline-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, events, name="t.engine3.rank0.json"):
        path = self.folder / name
        path.write_text(events if isinstance(events, str) else json.dumps({"traceEvents": events}))
        return path

    def figures(self, events):
        return timeline.measure(timeline.read_trace(self.file(events)))

    def run_program(self, *words, alone=True):
        """alone: without installed packages, so without matplotlib."""
        command = [sys.executable, *(["-ESB"] if alone else []), PROGRAM, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


class Figures(Case):
    def expect(self, events, microseconds, share):
        figures = self.figures(events)
        of = figures["parameter"]
        found = [figures["compute_seconds"], figures["exposed_seconds"], of["in_flight_seconds"],
                 of["exposed_seconds"], of["overlap_seconds"]]
        self.assertEqual(found, [value / 1e6 for value in microseconds])
        self.assertEqual(of["overlap_share"], share)

    def test_overlap_is_what_is_in_flight_while_something_computes(self):
        in_flight_twice = [
            FORWARD, *collective(GATHER, 1, 100, 300), *collective(GATHER, 2, 200, 400),
            exposed("wait " + GATHER, 250, 300), exposed("progress", 260, 310)]
        touching_and_empty = [
            FORWARD, *collective(GATHER, 1, 100, 200), *collective(GATHER, 2, 200, 300),
            *collective(GATHER, 3, 700, 700), exposed("progress", 150, 150)]
        # Forward, backward and optimizer are compute, and nothing else is.
        phases = [
            phase("forward", 0, 100), phase("backward", 200, 300), phase("backward", 400, 450),
            phase("optimizer", 500, 600), phase("engine_param_gather", 100, 200),
            x("cpu_op", "forward", 300, 400), x("gpu_user_annotation", "forward", 0, 700),
            *collective(GATHER, 1, 0, 700)]
        # It counts from the first moment recorded.
        from_the_step_before = [
            phase("forward", 200, 1200), exposed("wait " + GATHER, 100, 300),
            *collective(GATHER, 1, -9000, 300)]
        outside = [FORWARD, *collective(GATHER, 1, 900, 1300)]
        for name, events, microseconds, share in [
                ("full", HIDDEN, [990, 10, 300, 10, 300], 1.0),
                ("none", NONE, [700, 300, 300, 300, 0], 0.0),
                ("half", HALF, [900, 100, 200, 100, 100], 0.5),
                ("outside of the ranges", outside, [1000, 0, 400, 0, 100], 0.25),
                ("in flight twice", in_flight_twice, [940, 60, 300, 50, 240], 0.8),
                ("touching and empty", touching_and_empty, [1000, 0, 200, 0, 200], 1.0),
                ("phases", phases, [350, 0, 700, 0, 350], 0.5),
                ("from the step before", from_the_step_before, [900, 200, 200, 200, 0], 0.0)]:
            with self.subTest(name):
                self.expect(events, microseconds, share)

    def test_purposes_are_told_apart(self):
        figures = self.figures([
            phase("backward", 0, 1000),
            *collective(GATHER, 1, 100, 300, 5), *collective(GATHER, 2, 300, 400, 6),
            *collective(REDUCE, 3, 200, 600, 30), *collective("all_reduce control", 4, 700, 800),
            exposed("wait " + GATHER, 350, 400), exposed("start " + REDUCE, 200, 220),
            exposed("wait all_reduce control", 700, 800), exposed("progress", 500, 510)])
        of_step = {"mode": "engine3", "rank": 0, "step_seconds": 1000e-6, "compute_seconds": 820e-6,
                   "exposed_seconds": 180e-6, "progress_seconds": 10e-6}
        self.assertEqual({key: figures[key] for key in of_step}, of_step)
        keys = list(figures["both"])
        for group, values in {"parameter": (2, 11, 300e-6, 50e-6, 230e-6, 230 / 300),
                              "gradient": (1, 30, 400e-6, 20e-6, 320e-6, 0.8),
                              "both": (3, 41, 500e-6, 70e-6, 420e-6, 0.84)}.items():
            self.assertEqual(figures[group], dict(zip(keys, values)), group)

    def test_step_is_from_the_first_to_the_last_of_all(self):
        events = [FORWARD, *collective(GATHER, 1, 900, 1300), exposed("progress", -50, -40)]
        self.assertEqual(self.figures(events)["step_seconds"], 1350e-6)

    def test_order_in_the_file_does_not_matter_and_ids_come_back(self):
        events = [FORWARD, *collective(GATHER, 1, 100, 200), *collective(GATHER, 1, 300, 500),
                  *collective(REDUCE, 1, 150, 350)]
        self.assertEqual(self.figures(events)["parameter"]["in_flight_seconds"], 300e-6)
        self.assertEqual(self.figures(events), self.figures(events[::-1]))

    def test_nanoseconds_are_exact(self):
        text = json.dumps({"traceEvents": [phase("forward", 4429440433000, 4429440434000),
                                           *collective(GATHER, 1, 111111, 222222)]})
        # As doubles, these two round to the same nanosecond.
        text = text.replace("111111", "4429440433079.010").replace("222222", "4429440433079.011")
        self.assertEqual(self.figures(text)["parameter"]["overlap_seconds"], 1e-9)

    def test_without_collectives_of_a_purpose_there_is_no_share(self):
        self.assertEqual(self.figures(HALF)["gradient"],
                         {"collectives": 0, "bytes": 0, "in_flight_seconds": 0.0,
                          "exposed_seconds": 0.0, "overlap_seconds": 0.0, "overlap_share": None})

    def test_mode_and_rank_are_in_the_name(self):
        for name, expected in {"out/t.zero1-naive-x.rank12.json": ("zero1:naive-x", 12),
                               "my.trace.ddp.rank0.json": ("ddp", 0),
                               "engine3.rank1.json": ("engine3", 1),
                               "trace.json": ("trace", None)}.items():
            self.assertEqual(timeline.mode_and_rank(name), expected)


class BadInput(Case):
    def expect_refused(self, path, said):
        ended = self.run_program(path)
        self.assertEqual((ended.returncode, ended.stdout), (2, ""), ended.stderr)
        self.assertRegex(ended.stderr, f"^timeline.py: error: '{path}'.*{said}.*\n$")

    def test_is_named_and_explained(self):
        begin, end = collective(GATHER, 3, 100, 200)
        cases = {
            "is no trace of ./run ladder --trace: JSONDecodeError": "{\"traceEvents\": [",
            "RecursionError": "[" * 100000,
            "KeyError.'traceEvents'": "{}",
            "AttributeError": json.dumps({"traceEvents": [1]}),
            "has no collectives": [FORWARD, exposed("wait " + GATHER, 1, 2)],
            "none of the ranges forward": [begin, end],
            f"never end: .*{GATHER}', 3": [FORWARD, begin],
            f"KeyError.*{GATHER}', 3": [FORWARD, end],
            f"KeyError.*{REDUCE}', 3": [FORWARD, begin, {**end, "name": REDUCE}],
            "KeyError.'bytes'": [FORWARD, {**begin, "args": {}}, end],
            "KeyError.'dur'": [{key: value for key, value in FORWARD.items() if key != "dur"}, begin, end],
            "'recv weight' ends with none of": [FORWARD, *collective("recv weight", 1, 2, 3)],
            "'wait' ends with none of": [FORWARD, begin, end, exposed("wait", 1, 2)],
        }
        for said, events in cases.items():
            with self.subTest(said):
                self.expect_refused(self.file(events), said)

    def test_is_no_file(self):
        self.expect_refused(self.folder / "none.json", "No such file")


class Program(Case):
    def test_table(self):
        files = [self.file(HALF, "t.tensor_zero3.rank0.json"), self.file(
            [*HIDDEN, *collective(REDUCE, 5, 500, 900, 3 << 20), exposed("progress", 600, 700)],
            "t.engine3.rank1.json")]
        ended = self.run_program(*files)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(ended.stdout.split("\n\n")[0].splitlines(), [
            "mode          rank  step  compute  exposed  progress  purpose    number   MiB  "
            "in flight  exposed  overlap  share",
            "-" * 113,
            "tensor_zero3     0  1.00     0.90     0.10      0.00  parameter       1  0.00  "
            "     0.20     0.10     0.10  0.500",
            " " * 54 + "gradient        0  0.00       0.00     0.00     0.00      -",
            " " * 54 + "both            1  0.00       0.20     0.10     0.10  0.500",
            "engine3          1  1.00     0.89     0.11      0.10  parameter       1  0.00  "
            "     0.30     0.01     0.30  1.000",
            " " * 54 + "gradient        1  3.00       0.40     0.00     0.30  0.750",
            " " * 54 + "both            2  3.00       0.70     0.01     0.60  0.857"])
        self.assertIn("In flight does not mean that bytes move", ended.stdout)

    def test_files_of_one_mode_and_rank_are_told_apart(self):
        files = [self.file(HALF, f"{name}.rank0.json") for name in ("a.ddp", "b.ddp", "a.ddp1")]
        rows = self.run_program(*files).stdout.splitlines()[2::3]
        self.assertEqual([row.split()[0] for row in rows[:3]],
                         [f"{self.folder}/a.ddp", f"{self.folder}/b.ddp", "ddp1"])

    def test_removed_options_are_named(self):
        ended = self.run_program(self.file(HALF), "--json", "x")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--json was removed: the tables have the figures", ended.stderr)

    def test_require_holds_for_each_file(self):
        full, half = self.file(HIDDEN, "a.ddp.rank0.json"), self.file(HALF, "b.ddp.rank0.json")
        self.assertEqual(self.run_program(full, half, "--require", 0.5).returncode, 0)
        ended = self.run_program(half, full, "--require", 0.51)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr, f"timeline.py: error: '{half}': collectives of parameters "
                         "and gradients overlap with compute for 0.500 of the time they are in "
                         "flight, not 0.51\n")

    def test_require_is_a_share_of_parameters_and_gradients_together(self):
        both = self.file([*NONE, *collective(REDUCE, 2, 500, 1000)], "a.ddp.rank0.json")
        control = self.file([FORWARD, *collective("all_reduce control", 1, 100, 200)], "b.ddp.rank0.json")
        nothing = f"'{control}': no collective of parameters or gradients"
        for path, share, code, said in [
                (both, 0.625, 0, ""), (both, 0.626, 1, "not 0.626"), (control, 0, 1, nothing),
                *((both, bad, 2, "invalid share_of_time value") for bad in ("nan", "-0.1", "1.1", "half", ""))]:
            ended = self.run_program(path, f"--require={share}")
            self.assertEqual(ended.returncode, code, share)
            self.assertIn(said, ended.stderr)

    def test_picture_needs_matplotlib(self):
        ended = self.run_program(self.file(HALF), "--picture", self.folder / "p.png")
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, r"^timeline.py: error: --picture: a picture needs matplotlib, .*pip install matplotlib$")
        self.assertIn("overlap", ended.stdout)


class Plots(unittest.TestCase):
    def test_say_in_one_sentence_that_matplotlib_is_missing(self):
        scripts = sorted(Path(__file__).parent.glob("plot_*.py"))
        self.assertGreater(len(scripts), 5)
        for script in scripts:
            ended = subprocess.run([sys.executable, "-ESB", script, "none.json"], capture_output=True, text=True,
                                   check=False)
            self.assertEqual(ended.returncode, 1, script)
            self.assertRegex(ended.stderr, r"^a picture needs matplotlib, .* python3 -m pip install matplotlib\n$")


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")
class Picture(Case):
    def figure(self, *traces):
        import plot_timeline
        traces = [timeline.read_trace(self.file(events)) for events in traces]
        every = [timeline.measure(trace) for trace in traces]
        return plot_timeline.draw(traces, every, timeline.names(every)).axes

    def bars(self, axes):
        """(left, bottom, right) in ms of every bar that is drawn."""
        boxes = [path.get_extents() for each in axes.collections for path in each.get_paths()]
        return sorted(tuple(round(value, 4) for value in (box.x0, box.y0, box.x1)) for box in boxes)

    def test_lanes_show_when_what_was_in_flight(self):
        axes, = self.figure([phase("forward", 1000, 2000), phase("optimizer", 3000, 3500),
                             *collective(GATHER, 1, 1100, 1400), *collective(GATHER, 2, 1200, 1500),
                             *collective(GATHER, 3, 1400, 1600), *collective(REDUCE, 4, 2000, 2500),
                             exposed("wait " + GATHER, 1500, 1600), exposed("progress", 1700, 1800)])
        self.assertEqual(self.bars(axes), sorted([
            (0.0, 2.0, 1.0), (2.0, 2.0, 2.5), (0.5, 2.0, 0.6), (0.7, 2.0, 0.8),
            # The second gather lies above the first, the third where the first has ended.
            (0.1, 1.2, 0.4), (0.2, 1.5, 0.5), (0.4, 1.2, 0.6), (0.5, 1.0, 0.6),
            (1.0, 0.2, 1.5)]))

    def test_panels_are_named_and_share_the_axis(self):
        first, second = self.figure(HALF, [*NONE, phase("optimizer", 1000, 4000)])
        self.assertEqual(first.get_title("left"), f"{self.folder}/t.engine3, rank 0")
        self.assertEqual((first.get_xlim(), second.get_xlim()), ((0, 4), (0, 4)))
        self.assertIn("exposed 0.10 ms; overlap: parameters 0.50, gradients -",
                      [text.get_text() for text in first.texts])

    def test_png_and_svg_are_written(self):
        ended = self.run_program(self.file(HALF), "--picture", self.folder / "p.png", alone=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual((self.folder / "p.png").read_bytes()[:4], b"\x89PNG")
        self.assertIn("<svg", (self.folder / "p.svg").read_text())


if __name__ == "__main__":
    unittest.main()
