#!/usr/bin/env python3
"""Every mutant is killed by a test with the label of its chapter, so that ./run test NN runs it.

    tests/mutants/labels_test.py MUTANT BUILD_FOLDER
"""

import json
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def tests_of(chapter, build):
    """Suite.Test of all that ctest runs under this label, without parameters."""
    found = set()
    shown = output_of("ctest", "--test-dir", build, "--show-only=json-v1", "-L", f"^{chapter}$")
    for test in json.loads(shown)["tests"]:
        command = test.get("command", [])  # there is none if the program is not built
        if not any(word.startswith("--gtest_filter") for word in command):
            continue
        suite = ""
        for line in output_of(*command, "--gtest_list_tests").splitlines():
            name = line.split("#")[0].strip()  # "Ranks/Parity." or "  AdamW/N2  # GetParam() = 2"
            if line.startswith(" "):
                found.add(suite + name.split("/")[0])
            else:
                suite = name.split("/")[-1]
    return found


def main(mutant, build):
    mutants = re.findall(r"(?m)^(\w+) .*\((\S+): killed by (\S+)\)$", output_of(mutant))
    tests = {chapter: tests_of(chapter, build) for chapter in {chapter for _, chapter, _ in mutants}}
    lost = [mutant for mutant in mutants if mutant[2] not in tests[mutant[1]]]
    for name, chapter, killer in lost:
        print(f"{name} is killed by {killer}, which no test with the label {chapter} runs")
    print(f"{len(mutants) - len(lost)} of {len(mutants)} mutants are killed by a test with the label of their chapter")
    return 1 if lost or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
