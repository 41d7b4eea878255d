"""Writes normalizer_tables.h: what the normalizers and pre_tokenizers of `tokenizers` do to each character, asked from
the package itself.

    python3 normalizer_tables.py >normalizer_tables.h      (tokenizers 0.23.3; regex 2026.11.19 for the graphemes)
"""

import regex
import tokenizers
from tokenizers import normalizers, pre_tokenizers
from unicode_tables import by_distance, lengths, table

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]  # surrogates are not text


def becomes(normalizer, result):
    return {c for c in CODES if normalizer.normalize_str(chr(c)) == result}


def parts(pre_tokenizer, count):
    return {c for c in CODES if len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "a")) == count}


def bert(clean=False, chinese=False, accents=False):
    return normalizers.BertNormalizer(clean, chinese, accents, False)


def matching(expression):
    compiled = regex.compile(expression)
    return {c for c in CODES if compiled.match(chr(c))}


def flags():
    """The characters of each flag, in the order of its bits."""
    return {
        "word": parts(pre_tokenizers.Whitespace(), 1),
        "punctuation": parts(pre_tokenizers.Punctuation(), 3),
        "control": becomes(bert(clean=True), ""),
        "mark": becomes(normalizers.StripAccents(), ""),
        "nonspacing": becomes(bert(accents=True), ""),
        "chinese": {c for c in CODES if bert(chinese=True).normalize_str(chr(c)) != chr(c)},
        "nmt_control": becomes(normalizers.Nmt(), ""),
        "nmt_space": becomes(normalizers.Nmt(), " ") - {0x20},
        "extends": matching(r"[\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}]"),
        "prepends": matching(r"\p{GCB=Prepend}"),
        "breaks": matching(r"[\p{GCB=Control}\p{GCB=CR}\p{GCB=LF}]"),
        "pictographic": matching(r"\p{Extended_Pictographic}"),
    }


def flag_runs(of):
    out = []
    for c in range(0x110000):
        bits = sum(1 << i for i, members in enumerate(of.values()) if c in members)
        if not out or out[-1][1] != bits:
            out.append((c, bits))
    return out


def lower_case():
    """(character, its small letter); U+0130, the only one that becomes two, is left out."""
    lower = normalizers.Lowercase()
    pairs = [(c, lower.normalize_str(chr(c))) for c in CODES]
    assert [c for c, text in pairs if len(text) > 1] == [0x130]
    return [(c, ord(text)) for c, text in pairs if len(text) == 1 and text != chr(c)]


def lower_case_runs():
    """[first, characters behind it, step, small letter of the first] of runs with one difference to small letters."""
    runs = []
    for code, lower in lower_case():
        if runs:
            first, more, step, first_lower = runs[-1]
            gap = step if more else code - first
            if gap in (1, 2) and code == first + gap * (more + 1) and lower - code == first_lower - first:
                runs[-1][1:3] = more + 1, gap
                continue
        runs.append([code, 0, 1, lower])
    return runs


def compatibility():
    """(character, number of characters, and these) of each character whose form KD is not its form D."""
    form_kd, form_d = normalizers.NFKD(), normalizers.NFD()
    for c in CODES:
        text = form_kd.normalize_str(chr(c))
        if text != form_d.normalize_str(chr(c)):
            yield [c, len(text), *map(ord, text)]


def compatibility_numbers():
    last = 0
    for distance, count, *codes in by_distance(list(compatibility())):
        yield (distance - 1) * 32 + count
        for code in codes:
            yield (code - last) * 2 if code >= last else (last - code) * 2 - 1
            last = code


def main():
    of = flags()
    print("// Tables of characters as the package tokenizers changes them. normalizer_tables.py wrote this file:")
    print(f"// tokenizers {tokenizers.__version__}, regex {regex.__version__}. packed_numbers.h reads its texts.")
    print("#pragma once\n\n#include <cstdint>\n#include <string_view>\n\nnamespace vernier {\n\n// clang-format off")
    names = ",\n  ".join(f"{name} = {1 << i}" for i, name in enumerate(of))
    print(f"namespace char_flag {{\nenum : std::uint32_t {{\n  {names}\n}};\n}}  // namespace char_flag\n")
    table("flag_runs", [n for run in lengths(flag_runs(of)) for n in run],
          "Runs of characters with the same flags: the length less one, and the flags.")
    table("lower_case", [n for distance, more, step, lower in by_distance(lower_case_runs())
                         for n in (distance, more * 2 + step - 1, lower)],
          "Lowercase, without U+0130, in runs whose characters are one or two apart: the distance from the first of\n"
          "// the run before, twice the characters behind the first plus 1 if two apart, and the first's small letter.")
    table("compatibility", compatibility_numbers(),
          "Form KD where it is not form D: 32 times the distance from the character before less one, plus the number\n"
          "// of characters; and for each its difference from the one before in this table, as next_signed() reads it.")
    print("// clang-format on\n\n}  // namespace vernier")


main()
