#!/usr/bin/env python3
"""Checks that functions of the library, the chapters and the tools are short.

    tests/includes/check_functions.py [FOLDER]

Prints each that has MOST lines or more, without the first and the last, and ends with 1 if there is one.
docs/decisions.md says why train() of a small program is longer. Tests and graders of exercises may be longer, too.
"""

import re
import sys
from pathlib import Path

MOST = 45


def functions(text):
    """(number of the first line, lines below it and above the closing brace) of what ends with a brace on a line of its own. clang-format
    puts that brace below the first line, in a class two columns in."""
    lines = text.splitlines()
    for end, line in enumerate(lines):
        closing = re.fullmatch(r"( {0,2})\}", line)
        begin = end - 1
        while closing and begin >= 0 and not re.match(closing[1] + r"\S", lines[begin]):
            begin -= 1
        if closing and begin >= 0:
            yield begin + 1, end - begin - 1


def is_checked(path):
    return (re.match(r"common/|engine/|grading/|tools/|\d\d_", str(path)) and "exercises" not in path.parts
            and not re.search(r"(_test|_bench)\.\w+$|^(minimal|autograd|hpz|qgz|sequence|partitioned)\.cpp$", path.name))


def check(root):
    """Prints what is too long below `root`; returns how much."""
    wrong = 0
    for file in sorted(root.rglob("*.[ch]pp")):
        path = file.relative_to(root)
        if not is_checked(path):
            continue
        for begin, size in functions(file.read_text(encoding="utf-8")):
            if size >= MOST:
                print(f"{path}:{begin}: {size} lines, {MOST - 1} is the most")
                wrong += 1
    return wrong


if __name__ == "__main__":
    sys.exit(1 if check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()) else 0)
