"""Records published_models.safetensors: small models of all families and variants that a config.json can describe.

    python3 tests/oracles/published_models.py [--compare]
    python3 tests/oracles/published_models.py --load FOLDER TOKENS   prints the loss of what `vernier export --format
                                                                     huggingface` wrote, on a file of uint16 tokens

Needs transformers 5.23.0 beside what oracle.py needs. README.md says what is in the file.
"""

import json
import os
import sys
import tempfile

import torch
from oracle import Random, run
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY, BATCH, TIME = 29, 2, 20

GPT2 = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": 24, "n_embd": 8, "n_layer": 1, "n_head": 2}
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
# As transformers 4 writes them and as 5 does.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "factor": 8.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 4.0, "beta_slow": 1.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.2, 3.0]}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}
TWO = SMALL | {"num_hidden_layers": 2}


def small(model_type, **more):
    return SMALL | {"model_type": model_type} | more


def two(model_type, **more):
    return TWO | {"model_type": model_type} | more


VARIANTS = {
    "gpt2": GPT2 | {"n_layer": 2, "n_ctx": 99},
    "gpt2_inner": GPT2 | {"n_inner": 12, "activation_function": "gelu_pytorch_tanh"},
    "gpt2_epsilon": GPT2 | {"layer_norm_epsilon": 1e-2, "activation_function": "gelu_fast"},
    "gpt2_gelu": GPT2 | {"activation_function": "gelu"},
    "gpt2_relu": GPT2 | {"activation_function": "relu"},
    "gpt2_silu": GPT2 | {"activation_function": "swish"},
    "gpt2_quick_gelu": GPT2 | {"activation_function": "quick_gelu"},
    "gpt2_tanh": GPT2 | {"activation_function": "tanh"},
    "gpt2_unscaled": GPT2 | {"scale_attn_weights": False},
    "gpt2_by_layer": GPT2 | {"n_layer": 2, "scale_attn_by_inverse_layer_idx": True},
    "gpt2_upcast": GPT2 | {"reorder_and_upcast_attn": True},
    "gpt2_untied": GPT2 | {"tie_word_embeddings": False},
    "llama": LLAMA | {"num_hidden_layers": 2},
    "llama_grouped": LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 2},
    "llama_head_dim": LLAMA | {"head_dim": 6, "num_key_value_heads": 1},
    "llama_tied": LLAMA | {"tie_word_embeddings": True},
    "llama_biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama_epsilon": LLAMA | {"rms_norm_eps": 1e-2, "hidden_act": "gelu"},
    "llama_theta": LLAMA | {"rope_theta": 500.0, "rope_scaling": None},
    "llama_linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama_dynamic": LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_theta": 1000.0},
    "llama_dynamic_short": LLAMA
    | {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e3}},
    "llama_llama3": LLAMA | {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 100.0}},
    "llama_llama3_old": LLAMA | {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}, "rope_theta": 5000.0},
    "llama_yarn": LLAMA | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 50.0}},
    "llama_yarn_scales": LLAMA
    | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 50.0, "mscale": 0.7, "mscale_all_dim": 0.3}},
    "llama_yarn_exact": LLAMA
    | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 50.0, "attention_factor": 1.3, "truncate": False}},
    "llama_llama3_top": LLAMA
    | {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}, "original_max_position_embeddings": 16},
    "llama_yarn_top": LLAMA
    | {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 50.0}, "original_max_position_embeddings": 12},
    "llama_padding": LLAMA | {"pad_token_id": 3},
    "mistral": two("mistral", sliding_window=6),
    "mistral_whole": small("mistral", sliding_window=None, head_dim=6),
    "qwen2": small("qwen2", num_key_value_heads=None),
    "qwen2_window": two("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": small("qwen3", head_dim=6, attention_bias=True, tie_word_embeddings=True),
    "qwen3_types": two(
        "qwen3",
        head_dim=6,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phi3": small("phi3", pad_token_id=None),
    "phi3_window": small("phi3", pad_token_id=None, sliding_window=7),
    "phi3_long": small(
        "phi3", pad_token_id=None, rope_scaling=LONGROPE, original_max_position_embeddings=16, rope_theta=100.0
    ),
    "phi3_short": small("phi3", pad_token_id=4, rope_scaling=LONGROPE, original_max_position_embeddings=24),
    "phi3_partial": small(
        "phi3", pad_token_id=None, num_attention_heads=1, partial_rotary_factor=0.5, tie_word_embeddings=True
    ),
    "gemma": small("gemma", head_dim=6, hidden_act="gelu", hidden_activation=None),
    "gemma_bias": small("gemma", head_dim=6, attention_bias=True, rope_theta=50.0),
    "gemma2": two(
        "gemma2",
        head_dim=6,
        sliding_window=6,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
        query_pre_attn_scalar=5,
    ),
    "gemma2_uncapped": small("gemma2", head_dim=4, attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3": two(
        "gemma3_text",
        head_dim=6,
        sliding_window=6,
        sliding_window_pattern=2,
        rope_local_base_freq=30.0,
        rope_theta=500.0,
        rope_scaling={"rope_type": "linear", "factor": 4.0},
    ),
    "gemma3_new": two(
        "gemma3_text",
        head_dim=6,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention"],
        query_pre_attn_scalar=9,
        final_logit_softcapping=4.0,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    "olmo2": two("olmo2"),
    "olmo2_bias": small("olmo2", attention_bias=True, num_key_value_heads=None, tie_word_embeddings=True),
    "olmo3": TWO
    | {"model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 6, "rope_theta": 500000.0}
    | {"rope_scaling": YARN | {"rope_type": "yarn"}, "max_position_embeddings": 32},
    "olmo3_types": two(
        "olmo3",
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    "glm": two("glm", head_dim=8, pad_token_id=None),
    "glm_whole": small("glm", head_dim=6, pad_token_id=3, attention_bias=False, partial_rotary_factor=1.0),
    "stablelm": two("stablelm", num_attention_heads=1, use_qkv_bias=True),
    "stablelm_parallel": small("stablelm", partial_rotary_factor=0.5, use_parallel_residual=True, layer_norm_eps=1e-2),
    "cohere": two("cohere", head_dim=4),
    "cohere_untied": small("cohere", tie_word_embeddings=False, attention_bias=True, logit_scale=0.3, rope_theta=50.0),
    "smollm3": two("smollm3", no_rope_layer_interval=2, pad_token_id=None),
    "smollm3_window": two(
        "smollm3",
        pad_token_id=5,
        no_rope_layers=[0, 1],
        use_sliding_window=True,
        sliding_window=6,
        attention_bias=True,
        mlp_bias=True,
    ),
    "granite": two(
        "granite",
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
    ),
    "granite_plain": small("granite", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
}


def text(words):
    return torch.tensor(list(words.encode()), dtype=torch.uint8)


def key_of(name, tensor):
    return name + " " + "x".join(str(size) for size in tensor.shape)


def weight(random, name, tensor):
    """Far from an initialisation, so that every tensor counts."""
    if tensor.dim() > 1:
        return random.normal(tuple(tensor.shape), 0.3)
    is_scale = name.endswith("weight")
    return (1.0 if is_scale else 0.0) + random.normal(tuple(tensor.shape), 0.3)


def model_of(config):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        read = AutoConfig.from_pretrained(folder)
    return AutoModelForCausalLM.from_config(read, attn_implementation="eager").float().eval()


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def record():
    random = Random(24)
    tokens = random.integers(0, VOCABULARY, (BATCH, TIME + 1))
    recorded, weights = {"tokens": tokens}, {}
    for variant, config in VARIANTS.items():
        model = model_of(config)
        for name, parameter in model.named_parameters():
            key = key_of(name, parameter)
            weights.setdefault(key, weight(random, name, parameter))
            parameter.data.copy_(weights[key])
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = loss_of(logits, tokens[:, 1:])
        loss.backward()
        parameters = sorted(model.named_parameters())
        recorded |= {
            variant + ".config": text(json.dumps(config)),
            variant + ".names": text("\n".join(key_of(*each) for each in parameters)),
            variant + ".logits": logits,
            variant + ".loss": loss,
            variant + ".gradients": torch.cat([parameter.grad.flatten() for _, parameter in parameters]),
        }
    return recorded | {"weight." + key: value for key, value in weights.items()}


@torch.no_grad()
def load(folder, tokens):
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    if any(told.values()):
        raise SystemExit(f"transformers does not take it: {told}")
    with open(tokens, "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).long()[: TIME + 1][None]
    logits = model.eval()(numbers[:, :-1], use_cache=False).logits
    print(f"loss {loss_of(logits, numbers[:, 1:]).item():.6f}, first logits {logits[0, 0, :4].tolist()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(*sys.argv[2:])
    else:
        run("published_models", record)
