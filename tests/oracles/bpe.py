"""Writes tests/oracles/tokenizers: small tokenizers of each style, and what the package tokenizers makes of texts.

    pip install tokenizers==0.23.3
    python3 bpe.py                        writes the folder again
    python3 bpe.py --more FILE COUNT SEED writes COUNT more texts with their ids to FILE, for the live test

Each style is a folder with tokenizer.json. cases/STYLE.json has for each text of texts.json the ids of encode(text), of
encode(text, add_special_tokens=False) with encode_special_tokens, and the decoded text without and with special tokens.
"""

import json
import pathlib
import random
import sys

from bpe_texts import HARD, WORDS, corpus, texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
LETTERS = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
           r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
O200K = LETTERS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("<abc>", rstrip=True, normalized=False),
         AddedToken("<a", normalized=False), AddedToken("[x y]", normalized=True)]


def byte_level(pre_tokenizer, special, size, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"], 420)


def gpt2_prefix():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), ["<s>", "</s>"], 330)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.add_tokens(ADDED)
    return tokenizer


def llama3():
    tokenizer = byte_level(split(LLAMA3), [], 400, ignore_merges=True)
    model = json.loads(tokenizer.to_str())["model"]  # tokens that no merge makes: only ignore_merges finds them
    vocab = model["vocab"] | {"Hello": 400, "Ġtwo": 401}
    tokenizer.model = models.BPE(vocab, [tuple(m) for m in model["merges"]], ignore_merges=True)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|end|>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 402)])])
    return tokenizer


def qwen2():
    tokenizer = byte_level(split(QWEN2), [], 380, normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("e\u0301e", normalized=True)])
    return tokenizer


def characters(byte_fallback, normalizer, pre_tokenizer, fuse_unk=True):
    """As SentencePiece has it: trained by the package, on words that begin with U+2581."""
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(corpus()[:200], trainers.BpeTrainer(
        vocab_size=len(special) + 220, special_tokens=special, show_progress=False, limit_alphabet=90))
    model = json.loads(tokenizer.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    for pair in [("▁", "▁"), ("▁▁", "▁▁"), ("e", "▁"), ("e▁", "t")]:  # over words, so not every space is a place to cut
        vocab.setdefault("".join(pair), len(vocab))
        merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def published():
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def llama2():
    return characters(True, published(), None)


def llama2_added():
    tokenizer = characters(True, published(), None)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def llama2_metaspace():
    tokenizer = characters(True, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    tokenizer.add_tokens(ADDED)
    return tokenizer


def words_unknown():
    return characters(False, None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True))


def unknown_apart():
    return characters(False, normalizers.Replace(" ", "▁"), None, fuse_unk=False)


def steps(*all_steps):
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(pre_tokenizers.Sequence([*all_steps, last]), ["<|endoftext|>"], 400)


def o200k():
    return byte_level(split(O200K), ["<|endoftext|>"], 400)


def tekken():
    return byte_level(split(TEKKEN), ["<|endoftext|>"], 400)


def deepseek():
    return steps(pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                 pre_tokenizers.Split(Regex("[一-龥\\u3040-ゟ゠-ヿ]+"), "isolated"),
                 pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"))


def starcoder():
    tokenizer = byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False)]), ["<s>", "</s>"], 400)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def all_splits():
    """Every way in which matches are kept, and classes that engines read in different ways."""
    return steps(pre_tokenizers.Split(" ", "merged_with_next"),
                 pre_tokenizers.Split(Regex(r"[aeiou\p{Mn}]"), "merged_with_previous"),
                 pre_tokenizers.Digits(individual_digits=False),
                 pre_tokenizers.Split(Regex(r"\d|\p{^L}"), "contiguous"),
                 pre_tokenizers.Split(Regex(r"[\p{Han}x\x{3042}-\x{3050}]"), "removed"),
                 pre_tokenizers.Split(Regex(r"\W+|_*"), "isolated", invert=True),
                 pre_tokenizers.Split("(.", "removed"))


def gemma2():
    return characters(True, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"))


STYLES = [gpt2, gpt2_prefix, llama3, qwen2, llama2, llama2_added, llama2_metaspace, words_unknown, unknown_apart,
          o200k, tekken, deepseek, starcoder, all_splits, gemma2]


def cases(tokenizer, all_texts):
    out = []
    for text in all_texts:
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        out.append([ids, plain, tokenizer.decode(ids, skip_special_tokens=True),
                    tokenizer.decode(ids, skip_special_tokens=False)])
    return out


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("],[[", "],\n[[") + "\n")


def training():
    """What the trainer makes of small texts on few letters, where ties and pairs over each other are frequent."""
    draw, out = random.Random(5), []
    for number in range(60):
        letters = "ab" if number % 2 else "abc "
        text = ["".join(draw.choice(letters) for _ in range(draw.randrange(1, 60)))
                for _ in range(draw.randrange(1, 8))]
        size, least = 257 + draw.randrange(1, 40), draw.choice([0, 0, 2, 3])
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(text, trainers.BpeTrainer(
            vocab_size=size, min_frequency=least, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        out.append({"texts": text, "vocabulary": size, "min_count": least, "merges": merges})
    return out


def main():
    if sys.argv[1:2] == ["--more"]:
        all_texts = texts(int(sys.argv[3]), int(sys.argv[4]))
        styles = {s.__name__: cases(Tokenizer.from_file(str(FOLDER / s.__name__ / "tokenizer.json")), all_texts)
                  for s in STYLES}
        pathlib.Path(sys.argv[2]).write_text(json.dumps({"texts": all_texts, "styles": styles}))
        return
    (FOLDER / "cases").mkdir(exist_ok=True, parents=True)
    all_texts = texts(160, 7)
    dump(FOLDER / "texts.json", all_texts)
    dump(FOLDER / "training.json", training())
    for style in STYLES:
        folder = FOLDER / style.__name__
        folder.mkdir(exist_ok=True)
        tokenizer = style()
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        dump(FOLDER / "cases" / f"{style.__name__}.json", cases(tokenizer, all_texts))
    folder = FOLDER / "gpt2_files"
    folder.mkdir(exist_ok=True)
    gpt2().model.save(str(folder))
    text = "".join(corpus()[:100])
    (FOLDER / "corpus.txt").write_text(text, newline="")
    folder = FOLDER / "trained"
    folder.mkdir(exist_ok=True)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    trained.model.save(str(folder))


if __name__ == "__main__":
    main()
