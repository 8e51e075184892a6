#!/usr/bin/env python3
"""Faults in the library's own sources, and which tests notice them.

Each patch NN_NAME.patch beside this file puts one fault into a source: `zero::testing::fault("NAME")` turns it on. Its
first line says what is wrong, its second one which programs own the subject. All patches are applied to copies of the
sources, in build/faults; of build/release only the objects with these sources are compiled again, and test programs
are linked with them. So one build has all faults, and the variable ZERO_FAULT chooses one of them.

matrix.csv has a line for each fault and program: the first tests that fail by an assertion with the fault, and pass
without. A test that fails because a rank threw, crashed or stood still has not noticed what is wrong.
"""

import argparse
import concurrent.futures
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "release"
OUT = ROOT / "build" / "faults"
MATRIX = HERE / "matrix.csv"
ALONE = {"cuda_test", "network_test", "peers_test", "plants_test"}  # not run by --all
ALL_BUT_SLOW = "-*Slow*"
# Of this place is the failure that says how ranks ended; those of assertions on ranks stand before it.
HOW_RANKS_ENDED = "tests/support/ranks.cpp:"


class Fault:
    def __init__(self, patch):
        self.patch = patch
        self.name = patch.stem[3:]
        text = patch.read_text()
        self.breaks, programs = text.splitlines()[:2]
        self.programs = programs.removeprefix("Programs: ").split()
        self.sources = re.findall(r"(?m)^--- a/(.+)$", text)
        if set(re.findall(r'fault\("(\w+)"\)', text)) != {self.name}:
            sys.exit(f"{patch.name}: its fault must be called '{self.name}', as the file is")


def apply_patches(faults, folder):
    """Makes copies of the sources with all faults in them."""
    for source in {source for fault in faults for source in fault.sources}:
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, folder / source)
    # GIT_DIR: the folder is not a part of the repository that it may lie in.
    subprocess.run(["git", "apply", *[fault.patch for fault in faults]], cwd=folder, check=True,
                   env={**os.environ, "GIT_DIR": "/"})


# ---- building


def commands_for(programs):
    """All commands of which these programs are made."""
    shown = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", *[f"bin/{program}" for program in programs]],
                           stdout=subprocess.PIPE, text=True, check=True)
    return shown.stdout.splitlines()


def compile_with_faults(line, patched):
    """Compiles the object of this command again if it has patched sources; returns both objects, else None."""
    found = re.search(r" -o (\S+\.o) -c (\S+)", line)
    if not found:
        return None
    old, source = found.groups()
    text = Path(source).read_text() if "/Unity/" in source else f'#include "{source}"\n'
    folders = set()
    for included in re.findall(r'#include "(.+)"', text):
        copy = patched / Path(included).relative_to(ROOT) if Path(included).is_relative_to(ROOT) else None
        if copy and copy.exists():
            text = text.replace(f'"{included}"', f'"{copy}"')
            folders.add(f"-iquote {Path(included).parent}")
    if not folders:
        return None
    new = OUT / "objects" / old
    new.parent.mkdir(parents=True, exist_ok=True)
    copy = Path(f"{new}.cpp")
    copy.write_text(text)
    command = line.replace(old, str(new)).replace(
        f"-c {source}", f"-include {HERE / 'fault.hpp'} {' '.join(sorted(folders))} -c {copy}")
    subprocess.run(command, shell=True, cwd=BUILD, check=True)
    return old, str(new)


def link_with_faults(program, lines, objects):
    """Links the program with these objects, so that none of its libraries' own is taken; False if it needs none."""
    line = next(line for line in lines if f" -o bin/{program} " in line)
    mine = []
    for made in lines:
        library = re.search(r"ar qc (\S+\.a) (.+?) &&", made)
        if library and f" {library[1]} " in line:
            mine += [objects[old] for old in library[2].split() if old in objects]
    line = line.replace(f" -o bin/{program} ", f" -o {OUT / 'bin' / program} {' '.join(mine)} ")
    if mine:
        subprocess.run(line, shell=True, cwd=BUILD, check=True)
    return bool(mine)


def build(faults, programs, jobs):
    """Builds the programs with all faults; returns those in which there is one."""
    subprocess.run(["flock", f"{BUILD}.lock", "ninja", "-C", BUILD, "-j", str(jobs), *programs], check=True)
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "bin").mkdir(parents=True)
    apply_patches(faults, OUT / "sources")
    lines = commands_for(programs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        compiled = pool.map(lambda line: compile_with_faults(line, OUT / "sources"), lines)
        objects = dict(pair for pair in compiled if pair)
        linked = pool.map(lambda program: link_with_faults(program, lines, objects), programs)
        return [program for program, is_faulty in zip(programs, linked) if is_faulty]


# ---- running


def failed_tests(program, fault, tests, enough, limit):
    """The tests that fail by an assertion, at most `enough`, and whether the others ran too within `limit` seconds."""
    process = subprocess.Popen(
        [OUT / "bin" / program, f"--gtest_filter={tests}"], cwd=ROOT, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "ZERO_FAULT": fault, "ZERO_PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
             "LD_BIND_NOW": "1"})
    timer = threading.Timer(limit, process.kill)  # its ranks die with it
    timer.start()
    failed, by_assertion = [], False
    for line in process.stdout:
        if line.startswith("[ RUN "):
            by_assertion = False
        elif re.match(r"\S+:\d+: Failure$", line) and HOW_RANKS_ENDED not in line:
            by_assertion = True
        elif (ended := re.match(r"\[  FAILED  \] ([^\s,]+).* \(\d+ ms\)$", line)) and by_assertion:
            failed.append(ended[1])
            if len(failed) == enough:
                process.kill()
                break
    timer.cancel()
    process.stdout.close()
    return failed, process.wait() >= 0


def noticing_tests(program, fault, tests, enough, limit):
    failed, ended = failed_tests(program, fault, tests, enough, limit)
    others = failed_tests(program, "", ":".join(failed), enough, limit)[0] if failed else []
    return [test for test in failed if test not in others], ended


# ---- the matrix


def read_matrix(faults):
    names = {fault.name for fault in faults}
    if not MATRIX.exists():
        return {}
    with MATRIX.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {(fault, program): tests for fault, program, tests in rows if fault in names}


def write_matrix(faults, cells):
    order = [fault.name for fault in faults]
    with MATRIX.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["fault", "program", "tests"])
        for fault, program in sorted(cells, key=lambda cell: (order.index(cell[0]), cell[1])):
            writer.writerow([fault, program, cells[fault, program]])


def check(faults):
    """Whether all patches apply and each fault is noticed."""
    with tempfile.TemporaryDirectory() as folder:
        apply_patches(faults, Path(folder))
    cells = read_matrix(faults)
    unnoticed = [f for f in faults if not any(cells.get((f.name, program)) for program in f.programs)]
    for fault in unnoticed:
        print(f"{fault.name} ({fault.breaks}): no test of {' '.join(fault.programs)} notices it")
    print(f"{len(faults) - len(unnoticed)} of {len(faults)} faults are noticed by a program that owns the subject")
    return 1 if unnoticed else 0


def all_programs():
    shown = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], stdout=subprocess.PIPE, text=True,
                           check=True)
    return sorted(set(re.findall(r"(?m)^bin/(\w+_test):", shown.stdout)) - ALONE)


def main():
    parser = argparse.ArgumentParser(prog="./run faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults; all of them if none is named")
    parser.add_argument("--programs", nargs="+", default=[], help="test programs, instead of those that a fault names")
    parser.add_argument("--all", action="store_true", help="every test program that has the faults: hours")
    parser.add_argument("--filter", default=ALL_BUT_SLOW, help="GoogleTest's, of the tests in the programs")
    parser.add_argument("--first", action="store_true", help="of each fault, stop at the program that notices it")
    parser.add_argument("--enough", type=int, default=3, help="stop a program after so many such tests (default 3)")
    parser.add_argument("--limit", type=int, default=600, help="stop a program after so many seconds (default 600)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs that run at once (default: cores)")
    parser.add_argument("--check", action="store_true", help="only whether the patches apply and matrix.csv has no gap")
    options = parser.parse_args()
    faults = [Fault(patch) for patch in sorted(HERE.glob("[0-9][0-9]_*.patch"))]
    if options.check:
        return check(faults)
    unknown = set(options.names) - {fault.name for fault in faults}
    if unknown:
        sys.exit(f"no fault is called '{min(unknown)}': {' '.join(fault.name for fault in faults)}")
    chosen = [fault for fault in faults if not options.names or fault.name in options.names]
    wanted = options.programs or (all_programs() if options.all else [])
    programs = build(faults, wanted or sorted({p for fault in chosen for p in fault.programs}), options.jobs)
    cells, missed, lock = read_matrix(faults), {fault.name for fault in chosen}, threading.Lock()

    def measure(fault):
        for program in [p for p in wanted or fault.programs if p in programs]:
            tests, ended = noticing_tests(program, fault.name, options.filter, options.enough, options.limit)
            with lock:
                print(f"{fault.name:36} {program:22} {' '.join(tests) or ('-' if ended else 'stopped')}", flush=True)
                if tests or (ended and options.filter == ALL_BUT_SLOW):  # else others may notice it
                    cells[fault.name, program] = " ".join(tests)
                write_matrix(faults, cells)
                missed.difference_update({fault.name} if tests else ())
            if tests and options.first:
                return

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(measure, chosen))
    by_none = "".join(f", not {name}" for name in sorted(missed))
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults were noticed{by_none}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
