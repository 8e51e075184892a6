"""Writes token files, which zero::data::read_token_file() reads: safetensors files.

docs/token-files.md has their tensors and metadata; the C++ side is tools/ladder/data/token_file.hpp.
"""

import array
import hashlib
import json
import os

# Array's type codes have 1, 2 and 4 bytes on every system that CPython runs on today.
DTYPES = {"B": "U8", "H": "U16", "i": "I32"}


def id_array(vocabulary):
    """An empty array of the narrowest ids that a token file has for this vocabulary."""
    return array.array("B" if vocabulary <= 1 << 8 else "H" if vocabulary <= 1 << 16 else "i")


def write_stream(path, tokenizer, ids):
    """Writes one run of tokens, beside `path` and renamed, so that a half-written file never has the name.

    `tokenizer` has `vocabulary` (a number) and `fingerprint` (32 bytes); `ids` is an id_array().
    """
    metadata = {"format": "zero tokens", "tokenizer": tokenizer.fingerprint.hex(),
                "vocabulary": str(tokenizer.vocabulary)}
    content = memoryview(ids).cast("B")  # little endian, as the machines that this runs on
    checksum = hashlib.sha256("".join(f"{key}={value}\n" for key, value in metadata.items()).encode())
    checksum.update(content)
    entry = {"dtype": DTYPES[ids.typecode], "shape": [len(ids)], "data_offsets": [0, len(content)]}
    header = json.dumps({"__metadata__": {"format": metadata["format"], "sha256": checksum.hexdigest(), **metadata},
                         "ids": entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that numbers are aligned
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
