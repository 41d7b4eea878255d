"""Writes unicode_tables.h: the classes of characters by which tokenizers cuts texts, asked from the package itself.

    python3 unicode_tables.py >unicode_tables.h        (tokenizers 0.23.3 and unicodedata2 16.0.0)

The classes differ between versions: 9272 letters came with tokenizers 0.21, which went from Unicode 14.0 to 16.0.
tests/sdk/text/unicode_test.cpp compares the file with the package where it is there.
"""

import sys

import tokenizers
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]  # surrogates are not text


def ranges(members):
    out = []
    for code in members:
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def in_class(name):
    split = pre_tokenizers.Split(Regex(name), "isolated")
    # U+0001 is in none of the classes.
    return [c for c in CODES if len(split.pre_tokenize_str("\x01" + chr(c))) == 2]


def categories():
    """(first character, place in CATEGORIES) of each run of characters of one general category."""
    controls = [*range(0x20), *range(0x7F, 0xA0)]  # U+0001 stands beside all others in in_class()
    of = {c: CATEGORIES.index("Cc") for c in controls}
    asked = [(number, name) for number, name in enumerate(CATEGORIES) if name not in ("Cc", "Cs")]
    of |= {c: number for number, name in asked for c in in_class(rf"\p{{{name}}}")}
    out = []
    for c in range(0x110000):
        number = of.get(c, CATEGORIES.index("Cs"))
        if not out or out[-1][1] != number:
            out.append((c, number))
    return out


def combining():
    """The canonical combining class of each character, where the package knows that it has one."""
    nfd = normalizers.NFD()
    out = []
    for c in CODES:
        number = unicodedata2.combining(chr(c))
        if not number:
            continue
        # A mark of a higher class before it changes places with it, a mark of a lower one behind it does, too.
        text = "a\u0345" + chr(c) if number < 240 else "a" + chr(c) + "\u0334"
        if nfd.normalize_str(text) != text:
            out.append((c, number))
    return out


def decompositions():
    """(character, first, second, whether NFC composes the two again); second is 0 where there is one alone."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    out = []
    for c in CODES:
        if 0xAC00 <= c <= 0xD7A3 or nfd.normalize_str(chr(c)) == chr(c):  # Hangul syllables are computed
            continue
        parts = [int(part, 16) for part in unicodedata2.decomposition(chr(c)).split()]
        out.append((c, parts[0], parts[1] if len(parts) > 1 else 0, nfc.normalize_str(chr(c)) == chr(c)))
    return out


def packed(number):
    """Digits of base 32 as packed_numbers.h reads them."""
    text = chr(ord("0") + number % 32)
    while number := number // 32:
        text = chr(ord("0") + 32 + number % 32) + text
    return text


def table(name, numbers, note):
    text = "".join(map(packed, numbers))
    print(f"// {note}\nconstexpr std::string_view {name} =")
    lines = "\n".join(f'R"({text[i:i + 114]})"' for i in range(0, len(text), 114))
    print(lines + ";\n")


def lengths(runs):
    """(length less one, value) of each of the runs (first, value)."""
    ends = [first for first, _ in runs[1:]] + [0x110000]
    return [(end - first - 1, value) for (first, value), end in zip(runs, ends)]


def by_distance(rows):
    """Rows in which the first number is the distance from the row before."""
    return [(code - before, *rest) for (before, *_), (code, *rest) in zip([(0,), *rows], rows)]


def code_ranges(name, rows, note):
    print(f"// {note}\nconstexpr CodeRange {name}[] = {{")
    for i in range(0, len(rows), 5):
        print("    " + " ".join(f"{{0x{first:X}, 0x{last:X}}}," for first, last in rows[i:i + 5]))
    print("};\n")


def combining_ranges():
    """[first, number of characters behind it, class] of each run of characters of one class."""
    out = []
    for code, number in combining():
        if out and sum(out[-1][:2]) == code - 1 and out[-1][2] == number:
            out[-1][1] += 1
        else:
            out.append([code, 0, number])
    return out


def main():
    versions = f"tokenizers {tokenizers.__version__}, unicodedata2 {unicodedata2.unidata_version}"
    print("// Tables of Unicode as the package tokenizers has them. unicode_tables.py wrote this file:")
    print(f"// {versions}. packed_numbers.h reads its texts.\n#pragma once\n")
    print("#include <cstdint>\n#include <string_view>\n\nnamespace vernier {\n\n// clang-format off")
    print("struct CodeRange { std::uint32_t first, last; };\n")
    names = " ".join(CATEGORIES)
    print(f"// The names of the general categories.\nconstexpr std::string_view category_names =\n    \"{names}\";\n")
    table("category_runs", [length * 32 + category for length, category in lengths(categories())],
          "Runs of characters of one general category: 32 times the length less one, plus the place of the name.")
    code_ranges("han_ranges", ranges(in_class(r"\p{Han}")), r"\p{Han}")
    code_ranges("white_ranges", ranges(in_class(r"\s")), r"\s")
    table("combining_ranges", [n for row in by_distance(combining_ranges()) for n in row],
          "Canonical combining classes that are not 0: the distance from the first character of the range before, the\n"
          "// number of characters behind the first, and the class.")
    table("decompositions", [n for distance, first, second, is_composed in by_distance(decompositions())
                             for n in (distance * 2 + is_composed, first, second)],
          "Canonical decompositions, one level, without Hangul syllables: twice the distance from the character\n"
          "// before, plus 1 if NFC composes it again; the first part; and the second part or 0.")
    print("// clang-format on\n\n}  // namespace vernier")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
