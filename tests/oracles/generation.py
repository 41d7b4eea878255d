"""Records generation.safetensors: how Hugging Face's transformers draws tokens.

    python3 tests/oracles/generation.py [--compare]

Scores after its processors of random logits, draws of them, and whole texts of the models of published_models.py.
Needs transformers 5.23.0 beside what oracle.py needs. README.md says what is in the file.
"""

import json
import os

import torch
from oracle import HERE, Random, run
from published_models import model_of
from safetensors.torch import load_file
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCABULARY, SEEN, DRAWS = 97, 12, 8

# repetition_penalty, temperature, top_k, top_p, min_p, as in Sampling of vernier/text/generation.h
RULES = [
    (1.0, 1.0, 0, 1.0, 0.0),
    (1.3, 1.0, 0, 1.0, 0.0),
    (0.8, 1.0, 0, 1.0, 0.0),
    (1.0, 0.7, 0, 1.0, 0.0),
    (1.0, 2.5, 0, 1.0, 0.0),
    (1.0, 1.0, 5, 1.0, 0.0),
    (1.0, 1.0, 1, 1.0, 0.0),
    (1.0, 1.0, 500, 1.0, 0.0),
    (1.0, 1.0, 0, 0.9, 0.0),
    (1.0, 1.0, 0, 0.001, 0.0),
    (1.0, 1.0, 0, 1.0, 0.1),
    (1.0, 1.0, 0, 1.0, 1.0),
    (1.0, 0.6, 20, 0.8, 0.0),
    (1.2, 0.9, 40, 0.95, 0.05),
    (1.5, 1.7, 10, 0.5, 0.2),
]

# The texts of whole models: variant, prompt length, new tokens.
TEXTS = [("gpt2", 3, 20), ("gpt2_by_layer", 5, 18), ("llama", 4, 24), ("llama_grouped", 4, 24), ("llama_biases", 1, 24)]
TEXT_RULES = [(1.0, 0.0, 0, 1.0, 0.0), (1.3, 0.0, 0, 1.0, 0.0), (1.0, 1.0, 0, 1.0, 0.0), (1.2, 0.8, 10, 0.9, 0.02)]

# Beam search, and greedy search with limits: options of GenerationConfig.
BEAM_VARIANTS = ["gpt2", "llama_grouped", "mistral", "gemma2", "qwen3"]
SEARCHES = [
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 4, "num_return_sequences": 2, "eos_token_id": [3, 9, 17], "early_stopping": True},
    {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": [3, 9, 17], "length_penalty": 2.0},
    {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": [5, 11], "length_penalty": -1.0},
    {"num_beams": 2, "num_return_sequences": 2, "eos_token_id": [5, 11, 12, 20], "early_stopping": "never"},
    {"num_beams": 5, "num_return_sequences": 5, "eos_token_id": 4, "early_stopping": "never", "length_penalty": 0.0},
    {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": [3, 9, 17], "min_new_tokens": 6, "repetition_penalty": 1.4},
    {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": [3, 9], "min_length": 8, "no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3, "eos_token_id": [3, 9, 17], "min_new_tokens": 5},
    {"eos_token_id": list(range(0, 29, 2)), "min_length": 9, "repetition_penalty": 1.2},
]


def processors_of(rule):
    """In the order of transformers' GenerationMixin._get_logits_processor."""
    penalty, temperature, top_k, top_p, min_p = rule
    processors = LogitsProcessorList()
    if penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(penalty))
    if temperature != 1:
        processors.append(TemperatureLogitsWarper(temperature))
    if top_k > 0:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    if min_p > 0:
        processors.append(MinPLogitsWarper(min_p))
    return processors


def logits_of(random, row):
    logits = random.normal((VOCABULARY,), 3.0)
    if row % 2 == 1:  # many ties
        logits = logits.round()
    return logits


def recorded_model(models, variant):
    config = json.loads(bytes(models[variant + ".config"].tolist()))
    model = model_of(config)
    for name, parameter in model.named_parameters():
        shape = "x".join(str(size) for size in parameter.shape)
        parameter.data.copy_(models[f"weight.{name} {shape}"])
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def generate(model, prompt, rule, count, seed):
    penalty, temperature, top_k, top_p, min_p = rule
    is_drawn = temperature > 0
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p} if is_drawn else {}
    config = GenerationConfig(
        max_new_tokens=count, do_sample=is_drawn, repetition_penalty=penalty, pad_token_id=0, eos_token_id=None, **options
    )
    torch.manual_seed(seed)
    return model.generate(prompt[None], attention_mask=torch.ones_like(prompt)[None], generation_config=config)[0]


def search(model, prompt, options):
    """The texts behind the prompt, without what fills them up, and their scores or the tokens' log-probabilities."""
    config = GenerationConfig(
        **{"max_new_tokens": 15, "pad_token_id": 0, "eos_token_id": None, "do_sample": False} | options,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    result = model.generate(prompt[None], attention_mask=torch.ones_like(prompt)[None], generation_config=config)
    texts = [row[len(prompt) :].tolist() for row in result.sequences]
    ends = options.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    for text in texts:
        first = next((i for i, token in enumerate(text) if token in ends), len(text))
        del text[first:]
    if "num_beams" in options:
        return {"texts": texts, "scores": result.sequences_scores.tolist()}
    logits = torch.stack(result.logits)[: len(texts[0]), 0].log_softmax(-1)
    return {"texts": texts, "logprobs": logits.gather(1, torch.tensor(texts[0])[:, None])[:, 0].tolist()}


@torch.no_grad()
def record():
    random = Random(25)
    recorded = {"rules": torch.tensor(RULES, dtype=torch.float64), "text_rules": torch.tensor(TEXT_RULES).double()}
    logits = torch.stack([logits_of(random, row) for row in range(2 * len(RULES))])
    seen = random.integers(0, VOCABULARY, (len(logits), SEEN))
    scores, draws = [], []
    for row in range(len(logits)):
        processed = processors_of(RULES[row // 2])(seen[row][None], logits[row][None].clone())
        scores.append(processed[0])
        torch.manual_seed(100 + row)
        probabilities = torch.nn.functional.softmax(processed, dim=-1)
        draws.append(torch.cat([torch.multinomial(probabilities, num_samples=1)[0] for _ in range(DRAWS)]))
    recorded |= {"logits": logits, "seen": seen, "scores": torch.stack(scores), "draws": torch.stack(draws)}

    models = load_file(os.path.join(HERE, "published_models.safetensors"))
    for variant, length, count in TEXTS:
        model = recorded_model(models, variant)
        prompt = models["tokens"][0, :length].clone()
        texts = [generate(model, prompt, rule, count, 7 + i) for i, rule in enumerate(TEXT_RULES)]
        recorded |= {variant + ".prompt": prompt, variant + ".texts": torch.stack(texts)}
    searches = []
    for variant in BEAM_VARIANTS:
        model = recorded_model(models, variant)
        for i, options in enumerate(SEARCHES):
            prompt = models["tokens"][1, i : i + 2 + i % 4]
            searches.append({"variant": variant, "prompt": prompt.tolist(), "options": options} | search(model, prompt, options))
    recorded["searches"] = torch.tensor(list(json.dumps(searches).encode()), dtype=torch.uint8)
    return recorded


if __name__ == "__main__":
    run("generation", record)
