"""Writes token files, which zero::data::TokenFile reads: safetensors files.

docs/token-files.md has their tensors and metadata; the C++ side is tools/ladder/data/token_file.hpp.
"""

import array
import hashlib
import json
import os
import sys

# Array's type codes have 1, 2, 4 and 8 bytes on every system that CPython runs on today.
DTYPES = {"B": "U8", "H": "U16", "i": "I32", "q": "I64"}


def id_array(vocabulary):
    """An empty array of the narrowest ids that a token file has for this vocabulary."""
    return array.array("B" if vocabulary <= 1 << 8 else "H" if vocabulary <= 1 << 16 else "i")


def _little_endian(numbers):
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return memoryview(numbers).cast("B")


def _write(path, tokenizer, tensors, **more):
    """Writes beside `path` and renames, so that a half-written file never has the name."""
    metadata = {"format": "zero tokens", "tokenizer": tokenizer.fingerprint.hex(),
                "vocabulary": str(tokenizer.vocabulary), **more}
    lines = [f"{key}={value}\n" for key, value in sorted(metadata.items())]
    checksum = hashlib.sha256("".join(lines).encode())
    entries, end = {}, 0
    for name, numbers in tensors.items():
        begin, end = end, end + len(numbers) * numbers.itemsize
        entries[name] = {"dtype": DTYPES[numbers.typecode], "shape": [len(numbers)],
                         "data_offsets": [begin, end]}
        checksum.update(_little_endian(numbers))
    metadata["sha256"] = checksum.hexdigest()
    header = json.dumps({"__metadata__": dict(sorted(metadata.items())), **entries},
                        separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that numbers are aligned
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for numbers in tensors.values():
                file.write(_little_endian(numbers))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def write_stream(path, tokenizer, ids):
    """Writes one run of tokens.

    `tokenizer` has `vocabulary` (a number) and `fingerprint` (32 bytes); `ids` is an id_array().
    """
    _write(path, tokenizer, {"ids": ids})


def write_records(path, tokenizer, records, classes):
    """Writes labelled texts: `records` is a list of (label, id_array()), none of them empty.

    `tokenizer.pad_id` is an id, or None where the tokenizer has none.
    """
    offsets = array.array("q", [0])
    labels = array.array("q")
    ids = id_array(tokenizer.vocabulary)
    for label, tokens in records:
        ids.extend(tokens)
        offsets.append(len(ids))
        labels.append(label)
    pad = {} if tokenizer.pad_id is None else {"pad_id": str(tokenizer.pad_id)}
    _write(path, tokenizer, {"offsets": offsets, "labels": labels, "ids": ids},
           classes=str(classes), **pad)
