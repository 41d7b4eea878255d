#!/usr/bin/env python3
"""trailing.py ROOT: trailing comments have a subject.

A comment behind code that begins with "of", "that", "what", "where", "as", "those", "which", "whose", "for which" or
"if it is" says half a sentence: "// of the block" behind a number of samples.
"""
import os
import re
import sys

PATTERN = re.compile(r'\S.*// (of|that|what|where|as|those|which|whose|for which|if it is) ')
root = sys.argv[1]
is_found = False
for top in ('framework', 'sdk', 'plugins', 'tests', 'examples'):
    for folder, _, names in os.walk(f'{root}/{top}'):
        for name in names:
            if not name.endswith(('.h', '.cpp', '.cu', '.cuh')):
                continue
            with open(f'{folder}/{name}', encoding='utf-8') as file:
                for number, line in enumerate(file, 1):
                    if PATTERN.search(line):
                        is_found = True
                        path = os.path.relpath(f'{folder}/{name}', root)
                        print(f'{path}:{number}: a trailing comment without a subject: name the thing')
sys.exit(is_found)
