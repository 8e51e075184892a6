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
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "plots")]

import compare_modes  # noqa: E402
import links  # noqa: E402
import links_report  # noqa: E402
from hosts import Skip, Wire, check_machine  # noqa: E402

MIB = 1 << 20
COUNTED = 25_000_000
GLOO = 2_000  # of a step
SETUP = Wire(bytes=2 * (COUNTED + GLOO) + 66 * 40_000, frames=40_000, again=0)  # as two steps
PROGRAM = ["--ladder", __file__]  # any file will do


def wire_of(payload, frames, again=0):
    return Wire(payload + links_report.HEADERS * frames, frames, again)


def document(mode="engine3", steps=5, step_seconds=0.5, digest="a" * 64):
    """What the ladder writes, as far as it is read."""
    return {"steps": steps, "modes": [{
        "mode": mode, "step_seconds": step_seconds, "communication_seconds": 0.1, "peak_mib_max": 94.125,
        "digest": digest, "ranks": [{"rank": rank, "sent_between_hosts_bytes": COUNTED} for rank in range(2)]}]}


def row(mbit=1000, missing=0, again=0, again_in_base=0, frames=20_000, **more):
    """Figures of a run whose hosts have sent what was counted, but for `missing` bytes a step."""
    made = document(**more)
    steps = made["steps"] - 1
    base = SETUP._replace(again=again_in_base)
    fitting = (COUNTED + GLOO) * (2 + steps)
    wires = [wire_of(fitting - missing * steps if rank == 1 else fitting, SETUP.frames + frames * steps, again)
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
        self.assertIn("as 100mbit, 1gbit or 100, or is unlimited", self.refused("--rates", "fast"))
        self.assertIn("'1e3'", self.refused("--rates", "1e3"))
        self.assertIn("at least 3", self.refused("--steps", "2"))
        self.assertIn("less than 1", self.refused("--batch", "0"))
        self.assertIn("--json: a name is needed", self.refused("--json", ""))
        self.assertIn("--keep-logs: a name is needed", self.refused("--keep-logs="))
        self.assertIn("--trace: a name is needed", self.refused("--trace="))
        self.assertIn("build ladder", self.refused("--ladder", "/nowhere/ladder"))

    def test_rates_have_units(self):
        options = links.parse_arguments([*PROGRAM, "--rates", "100mbit,2.5gbit,20,1Gbit"])
        self.assertEqual(options.rates, [100.0, 2500.0, 20.0, 1000.0])

    def test_modes_beside_each_other(self):
        options = links.parse_arguments([*PROGRAM, "--modes", "engine3,hsdp3,engine3"])
        self.assertEqual(options.modes, ["engine3", "hsdp3"])
        self.assertEqual((options.hosts, options.ranks_per_host, options.rounds, options.steps), (2, 2, 3, 3))
        self.assertEqual((options.model, options.rates), ("llama-20m", [100.0, 1000.0]))
        # A mode of which this script knows nothing, and more of everything.
        options = links.parse_arguments([*PROGRAM, "--modes", "zeropp:shard_size=2", "--hosts", "3",
                                         "--ranks-per-host", "4", "--rounds", "1", "--steps", "2"])
        self.assertEqual(options.modes, ["zeropp:shard_size=2"])
        self.assertEqual((options.hosts, options.ranks_per_host, options.rounds, options.steps), (3, 4, 1, 2))

    def test_what_does_not_go_with_modes_is_refused(self):
        modes = ("--modes", "engine3,hsdp3")
        self.assertIn("name of a mode is empty", self.refused("--modes", "engine3,,hsdp3"))
        self.assertIn("--quick goes only without --modes", self.refused(*modes, "--quick"))
        self.assertIn("--in-flight goes only without --modes", self.refused(*modes, "--in-flight", "6"))
        self.assertIn("--trace goes only without --modes", self.refused(*modes, "--trace", "a.json"))
        self.assertIn("--ranks-per-host goes only with --modes", self.refused("--ranks-per-host", "2"))
        self.assertIn("--rounds goes only with --modes", self.refused("--rounds", "2"))
        self.assertIn("--hosts: at least 2", self.refused(*modes, "--hosts", "1"))
        self.assertIn("--steps: at least 2", self.refused(*modes, "--steps", "1"))
        self.assertIn("are 66 ranks; at most 64", self.refused(*modes, "--hosts", "33"))

    def test_without_root_it_says_what_is_missing(self):
        with unittest.mock.patch("os.geteuid", return_value=1000), self.assertRaisesRegex(Skip, "CAP_NET_ADMIN"):
            check_machine("tc")

    def test_slower_links_have_more_time(self):
        self.assertEqual([links.limit_s(mbit) for mbit in (None, 1000, 100, 10)], [900, 900, 900, 9000])

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
        host = row()["hosts"][0]
        self.assertEqual(host["payload_bytes"], COUNTED + GLOO)
        self.assertAlmostEqual(host["frames"], 20_000)
        self.assertAlmostEqual(host["interface_bytes"], COUNTED + GLOO + 66 * 20_000)

    def test_a_host_has_sent_what_its_ranks_have(self):
        made = document()
        made["modes"][0]["ranks"] = [{"rank": rank, "sent_between_hosts_bytes": sent}
                                     for rank, sent in enumerate((1, 20, 300, 4000))]
        hosts = links_report.figures(1000, made, [SETUP, SETUP], [SETUP, SETUP])["hosts"]
        self.assertEqual([host["counted_bytes"] for host in hosts], [21, 4300])

    def test_right_counts_fit(self):
        self.assertEqual(links_report.wrong_bytes(row()), [])
        # One frame for 64 KiB: headers are few, and what they carry is the same.
        self.assertEqual(links_report.wrong_bytes(row(mbit=None, frames=400)), [])

    def test_a_bucket_that_was_counted_and_not_sent(self):
        (said,) = links_report.wrong_bytes(row(missing=MIB // 4))
        self.assertRegex(said, r"engine3 at 1 Gbit/s: host 1 counted 100000000 bytes in 4 steps")

    def test_a_bucket_that_was_sent_and_not_counted(self):
        self.assertEqual(len(links_report.wrong_bytes(row(missing=-MIB // 4))), 1)

    def test_headers_are_not_payload(self):
        # Full frames have 4.6 % of headers: they would hide a bucket in twenty.
        wrong = row(frames=17_266)
        for host in wrong["hosts"]:
            host["payload_bytes"] = host["interface_bytes"]
        self.assertEqual(len(links_report.wrong_bytes(wrong)), 2)

    def test_segments_sent_twice_are_allowed_for(self):
        segments = MIB // 1448 + 1
        self.assertEqual(links_report.wrong_bytes(row(missing=-MIB // 4, again=segments)), [])
        self.assertEqual(links_report.wrong_bytes(row(missing=MIB // 4, again_in_base=segments)), [])
        # But not the other way round: nothing that is sent twice makes bytes fewer.
        self.assertEqual(len(links_report.wrong_bytes(row(missing=MIB // 4, again=segments))), 1)

    def test_gaps_that_are_reported_are_allowed_for(self):
        more = row(missing=-MIB // 4)  # by host 1
        self.assertEqual(len(links_report.wrong_bytes(more)), 1)
        more["hosts"][0]["again"] = 1
        self.assertEqual(links_report.wrong_bytes(more), [])
        # At 12 bytes a frame, and where frames are few it is not enough.
        more["hosts"][1]["run_frames"] = 1_000
        self.assertEqual(len(links_report.wrong_bytes(more)), 1)

    def test_since(self):
        self.assertEqual(Wire(10, 5, 2).since(Wire(4, 3, 1)), Wire(6, 2, 1))


class Speed(unittest.TestCase):
    def test_link_needs_time_for_headers_too(self):
        host = {"counted_bytes": 125_000_000, "interface_bytes": 125_100_000}  # few frames were seen
        self.assertAlmostEqual(links_report.link_seconds(host, 1000), 1514 / 1448)
        host["interface_bytes"] = 137_500_000  # many, with acknowledgements
        self.assertAlmostEqual(links_report.link_seconds(host, 1000), 1.1)
        self.assertEqual(links_report.link_seconds(host, None), 0)

    def test_headers_of_the_first_step_belong_to_no_other(self):
        # Of a run of two steps on a slow link, with a frame for each segment and for each of the other host, and of
        # one step on a fast link, with frames of 64 KiB.
        run, base = wire_of(2 * COUNTED, 4 * COUNTED // 1448), wire_of(COUNTED, COUNTED // (64 << 10))
        made = links_report.figures(100, document(steps=2), [run, run], [base, base])
        self.assertAlmostEqual(made["link_seconds"], COUNTED * (1 + 2 * 66 / 1448) * 8e-8, places=4)

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

    def test_those_of_a_mode_may_be_others_where_modes_are_compared(self):
        def alike(row):
            return f"with {row['mode']}"

        rows = [row(), row(mbit=100), row(mode="hsdp3", digest="b" * 64)]
        self.assertEqual(links_report.wrong_weights(rows, alike), [])
        (said,) = links_report.wrong_weights([*rows, row(mode="hsdp3", mbit=100, digest="c" * 64)], alike)
        self.assertIn("with hsdp3 the weights differ", said)

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


def compared():
    """Figures of two modes at two rates in three rounds, of which the second is slow for all."""
    seconds = {("engine3", 100): (8.0, 20.0, 10.0), ("hsdp3", 100): (4.0, 8.0, 4.0),
               ("engine3", 1000): (1.0, 2.0, 1.0), ("hsdp3", 1000): (0.5, 2.0, 1.0)}
    runs = [{"round": number + 1, **row(mode=mode, mbit=mbit, step_seconds=seconds[mode, mbit][number])}
            for number in range(3) for mbit in (100, 1000) for mode in ("engine3", "hsdp3")]
    found = {"modes": ["engine3", "hsdp3"], "hosts": 2, "ranks_per_host": 1, "parameters": 19_405_312,
             "compute_seconds": [0.3, 0.5, 0.4], "runs": runs,
             "links": [{"mbit_per_s": 100, "bytes_per_second": [12.0e6, 12.5e6, 9e6]},
                       {"mbit_per_s": 1000, "bytes_per_second": [100e6, 125e6, 130e6]}]}
    return {**found, "summary": compare_modes.summarize(found)}


class FakeBench:
    """Notes what is run, in which order."""

    def __init__(self):
        self.runs = []

    def run(self, mbit, mode, steps, compute=False):
        self.runs.append((mbit, mode, steps, compute))
        made = {**document(mode=mode, steps=steps), "compute_seconds": 0.4 if compute else None,
                "parameters": 1000, "parameter_bytes": 4000}
        return made, [SETUP, SETUP] if steps == 1 else [wire_of(52_000_000 + COUNTED * (steps - 1), 900)] * 2

    def link_rate(self, mbit):
        self.runs.append(f"rate of {mbit:g}")
        return mbit * 120_000.0


class Comparison(unittest.TestCase):
    def test_rounds_are_interleaved(self):
        options = links.parse_arguments([*PROGRAM, "--modes", "a,b", "--rounds", "2", "--rates", "100,1000"])
        bench = FakeBench()
        with contextlib.redirect_stdout(io.StringIO()):
            found = compare_modes.measure(bench, options)
        a_round = [(None, "a", 3, True)]  # what computing takes, over no link
        for mbit in (100, 1000):
            a_round += [f"rate of {mbit}", (mbit, "a", 3, False), (mbit, "b", 3, False)]
        self.assertEqual(bench.runs, [(1000, "a", 1, False), (1000, "b", 1, False)] + 2 * a_round)
        self.assertEqual([run["round"] for run in found["runs"]], 4 * [1] + 4 * [2])
        self.assertEqual(found["compute_seconds"], [0.4, 0.4])
        self.assertEqual(found["links"][0], {"mbit_per_s": 100, "bytes_per_second": [12e6, 12e6]})

    def test_medians_and_spread(self):
        lines = compared()["summary"]
        self.assertEqual([(line["mode"], line["mbit_per_s"]) for line in lines], [
            ("engine3", 100), ("hsdp3", 100), ("engine3", 1000), ("hsdp3", 1000)])
        slow = lines[1]
        self.assertEqual([slow[f"step_seconds{which}"] for which in ("", "_min", "_max")], [4.0, 4.0, 8.0])
        self.assertEqual(slow["compute_seconds"], 0.4)
        # Of a round each: 0.5, 0.4 and 0.4.
        self.assertEqual([slow[f"ratio{which}"] for which in ("", "_min", "_max")], [0.4, 0.4, 0.5])
        self.assertEqual([lines[3][f"ratio{which}"] for which in ("", "_min", "_max")], [1.0, 0.5, 1.0])
        self.assertEqual([lines[0][f"ratio{which}"] for which in ("", "_min", "_max")], [1.0, 1.0, 1.0])

    def test_wire_needs_bytes_over_the_measured_rate(self):
        slow, fast = compared()["summary"][1], compared()["summary"][3]
        self.assertEqual((slow["counted_bytes"], slow["measured_mbit_per_s"]), (COUNTED, 96.0))
        self.assertAlmostEqual(slow["wire_seconds"], COUNTED / 12e6)
        self.assertAlmostEqual(slow["step_over_wire"], 4.0 / (COUNTED / 12e6))
        self.assertAlmostEqual(fast["wire_seconds"], COUNTED / 125e6)

    def test_bytes_are_those_of_the_host_that_sends_most(self):
        found = compared()
        for run in found["runs"]:
            run["hosts"][1]["counted_bytes"] *= 3
            run["hosts"][1]["payload_bytes"] = 3 * COUNTED + 7
            run["hosts"][1]["frames"] = 10
        line = compare_modes.summarize(found)[0]
        self.assertEqual((line["counted_bytes"], line["payload_bytes"], line["header_bytes"]),
                         (3 * COUNTED, 3 * COUNTED + 7, 660))

    def test_table(self):
        first, second = compare_modes.tables(compared()).split("\n\n1 Gbit/s")
        self.assertTrue(first.startswith("100 Mbit/s: 96.0 Mbit/s of payload measured"))
        self.assertTrue(second.startswith(": 1000.0 Mbit/s of payload measured"))
        self.assertEqual(
            re.split(r" +", first.splitlines()[-1]),
            ["hsdp3", "4.000", "4.000", "8.000", "0.400", "0.400", "0.500", "25000000", "25002000", "1320000",
             "0.400", "2.083", "1.92"])
        self.assertTrue(all(len(line) <= 120 for line in first.splitlines()), first)

    def test_a_mode_that_sends_nothing_between_hosts(self):
        found = compared()
        for run in found["runs"]:
            run["hosts"] = [{**host, "counted_bytes": 0} for host in run["hosts"]]
        found["summary"] = compare_modes.summarize(found)
        self.assertRegex(compare_modes.tables(found), r"0\.000 +-\n")


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

    def test_of_modes_has_a_line_a_mode(self):
        import plot_style

        (axes,) = self.draw(compared()).axes
        # Each mode and what the wire needs for it, and computing alone.
        self.assertEqual(len(axes.lines), 2 * 2 + 1)
        self.assertEqual(list(axes.lines[2].get_xdata()), [96.0, 1000.0])
        self.assertEqual(list(axes.lines[2].get_ydata()), [4.0, 1.0])
        self.assertEqual([text.get_text() for text in axes.get_legend().get_texts()],
                         ["engine3", "hsdp3", "the wire alone", "computing alone (grey)"])
        plot_style.plt.close("all")

    def test_of_modes_names_a_figure_that_is_missing(self):
        document = compared()
        del document["summary"][1]["wire_seconds"]
        with self.assertRaisesRegex(self.bad_input, "hsdp3 has no 'wire_seconds'"):
            self.draw(document)
        with self.assertRaisesRegex(self.bad_input, "no modes"):
            self.draw({**document, "summary": []})

    def test_a_run_that_is_missing_is_named(self):
        document = copy.deepcopy(self.document)
        document["runs"] = [run for run in document["runs"] if not run["mode"].endswith("lookahead=2")]
        with self.assertRaisesRegex(self.bad_input, "no run of engine3:.*:lookahead=2 at 100 Mbit/s"):
            self.draw(document)


if __name__ == "__main__":
    unittest.main()
