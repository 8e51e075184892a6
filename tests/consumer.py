#!/usr/bin/env python3
"""A program of a user's own: installs the library into an empty folder, builds the examples against it, and runs them.

    consumer.py CMAKE GENERATOR COMPILER LIBTORCH BUILD
"""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
# The document that shows the whole of one.
EXAMPLES = {"my_training": None, "my_engine": "docs/engine.md", "plain_gpt2": None, "finetune": None,
            "weight_average": None}


def run(*command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, f"failed ({ended.returncode}): {command}"
    return ended.stdout


def expect_refusal(message, *command, **variables):
    """The program ends by itself, with this message."""
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, env=os.environ | variables)
    assert ended.returncode == 1 and message in ended.stderr and "terminate" not in ended.stderr, ended


def expect_training(output):
    """20 losses, of which the last is below the first."""
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e+-]+)", output)]
    assert len(losses) == 20 and losses[-1] < losses[0], losses


def finetune_shapes():
    """The parameters of the module of examples/finetune."""
    shapes = {"embedding.weight": [256, 32], "join.weight": [32, 256], "join.bias": [32], "head.weight": [256, 32],
              "head.bias": [256]}
    for block in ("blocks.0", "blocks.1"):
        shapes |= {f"{block}.norm.weight": [32], f"{block}.norm.bias": [32], f"{block}.up.weight": [128, 32],
                   f"{block}.up.bias": [128], f"{block}.down.weight": [32, 128], f"{block}.down.bias": [32]}
    return shapes


def write_weights(folder, shapes):
    """A file of random float32 tensors."""
    draw, header, data = random.Random(1), {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = struct.pack(f"<{count}f", *(draw.gauss(0, 0.1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_weights(folder):
    """Of each tensor its shape and bytes, by name."""
    file = (folder / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["shape"], file[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def check_finetune(program, text, work):
    """Without a step it writes what it reads; with some it trains all of it, and a second run goes on from there."""
    given, first = work / "given", []
    write_weights(given, finetune_shapes())
    run(program, given, work / "same", text, "0")
    before = read_weights(given)
    assert read_weights(work / "same") == before, "no step, and other weights"
    for begin, end in (("given", "tuned"), ("tuned", "tuned_again")):
        output = run(program, work / begin, work / end, text, "20")
        expect_training(output)
        first.append(float(re.search(r"loss ([\d.e+-]+)", output)[1]))
    after = read_weights(work / "tuned")
    assert {name: shape for name, (shape, _) in after.items()} == finetune_shapes()
    assert not [name for name in before if after[name] == before[name]], "not all weights were trained"
    assert first[1] < first[0], "the second run began anew"


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
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",  # -O3 takes a third longer
            f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_PREFIX_PATH={work}/installed", f"-DZERO_TORCH_ROOT={torch}")
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

    # An average of the weights, in the program: the same.
    average = work / "weight_average"
    alone = run(average / "averaged_alone", "20")
    expect_training(re.sub(", of .*", "", alone))
    assert run(average / "averaged", "20", "1") == alone, "one rank of an engine averages in another way"
    expect_training(re.sub(", of .*", "", run(average / "averaged", "20", "2")))

    finetune = work / "finetune" / "finetune"
    check_finetune(finetune, text, work)
    for command in ((plain / "sharded", text, "20"), (finetune, work / "given", work / "tuned", text, "20")):
        expect_refusal("call connect(*rank_environment()) in place of launch_ranks()", *command, RANK="1",
                       WORLD_SIZE="2")

    output = run(work / "my_training" / "my_training")
    expect_training(output)
    assert len(re.findall(r"holds \d+ KiB", output)) == 2, "two ranks should have reported"

    # The documents show these programs and no others; README shows a part of one.
    for example, document in EXAMPLES.items():
        for name in (f"{example}.cpp", "CMakeLists.txt") if document else ():
            text = (SOURCE / "examples" / example / name).read_text()
            assert text in (SOURCE / document).read_text(), f"{document} does not show {name} of {example} as it is"
    shown = re.search(r"```cpp\n([^`]+)```", (SOURCE / "README.md").read_text())[1]
    text = (SOURCE / "examples/plain_gpt2/plain_gpt2.cpp").read_text()
    sharded = re.sub(r"#ifdef ALONE\n.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.DOTALL)
    assert shown in sharded, "README.md shows another program"
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
