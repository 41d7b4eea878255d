"""Edits one value of one file of small published folders at random, and compares generation with transformers.

    python3 tests/oracles/edited_folders.py PROGRAM [--folders 200] [--seed 1] [--keep FOLDER]

PROGRAM is `vernier`. Each folder has a random model, a tokenizer and all small files. Of each, texts and chats are
continued by both, greedily: the tokens and their log-probabilities must be equal, or Vernier must refuse the folder, or
say on standard error that it does not apply the value. Prints each folder that is none of these, and ends with 1 then.
Needs what generation.py needs.
"""

import argparse
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from published_models import GPT2, LLAMA, TWO
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

HERE = os.path.dirname(os.path.abspath(__file__))
NEW = 10

FAMILIES = {
    "gpt2": (GPT2 | {"n_layer": 2, "n_positions": 64}, "gpt2", "GPT2TokenizerFast"),
    "llama": (LLAMA | {"num_hidden_layers": 2, "max_position_embeddings": 64}, "llama3", "PreTrainedTokenizerFast"),
    "llama_scaled": (
        LLAMA
        | {
            "max_position_embeddings": 64,
            "rope_theta": 50.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "llama3",
        "PreTrainedTokenizerFast",
    ),
    "mistral": (TWO | {"model_type": "mistral", "sliding_window": 6}, "llama2", "PreTrainedTokenizerFast"),
    "qwen2": (
        TWO | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 5, "max_window_layers": 1},
        "qwen2",
        "PreTrainedTokenizerFast",
    ),
    "qwen3": (TWO | {"model_type": "qwen3", "head_dim": 6, "attention_bias": True}, "qwen2", "PreTrainedTokenizerFast"),
    "gemma2": (
        TWO | {"model_type": "gemma2", "head_dim": 6, "sliding_window": 6, "attn_logit_softcapping": 5.0},
        "gemma2",
        "PreTrainedTokenizerFast",
    ),
    "olmo2": (TWO | {"model_type": "olmo2"}, "gpt2", "PreTrainedTokenizerFast"),
    "granite": (
        TWO | {"model_type": "granite", "embedding_multiplier": 3.0, "logits_scaling": 2.0},
        "gpt2",
        "PreTrainedTokenizerFast",
    ),
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n[{{ m.role | upper }}]\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n[ASSISTANT]{{ ' ' }}\n{% endif %}\n"
)
LINES = [
    {"prompt": "Once upon a time"},
    {"prompt": " the  CAT's naïve 12345 e\u0301 don't"},
    {"messages": [{"role": "system", "content": " Be short. "}, {"role": "user", "content": "Hi, you!\n"}]},
]
# What an edit puts in the place of a value, or adds.
WORDS = ["gelu", "silu", "relu", "llama", "default", "linear", "dynamic", "yarn", "eager", "float16", "bfloat16", "first", "never", "always",
         "Isolated", "Removed", "NFC", "NFKC", "Ġ", "▁", "<s>", "x", "", "ByteLevel", "LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer"]  # fmt: skip
ADDED = {
    "config.json": {"hidden_act": "gelu", "activation_function": "relu", "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True, "sliding_window": 3, "rope_theta": 77.0, "head_dim": 4, "rms_norm_eps": 0.01,
        "layer_norm_epsilon": 0.01, "scale_attn_weights": False, "n_inner": 32, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 3.0},
        "layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "query_pre_attn_scalar": 9,
        "final_logit_softcapping": 2.0, "logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3,
        "pretraining_tp": 2, "eos_token_id": 7, "quantization_config": {"bits": 4}, "num_key_value_heads": 1, "add_cross_attention": True},
    "generation_config.json": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "min_length": 12,
        "num_beams": 2, "length_penalty": 0.0, "early_stopping": True, "suppress_tokens": [5, 6, 7], "bad_words_ids": [[9]],
        "eos_token_id": [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "forced_eos_token_id": 3, "begin_suppress_tokens": [8],
        "exponential_decay_length_penalty": [2, 1.5], "max_new_tokens": 3, "do_sample": True, "temperature": 0.5, "top_k": 3,
        "sequence_bias": [[[5], 9.0]], "guidance_scale": 2.0, "encoder_repetition_penalty": 2.0, "stop_strings": ["a"], "penalty_alpha": 0.6},
    "tokenizer_config.json": {"add_prefix_space": True, "add_bos_token": True, "add_eos_token": True, "bos_token": "a", "eos_token": "e",
        "do_lower_case": True, "legacy": False, "tokenizer_class": "LlamaTokenizer", "split_special_tokens": True,
        "additional_special_tokens": ["the"], "added_tokens_decoder": {"5": {"content": "cat", "special": True}}, "unk_token": "t",
        "truncation_side": "left", "model_max_length": 3, "clean_up_tokenization_spaces": True, "normalize": True, "extra_special_tokens": {"x": "on"}},
    "special_tokens_map.json": {"bos_token": "a", "eos_token": "e", "unk_token": "t", "additional_special_tokens": ["the"]},
    "added_tokens.json": {"the": 5, "time": 9999, "Once": 406},
    "tokenizer.json": {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "Fuse"}, "post_processor": None,
        "added_tokens": [{"id": 9, "content": "time", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}]},
}  # fmt: skip


def places(value, at=()):
    """All places of a JSON value, but few of a vocabulary."""
    found = [at] if at else []
    if isinstance(value, dict):
        keys = list(value)
        for key in keys if len(keys) < 60 else random.sample(keys, 3):
            found += places(value[key], at + (key,))
    if isinstance(value, list):
        for i in range(len(value)) if len(value) < 60 else random.sample(range(len(value)), 3):
            found += places(value[i], at + (i,))
    return found


def edited(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([value + 1, value - 1, value * 2, value // 2, 0, -1, float(value), str(value), None])
    if isinstance(value, float):
        return random.choice([value * 2, value / 2, 0.0, -value, 1, str(value), None])
    if isinstance(value, str):
        return random.choice([random.choice(WORDS), value.upper(), value + "x", value[:-1], None, 5])
    if value is None:
        return random.choice([1, 2.0, "x", True, []])
    return random.choice([None, [], {}, 3])


def edit(folder):
    """Changes one file, and returns what it did."""
    name = random.choice([each for each in sorted(os.listdir(folder)) if each.endswith(".json")])
    path = os.path.join(folder, name)
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    kind = random.random()
    if kind < 0.35 and name in ADDED:
        key, value = random.choice(list(ADDED[name].items()))
        content[key] = value
        what = f"{key} = {value}"
    else:
        place = random.choice(places(content) or [()])
        if not place:
            return edit(folder)
        parent = content
        for part in place[:-1]:
            parent = parent[part]
        old = parent[place[-1]]
        if kind < 0.5 and isinstance(parent, dict):
            del parent[place[-1]]
            what = f"without {place} (was {json.dumps(old)[:60]})"
        else:
            parent[place[-1]] = edited(old)
            what = f"{place} = {json.dumps(parent[place[-1]])} (was {json.dumps(old)[:60]})"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)
    return f"{name}: {what}"


def make(folder, family):
    config, tokenizer, tokenizer_class = copy.deepcopy(FAMILIES[family])
    source = os.path.join(HERE, "tokenizers", tokenizer)
    shutil.copy(os.path.join(source, "tokenizer.json"), folder)
    with open(os.path.join(source, "tokenizer.json"), encoding="utf-8") as file:
        content = json.load(file)
    vocabulary = 1 + max([*content["model"]["vocab"].values(), *[each["id"] for each in content["added_tokens"]]])
    special = [each["content"] for each in content["added_tokens"] if each["special"]] or ["the", "e"]
    config |= {"vocab_size": vocabulary + 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "torch_dtype": "float32"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.3)
        parameter.data += "norm" in name and config["model_type"] != "gemma2" and name.endswith("weight")
    model.save_pretrained(folder)
    written = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": [2, 3], "transformers_version": "4.50.0"},
        "tokenizer_config.json": {"tokenizer_class": tokenizer_class, "bos_token": special[0], "eos_token": special[-1],
            "model_max_length": 512, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE},
        "special_tokens_map.json": {"bos_token": special[0], "eos_token": special[-1]},
        "added_tokens.json": {each["content"]: each["id"] for each in content["added_tokens"]},
    }  # fmt: skip
    for name, value in written.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)


@torch.no_grad()
def theirs(folder):
    """(tokens, log-probabilities or None for beams) of each line."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    ends = tokenizer.eos_token_id
    results = []
    for line in LINES:
        if "messages" in line:
            text = tokenizer.apply_chat_template(line["messages"], add_generation_prompt=True, tokenize=False)
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        else:
            ids = tokenizer(line["prompt"], return_tensors="pt").input_ids
        if int(ids.max()) >= model.config.vocab_size:
            raise ValueError("a token is not in the vocabulary")
        config = model.generation_config
        given = config.eos_token_id if config.eos_token_id is not None else []
        all_ends = (given if isinstance(given, list) else [given]) + ([ends] if ends is not None else [])
        short = {} if config.max_new_tokens is not None else {"max_new_tokens": NEW}
        result = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, temperature=None, top_k=None, top_p=None, pad_token_id=0,
            eos_token_id=all_ends or None, return_dict_in_generate=True, output_logits=True, tokenizer=tokenizer, **short
        )  # fmt: skip
        tokens = result.sequences[0, ids.shape[1] :].tolist()
        beams = (config.num_beams or 1) > 1
        # Beams are filled up behind their end, and stop words stay in the text.
        first = next((i for i, token in enumerate(tokens) if token in all_ends), len(tokens))
        logits = None if beams else torch.stack(result.logits)[:first, 0].float().log_softmax(-1)
        numbers = None if beams else [float(logits[i, token]) for i, token in enumerate(tokens[:first])]
        results.append((tokens[:first], numbers, tokenizer.decode(tokens[:first], skip_special_tokens=True)))
    return results


def ours(program, folder):
    """(lines, what it says), or (None, the refusal)."""
    path = os.path.join(folder, "lines.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in LINES)
    with open(os.path.join(folder, "generation_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    beams = isinstance(config, dict) and isinstance(config.get("num_beams"), int) and config["num_beams"] > 1
    short = [] if isinstance(config, dict) and config.get("max_new_tokens") is not None else ["--max-tokens", str(NEW)]
    call = [program, "generate", folder, "--input", path, "--temperature", "0", *([] if beams else ["--logprobs", "0"]), *short]
    done = subprocess.run(call, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    os.remove(path)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip()


def difference(mine, reference):
    for line, (tokens, numbers, text) in zip(mine, reference):
        if "logprobs" not in line and line["tokens"] > 0:
            if line["completion"].strip() != text.strip():
                return f"{line['completion']!r} instead of {text!r}"
            continue
        own = [each["id"] for each in line.get("logprobs", [])]
        if own != tokens:
            return f"tokens {own} instead of {tokens}"
        if numbers is None:
            continue
        worst = max([abs(a["logprob"] - b) for a, b in zip(line.get("logprobs", []), numbers)], default=0)
        if worst > 1e-3:
            return f"log-probabilities differ by {worst}"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--folders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts, failures = {}, 0
    for number in range(arguments.folders):
        seed = arguments.seed * 10000 + number
        random.seed(seed)
        torch.manual_seed(seed)
        family = list(FAMILIES)[number % len(FAMILIES)]
        with tempfile.TemporaryDirectory() as folder:
            make(folder, family)
            what = "nothing" if number < len(FAMILIES) else edit(folder)
            mine, said = ours(arguments.program, folder)
            try:
                reference, reason = theirs(folder), ""
            except BaseException as error:  # the package tokenizers panics with others
                if isinstance(error, KeyboardInterrupt):
                    raise
                reference, reason = None, f"{type(error).__name__}: {error}"[:200]
            wrong = difference(mine, reference) if mine is not None and reference is not None else ""
            if mine is None:
                kind = "refused by both" if reference is None else "refused"
            elif reference is None:
                kind = "only transformers refuses"
            else:
                kind = "equal" if not wrong else "said" if "not applied" in said else "DIFFERENT"
            counts[kind] = counts.get(kind, 0) + 1
            if kind in ("DIFFERENT", "only transformers refuses") or (kind != "equal" and what == "nothing"):
                print(f"{number} {family}: {what}\n    {kind}: {wrong or reason or said}", flush=True)
                failures += kind != "only transformers refuses"
                if arguments.keep:
                    shutil.copytree(folder, os.path.join(arguments.keep, str(number)), dirs_exist_ok=True)
    print(counts)
    sys.exit(1 if failures else 0)


main()
