#!/usr/bin/env python3
"""Finds dead links, wrong paths and pages that no index has.

    tests/docs/links.py ROOT

Each relative link of a page leads to a file, and to a heading that it has. Each path in backquotes is there. Each page
of a folder of docs, and each example's README, is in an index: the README.md of its folder, or one of docs/start and
docs/design. Each page that a source, a test or a configuration names is there.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"")
PATH = re.compile(r"`((?:framework|sdk|plugins|tests|configs|docs|examples)/[A-Za-z0-9_./-]+)`")
MADE_UP = re.compile(r"/(mine|my_|x[._])")
NAMED = re.compile(r"https?:\S+|\b(docs/[A-Za-z0-9_./-]*\.(?:md|svg)\b)")
wrong = []


def prose(text):
    """Returns a page without its blocks of code."""
    return re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.M | re.S)


def anchors(page):
    """Returns the anchors of a page's headings, as hosts make them: lower case, no punctuation, spaces to hyphens."""
    found, count = set(), {}
    for title in re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w-]", "", title.strip().lower().replace(" ", "-"))
        count[anchor] = count.get(anchor, -1) + 1
        found.add(f"{anchor}-{count[anchor]}" if count[anchor] else anchor)
    return found


def links(page):
    """Yields the links of a page as they are written, each with the file it leads to and its anchor."""
    text = re.sub(r"`[^`\n]*`", "``", prose(page.read_text(encoding="utf-8")))
    for match in LINK.finditer(text):
        link = match[1] or match[2]
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            yield link, (page.parent / target).resolve() if target else page, anchor


docs = sorted((ROOT / "docs").rglob("*.md"))
examples = sorted((ROOT / "examples").glob("*/README.md"))
for page in [ROOT / "README.md", ROOT / "tests/oracles/README.md", *docs, *examples]:
    where = page.relative_to(ROOT)
    for link, target, anchor in links(page):
        if not target.exists():
            wrong.append(f"{where}: {link} leads nowhere")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            wrong.append(f"{where}: {link}: no such heading")
    for path in PATH.findall(page.read_text(encoding="utf-8")):
        if not MADE_UP.search(path) and not (ROOT / path).exists():
            wrong.append(f"{where}: there is no {path}")

listed = {folder: {target for _, target, _ in links(folder / "README.md")} for folder in {page.parent for page in docs}}
for page in docs + examples:
    indexes = [page.parent] if page.name != "README.md" else [page.parent.parent]
    indexes += [ROOT / "docs/start", ROOT / "docs/design"]
    if page != ROOT / "docs/README.md" and not any(page in listed.get(index, ()) for index in indexes):
        wrong.append(f"{page.relative_to(ROOT)} is in no index: {indexes[0].relative_to(ROOT)}/README.md")

tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False).stdout
names = tracked.split("\0") if tracked else [str(path.relative_to(ROOT)) for folder in
    ("configs", "examples", "framework", "plugins", "sdk", "tests") for path in (ROOT / folder).rglob("*")]
for name in names:
    file = ROOT / name
    if file.suffix in (".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".awk", ".toml", ".txt", ".cmake", ".md", ".tsv",
                       ".service", "") and file.is_file() and not name.startswith("docs/"):
        for path in NAMED.findall(file.read_text(encoding="utf-8", errors="ignore")):
            if path and not (ROOT / path).exists():
                wrong.append(f"{name}: there is no {path}")

print("\n".join(wrong))
sys.exit(bool(wrong))
