"""Writes more styles into tests/oracles/tokenizers: WordPiece, Unigram, tokenizers of SentencePiece and others.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 transformers==5.24.0
    python3 more_tokenizers.py                        writes the folders again
    python3 more_tokenizers.py --more FILE COUNT SEED writes COUNT more texts with their ids to FILE, for the live test

The files have the layout of bpe.py. Those of `sentencepiece` and tiktoken find no special tokens in a text.
"""

import base64
import contextlib
import json
import pathlib
import shutil
import sys
import tempfile

import sentencepiece
import tiktoken
from bpe import cases
from bpe_texts import WORDS, corpus, texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
ADDED = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("<abc>", rstrip=True, normalized=False),
         AddedToken("ab", single_word=True), AddedToken("<a", normalized=False)]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_piece(normalizer, pre_tokenizer, size=300):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=BERT, show_progress=False, limit_alphabet=100))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def bert():
    return word_piece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer())


def bert_cased():
    tokenizer = word_piece(normalizers.BertNormalizer(lowercase=False, clean_text=False), pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_tokens(ADDED)
    return tokenizer


def many_steps():
    """All normalizers that no other style has."""
    tokenizer = word_piece(normalizers.Sequence([
        normalizers.Strip(left=True, right=True), normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase(), normalizers.Replace(Regex(r"\d+"), "7"), normalizers.NFKC(), normalizers.NFD(),
        normalizers.Replace("don", "go"), normalizers.Prepend("x ")]), pre_tokenizers.Whitespace())
    tokenizer.add_tokens(ADDED)
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0} | {w: i + 1 for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    return tokenizer


def clip():
    """BPE whose words end in </w>, on bytes."""
    import transformers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=alphabet, end_of_word_suffix="</w>"))
    merges = [tuple(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = sorted(alphabet) + [c + "</w>" for c in sorted(alphabet)] + ["".join(m) for m in merges]
    vocab = {t: i for i, t in enumerate(tokens + ["<|startoftext|>", "<|endoftext|>"])}
    return transformers.CLIPTokenizer(vocab=vocab, merges=merges).backend_tokenizer


def openai_gpt():
    """The same on characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], show_progress=False, end_of_word_suffix="</w>", limit_alphabet=80))
    return tokenizer


def trained(path, **options):
    """The bytes of a model that SentencePiece trains."""
    with tempfile.TemporaryDirectory() as made:
        text = pathlib.Path(made) / "text.txt"
        text.write_text("\n".join(line for words in corpus() for line in words.split("\n") if line.strip()))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=made + "/m", minloglevel=2, num_threads=1, hard_vocab_limit=False, **options)
        return pathlib.Path(made + "/m.model").read_bytes()


def pieces_of(data):
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]


def charsmap(data):
    """`precompiled_charsmap`: field 2 of field 3 of the message."""
    def fields(message):
        at = 0
        while at < len(message):
            key, at = varint(message, at)
            if key & 7 == 0:
                value, at = varint(message, at)
            elif key & 7 == 2:
                size, at = varint(message, at)
                value, at = message[at:at + size], at + size
            else:
                size = {1: 8, 5: 4}[key & 7]
                value, at = message[at:at + size], at + size
            yield key >> 3, value

    def varint(message, at):
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value, at

    spec = next(value for number, value in fields(data) if number == 3)
    return next(value for number, value in fields(spec) if number == 2)


def unigram(normalizer, pre_tokenizer, **options):
    tokenizer = Tokenizer(models.Unigram(pieces_of(SMALL["unigram"]), unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace(**options)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def t5():
    return unigram(normalizers.Precompiled(charsmap(SMALL["unigram"])), pre_tokenizers.Metaspace())


def xlm_roberta():
    tokenizer = unigram(
        normalizers.Sequence([normalizers.Precompiled(charsmap(SMALL["folded"])),
                              normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]))
    tokenizer.add_tokens(ADDED)
    return tokenizer


def unigram_bytes():
    tokenizer = Tokenizer(models.Unigram(pieces_of(SMALL["bytes"]), unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(left=False), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    return tokenizer


STYLES = [bert, bert_cased, many_steps, word_level, clip, openai_gpt, t5, xlm_roberta, unigram_bytes]
USER = ["<abc>", "x[i]", "▁the", "中", "  "]
SMALL = {
    "unigram": {"vocab_size": 260, "normalization_rule_name": "nmt_nfkc", "character_coverage": 0.99},
    "folded": {"vocab_size": 200, "normalization_rule_name": "nfkc_cf", "character_coverage": 0.99},
    "bytes": {"vocab_size": 500, "normalization_rule_name": "identity", "byte_fallback": True,
              "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "character_coverage": 0.98},
}
SENTENCE_PIECE = {
    "sp_unigram": SMALL["unigram"],
    "sp_unigram_bytes": SMALL["bytes"] | {"add_dummy_prefix": False, "user_defined_symbols": USER},
    "sp_folded": SMALL["folded"] | {"user_defined_symbols": USER, "model_type": "bpe"},
    "sp_bpe": {"vocab_size": 560, "model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True,
               "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True,
               "character_coverage": 0.98},
    "sp_bpe_user": {"vocab_size": 300, "model_type": "bpe", "normalization_rule_name": "identity",
                    "user_defined_symbols": USER},
}


def tekken():
    """A file of Mistral's layout: ten special tokens before 300 others."""
    from tokenizers import Tokenizer as Read

    known = json.loads(Read.from_file(str(FOLDER / "gpt2" / "tokenizer.json")).to_str())["model"]["vocab"]
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    byte_of = {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}
    longer = [t for t in sorted(known, key=known.get) if len(t) > 1 and t != "<|endoftext|>"]
    tokens = [bytes([b]) for b in range(256)] + [bytes(byte_of[c] for c in t) for t in longer][:44]
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]
    config = {"pattern": pattern, "num_vocab_tokens": 300, "default_vocab_size": 310, "default_num_special_tokens": 10,
              "version": "v3"}
    return {"config": config, "vocab": vocab}


def tekken_cases(model, all_texts):
    special = model["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in model["vocab"]}
    encoding = tiktoken.Encoding("own", pat_str=model["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    out = []
    for text in all_texts:
        ids = [i + special for i in encoding.encode_ordinary(text)]
        out.append([ids, ids, text, text])
    return out


def sentence_piece_cases(path, all_texts):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    out = []
    for text in all_texts:
        ids = processor.encode(text)
        out.append([ids, ids, processor.decode(ids), processor.decode(ids)])
    return out


def all_cases(all_texts):
    """The cases of each style, by the files that are there."""
    out = {s.__name__: cases(Tokenizer.from_file(str(FOLDER / s.__name__ / "tokenizer.json")), all_texts)
           for s in STYLES}
    out |= {name: sentence_piece_cases(FOLDER / name / "tokenizer.model", all_texts) for name in SENTENCE_PIECE}
    out["tekken_file"] = tekken_cases(json.loads((FOLDER / "tekken_file" / "tekken.json").read_text()), all_texts)
    longer = Tokenizer.from_file(str(FOLDER / "bert" / "tokenizer.json"))
    longer.model = models.WordPiece(longer.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100)
    out["bert_vocab"] = cases(longer, all_texts)
    return out


def write_folders():
    for name, options in SENTENCE_PIECE.items():
        (FOLDER / name).mkdir(exist_ok=True)
        (FOLDER / name / "tokenizer.model").write_bytes(trained(name, **options))
    for name, options in SMALL.items():
        SMALL[name] = trained(name, **options)
    for style in STYLES:
        (FOLDER / style.__name__).mkdir(exist_ok=True)
        style().save(str(FOLDER / style.__name__ / "tokenizer.json"), pretty=False)
    (FOLDER / "tekken_file").mkdir(exist_ok=True)
    (FOLDER / "tekken_file" / "tekken.json").write_text(json.dumps(tekken()) + "\n")
    (FOLDER / "bert_vocab").mkdir(exist_ok=True)
    vocab = json.loads((FOLDER / "bert" / "tokenizer.json").read_text())["model"]["vocab"]
    (FOLDER / "bert_vocab" / "vocab.txt").write_text("".join(t + "\n" for t in sorted(vocab, key=vocab.get)))


def long_cases(all_texts):
    """Count and hash of the ids of one long text, whose sums of scores pass the 100,000 at which they begin anew."""
    count = len(all_texts)
    long = " ".join(all_texts[(i * 7 + i // count) % count] for i in range(60 * count))
    out = {}
    for name in SENTENCE_PIECE:
        ids = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / name / "tokenizer.model")).encode(long)
        number = 0
        for token in ids:
            number = (number * 1000003 + token) % (1 << 64)
        out[name] = [len(ids), number]
    return out


def main():
    if sys.argv[1:2] == ["--more"]:
        all_texts = texts(int(sys.argv[3]), int(sys.argv[4]))
        pathlib.Path(sys.argv[2]).write_text(json.dumps({"texts": all_texts, "styles": all_cases(all_texts)}))
        return
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(FOLDER / "cases_more")
    write_folders()
    for name, value in all_cases(json.loads((FOLDER / "texts.json").read_text())).items():
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("],[[", "],\n[[") + "\n"
        (FOLDER / "cases" / f"{name}.json").write_text(text)
    long = long_cases(json.loads((FOLDER / "texts.json").read_text()))
    (FOLDER / "long.json").write_text(json.dumps(long) + "\n")


main()
