"""Records gpt2_logits.safetensors: a tiny GPT-2 as it is published, and what Hugging Face's model makes of it.

    python3 tests/oracles/gpt2_logits.py [--compare]
    python3 tests/oracles/gpt2_logits.py --load FILE    loads what `vernier checkpoint export` wrote of these weights
                                                        into GPT2LMHeadModel, and compares logits and loss

Needs transformers 4.57.1 beside what oracle.py needs. README.md says what is in the file.
"""

import os
import sys
import tempfile

import torch
from oracle import HERE, Random, run
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, WINDOWS = 2, 2, 16, 16, 256, 2


def published():
    """OpenAI's names and shapes, masks included. No two tensors are alike, and none is what a new model would have."""
    random = Random(11)
    weights = {
        "wte.weight": random.normal((VOCABULARY, WIDTH), 0.5),
        "wpe.weight": random.normal((CONTEXT, WIDTH), 0.5),
        "ln_f.weight": 1 + random.normal((WIDTH,), 0.3),
        "ln_f.bias": random.normal((WIDTH,), 0.3),
    }
    for layer in range(LAYERS):
        h = f"h.{layer}."
        for name, inputs, outputs in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            weights[h + name + ".weight"] = random.normal((inputs, outputs), 0.3)
            weights[h + name + ".bias"] = random.normal((outputs,), 0.3)
        for name in ("ln_1", "ln_2"):
            weights[h + name + ".weight"] = 1 + random.normal((WIDTH,), 0.3)
            weights[h + name + ".bias"] = random.normal((WIDTH,), 0.3)
        weights[h + "attn.bias"] = torch.ones(CONTEXT, CONTEXT).tril().view(1, 1, CONTEXT, CONTEXT)
    return weights


def loaded(weights):
    """GPT2LMHeadModel's own reading of a file with these tensors, nothing missing and nothing left over."""
    with tempfile.TemporaryDirectory() as folder:
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
        ).save_pretrained(folder)
        save_file(weights, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        model, told = GPT2LMHeadModel.from_pretrained(
            folder, attn_implementation="eager", output_loading_info=True
        )
        if any(told.values()):
            raise SystemExit(f"GPT2LMHeadModel does not take it: {told}")
        return model.eval()


def saved(model):
    """What save_pretrained writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


@torch.no_grad()
def evaluated(model, text):
    tokens = text[:-1].long().view(WINDOWS, CONTEXT)
    targets = text[1:].long().view(WINDOWS, CONTEXT)
    # With labels alone the library would shift them itself, and leave out the last target of each window.
    out = model(tokens, labels=targets, shift_labels=targets)
    return {"logits": out.logits, "loss": out.loss}


def record():
    weights = published()
    model = loaded(weights)
    trained = {name: value for name, value in weights.items() if not name.endswith(".attn.bias")}
    written = saved(model)
    if written.keys() != {"transformer." + name for name in trained}:
        raise SystemExit(f"save_pretrained writes other names: {sorted(written)}")
    if not all(written["transformer." + name].equal(value) for name, value in trained.items()):
        raise SystemExit("save_pretrained writes other values")
    text = Random(12).integers(0, VOCABULARY, (WINDOWS * CONTEXT + 1,)).to(torch.uint8)
    tensors = {"text": text, **evaluated(model, text)}
    tensors.update({"published." + name: value for name, value in weights.items()})
    return tensors


def load(path):
    recorded = load_file(os.path.join(HERE, "gpt2_logits.safetensors"))
    for key, value in evaluated(loaded(load_file(path)), recorded["text"]).items():
        print(f"{key}: differs by at most {(value - recorded[key]).abs().max():.1e} of {recorded[key].abs().max():.3g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(sys.argv[2])
    else:
        run("gpt2_logits", record)
