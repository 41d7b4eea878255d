"""A step of GPT-2 with 124 million parameters in PyTorch: gpt_pytorch.py fp32|tf32|bf16|fp16 eager|compile [cpu]"""
import contextlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, WORDS, CONTEXT, BATCH = 12, 12, 768, 50257, 1024, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.attn(self.ln_1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, WORDS).float(), y.reshape(-1))


def main():
    precision, mode, *rest = sys.argv[1:]
    device = rest[0] if rest else "cuda"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    network = Network().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    forward = torch.compile(network) if mode == "compile" else network
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    text = torch.randint(WORDS, (BATCH, CONTEXT + 1), device=device)

    def step():
        with torch.autocast(device, dtype) if dtype else contextlib.nullcontext():
            loss = forward(text[:, :-1], text[:, 1:])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    start, steps = time.monotonic(), 30
    for _ in range(steps):
        step()
    wait()
    seconds = (time.monotonic() - start) / steps
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    print(f"{1000 * seconds:.1f} ms, {BATCH * CONTEXT / seconds:.0f} tokens/s, {peak:.2f} GiB")


if __name__ == "__main__":
    main()
