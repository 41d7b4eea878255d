"""Texts for bpe.py and real_tokenizers.py: words of many languages, and what tokenizers get wrong."""

import random

WORDS = """the model learns a language from texts and the tokens of a text are numbers ; don't we'll they're it's 1 23
456 7890 for (int i = 0; i < n; ++i) { sum += x[i]; } naïve café größer straße Москва слово 東京 漢字 かな 한국어 العربية
हिन्दी ไทย 🙂 👩‍👩‍👧 ñ e\u0301 o\u0308 \u1100\u1161 ½ ² Ⅷ""".split()
HARD = ["'", "s", "S", "\u017f", "t", "re", "RE", "ll", "LL", "d", "m", "ve", "a", "b", "ab", "1", "23", "٣", "Ⅷ", "½",
        " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u0085", "\ufeff", "\u200b", "\u180e",
        ".", ",", "!?", "(", "…", "。", "é", "e\u0301", "\u0301", "\u0308", "ё", "ß", "中", "文", "かな", "한",
        "\u1112\u1161\u11ab", "\u0f71\u0f72", "\u0344", "\u212b", "\ufb01", "🙂", "👩\u200d👧", "\U0001d53c",
        "\U0010ffff", "\x00", "\x1c", "\x7f", "▁", "Ġ", "Ċ", "<", "<|", "<|end|>", "<|endoftext|>", "<s>", "</s>",
        "<unk>", "<mask>", "<abc>", "<a", "[x y]", "<0x41>", "<0xE4>", "the", " the", "tokens", " language", "x[i]",
        "don't", " we'll"]


def corpus():
    draw = random.Random(1)
    return [" ".join(draw.choice(WORDS) for _ in range(40)) + draw.choice(["\n", ".\n\n", "  "]) for _ in range(300)]


def texts(count, seed):
    draw = random.Random(seed)
    out = ["", " ", "\n", "a", "'", "' s", "Hello, world!", "  two", "trail  ", "a\n\n b", "<s>b", "a <s> b",
           "<abc>  <a"]
    while len(out) < count:
        kind = draw.random()
        if kind < 0.6:
            out.append("".join(draw.choice(HARD) for _ in range(draw.randrange(1, 14))))
        elif kind < 0.85:
            out.append(" ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 9))))
        else:
            codes = [draw.choice([draw.randrange(0x80), draw.randrange(0x3000), draw.randrange(0x110000)])
                     for _ in range(draw.randrange(1, 12))]
            out.append("".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF))
    return out[:count]
