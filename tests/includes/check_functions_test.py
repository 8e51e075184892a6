#!/usr/bin/env python3
"""check_functions.py on small trees."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_functions

LINE = "  work();\n"


class Functions(unittest.TestCase):
    def said(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                wrong = check_functions.check(Path(folder))
            self.assertEqual(wrong, len(printed.getvalue().splitlines()))
            return printed.getvalue()

    def test_of_44_lines_pass_and_of_45_do_not(self):
        short, long = ("int f(int a,\n      int b) {\n" + LINE * n + "}\n" for n in (43, 44))
        self.assertEqual(self.said("tools/plan/a.cpp", short + short), "")
        self.assertEqual(self.said("tools/plan/a.cpp", short + long), "tools/plan/a.cpp:47: 45 lines, 44 is the most\n")

    def test_of_a_class_are_looked_at(self):
        inside = "class A {\n  void f() {\n" + ("  " + LINE) * 45 + "  }\n};\n"
        self.assertIn("common/zero/nn/a.hpp:2: 45 lines", self.said("common/zero/nn/a.hpp", inside))

    def test_of_tests_graders_and_small_programs_may_be_longer(self):
        long = "void f() {\n" + LINE * 90 + "}\n"
        for path in ("tests/a.cpp", "common/zero/nn/a_test.cpp", "03_zero3/minimal.cpp", "03_zero3/autograd.cpp",
                     "03_zero3/exercises/03a_bytes/check.cpp"):
            self.assertEqual(self.said(path, long), "")
        self.assertNotEqual(self.said("03_zero3/a.cpp", long), "")


if __name__ == "__main__":
    unittest.main()
