"""Records chat_tokens.json: the tokens of chats by their templates, and which of them an assistant wrote, as
apply_chat_template of Hugging Face's transformers says.

    python3 tests/oracles/chat_tokens.py
    python3 tests/oracles/chat_tokens.py --real OUT.json   the same for the templates that the package trl ships:
                                                           VERNIER_CHAT_TOKENS=OUT.json test_sdk_text
                                                           --test-case="*assistant's tokens*" then reads them

Needs transformers 5.24.0, and trl 1.16.0 for --real. The templates here are our own, in the manner of real ones. Each is
written with {% generation %}, whose mask transformers gives; Vernier must find the same without these marks.
"""

import glob
import json
import os
import re
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
MARKS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
TOKENS = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<start_of_turn>", "<end_of_turn>", "<|bos|>", "<|eos|>"]
VARIABLES = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}

CHATS = {
    "short": [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Four."}],
    "long": [{"role": role, "content": f" {role} {i}\n"} for i in range(4) for role in ("user", "assistant")],
    "system": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "\u3000Hi\n\n"},
        {"role": "assistant", "content": "  Hello 'there' \t"},
        {"role": "user", "content": "naïve 漢字"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "think"},
        {"role": "assistant", "content": "think"},
    ],
    "unanswered": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
    "written": [
        {"role": "user", "content": "what is <|im_end|>?"},
        {"role": "assistant", "content": "<|im_end|> is <|end|> a token"},
    ],
    "thought": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\noh\n</think>\n\nd"},
    ],
}

TEMPLATES = {
    "chatml": """{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "headers": """{{- bos_token }}{% if strftime_now is defined %}{% set day = '2 Mar 2026' %}{% else %}{% set day = '2 Mar 2026' %}{% endif %}
{{- '<|start|>system<|end|>\\n\\nToday: ' + day + '<|eos|>' }}
{%- for m in messages %}{{ '<|start|>' + m.role + '<|end|>\\n\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|eos|>' }}{% endgeneration %}{% else %}{{ m.content | trim + '<|eos|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}""",
    "brackets": """{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\\n' %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if m.role == 'user' %}{{ '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}{% else %}{% generation %}{{ ' ' + m.content + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}""",
    "turns": """{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}{{ '<start_of_turn>' + role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<end_of_turn>' }}{% endgeneration %}{% else %}{{ m.content | trim + '<end_of_turn>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "thinking": """{%- set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% set content = m.content.split('</think>')[-1].lstrip('\\n') %}{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') if '</think>' in m.content else '' %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{% if loop.index0 > ns.last %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}{{ content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "asked to think": """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content.split('</think>')[-1] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}""",
    "no tokens": """{% for m in messages %}{% if m.role == 'assistant' %}{{ '### Answer: ' }}{% generation %}{{ m.content }}{% endgeneration %}{{ '\\n\\n' }}{% else %}{{ '### ' + m.role + ': ' + m.content + '\\n\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '### Answer: ' }}{% endif %}""",
    "system at last": """{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + (messages[0].content + '\\n' if loop.last or messages[loop.index:] | selectattr('role', 'equalto', 'user') | list | length == 0 else '') + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}""",
}


def tokenizer_of(style, tokens):
    """The tokenizer of a folder, with more special tokens behind its own."""
    with open(os.path.join(HERE, "tokenizers", style, "tokenizer.json"), encoding="utf-8") as file:
        spec = json.load(file)
    if style == "gpt2":  # as GPT-2 has it: one token for two line breaks, which a text beside them divides
        spec["model"]["vocab"]["ĊĊ"] = len(spec["model"]["vocab"])
        spec["model"]["merges"].append(["Ċ", "Ċ"])
    first = max([len(spec["model"]["vocab"]) - 1] + [token["id"] for token in spec["added_tokens"]]) + 1
    for place, content in enumerate(tokens):
        spec["added_tokens"].append(
            {
                "id": first + place,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        )
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(spec, file)
        file.flush()
        return PreTrainedTokenizerFast(tokenizer_file=file.name, **VARIABLES)


def marked(tokenizer, template, messages):
    try:
        both = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    except Exception:  # of the template: it does not take these chats
        return None
    return {"messages": messages, "ids": list(both["input_ids"]), "mask": "".join(map(str, both["assistant_masks"]))}


def record(templates, styles, tokens):
    recorded = []
    for style in styles:
        tokenizer = tokenizer_of(style, tokens)
        for name, template, plain in templates:
            chats = [marked(tokenizer, template, messages) for messages in CHATS.values()]
            texts = [
                tokenizer.apply_chat_template(chat["messages"], chat_template=plain, tokenize=False) if chat else None
                for chat in chats
            ]
            same = [
                chat
                for chat, text in zip(chats, texts)
                if chat and text == tokenizer.apply_chat_template(chat["messages"], chat_template=template, tokenize=False)
            ]
            recorded.append(
                {"style": style, "tokens": tokens, "name": name, "marked": template, "plain": plain, "chats": same}
            )
    return recorded


def main():
    path = os.path.join(HERE, "chat_tokens.json")
    templates = [(name, template, MARKS.sub("", template)) for name, template in TEMPLATES.items()]
    styles, tokens = ["gpt2", "llama2_metaspace", "qwen2", "gemma2"], TOKENS
    if sys.argv[1:2] == ["--real"]:
        import trl

        path = sys.argv[2]
        folder = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
        read = lambda file: open(file, encoding="utf-8", newline="").read()
        templates = [
            (os.path.basename(file), read(file), read(file.replace("_training", "")))
            for file in sorted(glob.glob(os.path.join(folder, "*_training.jinja")))
            if "strftime_now" not in read(file)  # Vernier trains without the day's date
        ]
        words = set()
        for _, template, _ in templates:
            words |= set(re.findall(r"<\|[a-zA-Z_]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|<eos>|</s>", template))
        styles, tokens = ["qwen2"], sorted(words - {"<|endoftext|>"}) + ["<|bos|>", "<|eos|>"]
    recorded = record(templates, styles, tokens)
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in recorded) + "\n]\n")
    print(f"{path}: {len(recorded)} templates, {sum(len(each['chats']) for each in recorded)} chats")


main()
