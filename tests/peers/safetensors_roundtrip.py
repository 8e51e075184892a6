"""Compares the project's safetensors files with those of the `safetensors` Python package.

    safetensors_roundtrip.py write FOLDER    writes FOLDER/from_python.safetensors
    (C++ reads that, and writes all of it again as FOLDER/from_cpp.safetensors;
    common/zero/safetensors/peer_test.cpp does so)
    safetensors_roundtrip.py check FOLDER    compares both, bit for bit

Exit code 0 where everything is equal. Needs torch and safetensors (requirements-peers.txt).
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

METADATA = {"format": "pt", "note": "written by Python: \u00e9\n\"quoted\""}
SHAPES = [[], [0], [1], [7], [3, 0, 5], [2, 3], [5, 3, 2, 7], [1021]]
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint16, torch.uint8, torch.bool,
]


def some_tensors():
    """One tensor of random bits for every dtype and shape, and borders of the float formats."""
    random = torch.Generator().manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        for i, shape in enumerate(SHAPES):
            size = torch.tensor([], dtype=dtype).element_size()
            count = torch.Size(shape).numel()
            high = 2 if dtype == torch.bool else 256
            raw = torch.randint(high, (count * size,), generator=random, dtype=torch.uint8)
            name = f"{str(dtype).removeprefix('torch.')}.{i}"
            tensors[name] = raw.view(dtype).reshape(shape)
    infinity = float("inf")
    tensors["borders"] = torch.tensor([0.0, -0.0, infinity, -infinity, float("nan"), 1e-45])
    return tensors


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(expected, found, where):
    """Yields a line for everything in which two sets of tensors differ."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            yield f"{where}: tensor {name} is in one of the two only"
            continue
        a, b = expected[name], found[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{where}: tensor {name} is {b.dtype} {b.shape}, must be {a.dtype} {a.shape}"
        elif not torch.equal(bits(a), bits(b)):
            yield f"{where}: tensor {name} has other bits"


def check_single(folder, expected):
    path = folder / "from_cpp.safetensors"
    yield from differences(expected, load_file(path), path.name)
    with safe_open(path, framework="pt") as file:
        if file.metadata() != METADATA:
            yield f"{path.name}: metadata is {file.metadata()}, must be {METADATA}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["write", "check"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    path = arguments.folder / "from_python.safetensors"
    if arguments.step == "write":
        save_file(some_tensors(), path, metadata=METADATA)
        return 0
    expected = some_tensors()
    problems = list(differences(expected, load_file(path), path.name))
    problems += check_single(arguments.folder, expected)
    print("\n".join(problems) or f"{len(expected)} tensors are equal bit for bit")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
