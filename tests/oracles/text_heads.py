"""Records text_heads.safetensors: transformers' models with a head for classes, on texts of different lengths.

    python3 tests/oracles/text_heads.py [--compare]

Needs transformers 5.24.0 beside what oracle.py needs. README.md says what is in the file.
"""

import json
import os
import tempfile

import torch
from oracle import HERE, Random, run
from published_models import VARIANTS, key_of, text, weight
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

CLASSES = 3
# Each with a folder of tokenizers/: gpt2 adds no token around a text, llama3 one before it.
MODELS = {
    "gpt2": "gpt2",
    "gpt2_untied": "gpt2",
    "llama_grouped": "llama3",
    "qwen3": "llama3",
    "phi3": "gpt2",
    "gemma": "llama3",
}
TEXTS = ["one word", "x", "a longer text, which has some more words in it than the others", "12 tips!", "größer"]


def tokenizer_of(name):
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, "tokenizers", name, "tokenizer.json"))


def model_of(config):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        read = AutoConfig.from_pretrained(folder, num_labels=CLASSES)
    return AutoModelForSequenceClassification.from_config(read, attn_implementation="eager").float().eval()


@torch.no_grad()
def record():
    random = Random(25)
    recorded = {"texts": text(json.dumps(TEXTS))}
    for variant, folder in MODELS.items():
        tokenizer = tokenizer_of(folder)
        config = VARIANTS[variant] | {"vocab_size": len(tokenizer)}
        config["n_positions" if variant.startswith("gpt2") else "max_position_embeddings"] = 64
        model = model_of(config | {"pad_token_id": None})
        for name, parameter in model.named_parameters():
            parameter.copy_(weight(random, name, parameter))
            recorded[f"{variant}.weight.{key_of(name, parameter)}"] = parameter
        # One by one, since a model without padding takes no batch.
        logits = [model(torch.tensor([tokenizer(each)["input_ids"]])).logits[0] for each in TEXTS]
        recorded |= {variant + ".config": text(json.dumps(config)), variant + ".logits": torch.stack(logits)}
        recorded[variant + ".tokenizer"] = text(folder)
    return recorded


if __name__ == "__main__":
    run("text_heads", record)
