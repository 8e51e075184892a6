#!/usr/bin/env python3
"""check_includes.py on small trees: what is right passes, and each rule can be broken."""

import contextlib
import io
import re
import tempfile
import unittest
from pathlib import Path

import check_includes

LIBRARY = "common/zero/"


class Includes(unittest.TestCase):
    def said(self, path, line):
        """What is printed for a tree of a few headers where `path` has `line`."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            there = [LIBRARY + "base/error.hpp", LIBRARY + "nn/unit.hpp", LIBRARY + "train/strategy.hpp",
                     "03_zero3/zero3.hpp", "06_mesh/mesh.hpp", "07_quantized/wire.hpp", "tools/ladder/options.hpp",
                     "00_simple_ddp/minimal.cpp", "06_mesh/minimal.cpp", "grading/judge.hpp", "engine/zero/engine.hpp",
                     "tests/support/ranks.hpp", "tests/support/pipeline.hpp", "tests/support/wire.hpp", str(Path(path).with_suffix(".hpp"))]
            for name in there:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
            # One header that leads to a later chapter through another.
            (root / "tests/support/pipeline.hpp").write_text('#include "wire.hpp"\n')
            (root / "tests/support/wire.hpp").write_text("#include <07_quantized/wire.hpp>\n")
            (root / path).write_text(line + "\n")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                wrong = check_includes.check(root)
            self.assertEqual(wrong, len(printed.getvalue().splitlines()))
            return printed.getvalue()

    def test_right_ones_pass(self):
        for path, line in [
                (LIBRARY + "train/a.cpp", "#include <zero/nn/unit.hpp>"),
                (LIBRARY + "train/a_test.cpp", "#include <tests/support/ranks.hpp>"),
                (LIBRARY + "distributed/gloo/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>"),
                ("03_zero3/a.cpp", '#include "zero3.hpp"'),
                ("03_zero3/a.cpp", "#include <zero/train/strategy.hpp>"),
                ("07_quantized/a.cpp", "#include <06_mesh/mesh.hpp>"),
                ("tools/plan/a.cpp", "#include <tools/ladder/options.hpp>"),
                ("tests/a.cpp", "#include <03_zero3/zero3.hpp>"),
                ("07_quantized/a_test.cpp", "#include <tests/support/pipeline.hpp>"),
                ("06_mesh/exercises/06a_some/check.cpp", "#include <03_zero3/zero3.hpp>"),
                ("06_mesh/exercises/06a_some/check.cpp", "#include <grading/judge.hpp>"),
                ("grading/a.cpp", "#include <00_simple_ddp/minimal.cpp>"),
                ("grading/a.cpp", "#include <06_mesh/minimal.cpp>"),
                ("tests/a.cpp", "#include <nlohmann/json.hpp>")]:
            self.assertEqual(self.said(path, line), "", line)

    def test_wrong_forms_are_named(self):
        for path, line, words in [
                (LIBRARY + "nn/a.cpp", '#include "unit.hpp"', "by path"),
                (LIBRARY + "nn/a.cpp", '#include "zero/nn/unit.hpp"', "by path"),
                ("03_zero3/a.cpp", '#include "zero/nn/unit.hpp"', "same folder"),
                ("tests/a.cpp", '#include "ranks.hpp"', "same folder"),
                ("tests/a.cpp", "#include <zero3.hpp>", "from the repository's root"),
                ("03_zero3/a.cpp", "#include <03_zero3/zero3.hpp>", 'by its name: "zero3.hpp"'),
                ("tests/a.cpp", "#include <common/zero/nn/unit.hpp>", "<zero/nn/unit.hpp>"),
                ("tests/a.cpp", "#include <zero/nn/no.hpp>", "no such header"),
                ("tests/a.cpp", "#include <torch/torch.h>", "narrower"),
                ("tools/plan/a.cpp", "#include <gloo/types.h>", "Gloo")]:
            said = self.said(path, line)
            self.assertIn(f"{path}:1: {line}: ", said)
            self.assertIn(words, said)

    def test_arrows_that_point_up_are_named(self):
        for path, line, words in [
                (LIBRARY + "base/a.cpp", "#include <zero/nn/unit.hpp>", "base lies below nn"),
                (LIBRARY + "nn/a.cpp", "#include <zero/train/strategy.hpp>", "nn lies below train"),
                (LIBRARY + "train/a.cpp", "#include <03_zero3/zero3.hpp>", "neither chapters"),
                (LIBRARY + "train/a.cpp", "#include <tests/support/ranks.hpp>", "neither chapters"),
                ("04_cut/a.cpp", "#include <03_zero3/zero3.hpp>", "do not use each other"),
                ("06_mesh/a.cpp", "#include <07_quantized/wire.hpp>", "no later one"),
                ("02_cut/a_test.cpp", "#include <03_zero3/zero3.hpp>", "no later one"),
                ("02_cut/exercises/02a_some/check.cpp", "#include <03_zero3/zero3.hpp>", "no later one"),
                ("06_mesh/a_test.cpp", "#include <tests/support/pipeline.hpp>", "it includes 07_quantized: "),
                (LIBRARY + "io/a.cpp", "#include <zero/engine.hpp>", "the engine stands above"),
                ("06_mesh/a.cpp", "#include <zero/engine.hpp>", "the engine stands above"),
                ("engine/zero/a.cpp", "#include <tools/ladder/options.hpp>", "the library and chapters"),
                ("03_zero3/a.cpp", "#include <tools/ladder/options.hpp>", "the library only"),
                ("03_zero3/a.cpp", "#include <grading/judge.hpp>", "the library only"),
                ("grading/a.cpp", "#include <tools/ladder/options.hpp>", "the grader uses"),
                ("grading/a.cpp", "#include <03_zero3/zero3.hpp>", "the grader uses"),
                ("tools/plan/a.cpp", "#include <grading/judge.hpp>", "only tests and exercises"),
                ("tools/plan/a.cpp", "#include <tests/support/ranks.hpp>", "only tests")]:
            self.assertIn(words, self.said(path, line), line)

    def test_a_source_without_a_header_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / LIBRARY / "nn" / "alone.cpp"
            source.parent.mkdir(parents=True)
            source.touch()
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(check_includes.check(Path(folder)), 1)
            self.assertIn("has a header of its name", printed.getvalue())


class Layers(unittest.TestCase):
    def test_stand_in_contributing_as_they_are_checked(self):
        page = Path(check_includes.__file__).resolve().parents[2] / "CONTRIBUTING.md"
        text = " ".join(page.read_text(encoding="utf-8").split())
        below = {}
        for chain in re.search(r"base → memory → .*?train → io", text)[0].split(";"):
            steps = [[name.strip() for name in step.split(",")] for step in chain.split("→")]
            for low, high in zip(steps, steps[1:]):
                for name in high:
                    below.setdefault(name, set()).update(low)
        self.assertEqual(below, {name: set(low) for name, low in check_includes.BELOW.items() if low})


if __name__ == "__main__":
    unittest.main()
