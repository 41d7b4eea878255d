"""Asks `vernier generate --listen` with OpenAI's own Python package.

    python3 tests/oracles/openai_client.py URL TOKEN MODEL    URL: http://127.0.0.1:8000/v1

Needs openai 2 or later. MODEL has a template for chats.
"""

import sys
import threading

import openai

url, token, model = sys.argv[1:4]
client = openai.OpenAI(base_url=url, api_key=token, max_retries=0)
messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Two and two?"}]

assert [each.id for each in client.models.list()] == [model]
assert client.models.retrieve(model).owned_by == "vernier"

chat = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3)
choice = chat.choices[0]
assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
assert len(choice.logprobs.content) == chat.usage.completion_tokens
assert all(len(each.top_logprobs) == 3 and each.top_logprobs[0].token == each.token for each in choice.logprobs.content)

stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
)
text, ends, usage = "", [], None
for chunk in stream:
    for each in chunk.choices:
        text += each.delta.content or ""
        ends += [each.finish_reason] if each.finish_reason else []
    usage = chunk.usage or usage
assert text == choice.message.content and ends == [choice.finish_reason] and usage == chat.usage.model_copy(), (text, choice)

parts = [{"role": "user", "content": [{"type": "text", "text": "Two and two?"}]}]
plain = client.chat.completions.create(model=model, messages=messages[1:], max_tokens=12, temperature=0)
assert client.chat.completions.create(model=model, messages=parts, max_tokens=12, temperature=0).choices == plain.choices

drawn = [client.chat.completions.create(model=model, messages=messages, max_tokens=8, n=3, seed=s).choices for s in (5, 5, 6)]
assert len(drawn[0]) == 3 and drawn[0] == drawn[1] and drawn[0] != drawn[2]

whole = client.completions.create(model=model, prompt=["Once", "Twice"], max_tokens=6, temperature=0, n=2, logprobs=2)
assert [each.index for each in whole.choices] == [0, 1, 2, 3] and whole.choices[0].text == whole.choices[1].text
assert len(whole.choices[0].logprobs.tokens) == len(whole.choices[0].logprobs.token_logprobs)
pieces = client.completions.create(model=model, prompt="Once", max_tokens=6, temperature=0, stream=True)
assert "".join(each.choices[0].text for each in pieces) == whole.choices[0].text

for error, call in {
    openai.NotFoundError: lambda: client.chat.completions.create(model="gpt-4", messages=messages),
    openai.BadRequestError: lambda: client.chat.completions.create(
        model=model, messages=messages, tools=[{"type": "function", "function": {"name": "f"}}]
    ),
    openai.AuthenticationError: lambda: client.with_options(api_key="x" * 64).models.list(),
}.items():
    try:
        call()
    except error as given:
        assert given.body["message"], given.body
    else:
        raise SystemExit(f"{error.__name__} did not come")

threads = [
    threading.Thread(target=lambda: client.completions.create(model=model, prompt="Once", max_tokens=20)) for _ in range(8)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all answers are as OpenAI's package expects them")
