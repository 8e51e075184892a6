"""Reads labelled reviews from CSV, JSON lines and Parquet as pairs (label from 0 to 4, text)."""

import csv
import json
import os

CLASSES = 5


class InputError(Exception):
    """Something about the input that the user can mend; the message says what."""


def read_reviews(path):
    """Yields (label, text) in file order; the suffix of `path` says which form it has.

    Labels are 0 to 4 in a column `label`, and 1 to 5 in a column `stars`. A CSV without a header is
    taken as Yelp Review Full is distributed: stars from 1 to 5, then the text, in which a backslash
    followed by n stands for a line end.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_json_lines, ".ndjson": _read_json_lines,
               ".json": _read_json_lines, ".parquet": _read_parquet}
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in readers:
        raise InputError(f"{path}: reviews are read from files named {', '.join(readers)}")
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist or is not a file")
    if os.path.getsize(path) == 0:
        raise InputError(f"{path} is empty")
    try:
        yield from readers[suffix](path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from None


def _label_column(names, where):
    """The name of the label column and what it writes for class 0."""
    for name, lowest in (("label", 0), ("stars", 1)):
        if name in names and "text" in names:
            return name, lowest
    raise InputError(f"{where}: columns 'text' and 'label' (0 to 4) or 'stars' (1 to 5) are "
                     f"needed, found: {', '.join(map(str, names))}")


def _to_class(value, lowest, where):
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not number.is_integer() or not lowest <= number < lowest + CLASSES:
        # What has parts may have any number of them, and is only named.
        said = f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)[:40]
        raise InputError(f"{where}: {said} is no label: {lowest} to {lowest + CLASSES - 1} are")
    return int(number) - lowest


def _to_text(value, where):
    if not isinstance(value, str):
        raise InputError(f"{where}: the text of a review is missing")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: the text is no valid Unicode: {error}") from None
    return value


def _read_csv(path):
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            first = next((row for row in rows if row), [])
            if len(first) < 2:
                raise InputError(f"{path}: a CSV file with label and text was expected")
            header = not first[0].strip().isdecimal()
            label_at, text_at, lowest = 0, 1, 1
            if header:
                name, lowest = _label_column(first, path)
                label_at, text_at = first.index(name), first.index("text")
            else:
                yield _csv_review(first, first, label_at, text_at, lowest, header, f"{path}, line 1")
            for row in rows:
                if row:
                    where = f"{path}, line {rows.line_num}"
                    yield _csv_review(row, first, label_at, text_at, lowest, header, where)
        except csv.Error as error:
            raise InputError(f"{path}, line {rows.line_num}: {error}") from None


def _csv_review(row, first, label_at, text_at, lowest, header, where):
    if len(row) != len(first):
        raise InputError(f"{where}: {len(row)} columns, the first line has {len(first)}")
    text = row[text_at] if header else row[text_at].replace("\\n", "\n")
    return _to_class(row[label_at], lowest, where), text


def _read_json_lines(path):
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except RecursionError:
                raise InputError(f"{where}: its JSON is nested too deeply") from None
            except ValueError as error:  # numbers of too many digits too
                raise InputError(f"{where}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InputError(f"{where}: each line must be an object with label and text")
            name, lowest = _label_column(row, where)
            yield _to_class(row[name], lowest, where), _to_text(row["text"], where)


def _read_parquet(path):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("reading Parquet needs the package pyarrow: "
                         "pip install -r requirements-peers.txt") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        name, lowest = _label_column(file.schema_arrow.names, path)
        row = 0
        for batch in file.iter_batches(batch_size=4096, columns=[name, "text"]):
            columns = batch.to_pydict()
            for label, text in zip(columns[name], columns["text"]):
                row += 1
                where = f"{path}, row {row}"
                yield _to_class(label, lowest, where), _to_text(text, where)
    except UnicodeDecodeError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from None
