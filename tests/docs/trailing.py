#!/usr/bin/env python3
"""trailing.py ROOT [--write]: trailing comments have a subject.

A comment behind code that begins with "of", "that", "what", "where", "as", "those", "which", "whose", "for which" or
"if it is" says half a sentence: "// of the block" behind a number of samples. tests/docs/trailing.allow has what remains, "COUNT PATH" a line. The
numbers only shrink: a file with more or fewer than its number is an error. --write writes the list anew where numbers
have become smaller.
"""
import os
import re
import sys

PATTERN = re.compile(r'\S.*// (of|that|what|where|as|those|which|whose|for which|if it is) ')
root, allow = sys.argv[1], f'{sys.argv[1]}/tests/docs/trailing.allow'
found = {}
for top in ('framework', 'sdk', 'plugins'):
    for folder, _, names in os.walk(f'{root}/{top}'):
        for name in names:
            if name.endswith(('.h', '.cpp', '.cu', '.cuh')):
                with open(f'{folder}/{name}', encoding='utf-8') as file:
                    count = sum(bool(PATTERN.search(line)) for line in file)
                if count:
                    found[os.path.relpath(f'{folder}/{name}', root)] = count
with open(allow, encoding='utf-8') as file:
    known = {path: int(count) for count, path in (line.split() for line in file)}
more = {path: count for path, count in found.items() if count > known.get(path, 0)}
fewer = {path: found.get(path, 0) for path, count in known.items() if found.get(path, 0) < count}
for path, count in more.items():
    print(f'{path}: {count} trailing comments without a subject, at most {known.get(path, 0)} are allowed: name the thing')
if '--write' in sys.argv and not more:
    with open(allow, 'w', encoding='utf-8') as file:
        file.writelines(f'{count} {path}\n' for path, count in sorted(found.items()))
elif fewer:
    print('fewer than listed, so call tests/docs/trailing.py ROOT --write: ' + ', '.join(sorted(fewer)))
sys.exit(bool(more or fewer))
