#!/usr/bin/env python3
"""rooms.py ROOT: every file includes only from the components and rooms that its own may use.

A component is a row of sdk/components.tsv: it may include from itself and from those that it needs. Within a component,
a room is a folder with what is below it; ORDER lists rooms, each of which may include those before it. A tool may
include the runner, framework/common and its own folder. A plugin may include public headers, the folder of its role and
plugins/shared, and HTTP and database of the service if it belongs to that component.

Private headers are included as "room/file.h", public ones as <vernier/file.h>. <vernier/sdk.h> and <vernier/toolkit.h>
are lists of headers and belong to no room.
"""
import os
import re
import sys

# In each line, a room may include those before it.
SDK = 'sdk/plugin sdk/core/base sdk/core/files sdk/core/gpu sdk/core/optim sdk/core/cpu sdk/core/trace sdk/core/amp ' \
      'sdk/core/memory sdk/core/tasks sdk/core/advice sdk/data sdk/text sdk/graph sdk/lab sdk/cuda sdk/compile'.split()
RUNNER = 'framework/common framework/common/config framework/runner/wiring framework/runner/run/process framework/runner/run/state ' \
         'framework/runner/run framework/runner/output framework/embed ' \
         'framework/languages framework/runner/cli'.split()
SERVICE = 'framework/common framework/service/http framework/service/database framework/service/queue framework/service/audit ' \
          'framework/service/api framework/service/jobs framework/service'.split()
WITHOUT_LIBRARIES = ['sdk/plugin', 'sdk/core/base']  # public headers that need no library
# A room that stands beside the others: what it may include.
BESIDE = {
    'framework/driver': WITHOUT_LIBRARIES + ['framework/common'],
    'framework/common': WITHOUT_LIBRARIES,
    'framework/common/config': WITHOUT_LIBRARIES + ['framework/common', 'sdk/core/files'],
    'framework/tools/digits': ['framework/tools/replay'],  # it runs the same step
    'framework/tools/generate': ['framework/service/http'],  # compiled where the service is built
    'framework/tools/predict': ['framework/service/http'],
    'framework/tools/watch': ['framework/service/http'],
}
ROOTS = 'sdk/plugin sdk/core sdk framework/runner framework plugins'.split()


def components(root):
    rows = [line.split('\t') for line in open(f'{root}/sdk/components.tsv', encoding='utf-8').read().splitlines()]
    found = {}
    for row in rows[1:]:
        fields = dict(zip(rows[0], row))
        needs = [fields['name']] + [n for n in fields['needs'].split() if n != '-']
        all_needs = set(needs).union(*(found[n]['needs'] for n in needs[1:]))
        found[fields['name']] = {'needs': all_needs, 'folders': fields['folders'].split()}
    return found


def component_of(path, all_components):
    return [name for name, c in all_components.items() if any(path == f or path.startswith(f + '/') for f in c['folders'])]


def sources(root):
    for top in ('sdk', 'framework', 'plugins'):
        for folder, _, names in os.walk(f'{root}/{top}'):
            for name in names:
                path = os.path.relpath(f'{folder}/{name}', root)
                if re.search(r'\.(h|cpp|cu|cuh)$', name) and '/templates/' not in path and '/gloo_headers/' not in path:
                    yield path


def room_of(path):
    if '/include/' in path:
        path = path[:path.index('/include/')] + '/'
        if path == 'sdk/core/':
            return None
    rooms = sorted(set(SDK + RUNNER + SERVICE + list(BESIDE)), key=len, reverse=True)
    tool = re.match(r'framework/tools/\w+', path)
    return tool[0] if tool else next((room for room in rooms if path.startswith(room + '/')), None)


def allowed_rooms(room):
    if room in BESIDE and not room.startswith('framework/tools/'):
        return set(BESIDE[room])
    for order, below in ((SDK, []), (RUNNER, SDK), (SERVICE, WITHOUT_LIBRARIES)):
        if room in order:
            return set(below + order[:order.index(room)])
    return set(SDK + RUNNER + ['framework/tools/model'] + BESIDE.get(room, []))  # a tool


def main():
    root = sys.argv[1]
    every = components(root)
    paths = sorted(sources(root))
    known = set(paths)
    public = {path.split('/include/')[1]: path for path in paths if '/include/' in path}
    wrong = []
    for path in paths:
        owners = component_of(path, every)
        if len(owners) != 1:
            wrong.append(f'{path}: belongs to {" and ".join(owners) or "no component"}; see sdk/components.tsv')
            continue
        may = every[owners[0]]['needs']
        is_plugin = path.startswith('plugins/')
        own = room_of(path)
        if not is_plugin and own is None and '/include/' not in path:
            wrong.append(f'{path}: its room is not known to rooms.py')
            continue
        with open(f'{root}/{path}', encoding='utf-8') as file:
            lines = file.read().splitlines()
        for number, line in enumerate(lines, 1):
            include = re.match(r'\s*#\s*include\s*(?:<(vernier/[^>]+)>|"([^"]+)")', line)
            if not include:
                continue
            if include[1]:
                target = public.get(include[1])
            else:
                places = [os.path.normpath(f'{place}/{include[2]}') for place in [os.path.dirname(path)] + ROOTS]
                target = next((place for place in places if place in known), None)
            if target is None:
                continue
            where = f'{path}:{number}'
            theirs = component_of(target, every)[0]
            is_optional = room_of(target) in BESIDE.get(own, [])
            if theirs not in may and not is_optional:
                wrong.append(f'{where}: the component {owners[0]} may not include {target}, of {theirs}')
            elif is_plugin:
                role = '/'.join(path.split('/')[:2]) + '/'
                if include[2] and not target.startswith((role, 'plugins/shared/')) and \
                        not (owners[0] == 'service' and target.startswith(('framework/service/http/', 'framework/service/database/'))):
                    wrong.append(f'{where}: a plugin may not include {target}')
            elif own and room_of(target) not in {None, own} | allowed_rooms(own):
                wrong.append(f'{where}: {own} may not include {target}')
    print('\n'.join(wrong))
    sys.exit(bool(wrong))


main()
