#!/usr/bin/env python3
"""Checks the site of docs/site.py in headless Chromium: tests/site/check_site.py [FOLDER]

Without FOLDER it makes the site first. It prints a line for each fault and ends with 1 if there is one, with 77 (ctest:
skipped) where Doxygen or Chromium is missing. Every internal link of every page must lead somewhere. The lessons, the
exercises, the documents and the first page are opened at 400 and at 1,400 pixels: nothing may be logged as an error,
pictures must be there, not of one colour and not shrunk below 700 pixels, a fold must have a title and something in it,
text must be at least 12 pixels high and free of Markdown, and the page not wider than the window. A lesson has the
links to its neighbours, and the side bar lists all lessons.
"""

import functools
import html.parser
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AWESOME = Path("/usr/share/doxygen-awesome-css")
SKIPPED = 77

# Runs in the page and returns its faults.
IN_PAGE = r"""(async () => {
  const faults = [];
  const picture = source => new Promise(done => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => done(null);
    image.src = source;
  });
  for (const element of document.querySelectorAll("div.contents img, div.contents object")) {
    const source = element.src || element.data;
    const image = await picture(source);
    if (!image || !image.naturalWidth) { faults.push(`picture ${source} is not there`); continue; }
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 200;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, 200, 200);
    const pixels = new Uint32Array(context.getImageData(0, 0, 200, 200).data.buffer);
    if (pixels.every(pixel => pixel === pixels[0])) faults.push(`picture ${source} is blank`);
    const box = element.getBoundingClientRect();
    if (box.width < 50 || box.height < 20) faults.push(`picture ${source} is too small to see`);
    if (box.width < 0.9 * Math.min(image.naturalWidth, 700)) faults.push(`text in picture ${source} is too small to read`);
  }
  for (const fold of document.querySelectorAll("div.contents details")) {
    const summary = fold.querySelector(":scope > summary");
    if (!summary) faults.push(`a fold without a title: ${fold.textContent.trim().slice(0, 40)}`);
    else if (fold.textContent.trim() === summary.textContent.trim()) faults.push(`nothing in the fold ${summary.textContent}`);
  }
  for (const element of [document.documentElement, document.body, document.querySelector("#doc-content")])
    if (element && element.scrollWidth > element.clientWidth + 1) {
      const widest = [...element.querySelectorAll("div.contents *")].filter(one => {
        for (let up = one.parentElement; up && up !== element; up = up.parentElement)
          if (getComputedStyle(up).overflowX !== "visible") return false;
        return one.getBoundingClientRect().right > innerWidth + 1;
      })[0];
      faults.push(`wider than the window by ${element.scrollWidth - element.clientWidth} pixels` +
                  (widest ? `: ${widest.outerHTML.slice(0, 80)}` : ""));
      break;
    }
  const contents = document.querySelector("div.contents");
  if (!contents) return [...faults, "no contents"];
  if (contents.clientWidth < 0.5 * Math.min(innerWidth, 800)) faults.push("the column of text is too narrow");
  for (const element of contents.querySelectorAll("p, li, td, div.line"))
    if (element.innerText.trim() && parseFloat(getComputedStyle(element).fontSize) < 12) {
      faults.push(`text below 12 pixels: ${element.innerText.slice(0, 40)}`);
      break;
    }
  for (const texts = document.createTreeWalker(contents, NodeFilter.SHOW_TEXT); texts.nextNode();) {
    const {data, parentElement} = texts.currentNode;
    if (/\*\*|`/.test(data) && !parentElement.closest("code, pre, .fragment, script"))
      faults.push(`Markdown in the text: ${data.trim().slice(0, 40)}`);
  }
  if (location.pathname.includes("/lesson_")) {
    for (const lesson of LESSONS)
      if (!document.querySelector(`#nav-tree a[href$="${lesson}"]`)) faults.push(`${lesson} is not in the side bar`);
    if (document.querySelectorAll("div.section_buttons td a").length !== 2)
      faults.push("no links to the previous and the next page");
  }
  return faults;
})()"""


class Browser:
    """Headless Chromium, spoken to over pipes in the DevTools protocol."""

    def __init__(self, profile):
        here_out, there_in = os.pipe(), os.pipe()
        to_fds = f'exec "$0" "$@" 3<&{there_in[0]} 4>&{here_out[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", to_fds, CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(there_in[0], here_out[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there_in[0])
        os.close(here_out[1])
        self.to, self.from_, self.rest = there_in[1], here_out[0], b""
        self.numbers, self.session, self.events = itertools.count(1), {}, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.rest:
            more = os.read(self.from_, 1 << 16)
            if not more:
                raise RuntimeError(f"{CHROMIUM} ended")
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def faults(self, url, width, script):
        """The faults of the page at `url` in a window of that width: what is logged, and what `script` returns."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events = []
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())
        # The side bar is filled by scripts that are loaded after the page, and pictures are loaded when a fold opens.
        self.call("Runtime.evaluate", awaitPromise=True,
                  expression="for (const fold of document.querySelectorAll('details')) fold.open = true;"
                             "new Promise(done => setTimeout(done, 500))")
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return [*self.logged(), *answer["result"]["value"]]

    def logged(self):
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                yield "console: " + details.get("exception", {}).get("description", details["text"]).splitlines()[0]
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                words = (str(one.get("value", one.get("description"))) for one in parameters["args"])
                yield "console: " + " ".join(words)
            elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                if not entry.get("url", "").endswith("/favicon.ico"):
                    yield f"console: {entry['text']} {entry.get('url', '')}"

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.from_)


class Links(html.parser.HTMLParser):
    """What a page links to, and the names within it."""

    def __init__(self, file):
        super().__init__()
        self.links, self.names = set(), set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src", "data", "xlink:href") and value:
                self.links.add(value)
            elif name in ("id", "name"):
                self.names.add(value)


def dead_links(site):
    pages = {file.name: Links(file) for file in sorted(site.glob("*.html"))}
    for page, parsed in pages.items():
        for link in sorted(parsed.links):
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            file, name = urllib.parse.unquote(url.path) or page, urllib.parse.unquote(url.fragment)
            if not (site / file).is_file():
                yield f"{page}: dead link {link}"
            elif name and file in pages and name not in pages[file].names:
                yield f"{page}: dead link {link}, no such place in {file}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def check(site):
    """Prints the faults of the site in that folder and returns how many there are."""
    faults = list(dead_links(site))
    lessons = sorted(file.name for file in site.glob("lesson_*.html"))
    if not lessons:
        faults.append("no lessons")
    pages = ["index.html", *lessons] + sorted(
        file.name for kind in ("exercise", "doc", "source") for file in site.glob(f"{kind}_*.html"))
    script = IN_PAGE.replace("LESSONS", json.dumps(lessons))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        for page, width in itertools.product(pages, (400, 1400)):
            url = f"http://127.0.0.1:{server.server_port}/{page}"
            faults += [f"{page} at {width} pixels: {fault}" for fault in browser.faults(url, width, script)]
        browser.close()
    server.shutdown()
    server.server_close()
    for fault in faults:
        print(fault)
    print(f"{site}: {len(pages)} pages opened, {len(faults)} faults")
    return len(faults)


def missing():
    """What the check needs and this machine has not, or None."""
    if not CHROMIUM:
        return "Chromium is not installed (Debian: chromium)"
    if not shutil.which("doxygen"):
        return "Doxygen is not installed"
    return None if AWESOME.is_dir() else "doxygen-awesome-css is not installed, and plain pages do not fit 400 pixels"


def main(folder=None):
    if missing():
        print(f"skipped: {missing()}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as made:
        if not folder:
            subprocess.run([sys.executable, ROOT / "docs/site.py", made], check=True)
        return 1 if check(Path(folder or f"{made}/html")) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
