#!/usr/bin/env python3
"""The packages tokenizers and tiktoken on one thread, for tests/benchmarks/tokenizer.cpp, which tells it what to do.

    python3 tokenizer_rival.py FOLDER STYLE

Reads FOLDER/text.txt and FOLDER/STYLE/tokenizer.json. Prints the packages that are here, then "ready". The line
`tokenizers` encodes all texts, `ids tokenizers` also writes their ids to FOLDER/tokenizers.ids as int32; then "done".
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


def main():
    folder, style = pathlib.Path(sys.argv[1]), sys.argv[2]
    texts = list(texts_of((folder / "text.txt").read_bytes()))
    rivals = {}
    for name, make in {"tokenizers": with_tokenizers, "tiktoken": with_tiktoken}.items():
        try:
            rivals[name] = make(str(folder / style / "tokenizer.json"))
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
