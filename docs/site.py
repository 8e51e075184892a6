#!/usr/bin/env python3
"""Makes the site of lessons, documents and headers: docs/site.py OUTPUT [VERSION]

Doxygen reads the headers as they are and copies of the Markdown files, in OUTPUT/pages. A copy has stable names for its
headings, links that lead to pages of the site, and for a lesson links to its neighbours. The site is OUTPUT/html. A
warning of Doxygen's is an error. Without doxygen-awesome-css (AWESOME) the pages look plain and have no dark mode.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AWESOME = Path("/usr/share/doxygen-awesome-css")
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".py": "py"}
LESSONS = "[0-9][0-9]_*"


def title(path):
    return (ROOT / path).read_text().partition("\n")[0].lstrip("# ")


def slug(heading):
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def spell(text):
    """Text without blocks of code, so that Doxygen 1.9.4 finds code with a ' in it and code in bold type."""
    text = re.sub("`([^`]+)`", lambda code: f"``{code[1]}``" if "'" in code[1] else code[0], text)
    return re.sub(r"\*\*((?:(?!\n\n).)+?)\*\*", lambda bold: f"<b>{bold[1]}</b>" if "`" in bold[1] else bold[0], text,
                  flags=re.DOTALL)


def lesson_pages(lesson):
    """The files of a lesson in reading order: its README.md, then the pages of its folder as that links to them."""
    linked = re.findall(r"\]\(([\w-]+\.md)[)#]", lesson.read_text())
    return [lesson, *(lesson.parent / file for file in dict.fromkeys(linked))]


def name_pages():
    """The name of the page of each Markdown file, by the file's path, in reading order."""
    names = {"README.md": "index"}
    for lesson in sorted(ROOT.glob(LESSONS + "/README.md")):
        chapter = lesson.parent.name
        for file in lesson_pages(lesson):
            page = "" if file == lesson else f"_{slug(file.stem)}"
            names[f"{chapter}/{file.name}"] = f"lesson_{chapter[:2]}{page}"
        for file in sorted(lesson.parent.glob("exercises/*/*.md"), key=lambda file: (file.name == "hints.md", file)):
            kind = "hints" if file.name == "hints.md" else "exercise"
            names[str(file.relative_to(ROOT))] = f"{kind}_{file.parent.name}"
    for file in sorted((ROOT / "docs").glob("*.md")) + [ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md"]:
        names[str(file.relative_to(ROOT))] = f"doc_{slug(file.stem)}"
    return names


class Pages:
    """Writes the copies that Doxygen reads into `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.names = name_pages()
        self.sources = {}  # the page of each other file or folder that a page links to
        for path, name in list(self.names.items()):
            self.write(name, self.copy(path, name) + self.navigation(path, name) + self.script(path))
        for path, name in self.sources.items():
            self.write(name, self.source(path, name))
        for name, heading, kind in [("course", "Lessons", "lesson_"), ("documents", "Documents", "doc_"),
                                    ("sources", "Files that these link to", "source_")]:
            below = [page for page in [*self.names.values(), *sorted(self.sources.values())] if page.startswith(kind)]
            self.write(name, f"# {heading} {{#{name}}}\n\n" + self.subpages(below))

    def write(self, name, text):
        (self.folder / f"{name}.markdown").write_text(text)

    def subpages(self, names):
        return "".join(f"- @subpage {name}\n" for name in names)

    def link(self, path, target):
        """Where a link of the file at `path` leads on the site."""
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if file.endswith((".svg", ".png")):
            return posixpath.basename(file)
        if f"{file}/README.md" in self.names:
            file += "/README.md"
        if ":" in target or not (ROOT / file).exists():
            return target
        name = self.names.get(file) or self.sources.setdefault(file, "source_" + re.sub(r"\W", "_", file).lower())
        return f"{name}.html" + (f"#{name}--{anchor}" if anchor else "")

    def copy(self, path, name):
        """The text of the file at `path` with names for its headings and links within the site."""
        lines, code, seen = [], False, set()
        for line in (ROOT / path).read_text().splitlines():
            code ^= line.startswith("```")
            heading = re.fullmatch(r"(#+) (.*)", line)
            if heading and not code:
                label = f"{name}--{slug(heading[2])}" if lines else {"index": "mainpage"}.get(name, name)
                line += f" {{#{label}}}" if label not in seen else ""
                seen.add(label)
            elif not code and line.endswith(("</summary>", "</details>")):
                # Doxygen would make a fold of each paragraph between the two.
                line = f"\n@htmlonly[block]\n{line}\n@endhtmlonly\n"
            elif not code:
                line = re.sub(r"\]\(([^)\s]+)\)", lambda found: f"]({self.link(path, found[1])})", line)
            lines.append(line)
        # With the blocks of code kept, what re.split() returns is by turns text and such a block.
        parts = re.split(r"(^ *```.*?^ *```$)", "\n".join(lines) + "\n", flags=re.MULTILINE | re.DOTALL)
        return "".join(part if k % 2 else spell(part) for k, part in enumerate(parts))

    def navigation(self, path, name):
        """The end of a page: the pages below it, and for a lesson the ones before and after it."""
        parent = posixpath.dirname(path)
        if name.startswith("exercise_"):
            hints = self.names.get(f"{parent}/hints.md")
            return f"\nWhen you are stuck: @subpage {hints}\n" if hints else ""
        if not name.startswith("lesson_"):
            return ""
        # A page can be below one page only: exercises are below the first of their lesson.
        exercises = [other for file, other in self.names.items() if path == f"{parent}/README.md" and
                     file.startswith(f"{parent}/") and other.startswith("exercise_")]
        order = ["README.md", *(file for file, other in self.names.items() if other.startswith("lesson_")),
                 "docs/engine.md"]
        at = order.index(path)
        before, after = (f"[{title(file)}]({self.names[file]}.html)" for file in (order[at - 1], order[at + 1]))
        return (f"\n{self.subpages(exercises)}\n"
                f'<div class="section_buttons">\n\n| Previous | Next |\n|:--|--:|\n| {before} | {after} |\n\n</div>\n')

    def script(self, path):
        """The part of a page that computes: what a script beside its Markdown file draws. Doxyfile names it."""
        script = Path(path).with_suffix(".js")
        return (f'\n@htmlonly[block]\n<div id="{script.stem}"></div>\n<script src="{script.name}"></script>\n'
                "@endhtmlonly\n" if (ROOT / script).is_file() else "")

    def source(self, path, name):
        """A page with the file at `path`, or with the files of that folder."""
        files = [ROOT / path] if (ROOT / path).is_file() else sorted(
            file for file in (ROOT / path).iterdir() if file.is_file())
        text = f"# {path} {{#{name}}}\n"
        for file in files:
            text += f"\n`{file.relative_to(ROOT)}`\n" if len(files) > 1 else ""
            text += f"\n~~~~{{.{LANGUAGES.get(file.suffix, 'unparsed')}}}\n{file.read_text()}~~~~\n"
        return text


def style(output):
    """The options for site.css and doxygen-awesome-css."""
    if not AWESOME.is_dir():
        print(f"{AWESOME} is not there: the pages look plain.", file=sys.stderr)
        return f"HTML_EXTRA_STYLESHEET = {ROOT / 'docs/site.css'}\n"
    header = output / "header.html"
    subprocess.run(["doxygen", "-w", "html", header, output / "footer.html", output / "style.css"], check=True,
                   stdout=subprocess.DEVNULL)
    script = "doxygen-awesome-darkmode-toggle.js"
    header.write_text(header.read_text().replace("</head>", f'<script src="$relpath^{script}"></script>\n'
                                                 "<script>DoxygenAwesomeDarkModeToggle.init()</script>\n</head>"))
    styles = [AWESOME / f"doxygen-awesome{part}.css"
              for part in ("", "-sidebar-only", "-sidebar-only-darkmode-toggle")] + [ROOT / "docs/site.css"]
    release = subprocess.run(["doxygen", "--version"], check=True, capture_output=True, text=True).stdout
    # From 1.9.5 on Doxygen has a dark mode of its own, which would mix with that of the style.
    light = tuple(map(int, re.findall(r"\d+", release)[:3])) >= (1, 9, 5)
    return (("HTML_COLORSTYLE = LIGHT\n" if light else "") +
            f"HTML_HEADER = {header}\nHTML_EXTRA_FILES += {AWESOME / script}\n"
            f"HTML_EXTRA_STYLESHEET = {' '.join(map(str, styles))}\n")


def mend(html):
    """Takes out what Doxygen 1.9.4 writes of nested classes that are private: a link without an end."""
    for file in html.glob("*.html"):
        text = file.read_text()
        if 'href="#nested-classes"' in text and 'name="nested-classes"' not in text:
            file.write_text(re.sub(r'<a href="#nested-classes">Classes</a>( &#124;\s*)?', "", text))


def main(output, version=""):
    output = Path(output).resolve()
    for folder in ("pages", "html"):
        shutil.rmtree(output / folder, ignore_errors=True)
    (output / "pages").mkdir(parents=True)
    Pages(output / "pages")
    options = (f"@INCLUDE = docs/Doxyfile\nOUTPUT_DIRECTORY = {output}\nINPUT += {output / 'pages'}\n"
               f"PROJECT_NUMBER = {version}\nHAVE_DOT = {'YES' if shutil.which('dot') else 'NO'}\n" + style(output))
    status = subprocess.run(["doxygen", "-"], cwd=ROOT, input=options, text=True).returncode
    if status == 0:
        mend(output / "html")
        print(f"documentation: {output}/html/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
