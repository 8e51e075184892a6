#!/usr/bin/env python3
"""The exercises: ./run exercise ID [--watch | --hint | --reset | --solution] and ./run course.

An exercise is a folder NN_chapter/exercises/<id>_<name>; cmake/ZeroExercises.cmake says what is in it. The answer is a
small program, functions in C++ or numbers in a text file. It is in the folder mine/, which git ignores, beside
state.json: how many hints were shown, the times of the beginning and of the first right answer, and whether --solution
has warned.
"""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build/release"

HELP = """./run exercise ID              make your copy of an exercise, or build and grade it
./run exercise ID --watch      grade it at each save, until Ctrl-C
./run exercise ID --hint       show the next hint
./run exercise ID --reset      begin anew; your answer is kept beside it
./run exercise ID --solution   show our answer; the first call warns

./run course lists the exercises in the order of the pages, those of the core first."""


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def output_of(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options).stdout


class Exercise:
    def __init__(self, folder):
        self.folder = folder
        self.chapter = folder.parents[1]
        self.id = folder.name.split("_")[0]
        self.target = f"exercise_{self.id}"
        solutions = list(folder.glob("solution.*"))
        self.is_step = not solutions  # from one small program to the next
        declared = (folder / "CMakeLists.txt").read_text()
        program, self.before = re.search(r"PROGRAM (\w+)", declared), re.search(r"BEFORE (\w+)", declared)
        self.solution = self.chapter / f"{program[1] if program else 'minimal'}.cpp" if self.is_step else solutions[0]
        self.answer = folder / "mine" / (self.solution.name if self.is_step else f"{self.id}{self.solution.suffix}")
        self.task = (folder / "task.md").read_text()
        self.hints = re.split(r"(?m)^## ", (folder / "hints.md").read_text())[1:]
        self.notes = folder / "mine" / "state.json"
        self.state = json.loads(self.notes.read_text()) if self.notes.exists() else {"hints": 0}

    def note(self, **values):
        self.state.update(values)
        self.notes.write_text(json.dumps(self.state))

    def starter(self):
        """The solution under starter.patch, else starter.*; for a step without either the program of chapter BEFORE."""
        patch = self.folder / "starter.patch"
        if patch.exists():
            with tempfile.TemporaryDirectory() as folder:
                answer = Path(shutil.copy(self.solution, f"{folder}/{self.answer.name}"))
                # git takes a patch as it is only where it finds no repository.
                subprocess.run(["git", "apply", patch], cwd=folder, env={**os.environ, "GIT_DIR": "/"}, check=True)
                return answer.read_text()
        if not self.is_step:
            return (self.folder / f"starter{self.solution.suffix}").read_text()
        return (ROOT / self.before[1] / self.solution.name).read_text()

    def page(self):
        """The page to read before: that which task.md names, else the chapter's first."""
        named = re.search(r"[\w/]+\.md", self.task)
        if named and "/" in named[0]:
            return ROOT / named[0]
        return self.chapter / (named[0] if named else "README.md")

    def page_and_picture(self):
        picture = re.search(r"!\[[^]]*\]\(\.\./(.*)\)", self.page().read_text())
        return f"{self.page().relative_to(ROOT)}" + (f", and its first picture {picture[1]}" if picture else "")

    def row(self):
        """Its row in the table of its page; None if there is none."""
        return re.search(rf"(?m)^\|.*`\./run exercise {self.id}`.*", self.page().read_text())

    def is_core(self):
        """Whether the head line of its page says so, and the page's table does not mark the exercise as *further*."""
        row = self.row()
        return self.page().read_text().split("\n\n")[1].startswith("*Core") and not (row and "*further" in row[0])

    def place(self):
        """For the order of the course: the number in the title of its page, then its place in the page's table."""
        number, row = re.match(r"# ([\d.]*)", self.page().read_text())[1], self.row()
        return number.rstrip("."), row.start() if row else math.inf, self.id

    def begin(self):
        if self.answer.exists():
            return
        mark = "#" if self.answer.suffix == ".txt" else "//"
        task = self.task.removeprefix("# ").splitlines()
        text = "".join(f"{mark} {line}".rstrip() + "\n" for line in task) + "\n" + self.starter()
        self.answer.parent.mkdir(exist_ok=True)
        self.answer.write_text(text)
        self.note(started=time.time())
        say(f"Your copy to work in: {self.answer.relative_to(ROOT)}")
        say(f"Its page: {self.page_and_picture()}")

    def hint(self):
        used = self.state["hints"]
        if used == len(self.hints):
            sys.exit(f"error: there are no more hints; hints.md has all {used}. --solution shows our answer.")
        self.begin()
        self.note(hints=used + 1)
        print(re.sub(r"^\d+", f"Hint {used + 1} of {len(self.hints)}", self.hints[used]).rstrip())

    def reset(self):
        if self.answer.exists():
            old = self.answer.rename(self.answer.with_suffix(f".old{self.answer.suffix}"))
            say(f"Your answer is now in {old.relative_to(ROOT)}")
        self.state = {"hints": 0}
        self.begin()

    def show_solution(self):
        """The first call warns."""
        self.begin()
        if not self.state.get("warned"):
            self.note(warned=True)
            used = f"You have used {self.state['hints']} of {len(self.hints)} hints."
            say(f"This shows our answer. {used} Call it once more to see it.")
        elif self.is_step:
            say(f"Our answer is {self.solution.relative_to(ROOT)}. What it changes:")
            shown = output_of("git", "diff", "--no-index", "-U0", "-", self.solution, input=self.starter())
            lines = shown.split("\n", 4)[4]  # without those that name the files
            print(re.sub(r"(?m)^@@ -[\d,]+ \+(\d+).*", r"\nline \1", lines), end="")
        else:
            print(self.solution.read_text(), end="")

    def begin_and_show_task(self):
        if not self.answer.exists():
            self.begin()
            print(self.task, end="", flush=True)  # also at the top of the copy
            say("What the grader says before your first change:")

    def grade(self, *build):
        """Builds with that command and prints what the grader says. Returns whether the answer is right."""
        if subprocess.run(build, stdout=sys.stderr).returncode:
            return False
        program = RELEASE / "bin" / self.target
        said = output_of(program, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(said, end="", flush=True)
        if f"{self.id} is right" not in said:
            if not re.search(f"(?m)^{self.id}[,:] ", said):  # a program can end in other ways than by the grader
                say("The program was not graded" + (": main() must call launch_ranks()." if self.is_step else "."))
            return False
        self.note(done=self.state.get("done", time.time()))
        say(f"Our answer is {self.solution.relative_to(ROOT)}. {next_step()}")
        return True

    def grade_once(self):
        self.begin_and_show_task()
        if not self.grade(ROOT / "run", "build", self.target):
            sys.exit(1)

    def time_of_save(self):
        # An editor may replace the file, which is then missing for a moment.
        return self.answer.stat().st_mtime_ns if self.answer.exists() else None

    def build_of_a_save(self):
        """Compiles the answer and links it, without a look at everything else for changes. Numbers need neither."""
        if self.answer.suffix == ".txt":
            return ["true"]
        steps = output_of("ninja", "-C", RELEASE, "-t", "commands", self.target).splitlines()[-2:]
        # ccache would add to the time of what it has not seen.
        return ["sh", "-c", " && ".join([f"cd {shlex.quote(str(RELEASE))}", "export CCACHE_DISABLE=1", *steps])]

    def watch(self):
        """Grades at once and at each save, until Ctrl-C. The first build sets up."""
        self.begin_and_show_task()
        build = [ROOT / "run", "build", self.target]
        try:
            while True:
                graded, started = self.time_of_save(), time.monotonic()
                self.grade(*build)
                say(f"{time.monotonic() - started:.1f} s. Waiting for the next save; Ctrl-C ends.")
                build = self.build_of_a_save()
                while self.time_of_save() in (graded, None):
                    time.sleep(0.05)
                time.sleep(0.05)  # the editor may still be writing
        except KeyboardInterrupt:
            print()


def all_exercises():
    return [Exercise(file.parent) for file in sorted(ROOT.glob("[0-9]*_*/exercises/*/CMakeLists.txt"))]


def core_first():
    return sorted(all_exercises(), key=lambda exercise: (not exercise.is_core(), exercise.place()))


def next_step():
    for exercise in core_first():
        if "done" not in exercise.state:
            return f"Next: ./run exercise {exercise.id}"
    return "You have written ZeRO: all exercises are done."


def course():
    row = "{:<5} {:<44} {:<7} {:<8} {:<8} {:<21} {}".format
    print(row("id", "task", "state", "hints", "minutes", "takes about", "path"))
    for exercise in core_first():
        state = exercise.state
        title, about = re.match(r"# \w+: (.*)\n\nAbout (\d+ minutes, \w+)", exercise.task).groups()
        word = "done" if "done" in state else "begun" if "started" in state else "-"
        minutes = math.ceil((state["done"] - state["started"]) / 60) if "done" in state else ""
        print(row(exercise.id, title, word, f"{state['hints']} of {len(exercise.hints)}", minutes, about,
                  "core" if exercise.is_core() else "further"))
    print(f"\n{next_step()}")


def find(wanted):
    exercises = all_exercises()
    for exercise in exercises:
        if wanted in (exercise.id, exercise.folder.name):
            return exercise
    near = [each.id for each in exercises if wanted and each.id.startswith(wanted)] or [each.id for each in exercises]
    sys.exit(f"error: no exercise '{wanted}'; there are {', '.join(near)}")


def main(command, wanted="", option="", *others):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ./run course | head ends without a word
    if {"-h", "--help"} & {wanted, option}:
        return print(HELP)
    if command == "course":
        return course()
    exercise = find(wanted)
    actions = {"": exercise.grade_once, "--watch": exercise.watch, "--hint": exercise.hint, "--reset": exercise.reset,
               "--solution": exercise.show_solution}
    if option not in actions or others:
        sys.exit(f"error: the options are{' '.join(actions)}")
    actions[option]()


if __name__ == "__main__":
    main(*sys.argv[1:])
