#!/usr/bin/env python3
"""Each claim of the pages about numbers stands once in claims.tsv, with the test that holds it.

    tests/docs/claims.py ROOT BUILD

ROOT is the source tree, BUILD the folder in which ctest lists the tests. A claim is a sentence of README.md or of a
page below docs/ that says that numbers are equal to the bit or within a bound, as CLAIM finds it. Decisions, which are
of their day, and the changelog are left out. The head of claims.tsv describes its columns.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

BITS = (r"same bits|bit for bit|to the (?:last )?bit|same codes|chang\w+ no (?:number|bit)|(?:is|are) exact\b|"
        r"not depend on the number of threads|(?:equal|equals|are) (?:those of )?(?:scikit-learn|torchao|PyTorch|"
        r"bitsandbytes|transformers|TRL|PEFT|Python's|LibTorch)")
BOUND = (r"(?:within|to|agree to|at most|apart by|more than|closer than|up to|near to) "
         r"(?:[0-9.]+ (?:of|times) )?(?:[0-9.]*[0-9]e-[0-9]+|half a digit)")
CLAIM = re.compile(f"{BITS}|{BOUND}")
NO_TEST = {
    "defined": "it says what words mean, or what a program prints",
    "elsewhere": "another row has the claim, and the sentence only points to it",
    "gpu": "no machine of the tests has a GPU; tests/gpu measures it",
    "measured": "a benchmark measured it, and a test asserts no timing and no machine",
}


def sentences(text):
    """The sentences of a page, and each row of its tables; blocks of code are left out."""
    parts, fenced = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or line.lstrip().startswith("```") or not line.strip():
            parts.append("")
        elif re.match(r"\s*(\||[-*] |[0-9]+\. |#)", line) or not parts or not parts[-1] or parts[-1].startswith("|"):
            parts.append(line.strip())
        else:
            parts[-1] += " " + line.strip()
    for part in parts:
        yield from [part] if part.startswith("|") else re.split(r"(?<=[.:;!?]) (?=[A-Z`\[*])", part)


def claims(root):
    """All claims as (page, sentence)."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for page in pages:
        name = str(page.relative_to(root))
        if name.startswith("docs/decisions/") or name == "docs/CHANGELOG.md":
            continue
        for sentence in sentences(page.read_text(encoding="utf-8")):
            if CLAIM.search(sentence):
                yield name, sentence


def main():
    root, build = Path(sys.argv[1]).resolve(), sys.argv[2]
    listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, check=True)
    tests = {test["name"] for test in json.loads(listed.stdout)["tests"]}
    found = list(claims(root))
    wrong, seen = [], set()
    for number, line in enumerate((root / "tests/docs/claims.tsv").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 4 or not all(columns[:3]):
            sys.exit(f"claims.tsv:{number}: {len(columns)} columns instead of 4, or an empty one: {line}")
        page, words, file, case = columns
        places = [claim for claim in found if claim[0] == page and words in claim[1]]
        if len(places) != 1:
            wrong.append(f"claims.tsv:{number}: {page} has {len(places)} claims with `{words}`")
        elif places[0] in seen:
            wrong.append(f"claims.tsv:{number}: the claim is listed twice: {places[0][1]}")
        seen.update(places)
        if file in NO_TEST:
            continue
        path = root / "tests" / file
        if file.endswith(".py"):  # a script is one test of ctest, and `case` names it
            if not path.is_file() or case not in tests:
                wrong.append(f"claims.tsv:{number}: ctest does not run tests/{file} as `{case}`")
            continue
        source = " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""
        folder, _, rest = file.removesuffix("_test.cpp").partition("/")
        if f'TEST_CASE("{case}' not in source.replace('" "', "").replace("( ", "("):
            wrong.append(f"claims.tsv:{number}: tests/{file} has no case that begins with `{case}`")
        elif not ({f"{folder}: {rest}", f"{path.parent.name}: {rest.rpartition('/')[2]}"} & tests
                  or any(test.startswith(f"{folder}: {case}") for test in tests)):
            wrong.append(f"claims.tsv:{number}: ctest does not run tests/{file}")
    wrong += [f"{page} makes a claim that claims.tsv lacks: {text}; add it there with the test that holds it" for page, text in found if (page, text) not in seen]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(found)} claims, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
