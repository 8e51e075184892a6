#!/usr/bin/env python3
"""Checks every include of the project: its form, and that it points down.

    tests/includes/check_includes.py [FOLDER]

Prints each line that breaks a rule and ends with 1 if there is one. CONTRIBUTING.md explains the rules.
"""

import re
import sys
from pathlib import Path

# What each folder of the library may use besides itself, lowest first.
BELOW = {
    "base": [],
    "memory": ["base"],
    "distributed": ["memory"],
    "optim": ["memory"],
    "safetensors": ["base"],
    "nn": ["distributed"],
    "train": ["optim", "nn"],
    "io": ["train", "safetensors"],
}
ROOTS = ("common", "engine")  # of <zero/…>
CHAPTER = re.compile(r"\d\d_\w+")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRIVATE = re.compile(r"torch/csrc/distributed/|gloo/|nccl")  # of zero/distributed
MAY_USE_PRIVATE = ("common/zero/distributed/", "tests/support/reference_reducer.", "tests/support/accelerator/",
                   "tests/accelerator/", "tests/faults/connect_test.")


def lower(folder):
    """All folders of the library that `folder` may use."""
    found = {folder}
    for name in BELOW[folder]:
        found |= lower(name)
    return found


def is_test(path):
    """Exercises, too, may use what tests use."""
    return path.parts[0] == "tests" or "exercises" in path.parts or re.search(r"_(test|bench)\.\w+$", path.name)


def includes(file):
    """The lines of a file that include something, each with its number, bracket and name."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return [(number, line, *found.groups()) for number, line in lines if (found := INCLUDE.match(line))]


def chapters_of(root, name, seen=()):
    """The chapters whose headers a header outside chapters and library includes, through others of that kind too."""
    found = set()
    for _, _, bracket, other in includes(root / name) if (root / name).is_file() else []:
        other = other if bracket == "<" else str(Path(name).parent / other)
        first = other.split("/")[0]
        if CHAPTER.fullmatch(first):
            found.add(first)
        elif first in ("tests", "tools", "grading") and other not in seen:
            found |= chapters_of(root, other, (*seen, name))
    return found


def problem(root, path, bracket, name):
    """What is wrong with the include of `name` in `path`, or None."""
    parts = name.split("/")
    if bracket == '"':
        if path.parts[:2] in (("common", "zero"), ("engine", "zero")):
            return f"the library includes its headers by path: <zero/…/{parts[-1]}>"
        # The answers to an exercise are also in folders below its own.
        folder = Path(*path.parts[:3]) if "exercises" in path.parts else path.parent
        if len(parts) > 1 or not (root / folder / name).is_file():
            return "only a header of the same folder is included with quotes, by its name"
        return None
    if parts[0] in ROOTS:
        return f"the include root is {parts[0]}/: <{'/'.join(parts[1:])}>"
    if name == "torch/torch.h":
        return "it takes half a minute to compile: include narrower headers"
    if PRIVATE.match(name) and not str(path).startswith(MAY_USE_PRIVATE):
        return "only zero/distributed includes c10d, Gloo and NCCL"
    if len(parts) == 1 and name.endswith(".hpp"):
        return "a header of another folder is included by its path from the repository's root"
    if not (parts[0] in ("zero", "grading", "tools", "tests") or CHAPTER.fullmatch(parts[0])):
        return None  # of another project
    of_engine = parts[0] == "zero" and (root / "engine" / name).is_file()
    if not (of_engine or (root / ("common" if parts[0] == "zero" else "") / name).is_file()):
        return "there is no such header"
    if parts[0] != "zero" and str(path.parent) == "/".join(parts[:-1]):
        return f'a header of the same folder is included by its name: "{parts[-1]}"'
    if all(CHAPTER.fullmatch(folder) for folder in (parts[0], path.parts[0])) and parts[0] > path.parts[0]:
        return "a chapter uses no later one, nor do its tests and exercises"
    if CHAPTER.fullmatch(path.parts[0]) and parts[0] in ("tests", "tools", "grading"):
        for chapter in sorted(chapters_of(root, name)):
            if chapter > path.parts[0]:
                return f"it includes {chapter}: a chapter uses no later one, nor do its tests and exercises"
    if is_test(path):
        return None
    if of_engine and (path.parts[0] == "common" or CHAPTER.fullmatch(path.parts[0])):
        return "the engine stands above the library and the chapters"
    if path.parts[:2] == ("common", "zero"):
        if parts[0] != "zero":
            return "the library uses neither chapters nor tools nor tests"
        if parts[1] not in lower(path.parts[2]):
            return f"{path.parts[2]} lies below {parts[1]}"
    elif CHAPTER.fullmatch(path.parts[0]):
        if parts[0] in ("grading", "tools", "tests"):
            return "a chapter uses the library only"
        if CHAPTER.fullmatch(parts[0]) and parts[0] != path.parts[0] and path.parts[0] < "05":
            return "chapters 00 to 04 do not use each other"
    elif path.parts[0] == "engine":
        if parts[0] != "zero" and not CHAPTER.fullmatch(parts[0]):
            return "the engine uses the library and chapters"
    elif path.parts[0] == "grading":
        if parts[0] != "zero" and not (CHAPTER.fullmatch(parts[0]) and parts[1:] == ["minimal.cpp"]):
            return "the grader uses the library and small programs"
    elif parts[0] in ("grading", "tests"):
        return f"only tests and exercises use what is in {parts[0]}/"
    return None


def check(root):
    """Prints what is wrong below `root`; returns how much."""
    wrong = 0
    for file in sorted(root.rglob("*.[ch]pp")):
        path = file.relative_to(root)
        if path.parts[0] not in ("common", "engine", "grading", "tools", "tests", "examples") and not CHAPTER.fullmatch(path.parts[0]):
            continue
        for number, line, bracket, name in includes(file):
            if said := problem(root, path, bracket, name):
                print(f"{path}:{number}: {line.strip()}: {said}")
                wrong += 1
        library_source = path.parts[:2] == ("common", "zero") and path.suffix == ".cpp" and not is_test(path)
        if library_source and not file.with_suffix(".hpp").is_file():
            print(f"{path}: a source of the library has a header of its name")
            wrong += 1
    return wrong


if __name__ == "__main__":
    sys.exit(1 if check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()) else 0)
