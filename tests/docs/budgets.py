#!/usr/bin/env python3
"""budgets.py ROOT: no component of sdk/components.tsv has more lines than its budget, nor the runner than ADR 0016 says.

The lines are those of its C++ and CUDA files. Whoever needs more raises the budget in a commit of its own, which says
what the lines buy.
"""
import os
import re
import sys

root = sys.argv[1]
rows = [line.split('\t') for line in open(f'{root}/sdk/components.tsv', encoding='utf-8').read().splitlines()]
named = [dict(zip(rows[0], row)) for row in rows[1:]]
budgets = [(fields['name'], int(fields['budget']), fields['folders'].split()) for fields in named]
budgets.append(('framework/runner', 9000, ['framework/runner']))
is_over = False
for name, budget, places in budgets:
    lines = 0
    for place in places:
        paths = [f'{root}/{place}'] if place.endswith(('.h', '.cpp')) else \
            [f'{folder}/{name}' for folder, _, names in os.walk(f'{root}/{place}') for name in names]
        for path in paths:
            if re.search(r'\.(h|cpp|cu|cuh)$', path):
                with open(path, encoding='utf-8') as file:
                    lines += sum(1 for _ in file)
    print(f'{name}: {lines} lines, budget {budget}')
    if lines > budget:
        print(f'  {lines - budget} too many: delete some, or raise the budget in a commit of its own')
        is_over = True
sys.exit(is_over)
