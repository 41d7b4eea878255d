#!/usr/bin/env python3
"""readers.py ROOT: JSON and TOML of strangers is parsed by json_in(), parse_json() and behind line_too_deep() alone.

nlohmann's and toml++'s own parsers take values of any depth, which are then copied and written by recursion. The calls
that are left are in readers.tsv, each with the reason why it is safe.
"""
import os
import re
import sys

root = sys.argv[1]
rows = [line.split('\t') for line in open(f'{root}/tests/docs/readers.tsv', encoding='utf-8').read().splitlines()[1:]]
allowed = {name: int(count) for name, count, why in rows}
found = {}
for top in ('sdk', 'framework', 'plugins'):
    for folder, _, names in os.walk(f'{root}/{top}'):
        for name in names:
            if not name.endswith(('.h', '.cpp')):
                continue
            path = os.path.relpath(f'{folder}/{name}', root)
            with open(f'{root}/{path}', encoding='utf-8') as file:
                count = len(re.findall(r'([jJ]son|toml)::parse(_file)?\(', file.read()))
            if count:
                found[path] = count
wrong = sorted(path for path in found.keys() | allowed.keys() if found.get(path, 0) != allowed.get(path, 0))
for path in wrong:
    print(f'{path}: parses {found.get(path, 0)} times by itself, and readers.tsv has {allowed.get(path, 0)}; call '
          'json_in() of vernier/json_in.h, which limits the depth, or say in readers.tsv why it is safe')
sys.exit(bool(wrong))
