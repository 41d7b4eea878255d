#!/usr/bin/env python3
"""language.py ROOT [--list | --shrink]: comments, messages, names and documents keep the language of docs/CONTRIBUTING.md.

A comment opens with what the thing is or when it is called, so it does not open with What, Of, Whether, That or Where.
Comments, texts and documents write "because" instead of ", for", "is not a" instead of "is no", and programs log,
print, throw or return instead of telling.

tests/docs/language.allow lists what remains, one `PATH: TEXT` a line, where TEXT is a part of what is found. The list
may only shrink: a line that allows nothing is an error too. --list prints all findings and ignores that file; --shrink deletes
lines that allow nothing.
"""
import bisect
import pathlib
import re
import sys

FOLDERS = 'configs framework packaging sdk plugins examples tests'.split()
SKIPPED = re.compile(r'/(oracles|CMakeFiles|build)/|tests/docs/language')

# The order matters: a quote inside a comment is not a text, and // inside a text is not a comment.
TOKEN = re.compile(r'''
    (?P<comment>//[^\n]*)
  | (?P<block>/\*.*?\*/)
  | R"(?P<mark>[^(\s]*)\((?P<raw>.*?)\)(?P=mark)"
  | "(?P<text>(?:\\.|[^"\\\n])*)"
  | '(?:\\[^\n']+|\\'|[^'\\\n])'
  | (?P<name>[A-Za-z_]*(?:tell|told)[a-z_]*)
''', re.X | re.S)

OPENING = re.compile(r'(What|Of|Whether|That|Where) ')
# A verb after ', for the x': then it is a clause.
VERB = r'(?:is|are|was|were|has|have|had|does|do|did|can|may|would|will|stays?|fails|makes?|needs?|wants?|comes?|takes?)'
RULES = (
    (re.compile(r', for (?:(?:it|they|there|nobody|nothing)\b|(?:an?|the|what|in|that|each|all) (?:(?!that |which |whose )[^ .;:,]+ ){1,5}' + VERB + r'\b)'),
     'write "because" instead of ", for"'),
    (re.compile(r'(?<!there )(?<!There )\bis no (?!longer|more|less|matter)[a-z]+'), 'write "is not a" instead of "is no"'),
    (re.compile(r'(?<![/`"])\b(?:[Tt]ells?|[Tt]elling|[Tt]old)\b(?! (?:\S+ ){0,5}(?:apart|from)\b)'),
     'a program logs, prints, throws, shows or returns: it does not tell'),
)
NAME = re.compile(r'(?:^|_)(?:tell|tells|told|telling)(?:_|$)')


class File:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.starts = [m.end() for m in re.finditer('\n', text)]
        self.found = []
        self.is_test = path.startswith('tests/')

    def line(self, at):
        return bisect.bisect_right(self.starts, at) + 1

    def find(self, at, text, why):
        self.found.append((self.path, self.line(at), text, why))

    def prose(self, at, text):
        """Prose of one paragraph, of one comment or of one text, without its line breaks."""
        for pattern, why in RULES:
            for match in pattern.finditer(text):
                self.find(at, text[max(0, match.start() - 40):match.end() + 30], why)

    def comment(self, at, text):
        if OPENING.match(text):
            self.find(at, text[:100], 'open a comment with what the thing is, or when it is called')
        self.prose(at, text)


def source(file):
    comment = text = None  # what may go on in the next token: [start, end, column, words]

    def end_of(kind, part):
        if part:
            kind(part[0], ' '.join(' '.join(part[3]).split()))

    for token in TOKEN.finditer(file.text):
        start, end = token.span()
        column = start - file.text.rfind('\n', 0, start)
        if token['comment']:
            words = token['comment'].lstrip('/').lstrip('<!').strip()
            between = file.text[comment[1]:start] if comment else 'none'
            if between.count('\n') == 1 and not between.strip() and column == comment[2]:
                comment[1] = end
                comment[3].append(words)
            else:
                end_of(file.comment, comment)
                comment = [start, end, column, [words]]
        elif token['block']:
            file.comment(start, ' '.join(re.sub(r'\n *\*', '\n', token['block'].strip('/*!')).split()))
        elif token['name']:
            if not file.is_test and NAME.search(token['name']):
                file.find(start, token['name'], 'a function logs, throws or returns: it does not tell')
        elif token['raw'] or token['text']:
            words = token['raw'] or token['text'].replace('\\n', ' ')
            if text and not file.text[text[1]:start].strip():
                text[1] = end
                text[3].append(words)
            else:
                end_of(file.prose, text)
                text = [start, end, column, [words]]
    end_of(file.comment, comment)
    end_of(file.prose, text)


def script(file):
    """Blocks of lines that begin with #: CMake, shell, Python, TOML."""
    block = None
    for match in re.finditer(r'^([ \t]*)#(?!!) ?(.*)$', file.text, re.M):
        if block and match.start() == block[1] + 1:
            block[1] = match.end()
            block[2].append(match[2])
        else:
            if block:
                file.comment(block[0], ' '.join(' '.join(block[2]).split()))
            block = [match.start(), match.end(), [match[2]]]
    if block:
        file.comment(block[0], ' '.join(' '.join(block[2]).split()))


def document(file):
    is_code, start, paragraph, at = False, 0, [], 0
    for line in file.text.splitlines(keepends=True) + ['\n']:
        fence = line.lstrip().startswith('```')
        if fence or is_code or not line.strip() or re.match(r'[#|]| *[-*] | *\d+\. ', line):
            file.prose(start, ' '.join(' '.join(paragraph).split()))
            paragraph = []
        if fence:
            is_code = not is_code
        elif not is_code:
            start = start if paragraph else at
            paragraph.append(line)
        at += len(line)
    file.prose(start, ' '.join(' '.join(paragraph).split()))


def findings(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob('*')):
            if path.suffix in ('.cpp', '.h', '.cu', '.cuh') and not SKIPPED.search(str(path)):
                file = File(str(path.relative_to(root)), path.read_text(errors='replace'))
                source(file)
                yield from file.found
            elif path.suffix in ('.cmake', '.sh', '.py', '.toml') or path.name == 'CMakeLists.txt':
                if not SKIPPED.search(str(path)):
                    file = File(str(path.relative_to(root)), path.read_text())
                    script(file)
                    yield from file.found
    for path in [root / 'README.md', *sorted(root.glob('docs/**/*.md')), *sorted(root.glob('examples/**/*.md'))]:
        file = File(str(path.relative_to(root)), path.read_text())
        document(file)
        yield from file.found


def main():
    root = pathlib.Path(sys.argv[1])
    if '--list' in sys.argv:
        for path, line, text, why in findings(root):
            print(f'{path}:{line}: {text}   ({why})')
        return 0
    allowed, file = {}, root / 'tests/docs/language.allow'
    for entry in file.read_text().splitlines():
        if entry and not entry.startswith('#'):
            path, text = entry.split(': ', 1)
            allowed.setdefault(path, {})[text] = 0
    is_wrong = False
    for path, line, text, why in findings(root):
        uses = [entry for entry in allowed.get(path, ()) if entry in text]
        for entry in uses:
            allowed[path][entry] += 1
        if not uses:
            is_wrong = True
            print(f'{path}:{line}: {text}\n  {why}')
    if '--shrink' in sys.argv:
        lines = [line for line in file.read_text().splitlines(keepends=True)
                 if line.startswith('#') or allowed[line.split(': ', 1)[0]][line.rstrip('\n').split(': ', 1)[1]]]
        file.write_text(''.join(lines))
        return int(is_wrong)
    for path, entries in allowed.items():
        for entry, count in entries.items():
            if not count:
                is_wrong = True
                print(f'tests/docs/language.allow: nothing is found for it any more, delete: {path}: {entry}')
    return int(is_wrong)


sys.exit(main())
