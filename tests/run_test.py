#!/usr/bin/env python3
"""The script ./run without what it sets up and builds: what it hands to programs, and what it prints itself."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
# In the place of what sets up and builds.
BOOTSTRAP = """
readonly VENV="$ROOT/.venv" PYTHON="$ROOT/python"
say() { :; }
die() { echo "error: $*" >&2; exit 1; }
bootstrap() { :; }
configure() { :; }
build() { :; }
"""
# In the place of a program: says where it runs and what it was given.
PROGRAM = """#!/bin/sh
pwd -P
for word; do echo "$word"; done
"""


def make_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.user = self.folder / "of the user"
        self.user.mkdir()
        self.repository = self.folder / "repository"
        (self.repository / "cmake").mkdir(parents=True)
        shutil.copy2(SOURCE / "run", self.repository)
        (self.repository / "tools").mkdir()
        shutil.copytree(SOURCE / "tools" / "exercise", self.repository / "tools" / "exercise")
        (self.repository / "cmake" / "bootstrap.sh").write_text(BOOTSTRAP)
        for chapter in ("00_simple_ddp", "01_zero1", "02_zero2"):
            shutil.copytree(SOURCE / chapter, self.repository / chapter, ignore=shutil.ignore_patterns("mine"))
        for program in ("python", "build/release/bin/ladder", "build/release/bin/plan",
                        "build/release/bin/01_zero1", "build/release/bin/01_zero1_minimal",
                        "build/release/bin/02_zero2_autograd",
                        "build/release/bin/activation_cuts"):
            make_program(self.repository / program, PROGRAM)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()

    def call(self, *words, script=None, folder=None, **variables):
        return subprocess.run([script or self.repository / "run", *words], cwd=folder or self.user, text=True,
                              capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
                              env={**os.environ, "TMPDIR": str(self.temporary), **variables})

    def lines(self, *words, **options):
        ended = self.call(*words, **options)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout.splitlines()

    def expect(self, command, given, becomes):
        """`becomes` is what the program gets of `given`, with HERE for the user's folder."""
        where, *words = self.lines(*command.split(), *given)
        self.assertEqual(where, str(self.repository), "a program finds its files in the repository")
        expected = [word.replace("HERE", str(self.user)) for word in becomes]
        self.assertEqual(words[len(words) - len(expected):], expected)


class Paths(Script):
    def test_of_the_ladder_are_the_users(self):
        self.expect("ladder", ["--json", "a.json", "--data", "b.txt", "c/*.txt", "--steps", "3", "--trace=d/e.json",
                               "--weights", "../f", "--save", "g", "--checkpoint", "i", "--resume=j",
                               "--checkpoint-every", "2"],
                    ["--json", "HERE/a.json", "--data", "HERE/b.txt", "HERE/c/*.txt", "--steps", "3",
                     "--trace=HERE/d/e.json", "--weights", "HERE/../f", "--save", "HERE/g",
                     "--checkpoint", "HERE/i", "--resume=HERE/j", "--checkpoint-every", "2"])

    def test_of_folders_in_modes_are_the_users(self):
        self.expect("ladder", ["--modes", "engine3:offload=none,engine1:offload=states:stage=1,engine2:offload=host"],
                    ["--modes", "engine3:offload=none,engine1:offload=HERE/states:stage=1,engine2:offload=host"])
        self.expect("ladder", ["--modes", "engine3:offload=none:offload_parameters=p"],
                    ["--modes", "engine3:offload=none:offload_parameters=HERE/p"])
        self.expect("ladder", ["--modes=engine3:offload=/a,engine3:offload=b"],
                    ["--modes=engine3:offload=/a,engine3:offload=HERE/b"])

    def test_of_other_programs_are_the_users(self):
        self.expect("plan", ["--memory", "24GB"], ["--memory", "24GB"])
        self.expect("timeline", ["a.json", "--require", "0.5", "b.json", "--pict", "c.png"],
                    ["HERE/a.json", "--require", "0.5", "HERE/b.json", "--pict", "HERE/c.png"])
        self.expect("data", ["text", "--input", "a", "b", "--tokenizer", "c", "--output", "d"],
                    ["text", "--input", "HERE/a", "HERE/b", "--tokenizer", "HERE/c", "--output", "HERE/d"])
        self.expect("step 01", ["shares", "--memory-timeline", "a", "--json", "b", "--nproc", "3"],
                    ["shares", "--memory-timeline", "HERE/a", "--json", "HERE/b", "--nproc", "3"])
        self.expect("peers", ["--json", "a", "--rounds", "2"], ["--json", "HERE/a", "--rounds", "2"])
        self.expect("gpu", ["--out", "a", "--only", "b"],
                    ["tools/gpu/gpu.py", "--programs", "build/release/bin", "--out", "HERE/a", "--only", "b"])
        self.expect("gpu", ["--table", "-"], ["--table", "-"])

    def test_that_are_none_stay(self):
        self.expect("timeline", ["--picture", "-"], ["--picture", "-"])
        self.expect("ladder", ["--json", "/a", "--save", "", "--model", "tiny"],
                    ["--json", "/a", "--save", "", "--model", "tiny"])

    def test_in_the_repository_stay(self):
        words = ["--json", "a.json", "--modes", "engine3:offload=b"]
        self.assertEqual(self.lines("ladder", *words, folder=self.repository), [str(self.repository), *words])


class Pictures(Script):
    def test_are_drawn_of_what_a_program_wrote(self):
        make_program(self.repository / "build/release/bin/ladder", "#!/bin/sh\nshift\nfor file; do echo {} >$file; done\n")
        (self.user / "c.json").write_text("{}")
        os.utime(self.user / "c.json", (0, 0))
        lines = self.lines("ladder", "--json", "a.json", "b.json", folder=self.user)
        self.assertEqual(lines, [str(self.repository), "tools/plots/plot_ladder.py", str(self.user / "a.json")])
        make_program(self.repository / "build/release/bin/ladder", "#!/bin/sh\nexit 3\n")
        ended = self.call("ladder", "--json=c.json")
        self.assertEqual((ended.returncode, ended.stdout), (3, ""), "an old file is not drawn")

    def test_may_fail(self):
        make_program(self.repository / "python", "#!/bin/sh\nexit 1\n")
        make_program(self.repository / "build/release/bin/ladder", "#!/bin/sh\necho {} >$2\n")
        self.assertEqual(self.lines("ladder", "--json", "a.json"), [])


class Links(Script):
    def test_to_the_script_lead_to_the_repository(self):
        first, second = self.folder / "bin" / "zero", self.folder / "again"
        first.parent.mkdir()
        first.symlink_to("../repository/run")
        second.symlink_to(first)
        for link in (first, second):
            self.assertEqual(self.lines("help", script=link)[0], "Usage: ./run COMMAND [ARGUMENT]...")
            self.assertEqual(self.lines("ladder", script=link), [str(self.repository)])


class Help(Script):
    def test_is_printed_by_every_command(self):
        usage = self.lines("help")
        for word in ("--help", "-h"):
            for command in ("test", "check", "bench", "build", "docs", "diff", "step", "course", "exercise", "mutant", "format",
                            "shell"):
                self.assertEqual(self.lines(command, word), usage, command)
            for command in ("ladder", "plan", "peers", "timeline", "data", "step 01"):
                self.assertEqual(self.lines(*command.split(), word)[-1], word, command)


class Diff(Script):
    def test_of_two_at_once_do_not_meet(self):
        # A name that another could have too must not matter.
        (self.repository / "build" / "diff_01_zero1").mkdir()
        shown = self.lines("diff", "01", "02", "--class")
        self.assertIn("======== 01_zero1/zero1_sharding.hpp -> 02_zero2/zero2_sharding.hpp", shown)
        self.assertTrue(any(line.startswith("+") for line in shown), "nothing is new")
        self.assertEqual(list(self.temporary.iterdir()), [], "a temporary file was left behind")

    def test_shows_transfers_whole(self):
        for chapter in ("05_prefetch_overlap", "06_hsdp", "07_zero_plus_plus"):
            shutil.copytree(SOURCE / chapter, self.repository / chapter, ignore=shutil.ignore_patterns("mine"))
        for left, right, first in [("05", "06", "05_prefetch_overlap/sharded_data_parallel.hpp -> 06_hsdp/hsdp.hpp"),
                                   ("06", "07", "06_hsdp/hsdp.hpp -> 07_zero_plus_plus/zero_plus_plus.hpp")]:
            shown = self.lines("diff", left, right, "--class")
            self.assertIn("======== " + first, shown)
            self.assertFalse([line for line in shown if line.strip() and line[0] in "- "], "not only what is new")

    def test_fails_where_a_program_that_it_calls_does(self):
        make_program(self.folder / "failing" / "sed", "#!/bin/sh\nexit 3\n")
        ended = self.call("diff", "01", "02", "--class", PATH=f"{self.folder / 'failing'}:{os.environ['PATH']}")
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertEqual(list(self.temporary.iterdir()), [], "a temporary file was left behind")


class SmallPrograms(Script):
    def test_are_what_diff_compares(self):
        shown = self.lines("diff", "00", "01")
        self.assertEqual(shown[0], "00_simple_ddp/minimal.cpp -> 01_zero1/minimal.cpp")
        self.assertEqual(sum(line.startswith("+") for line in shown), 9)
        self.assertEqual(sum(line.startswith("-") for line in shown), 5)
        self.assertFalse([line for line in shown if line.startswith(" ")], "lines that are the same")
        self.assertIn("\n".join(shown), (SOURCE / "01_zero1" / "README.md").read_text())
        program = (SOURCE / "01_zero1" / "minimal.cpp").read_text().splitlines()
        for line, following in zip(shown, shown[1:] + [""]):
            if line.startswith("line ") and following.startswith("+"):
                self.assertEqual(program[int(line.split()[1]) - 1], following[1:])

    def test_are_run_by_step(self):
        self.expect("step 01", ["--small", "3"], ["3"])
        self.expect("step 02", ["--autograd", "3"], ["3"])
        (self.repository / "03_zero3").mkdir()
        (self.repository / "03_zero3" / "units.cpp").touch()
        make_program(self.repository / "build/release/bin/03_zero3_units", PROGRAM)
        self.expect("step 03", ["--units", "3"], ["3"])
        (self.repository / "07_zero_plus_plus").mkdir()
        for program in ("hpz", "qgz"):
            (self.repository / "07_zero_plus_plus" / f"{program}.cpp").touch()
            make_program(self.repository / f"build/release/bin/07_zero_plus_plus_{program}", PROGRAM)
            self.expect("step 07", [f"--{program}", "3"], ["3"])
        (self.repository / "08_tensor_parallel").mkdir()
        for program in ("ulysses", "sequence", "partitioned"):
            (self.repository / "08_tensor_parallel" / f"{program}.cpp").touch()
            make_program(self.repository / f"build/release/bin/08_tensor_parallel_{program}", PROGRAM)
            self.expect("step 08", [f"--{program}", "4"], ["4"])

    def test_of_a_lesson_are_run_by_step(self):
        (self.repository / "08_tensor_parallel").mkdir()
        self.expect("step 08", ["activation_cuts", "--data", "8"], ["--data", "8"])
        self.assertEqual(self.call("diff", "00", "01", "--clas").returncode, 1)

    def test_are_missing_in_some_chapters(self):
        (self.repository / "10_new").mkdir()
        for words, missing in ((["step", "10", "--small"], "10_new has no small program."),
                               (["diff", "00", "10"], "10_new has no small program."),
                               (["step", "01", "--autograd"], "01_zero1 has no small program autograd.cpp")):
            ended = self.call(*words)
            self.assertEqual((ended.returncode, ended.stdout), (1, ""))
            self.assertIn(missing, ended.stderr)

    def test_a_chapter_without_a_strategy_is_not_run(self):
        shutil.copy(SOURCE / "CMakeLists.txt", self.repository)
        for chapter, words in (("09_pipeline", ["4", "gpipe"]), ("10_offload", ["3"])):
            (self.repository / chapter).mkdir()
            step = f"step {chapter[:2]}"
            ended = self.call(*step.split())
            self.assertEqual(ended.returncode, 1)
            self.assertIn(f"{chapter} has no strategy of its own", ended.stderr)
            (self.repository / chapter / "minimal.cpp").touch()
            make_program(self.repository / f"build/release/bin/{chapter}_minimal", PROGRAM)
            self.expect(step, ["--small", *words], words)


class Exercise(Script):
    FOLDER = "01_zero1/exercises/01b_zero1"

    def setUp(self):
        super().setUp()
        self.answer = self.repository / self.FOLDER / "mine" / "minimal.cpp"
        self.grader_says("01b, 2 ranks: rank 0 sends too much.", 1)

    def grader_says(self, text, code):
        make_program(self.repository / "build/release/bin/exercise_01b", f"#!/bin/sh\necho '{text}'\nexit {code}\n")

    def course(self, step):
        """The line of ./run course about a step, without its title."""
        line = next(line for line in self.lines("course") if line.startswith(step))
        return line[51:].split()

    def test_begins_with_the_program_before_and_the_task(self):
        self.assertEqual(self.call("exercise", "01b").returncode, 1)
        text = self.answer.read_text()
        self.assertTrue(text.startswith("// 01b: ZeRO-1, one owner for each layer\n//\n// About"))
        program = (SOURCE / "00_simple_ddp" / "minimal.cpp").read_text()
        self.assertTrue(text.endswith("\n\n" + program))
        self.answer.write_text("mine")
        self.call("exercise", "01b")
        self.assertEqual(self.answer.read_text(), "mine", "an answer is kept")

    def test_begins_with_the_program_that_it_names(self):
        for chapter in ("04_tensor_sharding", "05_prefetch_overlap", "06_hsdp"):
            shutil.copytree(SOURCE / chapter, self.repository / chapter, ignore=shutil.ignore_patterns("mine"))
        self.lines("exercise", "06a", "--reset")
        text = (self.repository / "06_hsdp/exercises/06a_hsdp/mine/minimal.cpp").read_text()
        self.assertTrue(text.endswith("\n\n" + (SOURCE / "04_tensor_sharding" / "minimal.cpp").read_text()))
        self.lines("exercise", "06a", "--solution")
        self.assertEqual(self.lines("exercise", "06a", "--solution"), self.lines("diff", "04", "06")[1:])
        self.assertEqual([line[:3] for line in self.lines("course") if line.startswith("06")], ["06a", "06b"])

    def test_of_the_core_come_first(self):
        for chapter in ("03_zero3", "04_tensor_sharding", "05_prefetch_overlap"):
            shutil.copytree(SOURCE / chapter, self.repository / chapter, ignore=shutil.ignore_patterns("mine"))
        rows = [line.split() for line in self.lines("course")[1:-2]]
        paths = [row[-1] for row in rows]
        self.assertEqual(paths, sorted(paths), "core before further")
        core = [row[0] for row in rows if row[-1] == "core"]
        self.assertEqual(core, ["00a", "00b", "00c", "01a", "01b", "01c", "02a", "02c", "02d", "02b",
                                "03b", "03a", "03f", "03c", "03g", "03h", "04b", "05a"], "in the order of the pages")
        (self.repository / "01_zero1/README.md").write_text("# 01\n\n*Further.* 30 minutes.\n")
        self.assertEqual(self.course("01b")[-1], "further", "as the head line of the page says")

    def test_00c_begins_with_ranks_that_send_nothing(self):
        self.lines("exercise", "00c", "--reset")
        text = (self.repository / "00_simple_ddp/exercises/00c_average_gradients/mine/minimal.cpp").read_text()
        self.assertIn("int main(", text)
        self.assertNotIn("all_reduce(gradients[layer]", text)

    def test_helps_and_names_the_exercises_of_a_chapter(self):
        self.assertIn("--hint", self.lines("exercise", "01b", "--help")[2])
        ended = self.call("exercise", "01")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("there are 01a, 01b, 01c, 01d, 01e, 01f, 01g\n", ended.stderr)

    def test_shows_one_hint_after_the_other(self):
        text = (SOURCE / self.FOLDER / "hints.md").read_text()
        hints = text.count("\n## ")
        self.assertGreaterEqual(hints, 3)
        for number in range(1, hints + 1):
            shown = self.lines("exercise", "01b", "--hint")
            self.assertTrue(shown[0].startswith(f"Hint {number} of "), shown)
            self.assertIn(shown[-1], text)
            self.assertEqual(self.course("01b")[:4], ["begun", str(number), "of", str(hints)])
        self.assertEqual(self.call("exercise", "01b", "--hint").returncode, 1)

    def test_shows_the_solution_after_a_warning(self):
        self.assertEqual(self.lines("exercise", "01b", "--solution"), [])
        shown = self.lines("exercise", "01b", "--solution")
        self.assertEqual(shown, self.lines("diff", "00", "01")[1:])

    def test_starts_again_and_keeps_the_old_answer(self):
        self.lines("exercise", "01b", "--hint")
        begun = self.answer.read_text()
        self.answer.write_text("mine")
        self.lines("exercise", "01b", "--reset")
        self.assertEqual(self.answer.read_text(), begun)
        self.assertEqual((self.answer.parent / "minimal.old.cpp").read_text(), "mine")
        self.assertEqual(self.course("01b")[:2], ["begun", "0"])

    def test_is_done_when_the_grader_says_so(self):
        self.assertEqual(self.course("01b")[0], "-")
        ended = self.call("exercise", "01b")
        self.assertEqual(ended.returncode, 1)
        self.assertTrue(ended.stdout.startswith("# 01b: "), "the first call shows the task")
        self.assertTrue(ended.stdout.endswith("\n01b, 2 ranks: rank 0 sends too much.\n"), ended.stdout)
        self.assertEqual(self.course("01b")[0], "begun")
        self.grader_says("a table", 0)
        self.assertEqual(self.call("exercise", "01b").returncode, 1, "it was not graded")
        self.assertEqual(self.course("01b")[0], "begun")
        self.grader_says("01b is right: all of it.", 0)
        self.assertEqual(self.lines("exercise", "01b"), ["01b is right: all of it."])
        self.assertEqual(self.course("01b")[0], "done")
        self.assertIn("Next: ./run exercise 00a", self.lines("course"))

    def test_of_a_function_begins_with_the_task_and_the_starter(self):
        self.lines("exercise", "00a", "--reset")
        folder = "00_simple_ddp/exercises/00a_all_reduce"
        text = (self.repository / folder / "mine/00a.cpp").read_text()
        self.assertTrue(text.startswith("// 00a: all-reduce from its two halves\n//\n// About"))
        self.assertTrue(text.endswith("\n\n" + (SOURCE / folder / "starter.cpp").read_text()))
        self.call("exercise", "00a", "--solution")
        self.assertEqual("\n".join(self.lines("exercise", "00a", "--solution")) + "\n",
                         (SOURCE / folder / "solution.cpp").read_text())

    def test_of_a_function_begins_as_the_solution_with_a_fault(self):
        shutil.copytree(SOURCE / "03_zero3", self.repository / "03_zero3", ignore=shutil.ignore_patterns("mine"))
        self.lines("exercise", "03c", "--reset")
        folder = self.repository / "03_zero3/exercises/03c_branches"
        begun, solution = (folder / "mine/03c.cpp").read_text(), (folder / "solution.cpp").read_text()
        self.assertEqual(begun.splitlines()[-40:-12], solution.splitlines()[:28])
        self.assertNotIn("zeros_like", begun)
        self.assertNotIn("patch", begun)

    def test_of_numbers_has_the_task_as_comments(self):
        self.lines("exercise", "02c", "--reset")
        text = (self.repository / "02_zero2/exercises/02c_wire_volume/mine/02c.txt").read_text()
        self.assertTrue(text.startswith("# 02c: what ZeRO-2 sends, to the byte\n#\n# About"))
        self.lines("exercise", "02c", "--reset")
        self.assertTrue((self.repository / "02_zero2/exercises/02c_wire_volume/mine/02c.old.txt").exists())

    def test_names_its_page_and_a_picture_when_it_begins(self):
        for chapter in ("03_zero3", "04_tensor_sharding", "09_pipeline"):
            shutil.copytree(SOURCE / chapter, self.repository / chapter, ignore=shutil.ignore_patterns("mine"))
        for exercise, page, picture in [("01b", "01_zero1/README.md", "lesson_01_owners"),
                                        ("02d", "02_zero2/autograd.md", "lesson_02_order"),
                                        ("03c", "03_zero3/units.md", "lesson_03_deadlock"),
                                        ("04d", "04_tensor_sharding/checkpoints.md", "lesson_04_checkpoint")]:
            said = f"==> Its page: {page}, and its first picture docs/images/{picture}.svg\n"
            self.assertIn(said, self.call("exercise", exercise, "--reset").stderr)
        self.assertNotIn("Its page", self.call("exercise", "01b").stderr, "it has begun")
        (self.repository / "09_pipeline/README.md").write_text("no picture")
        self.assertIn("Its page: 09_pipeline/README.md\n", self.call("exercise", "09a", "--reset").stderr)

    def test_watch_compiles_and_links_the_answer_alone_at_each_save(self):
        # ninja names three commands, of which the last two are the answer's; the grader prints the answer's only line.
        make_program(self.folder / "bin/ninja", "#!/bin/sh\n[ \"$*\" = \"-C $BUILD -t commands exercise_01b\" ] || exit 1\n"
                     "printf '%s\\n' 'echo a library' 'echo compiles in $PWD' ': && echo links && :'\n")
        self.answer.parent.mkdir()
        self.answer.write_text("first\n")
        make_program(self.repository / "build/release/bin/exercise_01b",
                     f"#!/bin/sh\necho \"01b, 2 ranks: $(cat '{self.answer}')\"\n")
        watch = subprocess.Popen([self.repository / "run", "exercise", "01b", "--watch"], text=True, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                 env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                                      "BUILD": f"{self.repository}/build/release"})

        def end():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watch.pid, signal.SIGKILL)
        limit = threading.Timer(60, end)
        limit.start()
        for cleanup in (watch.communicate, end, limit.cancel):
            self.addCleanup(cleanup)
        for answer in ("first", "second", "third"):
            if answer != "first":
                written = self.answer.with_suffix(".new")
                written.write_text(f"{answer}\n")
                self.answer.unlink()  # as an editor may
                time.sleep(0.2)
                written.rename(self.answer)
                self.assertEqual(watch.stderr.readline(), f"compiles in {self.repository}/build/release\n")
                self.assertEqual(watch.stderr.readline(), "links\n")
            self.assertEqual(watch.stdout.readline(), f"01b, 2 ranks: {answer}\n")
            self.assertRegex(watch.stderr.readline(), r"==> [0-9.]+ s\. Waiting for the next save; Ctrl-C ends\.\n")
        os.killpg(watch.pid, signal.SIGINT)
        self.assertEqual((watch.wait(timeout=20), watch.stderr.read()), (0, ""))

    def test_with_an_unknown_option_is_an_error(self):
        self.assertIn("the options are", self.call("exercise", "01b", "--clue").stderr)

    def test_of_another_name_is_an_error(self):
        for name in ("", "09z", "01"):
            self.assertIn("no exercise", self.call("exercise", name).stderr)


if __name__ == "__main__":
    unittest.main()
