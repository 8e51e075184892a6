#!/usr/bin/env python3
"""The functions of docs/calculator.js beside what the planner prints: calculator_test.py PLAN

PLAN is the planner's program. The page's functions run in headless Chromium, where the page is drawn and used too, or
else in Node. Without either, or without PLAN, the test says so and ends with 77 (ctest: skipped).
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_site

SCRIPT = check_site.ROOT / "docs/calculator.js"
FIGURES = check_site.ROOT / "tools/plan/figures.csv"
PAGE = check_site.ROOT / "docs/calculator.md"
STAGES = ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
UNITS = {"MiB": 2**20, "GiB": 2**30, "GB": 10**9}
PLAN = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else "build/release/bin/plan"
NODE = shutil.which("node")
# Numbers that N and S do not divide are among them; the planner prints two decimals of a unit, so most are large.
SETTINGS = [{"parameters": int(parameters), "ranks": ranks, "group": group, "stage": stage, "kind": kind,
             "offload": offload} for parameters, ranks, group, stage, kind, offload in [
                 (7e9, 8, 8, 0, "mixed", False),
                 (7e9, 8, 8, 3, "mixed", True),
                 (13e9, 8, 8, 1, "fp32", False),
                 (70e9, 64, 64, 2, "mixed", False),
                 (70e9, 64, 8, 3, "mixed", False),
                 (1e12, 1024, 1024, 3, "fp32", False),
                 (1e12 - 1, 12, 4, 1, "fp32", False),
                 (361821121, 6, 3, 2, "mixed", True),
                 (1e12 - 1, 7, 7, 2, "mixed", True),
                 (1e6, 1, 1, 3, "fp32", False)]]
# The page at its first setting, at stage 2 after one press of the left key, and what has no label.
USE = """(() => {
  const text = name => document.querySelector("#calc-" + name).textContent;
  const stage = document.querySelector("#calc-stage"), answers = [text("verdict")];
  stage.stepDown();
  stage.dispatchEvent(new Event("input", {bubbles: true}));
  const nameless = [...document.querySelectorAll("input, select")].filter(field => !field.labels.length);
  return [...answers, text("verdict"), text("command"), nameless.length, stage.getAttribute("aria-valuetext")];
})()"""


def missing():
    """What the test needs and this machine has not, or None."""
    if not (check_site.CHROMIUM or NODE):
        return "neither Chromium nor Node is installed (Debian: chromium, nodejs)"
    return None if Path(PLAN).is_file() else f"{PLAN} is not built (./run build plan)"


def in_chromium(script):
    """What the script returns in a page with nothing but the calculator, and the errors that the page logs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "page.html"
        page.write_text(f'<!DOCTYPE html><meta charset="utf-8"><div id="calculator"></div><script>{SCRIPT.read_text()}'
                        "</script>")
        browser = check_site.Browser(folder)
        try:
            return browser.faults(page.as_uri(), 400, f"[{script}]")
        finally:
            browser.close()


def in_page(script):
    if check_site.CHROMIUM:
        *logged, result = in_chromium(script)
        if logged:
            raise AssertionError(logged)
        return result
    program = (f"const run = require('vm').runInThisContext; run({json.dumps(SCRIPT.read_text())});"
               f"process.stdout.write(JSON.stringify(run({json.dumps(script)})))")
    return json.loads(subprocess.run([NODE, "-e", program], check=True, capture_output=True, text=True).stdout)


def calculated(settings):
    """[what a rank holds, the planner's options] by the page, of each setting."""
    return in_page(f"{json.dumps(settings)}.map(one => [zeroCalculator.held(one), zeroCalculator.options(one)])")


def planned(options, stage):
    """(unit, [parameters, gradients, optimizer, total, transients]) that the planner prints of the stage, in units."""
    lines = subprocess.run([PLAN, *options.split()], check=True, capture_output=True, text=True).stdout.splitlines()
    row = next(line for line in lines if re.match(rf"{STAGES[stage]}( on \S+)? +\d+\.\d\d ", line))
    unit = next(line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in UNITS)
    return UNITS[unit], [float(number) for number in re.findall(r" (\d+\.\d\d)\b", row)[:5]]


def example():
    """The options of the page's example, and the cells of its rows by stage."""
    (options,) = re.findall(r"^\./run plan (.*)$", PAGE.read_text(), re.MULTILINE)
    return options, [re.findall(rf"^\| {name} \| (.*) \|$", PAGE.read_text(), re.MULTILINE)[0].split(" | ")
                     for name in STAGES]


@unittest.skipIf(missing(), f"{missing()}")
class Calculator(unittest.TestCase):
    def check(self, setting, page, options):
        unit, (parameters, gradients, optimizer, total, transients) = planned(options, setting["stage"])
        parts = {part["name"]: part["bytes"] for part in page["parts"]}
        moved = page["host"] if setting["offload"] else 0
        for name, bytes_, number in [
                ("parameters", parts["parameters"], parameters), ("gradients", parts["gradients"], gradients),
                ("optimizer", parts["optimizer"] + moved, optimizer), ("one unit", parts["one unit"], transients),
                ("states", page["total"] + moved - parts["one unit"], total)]:
            self.assertAlmostEqual(bytes_ / unit, number, delta=0.005 + 1e-9 * number, msg=f"{name}: {options}")
        self.assertEqual(parts["optimizer"] == 0, setting["offload"])

    def test_numbers_are_the_planners(self):
        for setting, (page, options) in zip(SETTINGS, calculated(SETTINGS), strict=True):
            with self.subTest(options):
                self.check(setting, page, options)

    def test_bytes_are_the_planners(self):
        """Exactly, as the planner's own test has them: what it prints is rounded."""
        lines = re.findall(r"^--parameters (\w+)(?: --layers 1)?(?: --world-size (\d+))?(?: --dtype (fp32))?"
                           r"(?: --memory \w+)?,ZeRO-(\d) (parameters|gradients|optimizer|states),(\d+)$",
                           FIGURES.read_text(), re.MULTILINE)
        self.assertGreaterEqual(len(lines), 10)
        settings = [{"parameters": int(float(parameters)), "ranks": int(ranks or 8), "group": int(ranks or 8),
                     "stage": int(stage), "kind": kind or "mixed", "offload": False}
                    for parameters, ranks, kind, stage, *_ in lines]
        for (*_, name, number), setting, (page, _) in zip(lines, settings, calculated(settings)):
            parts = {part["name"]: part["bytes"] for part in page["parts"]}
            parts["states"] = page["total"] - parts["one unit"]
            self.assertEqual(parts[name], int(number), msg=f"{name}: {setting}")

    def test_the_example_of_the_page_is_the_planners(self):
        command, rows = example()
        for stage, (*numbers, everything, fits) in enumerate(rows):
            # With as much memory the planner's exit code is 0, and units are the same.
            unit, (*states, total, transients) = planned(command.replace("24GiB", "1024GiB"), stage)
            self.assertEqual(unit, UNITS["GiB"])
            self.assertEqual(list(map(float, numbers)), [*states, transients], STAGES[stage])
            self.assertAlmostEqual(float(everything), total + transients, delta=0.0101, msg=STAGES[stage])
            self.assertEqual(fits, "yes" if float(everything) <= 24 else "no", STAGES[stage])

    @unittest.skipUnless(check_site.CHROMIUM, "Chromium is not installed: the page is not used")
    def test_the_page_answers_its_fields(self):
        first, second, command, nameless, said = in_page(USE)
        _, rows = example()
        self.assertIn(f"ZeRO-3: {rows[3][-2]} GiB", first)
        self.assertIn("24, 40, 80, 141 GiB", first)
        self.assertIn(f"ZeRO-2: {rows[2][-2]} GiB", second)
        self.assertIn("fits 40, 80, 141 GiB", second)
        self.assertEqual(command, "./run plan --parameters 7000000000 --world-size 8 --dtype mixed --memory 24GiB")
        self.assertEqual((nameless, said), (0, "ZeRO-2"))


if __name__ == "__main__":
    if missing():
        print(f"skipped: {missing()}")
        sys.exit(check_site.SKIPPED)
    unittest.main()
