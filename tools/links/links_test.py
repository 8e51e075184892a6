"""What ./run links makes of options, counters and figures; nothing is sent here.

    python tools/links/links_test.py
"""

import contextlib
import copy
import io
import json
import math
import re
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "plots")]

import links  # noqa: E402
import links_report  # noqa: E402
from hosts import Wire  # noqa: E402

MIB = 1 << 20
COUNTED = 25_000_000
GLOO = 2_000  # of a step
SETUP = Wire(bytes=52_000_000 + 66 * 900, frames=900, again=0)
PROGRAM = ["--ladder", __file__]  # any file will do


def wire_of(payload, frames, again=0):
    return Wire(payload + links_report.HEADERS * frames, frames, again)


def document(mode="engine3", steps=5, step_seconds=0.5, digest="a" * 64):
    """What the ladder writes, as far as it is read."""
    return {"steps": steps, "modes": [{
        "mode": mode, "step_seconds": step_seconds, "communication_seconds": 0.1, "peak_mib_max": 94.125,
        "digest": digest, "ranks": [{"rank": rank, "sent_bytes": COUNTED} for rank in range(2)]}]}


def row(mbit=1000, missing=0, again=0, again_in_base=0, frames=20_000, **more):
    """Figures of a run whose hosts have sent what was counted, but for `missing` bytes a step."""
    made = document(**more)
    steps = made["steps"] - 1
    base = SETUP._replace(again=again_in_base)
    sent = 52_000_000 + (COUNTED + GLOO - missing) * steps
    wires = [wire_of(sent if rank == 1 else 52_000_000 + (COUNTED + GLOO) * steps, 900 + frames * steps, again)
             for rank in range(2)]
    return links_report.figures(mbit, made, wires, [base, base])


class Options(unittest.TestCase):
    def refused(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            links.parse_arguments([*PROGRAM, *words])
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_without_any(self):
        options = links.parse_arguments(PROGRAM)
        self.assertEqual(options.rates, [100.0, 1000.0, None])
        self.assertEqual(options.buckets, [0.25, 0.5, 1.0, 2.0, 25.0])
        self.assertEqual(options.lookaheads, [0, 1, 2, 4])

    def test_lists_are_read_and_said_once(self):
        options = links.parse_arguments([*PROGRAM, "--rates", "unlimited,2500,unlimited", "--buckets", "1,0.5"])
        self.assertEqual(options.rates, [None, 2500.0])
        self.assertEqual(options.buckets, [1.0, 0.5])

    def test_bad_ones_are_refused(self):
        self.assertIn("1 to 100000 Mbit/s", self.refused("--rates", "100,0"))
        self.assertIn("invalid list value", self.refused("--rates", "fast"))
        self.assertIn("at least 3", self.refused("--steps", "2"))
        self.assertIn("less than 1", self.refused("--batch", "0"))
        self.assertIn("--json: a name is needed", self.refused("--json", ""))
        self.assertIn("--keep-logs: a name is needed", self.refused("--keep-logs="))
        self.assertIn("--trace: a name is needed", self.refused("--trace="))
        self.assertIn("build ladder", self.refused("--ladder", "/nowhere/ladder"))

    def test_every_mode_is_trained_once(self):
        options = links.parse_arguments([*PROGRAM, "--buckets", "0.5,25", "--lookaheads", "0,1,2"])
        drawn = links.panels(options)
        self.assertEqual(links.modes_of(drawn), [
            "engine3:in_flight_mib=6:bucket_mib=0.5", "engine3:in_flight_mib=6",
            "engine3:in_flight_mib=6:lookahead=0", "engine3:in_flight_mib=6:lookahead=2",
            "engine0:in_flight_mib=6", "engine1:in_flight_mib=6", "engine2:in_flight_mib=6",
            "ddp", "tensor_zero1", "tensor_zero2", "tensor_zero3"])
        self.assertEqual([point["x"] for point in drawn["stage"]], [0, 1, 2, 3, 0, 1, 2, 3])

    def test_every_engine_has_the_bound_that_was_asked_for(self):
        drawn = links.panels(links.parse_arguments([*PROGRAM, "--in-flight", "1.5", "--bucket-stage", "engine1"]))
        engines = [mode for mode in links.modes_of(drawn) if mode.startswith("engine")]
        self.assertTrue(all(":in_flight_mib=1.5" in mode for mode in engines), engines)
        self.assertEqual(drawn["bucket_mib"][0]["mode"], "engine1:in_flight_mib=1.5:bucket_mib=0.25")

    def test_quick_has_fewer_points(self):
        quick = links.panels(links.parse_arguments([*PROGRAM, "--quick"]))
        self.assertEqual([point["x"] for point in quick["stage"]], [0, 1, 2, 3])
        self.assertLess(len(links.modes_of(quick)), 9)

    def test_slow_links_take_half_the_steps(self):
        self.assertEqual([links.steps_at(mbit, 8) for mbit in (100, 1000, None)], [4, 8, 8])


class Model(unittest.TestCase):
    def test_file_holds_what_its_header_says(self):
        with tempfile.TemporaryDirectory() as parent:
            links.write_model(Path(parent) / "model")
            data = (Path(parent) / "model" / "model.safetensors").read_bytes()
        length = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:8 + length])
        end = 0  # one tensor after the other, without a gap, to the end of the file
        for name, tensor in tensors.items():
            begin, size = tensor["data_offsets"][0], 4 * math.prod(tensor["shape"])
            self.assertEqual((begin, tensor["data_offsets"][1]), (end, end + size), name)
            end += size
        self.assertEqual((end, end // 4), (len(data) - 8 - length, 6_492_416))
        self.assertEqual(len(tensors), 2 + 9 * 8)


class Bytes(unittest.TestCase):
    def test_what_both_runs_send_cancels_out(self):
        rank = row()["ranks"][0]
        self.assertEqual(rank["payload_bytes"], COUNTED + GLOO)
        self.assertEqual(rank["frames"], 20_000)
        self.assertEqual(rank["interface_bytes"], COUNTED + GLOO + 66 * 20_000)

    def test_right_counts_fit(self):
        self.assertEqual(links_report.wrong_bytes(row()), [])
        # One frame for 64 KiB: headers are few, and what they carry is the same.
        self.assertEqual(links_report.wrong_bytes(row(mbit=None, frames=400)), [])

    def test_a_bucket_that_was_counted_and_not_sent(self):
        (said,) = links_report.wrong_bytes(row(missing=MIB // 4))
        self.assertRegex(said, r"engine3 at 1 Gbit/s: rank 1 counted 100000000 bytes in 4 steps")

    def test_a_bucket_that_was_sent_and_not_counted(self):
        self.assertEqual(len(links_report.wrong_bytes(row(missing=-MIB // 4))), 1)

    def test_headers_are_not_payload(self):
        # Full frames have 4.6 % of headers: they would hide a bucket in twenty.
        wrong = row(frames=17_266)
        for rank in wrong["ranks"]:
            rank["payload_bytes"] = rank["interface_bytes"]
        self.assertEqual(len(links_report.wrong_bytes(wrong)), 2)

    def test_segments_sent_twice_are_allowed_for(self):
        segments = MIB // 1448 + 1
        self.assertEqual(links_report.wrong_bytes(row(missing=-MIB // 4, again=segments)), [])
        self.assertEqual(links_report.wrong_bytes(row(missing=MIB // 4, again_in_base=segments)), [])
        # But not the other way round: nothing that is sent twice makes bytes fewer.
        self.assertEqual(len(links_report.wrong_bytes(row(missing=MIB // 4, again=segments))), 1)

    def test_since(self):
        self.assertEqual(Wire(10, 5, 2).since(Wire(4, 3, 1)), Wire(6, 2, 1))


class Speed(unittest.TestCase):
    def test_link_needs_time_for_headers_too(self):
        rank = {"counted_bytes": 125_000_000, "interface_bytes": 125_100_000}  # few frames were seen
        self.assertAlmostEqual(links_report.link_seconds(rank, 1000), 1514 / 1448)
        rank["interface_bytes"] = 137_500_000  # many, with acknowledgements
        self.assertAlmostEqual(links_report.link_seconds(rank, 1000), 1.1)
        self.assertEqual(links_report.link_seconds(rank, None), 0)

    def test_a_step_cannot_be_faster_than_its_link(self):
        self.assertEqual(links_report.wrong_speed(row(step_seconds=0.21)), [])
        (said,) = links_report.wrong_speed(row(step_seconds=0.15))
        self.assertIn("engine3 at 1 Gbit/s: a step took 0.150 s, the link needs 0.211 s", said)
        self.assertEqual(links_report.wrong_speed(row(mbit=None, step_seconds=0.15)), [])


class Weights(unittest.TestCase):
    def test_those_of_as_many_steps_are_the_same(self):
        rows = [row(), row(mbit=None), row(mbit=100, steps=3, digest="b" * 64)]
        self.assertEqual(links_report.wrong_weights(rows), [])
        (said,) = links_report.wrong_weights([*rows, row(mode="engine1", digest="c" * 64)])
        self.assertIn("engine1 at 1 Gbit/s", said)

    def test_ranks_that_differ_have_no_digest(self):
        self.assertEqual(len(links_report.wrong_weights([row(digest=None)])), 1)


class Table(unittest.TestCase):
    def test_columns_end_in_one_place(self):
        text = links_report.table([row(), row(mode="engine3:bucket_mib=0.25", mbit=None, step_seconds=12.25)], 0.28)
        lines = text.splitlines()
        ends = [[match.end() for match in re.finditer(r"\S+", line)][1:] for line in (lines[0], *lines[2:])]
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], ends[2])
        self.assertTrue(all(len(line) <= 120 for line in lines), text)

    def test_cells(self):
        cells = dict(zip(
            "mode step exposed compute link peak counted interface differ headers rest".split(),
            links_report.cells(row(), 0.28)))
        self.assertEqual(cells, {
            "mode": "engine3", "step": "0.500", "exposed": "0.100", "compute": "0.280", "link": "0.211",
            "peak": "94.12", "counted": "25000000", "interface": "26322000", "differ": "5.29",
            "headers": "5.28", "rest": "0.008"})


class Picture(unittest.TestCase):
    def setUp(self):
        import plot_links
        import plot_style

        self.draw, self.bad_input = plot_links.draw, plot_style.BadInput
        drawn = links.panels(links.parse_arguments(PROGRAM))
        rates = [100.0, None]
        self.document = {
            "rates": rates, "panels": drawn, "bucket_stage": "engine3", "compute_seconds": 0.28,
            "parameters": 6_492_416, "batch_size": 1, "sequence_length": 256,
            "runs": [row(mode=mode, mbit=mbit) for mbit in rates for mode in links.modes_of(drawn)]}

    def test_has_a_line_a_speed(self):
        import plot_style

        figure = self.draw(self.document)
        buckets, ahead, peaks, stages = figure.axes
        # Two speeds, what the slow link needs, and computing alone; stages without overlap as well.
        self.assertEqual([len(axes.lines) for axes in (buckets, ahead, peaks, stages)], [4, 4, 2, 6])
        self.assertEqual(list(peaks.lines[0].get_ydata()), [94.125] * 4)
        plot_style.plt.close(figure)

    def test_a_run_that_is_missing_is_named(self):
        document = copy.deepcopy(self.document)
        document["runs"] = [run for run in document["runs"] if not run["mode"].endswith("lookahead=2")]
        with self.assertRaisesRegex(self.bad_input, "no run of engine3:.*:lookahead=2 at 100 Mbit/s"):
            self.draw(document)


if __name__ == "__main__":
    unittest.main()
