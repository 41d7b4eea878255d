#!/usr/bin/env python3
"""The packages tokenizers, sentencepiece and tiktoken on one thread, for tests/benchmarks/tokenizer.cpp, which tells it
what to do.

    python3 tokenizer_rival.py FOLDER STYLE

Reads FOLDER/text.txt, and FOLDER/STYLE/tokenizer.json or tokenizer.model, which it trains for the styles in MADE if their
packages are here. Prints the packages that are here, then "ready". The line `tokenizers` encodes all texts, `ids
tokenizers` also writes their ids to FOLDER/tokenizers.ids as int32; then "done".
"""
import array
import json
import os
import pathlib
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
TEXT_BYTES = 64 << 10


def texts_of(data):
    while data:
        size = data.rfind(b"\n", 0, TEXT_BYTES + 1) + 1 if len(data) > TEXT_BYTES else len(data)
        yield data[:size].decode()
        data = data[size:]


def with_tokenizers(path):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    return lambda texts: [each.ids for each in tokenizer.encode_batch_fast(texts)]


def with_tiktoken(path):
    import tiktoken

    known = json.loads(pathlib.Path(path).read_text())
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    byte_of = {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}
    special = {token["content"]: token["id"] for token in known["added_tokens"]}
    vocab = known["model"]["vocab"].items()
    ranks = {bytes(byte_of[c] for c in token): i for token, i in vocab if token not in special}
    cut = known["pre_tokenizer"]
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    regex = gpt2 if cut["type"] == "ByteLevel" else cut["pretokenizers"][0]["pattern"]["Regex"]
    encoding = tiktoken.Encoding("trained", pat_str=regex, mergeable_ranks=ranks, special_tokens=special)
    return lambda texts: [encoding.encode(text, allowed_special="all") for text in texts]


def with_sentencepiece(path):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return lambda texts: [processor.encode(text) for text in texts]


def make_bert(text, folder):
    """WordPiece with BERT's steps."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train([str(text)], trainers.WordPieceTrainer(
        vocab_size=16000, special_tokens=["[UNK]"], show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def train_sentencepiece(text, folder, **options):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "m"), vocab_size=16000, hard_vocab_limit=False, minloglevel=2,
        num_threads=2, input_sentence_size=50000, **options)
    (folder / "m.model").rename(folder / "tokenizer.model")


def make_t5(text, folder):
    """Unigram with T5's steps, of a model that SentencePiece trains."""
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    train_sentencepiece(text, folder, normalization_rule_name="nmt_nfkc")
    path = folder / "tokenizer.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    path.unlink()


MADE = {
    "bert": make_bert,
    "t5": make_t5,
    "sentencepiece_bpe": lambda text, folder: train_sentencepiece(
        text, folder, model_type="bpe", normalization_rule_name="identity", byte_fallback=True,
        remove_extra_whitespaces=False),
    "sentencepiece_unigram": lambda text, folder: train_sentencepiece(text, folder),
}


def makers(folder):
    """The packages that can read what is in a folder, and how."""
    if (folder / "tokenizer.model").exists():
        return {"sentencepiece": lambda: with_sentencepiece(str(folder / "tokenizer.model"))}
    path = folder / "tokenizer.json"
    of_bytes = json.loads(path.read_text())["decoder"]["type"] == "ByteLevel"
    return {"tokenizers": lambda: with_tokenizers(str(path))} | (
        {"tiktoken": lambda: with_tiktoken(str(path))} if of_bytes else {})


def main():
    folder, style = pathlib.Path(sys.argv[1]), sys.argv[2]
    texts = list(texts_of((folder / "text.txt").read_bytes()))
    rivals = {}
    try:
        if style in MADE:
            (folder / style).mkdir(exist_ok=True)
            MADE[style](folder / "text.txt", folder / style)
    except ImportError:
        print("ready", flush=True)
        return
    for name, make in makers(folder / style).items():
        try:
            rivals[name] = make()
            print(name)
        except ImportError:
            pass
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        ids = rivals[words[-1]](texts)
        if words[0] == "ids":
            (folder / f"{words[-1]}.ids").write_bytes(b"".join(array.array("i", each).tobytes() for each in ids))
        print("done", flush=True)


main()
