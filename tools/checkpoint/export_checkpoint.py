#!/usr/bin/env python3
"""Puts the parameters of a checkpoint together in one safetensors file.

    python3 tools/checkpoint/export_checkpoint.py CHECKPOINT OUTPUT.safetensors

CHECKPOINT is a folder that the library saved, at any number of ranks and under any strategy; the
format is described in docs/checkpoints.md. Every file is checked against its SHA-256 first. OUTPUT
appears under its name only when it is whole. Called model.safetensors and beside the config.json of
the model, transformers' from_pretrained loads it: a tied weight is in it once, as it expects.

Needs Python's own library only, and 1 MiB of memory, whatever the size of the model.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from pathlib import Path

BLOCK = 1 << 20
CHECKSUM = ' "sha256 of the rest": '


class Refused(Exception):
    pass


def read_manifest(folder):
    path = folder / "manifest.json"
    try:
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
    except RecursionError:
        raise Refused(f"{path}: its JSON is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "zero checkpoint":
        raise Refused(f"{path}: is not the manifest of a checkpoint")
    if manifest.get("version") not in (1, 2):
        raise Refused(f"{path}: has version {manifest.get('version')}, this script reads versions 1 and 2")
    rest = "".join(l for l in text.splitlines(True) if not l.startswith(CHECKSUM))
    if hashlib.sha256(rest.encode()).hexdigest() != manifest.get("sha256 of the rest"):
        raise Refused(f"{path}: was altered: its checksum does not fit")
    return manifest


def blocks(file, begin, size):
    file.seek(begin)
    while size > 0:
        block = file.read(min(BLOCK, size))
        if not block:
            raise Refused(f"{file.name}: is shorter than it says")
        size -= len(block)
        yield block


class RankFile:
    """One rank's safetensors file, checked and open."""

    def __init__(self, path, entry):
        try:
            self.file = open(path, "rb")
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None
        size = os.fstat(self.file.fileno()).st_size
        if size != entry["bytes"]:
            raise Refused(f"{path}: has {size} bytes, the manifest says {entry['bytes']}")
        digest = hashlib.sha256()
        for block in blocks(self.file, 0, size):
            digest.update(block)
        if digest.hexdigest() != entry["sha256"]:
            raise Refused(f"{path}: was altered: its SHA-256 is not what the manifest says")
        self.file.seek(0)
        length = int.from_bytes(self.file.read(8), "little")
        self.tensors = json.loads(self.file.read(length))
        self.data = 8 + length

    def tensor(self, name):
        """dtype, first byte and number of bytes of a tensor."""
        entry = self.tensors[name]
        begin, end = entry["data_offsets"]
        return entry["dtype"], self.data + begin, end - begin


def interleaved(parameter, parts, size):
    """The bytes of a parameter that a tensor axis cuts, as (file, first byte, bytes) in the order of the whole.

    `parts` has those of each run, part by part. A run of the whole is one of each part after the other."""
    cut, shape = parameter["cut"], parameter["shape"]
    count = size // cut["parts"]
    run = count // max(1, math.prod(shape[:cut["dim"]]))
    streams = [[] for _ in range(cut["parts"])]
    for (_, _, _, *part), piece in zip(parameter["runs"], parts):
        streams[part[0] if part else 0].append(piece)
    for first in range(0, count, max(1, run)):
        for stream in streams:
            at, want = 0, (first, first + run)
            for file, begin, length in stream:
                low, high = max(at, want[0]), min(at + length, want[1])
                if low < high:
                    yield file, begin + low - at, high - low
                at += length


def export(folder, output):
    manifest = read_manifest(folder)
    step = folder / manifest["folder"]
    files = {f["rank"]: RankFile(step / f["name"], f) for f in manifest["files"]}

    tensors = []  # name, dtype, shape, bytes, and where they are: (file, first byte, bytes)
    for parameter in manifest["parameters"]:
        parts, dtypes = [], set()
        for rank, *_ in parameter["runs"]:
            dtype, begin, size = files[rank].tensor("parameter/" + parameter["name"])
            parts.append((files[rank].file, begin, size))
            dtypes.add(dtype)
        if len(dtypes) != 1:
            raise Refused(f"parameter {parameter['name']} has dtypes {sorted(dtypes)}")
        size = sum(part[2] for part in parts)
        if "cut" in parameter:
            parts = list(interleaved(parameter, parts, size))
        tensors.append((parameter["name"], dtypes.pop(), parameter["shape"], size, parts))
    # Large elements first: every tensor is aligned to its elements then.
    tensors.sort(key=lambda t: -(t[3] // max(1, math.prod(t[2]))))

    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, size, _ in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for _, _, _, _, parts in tensors:
                for part in parts:
                    for block in blocks(*part):
                        out.write(block)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, output)
    except OSError as error:
        raise Refused(f"{output}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return manifest["run"], len(tensors), offset


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder with manifest.json")
    parser.add_argument("output", type=Path, help="the safetensors file to write")
    arguments = parser.parse_args()
    try:
        run, count, size = export(arguments.checkpoint, arguments.output)
    except Refused as refused:
        sys.exit(f"export_checkpoint.py: {refused}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # The checksums are right: another program wrote what they are of.
        sys.exit(f"export_checkpoint.py: {arguments.checkpoint}: is not laid out as "
                 f"docs/checkpoints.md says: {type(error).__name__}: {error}")
    print(f"{arguments.output}: {count} tensors, {size} bytes, of step {run['step']}, "
          f"saved by {run['mode']} on {run['world_size']} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
