#!/usr/bin/env python3
"""Checks that each answer in seeds.tsv is there.

    tests/docs/seeds.py VERNIER ROOT
"""
import re
import subprocess
import sys
from pathlib import Path


def printed(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False)


def anchors(page):
    """Returns the anchors of a page's headings, as hosts make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^a-z0-9_-]", "", title.lower().replace(" ", "-")) for title in titles}


def is_there(answer, vernier, root, described):
    kind, _, name = answer.partition(":")
    if kind == "verb":
        return printed(vernier, name, "--help").returncode == 0
    if kind in ("plugin", "option"):
        plugin, _, key = name.partition(".")
        if plugin == "run":
            return f"| `{key}` " in (root / "docs/reference/config/README.md").read_text(encoding="utf-8")
        if plugin not in described:
            described[plugin] = printed(vernier, "plugins", plugin)
        found = described[plugin]
        return found.returncode == 0 and (not key or re.search(rf"^ *{key} ", found.stdout, re.M) is not None)
    path, _, anchor = answer.partition("#")
    return (root / path).exists() and (not anchor or anchor in anchors(root / path))


def main():
    vernier, root = sys.argv[1], Path(sys.argv[2])
    described, wrong, rows = {}, 0, 0
    for line in (root / "tests/docs/seeds.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        rows += 1
        _, demand, answers = line.split("\t")
        known, _, why = answers.partition("open:")
        if not known.split() and not why:
            print(f"{demand}: there is no answer")
            wrong += 1
        for answer in known.split():
            if not is_there(answer, vernier, root, described):
                print(f"{demand}: there is no {answer}")
                wrong += 1
    if rows < 120:
        print(f"only {rows} rows")
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
