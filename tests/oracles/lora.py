"""Records lora.safetensors: five steps of PEFT's LoRA on small models, and a matrix in 4 bits.

    python3 tests/oracles/lora.py [--compare]
    python3 tests/oracles/lora.py --load BASE ADAPTER   loads what `vernier export --format peft` wrote, merged and not

Needs transformers 5.23.0, peft 0.21.2 and bitsandbytes 0.50.2 beside what oracle.py needs. README.md says what is in the file.
"""

import json
import os
import sys
import tempfile

import torch
from oracle import Random, run
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from published_models import GPT2, LLAMA, VOCABULARY, loss_of, model_of, text, weight
from transformers import AutoModelForCausalLM

BATCH, TIME, STEPS = 2, 12, 5

CASES = {
    "llama": (
        LLAMA | {"num_key_value_heads": 1},
        {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    ),
    "gpt2": (
        GPT2 | {"n_layer": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        {"r": 2, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_rslora": True},
    ),
    "dropout": (
        GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.3},
    ),
    "dora": (
        LLAMA | {"num_key_value_heads": 1, "attention_bias": True},
        {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "use_dora": True},
    ),
    "dora_dropout": (
        GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False},
        {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.3}
        | {"use_dora": True, "modules_to_save": ["lm_head"]},
    ),
}


def train(model, windows):
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2, weight_decay=0.0
    )
    torch.manual_seed(2)  # of dropout
    losses = []
    for window in windows:
        loss = loss_of(model(window[:, :-1], use_cache=False).logits, window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def again(config, weights, folder, windows):
    """The losses of five more steps, of a model that PEFT reads from its folder."""
    base = model_of(config)
    base.load_state_dict(weights)
    return train(PeftModel.from_pretrained(base, folder, is_trainable=True).train(), windows)


def record():
    random = Random(25)
    recorded = {"tokens": random.integers(0, VOCABULARY, (STEPS * BATCH * TIME + 1,))}
    windows = recorded["tokens"].unfold(0, TIME + 1, TIME).view(STEPS, BATCH, TIME + 1)
    for case, (config, options) in CASES.items():
        base = model_of(config)
        for name, parameter in base.named_parameters():
            parameter.data.copy_(weight(random, name, parameter))
            recorded[f"{case}.base.{name}"] = parameter.data.clone()
        before = {name: value.clone() for name, value in base.state_dict().items()}
        torch.manual_seed(1)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options)).train()
        for name, value in get_peft_model_state_dict(model).items():
            recorded[f"{case}.start.{name}"] = value.clone()
        losses = train(model, windows)
        for name, value in get_peft_model_state_dict(model).items():
            recorded[f"{case}.end.{name}"] = value.clone()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as file:
                config_of_adapter = json.load(file)
            config_of_adapter["target_modules"].sort()
            recorded[f"{case}.adapter"] = text(json.dumps(config_of_adapter))
            recorded[f"{case}.again"] = again(config, before, folder, windows)
        merged = model.eval().merge_and_unload()
        recorded[f"{case}.config"] = text(json.dumps(config))
        recorded[f"{case}.losses"] = losses
        recorded[f"{case}.logits"] = merged(windows[0, :, :-1], use_cache=False).logits
    return recorded | in_four_bits(Random(26))


def in_four_bits(random):
    """What bitsandbytes makes of a matrix in NF4 with blocks of 64."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    matrix = random.normal((32, 128))
    matrix[3, :64] = 0
    matrix[4, :64] = torch.linspace(-1, 1, 64)
    codes, state = quantize_4bit(matrix, blocksize=64, quant_type="nf4")
    return {
        "nf4.matrix": matrix,
        "nf4.codes": codes.view(32, 64),
        "nf4.largest": state.absmax.view(32, 2),
        "nf4.numbers": dequantize_4bit(codes, state),
        "nf4.table": state.code,
    }


@torch.no_grad()
def load(base, adapter):
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()
    tokens = torch.arange(10)[None]
    plain = model(tokens, use_cache=False).logits
    adapted = PeftModel.from_pretrained(model, adapter).eval()
    logits = adapted(tokens, use_cache=False).logits
    merged = adapted.merge_and_unload()(tokens, use_cache=False).logits
    print(f"adapter changes logits by {(logits - plain).abs().max():.2e}, merging by {(merged - logits).abs().max():.1e}")
    print(f"first logits {logits[0, 0, :4].tolist()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(*sys.argv[2:])
    else:
        run("lora", record)
