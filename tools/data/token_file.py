"""Writes token files, the format that zero::data::TokenFile reads.

docs/token-files.md has the layout byte by byte; the C++ side is common/zero/data/token_file.hpp.
"""

import array
import hashlib
import os
import struct
import sys

MAGIC = b"ZEROTOK\n"
VERSION = 1
HEADER_BYTES = 160
STREAM, RECORDS = 1, 2
NO_PAD = -1

# Little endian, no padding: magic, version, header bytes, kind, id bytes, vocabulary, tokens,
# records, classes, reserved, pad id, tokenizer digest. The two checksums follow.
FIELDS = struct.Struct("<8sIIIIQQQIIq32s")
assert FIELDS.size + 2 * 32 == HEADER_BYTES

SMALL = "H"  # array type codes: 2, 4 and 8 bytes on every system that CPython runs on today
WIDE = "I"
OFFSET = "Q"


def id_array(vocabulary):
    """An empty array of the narrowest ids that a token file has for this vocabulary."""
    return array.array(SMALL if vocabulary <= 1 << 16 else WIDE)


def _little_endian(numbers):
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return memoryview(numbers).cast("B")


def _write(path, tokenizer, kind, ids, parts, record_count=0, classes=0, pad_id=NO_PAD):
    """Writes beside `path` and renames, so that a half-written file never has the name."""
    parts = [_little_endian(part) for part in parts]
    payload = hashlib.sha256()
    for part in parts:
        payload.update(part)
    header = FIELDS.pack(MAGIC, VERSION, HEADER_BYTES, kind, ids.itemsize, tokenizer.vocabulary,
                         len(ids), record_count, classes, 0, pad_id, tokenizer.fingerprint)
    header += payload.digest()
    header += hashlib.sha256(header).digest()
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(header)
            for part in parts:
                file.write(part)
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
    _write(path, tokenizer, STREAM, ids, [ids])


def write_records(path, tokenizer, records, classes):
    """Writes labelled texts: `records` is a list of (label, id_array()), none of them empty.

    `tokenizer.pad_id` is an id, or None where the tokenizer has none.
    """
    offsets = array.array(OFFSET, [0])
    labels = array.array(WIDE)
    ids = id_array(tokenizer.vocabulary)
    for label, tokens in records:
        ids.extend(tokens)
        offsets.append(len(ids))
        labels.append(label)
    pad_id = NO_PAD if tokenizer.pad_id is None else tokenizer.pad_id
    _write(path, tokenizer, RECORDS, ids, [offsets, labels, ids], len(records), classes, pad_id)
