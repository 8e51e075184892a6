#!/usr/bin/env python3
"""check_site.py on a site of two small pages: what is right passes, and each fault is found."""

import contextlib
import io
import struct
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

import check_site

LESSON = """<!DOCTYPE html><title>A lesson</title><body><div id="nav-tree"><a href="lesson_00.html">00</a></div>
<div class="contents"><p id="top">Text.</p><img src="picture.png">
<div class="section_buttons"><table><tr><td><a href="index.html">before</a></td><td><a href="index.html#there">after</a>
</td></tr></table></div></div>"""
INDEX = '<!DOCTYPE html><title>The first page</title><div class="contents"><p id="there">Text.</p></div>'


def png(second):
    """A picture of two halves, the upper one white, the other of the grey `second`."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([255 if row < 50 else second]) * 100 for row in range(100))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@unittest.skipIf(check_site.missing(), f"{check_site.missing()}")
class CheckSite(unittest.TestCase):
    def faults(self, old="", new="", second=0):
        """What is printed for the site with `new` for `old` in the lesson."""
        self.assertIn(old, LESSON)
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "index.html").write_text(INDEX)
            (site / "lesson_00.html").write_text(LESSON.replace(old, new) if old else LESSON)
            (site / "picture.png").write_bytes(png(second))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                count = check_site.check(site)
            *lines, _ = printed.getvalue().splitlines()
            self.assertEqual(count, len(lines))
            return "\n".join(lines)

    def test_a_site_without_faults_passes(self):
        self.assertEqual(self.faults(), "")

    def test_each_fault_is_found(self):
        for old, new, fault in [
                ("index.html#there", "index.html#gone", "dead link index.html#gone, no such place"),
                ('"index.html"', '"gone.html"', "dead link gone.html"),
                ("picture.png", "gone.png", "gone.png is not there"),
                ("Text.", "<script>undefined_name()</script>", "undefined_name is not defined"),
                ("Text.", "<script>console.error('said so')</script>", "console: said so"),
                ("Text.", "<b style='white-space: nowrap'>" + 60 * "words " + "</b>", "at 400 pixels: wider than the"),
                ('<img src', '<img style="width: 60px" src', "text in picture"),
                ("Text.", "**<code>bold</code>** text", "Markdown in the text: **"),
                ("Text.", "<details>An answer.</details>", "a fold without a title: An answer."),
                ("Text.", "<details><summary>Answer</summary> </details>", "nothing in the fold Answer"),
                ("Text.", "<span><p style='font-size: 9px'>small</p></span>", "text below 12 pixels: small"),
                ('class="contents"', 'class="contents" style="width: 150px"', "the column of text is too narrow"),
                ('href="lesson_00.html"', 'href="index.html"', "lesson_00.html is not in the side bar"),
                ('<td><a href="index.html">before</a></td>', "", "no links to the previous and the next page")]:
            with self.subTest(fault):
                self.assertIn(fault, self.faults(old, new))

    def test_a_picture_of_one_colour_is_found(self):
        self.assertIn("picture.png is blank", self.faults(second=255))


if __name__ == "__main__":
    if not unittest.main(exit=False).result.wasSuccessful():
        sys.exit(1)
    if check_site.missing():
        print(f"skipped: {check_site.missing()}")
        sys.exit(check_site.SKIPPED)
