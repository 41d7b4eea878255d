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
        out.append((c, parts[0], parts[1] if len(parts) > 1 else 0, int(nfc.normalize_str(chr(c)) == chr(c))))
    return out


def table(name, kind, rows, note, braces=True):
    print(f"// {note}\nconstexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        text = ", ".join(f"0x{n:X}" for n in row)
        text = " {" + text + "}," if braces else " " + text + ","
        if len(line) + len(text) > 118:
            print(line)
            line = "   "
        line += text
    print(line + "\n};\n")


def combining_ranges():
    out = []
    for code, number in combining():
        if out and out[-1][1] == code - 1 and out[-1][2] == number:
            out[-1][1] = code
        else:
            out.append([code, code, number])
    return out


def main():
    versions = f"tokenizers {tokenizers.__version__}, unicodedata2 {unicodedata2.unidata_version}"
    print("// Tables of Unicode as the package tokenizers has them. unicode_tables.py wrote this file:")
    print(f"// {versions}.\n#pragma once\n\n#include <cstdint>\n\nnamespace vernier {{\n\n// clang-format off")
    print("struct CodeRange { std::uint32_t first, last; };")
    print("struct CategoryRun { std::uint32_t first, category; };")
    print("struct CombiningRange { std::uint32_t first, last, number; };")
    print("struct Decomposition { std::uint32_t code, first, second, is_composed; };\n")
    names = " ".join(CATEGORIES)
    print(f"// The names of the general categories.\nconstexpr const char* category_names = \"{names}\";\n")
    table("category_runs", "CategoryRun", categories(), "Runs of characters of one general category, up to the next.")
    table("han_ranges", "CodeRange", ranges(in_class(r"\p{Han}")), r"\p{Han}")
    table("white_ranges", "CodeRange", ranges(in_class(r"\s")), r"\s")
    table("combining_ranges", "CombiningRange", combining_ranges(), "Canonical combining classes that are not 0.")
    table("decompositions", "Decomposition", decompositions(),
          "Canonical decompositions, one level, without Hangul syllables; the last: NFC composes it again.")
    print("// clang-format on\n\n}  // namespace vernier")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
