#!/usr/bin/env python3
"""A program of a user's own: installs the library into an empty folder, builds the examples against it, and runs them.

    consumer.py CMAKE GENERATOR COMPILER LIBTORCH BUILD
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
# The documents that show them; none shows the last.
EXAMPLES = {"my_training": "docs/library.md", "my_engine": "docs/engine.md", "plain_gpt2": None}


def run(*command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, f"failed ({ended.returncode}): {command}"
    return ended.stdout


def expect_training(output):
    """20 losses, of which the last is below the first."""
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e+-]+)", output)]
    assert len(losses) == 20 and losses[-1] < losses[0], losses


def main(cmake, generator, compiler, torch, build):
    work = Path(build) / "consumer"
    shutil.rmtree(work, ignore_errors=True)
    run(cmake, "--install", build, "--prefix", work / "installed")
    # What is installed must work where neither the sources nor the build are.
    for file in [*(work / "installed").rglob("*.cmake"), *(work / "installed").rglob("*.hpp")]:
        for path in (str(SOURCE), build):
            assert path not in file.read_text(), f"{file} names {path}"
    for example in EXAMPLES:
        run(cmake, "-G", generator, "-S", SOURCE / "examples" / example, "-B", work / example,
            "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_PREFIX_PATH={work}/installed",
            f"-DZERO_TORCH_ROOT={torch}")
        run(cmake, "--build", work / example)

    # The engine: stopped after step 12 it resumes from the checkpoint of step 10, and ends where a run ends that was
    # never stopped.
    program = work / "my_engine" / "my_engine"
    at_once = run(program, work / "at_once", "20")
    expect_training(at_once)
    run(program, work / "in_two", "12")
    resumed = run(program, work / "in_two", "20")
    last = re.search(r"step 20 loss .+\n", at_once)[0]
    assert resumed.startswith("step 11 ") and last in resumed, "the resumed run ended elsewhere"

    # A plain module: on one rank it trains as without an engine.
    text, plain = SOURCE / "docs" / "engine.md", work / "plain_gpt2"
    alone = run(plain / "alone", text, "20")
    expect_training(alone)
    assert run(plain / "sharded", text, "20", "1") == alone, "one rank of an engine trains in another way"
    expect_training(run(plain / "sharded", text, "20", "2"))

    output = run(work / "my_training" / "my_training")
    expect_training(output)
    assert len(re.findall(r"holds \d+ KiB", output)) == 2, "two ranks should have reported"

    # The documents show these programs and no others; README shows a part of one.
    for example, document in EXAMPLES.items():
        for name in (f"{example}.cpp", "CMakeLists.txt") if document else ():
            text = (SOURCE / "examples" / example / name).read_text()
            assert text in (SOURCE / document).read_text(), f"{document} does not show {name} of {example} as it is"
    shown = re.search(r"```cpp\n([^`]+)```", (SOURCE / "README.md").read_text())[1]
    assert shown in (SOURCE / "examples/my_engine/my_engine.cpp").read_text(), "README.md shows another program"
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
