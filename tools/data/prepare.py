#!/usr/bin/env python3
"""Turns text or labelled reviews into token files, which the programs of this project train on.

  prepare.py text --tokenizer tokenizer.json --input book.txt notes/ --output book.tokens
  prepare.py reviews --tokenizer tokenizer.json --input train.csv --output yelp.tokens \\
      --max-length 512

The tokenizer is any tokenizer.json of the `tokenizers` package (every Hugging Face model with a
fast tokenizer has one); --bytes takes the bytes of the text instead and needs no package at all.
The format is described in docs/token-files.md.
"""

import argparse
import hashlib
import os
import sys

import token_file
from review_files import CLASSES, InputError, read_reviews

PIECE = 1 << 20  # characters of a text that go to the tokenizer at once
BATCH = 1000  # reviews that go to the tokenizer at once


class ByteTokenizer:
    """Text as UTF-8 bytes: what the programs do by themselves where there is no tokenizer."""

    vocabulary = 256
    fingerprint = bytes(32)
    pad_id = 0

    def encode(self, texts, max_length):
        return [text.encode("utf-8")[:max_length] for text in texts]


class FileTokenizer:
    """A tokenizer.json; its own truncation and padding are switched off."""

    def __init__(self, path, special_tokens, pad_token=None):
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
        padding = self._tokenizer.padding
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._special_tokens = special_tokens
        # Ids may have gaps, so the count of tokens can be below the largest id.
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary = max(ids, default=-1) + 1
        if self.vocabulary == 0:
            raise InputError(f"{path} has no tokens")
        self._path = path
        self.fingerprint = hashlib.sha256(content).digest()
        self.pad_id = padding["pad_id"] if padding else None
        if pad_token is not None:
            self.pad_id = self._tokenizer.token_to_id(pad_token)
            if self.pad_id is None:
                raise InputError(f"{path} has no token {pad_token!r} to pad with")
        self._check(self.pad_id or 0, "pads with")

    def encode(self, texts, max_length):
        try:
            if max_length is not None:
                self._tokenizer.enable_truncation(max_length)
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=self._special_tokens)
        except Exception as error:  # the package raises nothing narrower
            said = f"the tokenizer {self._path} cannot encode the input: {error}"
            raise InputError(said) from None
        encoded = [one.ids for one in encoded]
        self._check(max((max(ids, default=0) for ids in encoded), default=0), "makes")
        return encoded

    # What it puts around a text is written in the file as a number, which may be any.
    def _check(self, token, does):
        if token >= self.vocabulary:
            raise InputError(f"the tokenizer {self._path} {does} token {token}, but its vocabulary "
                             f"has the ids 0 to {self.vocabulary - 1}")


class SplitMix64:
    """The generator of tools/ladder/data/random.hpp, so that a seed means one order in both languages."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self._state = seed & self.MASK

    def next(self):
        self._state = (self._state + 0x9E3779B97F4A7C15) & self.MASK
        bits = self._state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & self.MASK
        return bits ^ (bits >> 31)

    def below(self, bound):
        excess = (1 << 64) % bound
        draw = self.next()
        while draw < excess:
            draw = self.next()
        return draw % bound


def shuffle(items, seed):
    """Puts `items` in the order of permutation(size, generator_for(seed, 0)) of random.hpp."""
    generator = SplitMix64(SplitMix64(SplitMix64(seed).next()).next())
    for i in range(len(items) - 1, 0, -1):
        j = generator.below(i + 1)
        items[i], items[j] = items[j], items[i]


def progress(items, total, unit):
    """A bar on a terminal where tqdm is installed, nothing otherwise."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, total=total, unit=unit, disable=None)


def say(message):
    print(message, file=sys.stderr, flush=True)


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
    if not os.path.isfile(path):
        raise InputError(f"text file {path} does not exist or is not a file")
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


def check_output(options, inputs):
    """Refuses, before minutes of work, what cannot be written or would be written over an input."""
    read = {os.path.realpath(name) for name in [*inputs, *filter(None, [options.tokenizer])]}
    name, folder = options.output, os.path.dirname(options.output) or "."
    if os.path.isdir(name):
        raise InputError(f"--output: {name} is a folder, and a file is to be written there")
    if not os.path.isdir(folder):
        raise InputError(f"--output: No such file or directory: {folder}; make it, or name a "
                         "file in a folder that exists")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--output: {name} cannot be written: nothing may be written to its folder")
    if os.path.realpath(name) in read:
        raise InputError(f"--output: {name} would be written over an input, name another")


def prepare_text(options):
    files = list(text_files(options.input))
    check_output(options, files)
    tokenizer = make_tokenizer(options, special_tokens=False)
    ids = token_file.id_array(tokenizer.vocabulary)
    for path in progress(files, len(files), " files"):
        for piece in pieces(read_text(path)):
            ids.extend(tokenizer.encode([piece], None)[0])
    if not ids:
        raise InputError("the tokenizer made no token of the whole input")
    token_file.write_stream(options.output, tokenizer, ids)
    say(f"{options.output}: {len(ids)} tokens, vocabulary {tokenizer.vocabulary}")


def prepare_reviews(options):
    check_output(options, options.input)
    tokenizer = make_tokenizer(options, special_tokens=True)
    reviews = []
    for path in options.input:
        reviews.extend(progress(read_reviews(path), None, " reviews"))
    shuffle(reviews, options.seed)
    reviews = reviews[:options.limit]
    records = []
    starts = range(0, len(reviews), BATCH)
    for start in progress(starts, len(starts), f" x {BATCH} reviews"):
        batch = reviews[start:start + BATCH]
        encoded = tokenizer.encode([text for _, text in batch], options.max_length)
        for (label, _), ids in zip(batch, encoded):
            tokens = token_file.id_array(tokenizer.vocabulary)
            tokens.extend(ids)
            records.append((label, tokens))
    whole = [record for record in records if record[1]]
    if len(whole) < len(records):
        say(f"left out: {len(records) - len(whole)} reviews without a token")
    if not whole:
        raise InputError("the input holds no reviews")
    token_file.write_records(options.output, tokenizer, whole, CLASSES)
    tokens = sum(len(ids) for _, ids in whole)
    say(f"{options.output}: {len(whole)} reviews, {tokens} tokens, vocabulary {tokenizer.vocabulary}")


def make_tokenizer(options, special_tokens):
    if options.bytes:
        return ByteTokenizer()
    return FileTokenizer(options.tokenizer, special_tokens, getattr(options, "pad_token", None))


def at_least(least):
    def parse(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return number
    return parse


def seed(text):
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 2^64 - 1")
    return number


def name(text):
    if not text:
        raise argparse.ArgumentTypeError("a name is needed, and this is empty")
    return text


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    text = kinds.add_parser("text", help="one stream of tokens, for language modelling")
    reviews = kinds.add_parser("reviews", help="labelled texts, for the classifier")
    for kind in (text, reviews):
        source = kind.add_mutually_exclusive_group(required=True)
        source.add_argument("--tokenizer", metavar="FILE", type=name, help="a tokenizer.json")
        source.add_argument("--bytes", action="store_true", help="tokens are bytes")
        kind.add_argument("--output", metavar="FILE", type=name, required=True,
                          help="token file to write")
    text.add_argument("--input", nargs="+", required=True, metavar="PATH", type=name,
                      help="UTF-8 text files, or folders of *.txt and *.md")
    text.set_defaults(run=prepare_text)
    reviews.add_argument("--input", nargs="+", required=True, metavar="FILE", type=name,
                         help="CSV, JSON lines (.jsonl, .json) or Parquet")
    reviews.add_argument("--max-length", type=at_least(1), metavar="TOKENS",
                         help="cut longer reviews (default: keep them whole)")
    reviews.add_argument("--limit", type=at_least(1), metavar="N",
                         help="keep only N reviews, after shuffling")
    reviews.add_argument("--seed", type=seed, default=42, help="of the order (default 42)")
    reviews.add_argument("--pad-token", metavar="TOKEN", help="what to pad batches with")
    reviews.set_defaults(run=prepare_reviews)
    if any(word.partition("=")[0] == "--validation" for word in arguments):
        parser.error("--validation was removed: cut the input, and make a file of each part")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments(sys.argv[1:])
    try:
        options.run(options)
    except InputError as error:
        sys.exit(f"prepare.py: {error}")
    except OSError as error:
        sys.exit(f"prepare.py: {error}")


if __name__ == "__main__":
    main()
