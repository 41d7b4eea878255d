"""Reads what `vernier export --format gguf` writes with the package gguf and with transformers.

    python3 tests/oracles/gguf_models.py BUILD_FOLDER

Needs gguf 0.19, transformers 5 and PyTorch. It trains a small model of each family for three steps and exports it as a
folder of Hugging Face and as GGUF in each dtype. All tensors must have the bytes that gguf quantizes of the folder's;
the logits of transformers with the GGUF file must be those with the folder; the tokens must be those of tokenizer.json.
Where transformers reads no biases, scales or sizes of heads from GGUF, it gets the folder's config.json.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0,
          "original_max_position_embeddings": 64, "rope_theta": 500000.0}
# transformers takes 1024 positions for granted in GGUF files of GPT-2.
FAMILIES = {  # tokenizer, config
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024}),
    "llama": ("llama2", LLAMA),
    "llama_scaled": ("llama3", LLAMA | {"rope_parameters": LLAMA3, "attention_bias": True}),
    "llama_tied": ("llama3", LLAMA | {"tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ("llama2", LLAMA | {"sliding_window": 32}),
    "qwen2": ("qwen2", LLAMA),
    "qwen3": ("qwen2", LLAMA | {"head_dim": 16}),
}
DTYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
          "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def write_model(folder, name, tokenizer, config):
    shutil.copytree(HERE / "tokenizers" / tokenizer, folder)
    vocabulary = AutoTokenizer.from_pretrained(folder)
    kind = name.split("_")[0]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=len(vocabulary) + 3, **config))
    model.save_pretrained(folder)


def run(build, *words):
    done = subprocess.run([build / "vernier", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr or done.stdout}")


def check_tensors(file, folder, name, dtype):
    """Each tensor of the folder, quantized by gguf, is in the file, but for order and names."""
    reader = gguf.GGUFReader(file)
    there = {tensor.name: tensor for tensor in reader.tensors}
    kind = name.split("_")[0]
    arch = "llama" if kind == "mistral" else kind
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    blocks = int(reader.fields[f"{gguf.MODEL_ARCH_NAMES[arch]}.block_count"].parts[-1][0])
    names = gguf.get_tensor_name_map(arch, blocks)
    config = json.loads((folder / "config.json").read_text())
    heads = config.get("num_attention_heads", 0)
    for key, weight in load_file(folder / "model.safetensors").items():
        to = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if kind == "gpt2" and ".c_" in key and weight.dim() == 2:
            weight = weight.t()
        for part, count in (("q_proj", heads), ("k_proj", config.get("num_key_value_heads", 0))):
            if part in key and kind in ("llama", "mistral"):
                weight = weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
        tensor = there.pop(to)
        is_plain = weight.dim() == 1 or to == "position_embd.weight"
        kind_of_tensor = gguf.GGMLQuantizationType.F32 if is_plain else DTYPES[dtype]
        assert tensor.tensor_type == kind_of_tensor, (to, tensor.tensor_type)
        wanted = gguf.quantize(weight.contiguous().numpy(), kind_of_tensor)
        assert numpy.array_equal(tensor.data.view(numpy.uint8).ravel(), wanted.view(numpy.uint8).ravel()), to
    if name == "llama_scaled":
        config = AutoConfig.from_pretrained(folder)
        plain = 1 / LLAMA3["rope_theta"] ** (torch.arange(0, 16, 2) / 16)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        factors = torch.tensor(there.pop("rope_freqs.weight").data)
        torch.testing.assert_close(plain / factors, scaled, rtol=1e-6, atol=0)
    assert not there, there
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    tokens = vocabulary["model"]["vocab"] | {each["content"]: each["id"] for each in vocabulary["added_tokens"]}
    field = reader.fields["tokenizer.ggml.tokens"]
    texts = [str(field.parts[i], encoding="utf-8") for i in field.data]
    assert all(texts[i] == token for token, i in tokens.items())


def check_model(file, folder, name):
    more = {"config": AutoConfig.from_pretrained(folder)} if name in ("llama_scaled", "qwen3") else {}
    ours = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, **more)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(40).view(2, 20) % 29
    with torch.no_grad():
        return (ours.eval()(ids).logits - theirs.eval()(ids).logits).abs().max().item()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        for name, (tokenizer, config) in FAMILIES.items():
            model, output = place / f"{name}.in", place / name
            write_model(model, name, tokenizer, config)
            task = "gpt" if name == "gpt2" else "llama"
            (place / "run.toml").write_text(
                f'[run]\nsteps = 3\nvalidate_every = 0\noutput = "{output}"\n[task]\nuse = "{task}"\nfolder = "{model}"\n'
                f'data = ["{HERE}/tokenizers/corpus.txt"]\ncontext = 16\nbatch_size = 2\n[optimizer]\nuse = "adamw"\n')
            run(build, "train", place / "run.toml", "--quiet")
            run(build, "export", output, "--format", "huggingface", "--output", place / f"{name}.hf")
            for dtype in DTYPES:
                file = place / f"{name}.{dtype}.gguf"
                run(build, "export", output, "--format", "gguf", "--dtype", dtype, "--output", file)
                check_tensors(file, place / f"{name}.hf", name, dtype)
            error = check_model(place / f"{name}.f32.gguf", place / f"{name}.hf", name)
            print(f"{name}: tensors equal in {', '.join(DTYPES)}; logits within {error:.1e}", flush=True)
            assert error == 0


main()
