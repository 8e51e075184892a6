#!/usr/bin/env python3
"""Turns text into token files, which the programs of this project train on.

  prepare.py text --tokenizer tokenizer.json --input book.txt notes/ --output book.tokens

The tokenizer is any tokenizer.json of the `tokenizers` package (every Hugging Face model with a
fast tokenizer has one); --bytes takes the bytes of the text instead and needs no package at all.
The format is described in docs/token-files.md.
"""

import argparse
import hashlib
import os
import sys

import token_file

PIECE = 1 << 20  # characters of a text that go to the tokenizer at once


class InputError(Exception):
    """Something about the input that the user can mend; the message says what."""


class ByteTokenizer:
    """Text as UTF-8 bytes: what the programs do by themselves where there is no tokenizer."""

    vocabulary = 256
    fingerprint = bytes(32)

    def encode(self, text):
        return text.encode("utf-8")


class FileTokenizer:
    """A tokenizer.json; its own truncation and padding are switched off, and no special token is added."""

    def __init__(self, path):
        try:
            import tokenizers
        except ImportError:
            raise InputError("reading a tokenizer.json needs the package tokenizers: "
                             "pip install -r requirements-peers.txt") from None
        with open(path, "rb") as file:
            content = file.read()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the package raises nothing narrower
            raise InputError(f"{path} is not a tokenizer.json: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # Ids may have gaps, so the count of tokens can be below the largest id.
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary = max(ids, default=-1) + 1
        if self.vocabulary == 0:
            raise InputError(f"{path} has no tokens")
        self._path = path
        self.fingerprint = hashlib.sha256(content).digest()

    def encode(self, text):
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the package raises nothing narrower
            raise InputError(f"the tokenizer {self._path} cannot encode the input: {error}") from None


def text_files(names):
    """Files as given; of a folder every *.txt and *.md below it, by path, without hidden ones."""
    for name in names:
        if not os.path.isdir(name):
            yield name
            continue
        found = []
        for folder, folders, files in os.walk(name):
            folders[:] = [one for one in folders if not one.startswith(".")]
            found += [os.path.join(folder, one) for one in files
                      if one.endswith((".txt", ".md")) and not one.startswith(".")]
        if not found:
            raise InputError(f"folder {name} has no *.txt or *.md in it")
        yield from sorted(found)


def read_text(path):
    try:
        # newline="": line ends are tokens too and stay as they are.
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise InputError(f"text file {path} is not UTF-8: {error}") from None
    if not text:
        raise InputError(f"text file {path} is empty")
    return text


def pieces(text):
    """Cuts long text after a line end, so that a tokenizer need not hold all of it at once."""
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + PIECE) + 1 if len(text) - start > PIECE else len(text)
        end = end if end > start else start + PIECE
        yield text[start:end]
        start = end


def prepare_text(options):
    files = list(text_files(options.input))
    if os.path.realpath(options.output) in map(os.path.realpath, [*files, options.tokenizer or ""]):
        raise InputError(f"--output: {options.output} would be written over an input, name another")
    tokenizer = FileTokenizer(options.tokenizer) if options.tokenizer else ByteTokenizer()
    ids = token_file.id_array(tokenizer.vocabulary)
    for path in files:
        for piece in pieces(read_text(path)):
            ids.extend(tokenizer.encode(piece))
    if not ids:
        raise InputError("the tokenizer made no token of the whole input")
    token_file.write_stream(options.output, tokenizer, ids)
    print(f"{options.output}: {len(ids)} tokens, vocabulary {tokenizer.vocabulary}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sys.argv[1:2] == ["reviews"]:
        parser.error("reviews was removed: the ladder's --task reviews has reviews of its own")
    text = parser.add_subparsers(dest="kind", required=True).add_parser("text", help="one stream of tokens")
    source = text.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json")
    source.add_argument("--bytes", action="store_true", help="tokens are bytes")
    text.add_argument("--output", metavar="FILE", required=True, help="token file to write")
    text.add_argument("--input", nargs="+", required=True, metavar="PATH",
                      help="UTF-8 text files, or folders of *.txt and *.md")
    try:
        prepare_text(parser.parse_args())
    except (InputError, OSError) as error:
        sys.exit(f"prepare.py: {error}")


if __name__ == "__main__":
    main()
