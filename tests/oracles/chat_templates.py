"""Records chat_templates.json: what apply_chat_template of Hugging Face's transformers makes of chats.

    python3 tests/oracles/chat_templates.py
    python3 tests/oracles/chat_templates.py --real OUT.json   the same for the templates that the package trl ships;
                                                              VERNIER_CHAT_TEMPLATES=OUT.json test_finetune_graph
                                                              --test-case="*chat templates*" then renders them

Needs transformers 5.24.0, and trl 1.16.0 for --real. The templates here are our own, in the manner of real ones.
"""

import glob
import json
import os
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather \"now\" in a <town> & more\nin Köln",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "description": "its name"}, "days": {"type": "number"}},
                "required": ["town"],
            },
        },
    }
]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"town": "Köln", "days": 2}}}

CHATS = {
    "question": [{"role": "user", "content": "Two and two?"}],
    "chat": [
        {"role": "system", "content": "  Be short. "},
        {"role": "user", "content": "\u3000Hi\n\n"},
        {"role": "assistant", "content": " Hello 'there' \"you\"\t"},
        {"role": "user", "content": "naïve 漢字 <b>&amp;</b> {{ x }} {% if %}"},
    ],
    "answered": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}],
    "long": [{"role": role, "content": f"{role} {i}"} for i in range(5) for role in ("user", "assistant")],
    "thought": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "because"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    "twice": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "called": [
        {"role": "user", "content": "Köln?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "{\"sun\": true}"},
        {"role": "assistant", "content": "Sun."},
    ],
    "none": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
    "other": [{"role": "critic", "content": "a"}],
    "empty": [{"role": "user", "content": ""}],
}

TEMPLATES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "headers": """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|h|>system<|e|>\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|e|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call only") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' + arg_val | string + '"' }}
            {%- if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- tool_call.arguments | tojson }}
    {%- else %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|e|>\\n\\n' }}
{%- endif %}
""",
    "alternating": """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ message['content'] + eos_token}}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}""",
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}""",
    "thinking": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<r>\\n' + content + '\\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "macros": """{# a comment #}
  {%- macro shown(value, depth=0, quote='"') -%}
    {%- if value is mapping -%}
      {%- for k, v in value|dictsort -%}
        {{ '  ' * depth ~ quote ~ k ~ quote ~ ': ' }}{{ shown(v, depth + 1) }}{{ ',' if not loop.last }}
      {%- endfor -%}
    {%- elif value is sequence and value is not string -%}
      [{% for v in value %}{{ shown(v, depth=depth, quote="'") }}{% if not loop.last %}, {% endif %}{% endfor %}]
    {%- else -%}
      {{ value }}
    {%- endif -%}
  {%- endmacro -%}
{% set total = namespace(n=0, names=[]) %}
{% for message in messages if message.role != 'system' %}
  {% set total.n = total.n + 1 %}
  {% set total.names = total.names + [message.role] %}
{{ loop.index }}/{{ loop.length }}/{{ loop.revindex0 }} {{ loop.cycle('odd', 'even') }} {{ loop.previtem.role if loop.previtem is defined else 'none before' }}
  {% if loop.index > 3 %}{% break %}{% endif %}
  {%+ if message.role == 'assistant' %}
  {% generation %}
{{ message.content }}
  {% endgeneration %}
  {% continue %}
  {% endif +%}
{{ shown(message) }}
{% else %}
nothing
{% endfor %}
{{ total.n }} {{ total.names }} {{ total.names | unique | join(', ') }} {{ messages | map(attribute='role') | list }}
{% set block | upper %}shout {{ total.n }}{% endset %}
{{ block }} {{ block | length }} {{ block[1:4] }} {{ block[-2:] }} {{ block[::-1] }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 5 }} {{ 1.0 }} {{ 1e20 }} {{ 0.1 + 0.2 }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}
{{ messages | rejectattr('content') | list | length }} {{ [3, 1, 2] | sort }} {{ [3, 1, 2] | first }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a-b-c'.split('-', 1) }}
{{ {'a': 1, 'b': [true, none, 'x\\'y', "q\\"", 1.5]} }} {{ {'z': 'ä', 'a': none} | tojson }} {{ missing | default('d') }} {{ '' | default('e', true) }} {{ missing is defined }} {{ 'x' in 'xyz' and 'k' not in {'k': 1} }}
{{ 'hello world'.title() }} {{ 'ABC'.lower() | capitalize }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX' | replace('X', '+', 1) }} {{ 'text'.find('x') }} {{ ('a' if false) }}|{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ not 0 }} {{ 3 is odd }} {{ 'a' is in ['a'] }} {{ range(1, 10, 3) | list }}
{{ 'line\\nline' | indent(2) }} {{ '5' | int + 1 }} {{ 5.7 | int }} {{ 'x' ~ 5 ~ none }} {{ messages[99] is defined }} {{ messages[0].get('name', 'no name') }} {{ messages[-1]['role'] }} {{ dict(a=1).items() | list | length }}
""",
    "tools": """{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }}: {{ tool.function.parameters.properties.keys() | list | join('|') }} {{ tool | tojson }}{{ '' }}
{% endfor %}{% endif %}{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls is not none %}{% for c in m.tool_calls %}{{ c.function | tojson(ensure_ascii=False) }}{% endfor %}{% endif %}{{ m.content if m.content is not none else 'null' }}{{ eos_token }}
{% endfor %}""",
}

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(template, messages, add_generation_prompt, tools):
    try:
        text, _ = render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=add_generation_prompt, **VARIABLES
        )
        return {"text": text[0]}
    except Exception as error:  # of the template, or of what it does with these messages
        return {"error": str(error)[:200]}


def record(templates):
    recorded = []
    for name, template in templates.items():
        cases = []
        for chat, messages in CHATS.items():
            for tools in [None, TOOLS] if chat in ("called", "question") else [None]:
                for asks in [True, False]:
                    result = rendered(template, messages, asks, tools)
                    cases.append({"messages": messages, "tools": tools, "asks": asks} | result)
        recorded.append({"name": name, "template": template, "variables": VARIABLES, "cases": cases})
    return recorded


def main():
    path = os.path.join(HERE, "chat_templates.json")
    templates = TEMPLATES
    if sys.argv[1:2] == ["--real"]:
        import trl

        path = sys.argv[2]
        files = sorted(glob.glob(os.path.join(os.path.dirname(trl.__file__), "chat_templates", "*.jinja")))
        templates = {os.path.basename(file): open(file, encoding="utf-8", newline="").read() for file in files}
    recorded = record(templates)
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in recorded) + "\n]\n")
    cases = [case for each in recorded for case in each["cases"]]
    print(f"{path}: {len(recorded)} templates, {sum('text' in case for case in cases)} of {len(cases)} chats are rendered")


main()
