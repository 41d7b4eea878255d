#!/usr/bin/env python3
"""set_somewhere.py VERNIER ROOT: a configuration, an example or a test sets each option.

An option of a plugin counts as set if a file of these folders assigns its key or has it as a text.
"""
import pathlib
import re
import subprocess
import sys

SET = re.compile(r'(?<!\w)([a-z]\w*)"?\s*=(?!=)|"([a-z]\w*)"')


def printed(vernier, *names):
    return subprocess.run([vernier, 'plugins', *names], check=True, capture_output=True, text=True).stdout


def main(vernier, root):
    ids, role = ['run'], ''
    for line in printed(vernier).splitlines():
        if line.startswith('  '):
            ids.append(role + '/' + line.split()[0])
        else:
            role = line
    keys = set()
    for folder in ('configs', 'examples', 'tests'):
        for path in (pathlib.Path(root) / folder).rglob('*'):
            if path.suffix in ('.toml', '.cpp', '.h', '.py', '.sh', '.txt', '.json'):
                keys.update(a or b for a, b in SET.findall(path.read_text().replace('\\n', '\n')))
    missing, plugin = [], ''
    for line in printed(vernier, *ids).splitlines():
        if option := re.match(r'  ([a-z][\w.]*) = ', line):
            if option[1].split('.')[-1] not in keys:
                missing.append(f'{plugin}: no configuration, example or test sets {option[1]}')
        elif re.match('[a-z]', line):
            plugin = line.split(':')[0]
    print('\n'.join(missing))
    return len(missing) > 0


sys.exit(main(*sys.argv[1:]))
