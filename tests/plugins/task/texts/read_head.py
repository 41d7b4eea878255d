"""Reads the folder `written` by transformers, and fails where it is no Llama with a head of three classes."""

import torch
import transformers

model, told = transformers.LlamaForSequenceClassification.from_pretrained("written", output_loading_info=True)
assert not any(told.values()), told
assert model.config.id2label == {0: "a", 1: "b", 2: "c"}, model.config.id2label
assert model(torch.tensor([[1, 2]])).logits.shape == (1, 3)
