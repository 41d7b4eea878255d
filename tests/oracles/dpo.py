"""Records dpo.safetensors: four steps of TRL's DPOTrainer on small models.

    python3 tests/oracles/dpo.py [--compare]

Needs transformers 5.24.0, peft 0.21.2, trl 1.16.0 and datasets beside what oracle.py needs. README.md says what is in
the file.
"""

import json
import os
import tempfile

import torch
from datasets import Dataset
from oracle import HERE, Random, run
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from published_models import GPT2, LLAMA, model_of, text, weight
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer

VOCABULARY, STEPS = 420, 4
GPT2 = GPT2 | {"vocab_size": VOCABULARY, "n_positions": 64, "n_layer": 2}
LLAMA = LLAMA | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "tie_word_embeddings": True}
MODELS = {
    "gpt2": GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": LLAMA,
    "gemma2": LLAMA | {"model_type": "gemma2", "head_dim": 8, "num_key_value_heads": 1, "final_logit_softcapping": 3.0},
}
PAIRS = [
    ("What is two and two?", " Four.", " Five, or so I think."),
    ("Say it: ", "language", "nothing at all"),
    ("the cat", " sat on the mat, and slept", " sat"),
    ("Q", "An answer to a short prompt.", "No."),
    ("Is naïve a word? ", "Yes, it is.", "nope"),
    ("One", " two three four", " three two"),
    ("A longer prompt, with words that come before the answers. ", "Good.", "Bad, and longer than the other."),
    ("x", "y", "z<|endoftext|>"),
]
LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}

CASES = {  # the model, options of DPOConfig, options of LoRA, pairs of an update
    "gpt2": ("gpt2", {"beta": 0.3}, None, 2),
    "llama": ("llama", {"beta": 0.5}, None, 2),
    "gemma2": ("gemma2", {"beta": 0.3}, None, 2),
    "ipo": ("llama", {"beta": 0.2, "loss_type": ["ipo"]}, None, 2),
    "hinge": ("gpt2", {"beta": 0.3, "loss_type": ["hinge"]}, None, 2),
    # With one pair in an update `aot` is DPO with smooth labels, which `sigmoid` of this version leaves out.
    "smooth": ("llama", {"beta": 0.5, "loss_type": ["aot"], "label_smoothing": 0.2}, None, 1),
    "lora": ("llama", {"beta": 0.5}, LORA, 2),
}


class InOrder(DPOTrainer):
    losses = None  # as they are, where logs are rounded

    def compute_loss(self, *arguments, **more):
        loss = super().compute_loss(*arguments, **more)
        self.losses.append(loss.detach().clone())
        return loss

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset or self.train_dataset)


class Watch(TrainerCallback):
    def __init__(self):
        self.gradients, self.logs = {}, []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if not self.gradients:
            self.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.logs.append(logs)


def train(base, options, lora, pairs, folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(HERE, "tokenizers/gpt2/tokenizer.json"),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    arguments = DPOConfig(
        output_dir=folder,
        per_device_train_batch_size=pairs,
        max_steps=STEPS,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1e9,
        max_length=64,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        precompute_ref_log_probs=True,
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
        **options,
    )
    watch = Watch()
    torch.manual_seed(1)
    trainer = InOrder(
        model=base,
        args=arguments,
        train_dataset=Dataset.from_list([dict(zip(("prompt", "chosen", "rejected"), pair)) for pair in PAIRS]),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", **lora) if lora else None,
        callbacks=[watch],
    )
    trainer.losses = []
    data = trainer.train_dataset
    reference = torch.tensor([data["ref_chosen_logps"], data["ref_rejected_logps"]]).t().clone()
    trainer.train()
    return trainer, reference, watch


def record():
    random = Random(42)
    lines = [json.dumps(dict(zip(("prompt", "chosen", "rejected"), pair)), ensure_ascii=False) for pair in PAIRS]
    recorded = {"pairs": text("\n".join(lines) + "\n")}
    bases = {}
    for name, config in MODELS.items():
        base = model_of(config)
        bases[name] = {key: weight(random, key, parameter) for key, parameter in base.named_parameters()}
        recorded |= {f"{name}.base.{key}": value for key, value in bases[name].items()}
        recorded[f"{name}.config"] = text(json.dumps(config))
    for case, (name, options, lora, pairs) in CASES.items():
        base = model_of(MODELS[name])
        for key, parameter in base.named_parameters():
            parameter.data.copy_(bases[name][key])
        with tempfile.TemporaryDirectory() as folder:
            trainer, reference, watch = train(base, options, lora, pairs, folder)
        recorded[f"{case}.reference"] = reference
        recorded[f"{case}.losses"] = torch.stack(trainer.losses)
        names = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"]
        recorded[f"{case}.rewards"] = torch.tensor([[log[name] for name in names] for log in watch.logs])
        if lora:
            state = get_peft_model_state_dict(trainer.model)
            recorded |= {f"{case}.end.{key}": value.clone() for key, value in state.items()}
        elif case == name:
            recorded |= {f"{case}.gradient.{key}": value for key, value in watch.gradients.items()}
    return recorded


if __name__ == "__main__":
    run("dpo", record)
