#include "network.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/container/modulelist.h>
#include <vernier/json_in.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "../python_load.h"
#include "tokens.h"

namespace text {

namespace {

constexpr double drawn_deviation = 0.02;  // standard deviation of initial embeddings, as in GPT-2

constexpr const char* head =
    R"python(# The network of Vernier's task/text, and a model that takes texts. The network needs PyTorch; for texts
# the package tokenizers is needed too.
#
#   model = load_model()                    # the weights beside this file, or load_model("folder/model.safetensors")
#   model(["cheap flights to Rome"])        # the class or the number of each text
#   model.probabilities(texts)              # of a classification: a dict for each text
#
# load() gives the network, which takes tokens.
import json

import torch
from torch import nn
from torch.nn import functional as F

)python";

constexpr const char* network = R"python(

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.drop = nn.Dropout(DROPOUT)
        self.blocks, self.ln = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.last = nn.Linear(WIDTH, OUTPUTS)
        if HAS_UNITS:
            self.register_buffer("target_mean", torch.zeros((), dtype=torch.float64))
            self.register_buffer("target_deviation", torch.ones((), dtype=torch.float64))

    def forward(self, tokens):
        """tokens: int64 [samples, up to LENGTH]: BEGIN, ids + FIRST_ID, then PADDING."""
        is_text = tokens != PADDING
        x = self.drop(self.embedding(tokens) + self.position[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x, is_text[:, None, None, :])
        weights = is_text.unsqueeze(2).to(x.dtype)
        x = self.last((self.ln(x) * weights).sum(1) / weights.sum(1))
        if OUTPUTS > 1:
            return x
        return x.squeeze(1).double() * self.target_deviation + self.target_mean if HAS_UNITS else x.squeeze(1)

)python";

constexpr const char* texts = R"python(
class Texts:
    """A network that takes texts. Where it was trained on several fields, they are joined by a line end."""

    def __init__(self, network):
        from tokenizers import Tokenizer

        self.network, self.tokenizer = network, Tokenizer.from_str(TOKENIZER)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.tokenizer.encode_special_tokens = True  # what is written in a text stays text

    @torch.no_grad()
    def outputs(self, texts):
        rows = [self.tokenizer.encode(text, add_special_tokens=False).ids[: LENGTH - 1] for text in texts]
        longest = max(map(len, rows), default=0)
        rows = [[BEGIN] + [i + FIRST_ID for i in row] + [PADDING] * (longest - len(row)) for row in rows]
        return self.network(torch.tensor(rows).reshape(len(texts), longest + 1)).double()

    def __call__(self, texts):
        outputs = self.outputs(texts)
        return [FACTS["classes"][i] for i in outputs.argmax(1)] if OUTPUTS > 1 else outputs.tolist()

    def probabilities(self, texts):
        return [dict(zip(FACTS["classes"], row)) for row in self.outputs(texts).softmax(1).tolist()]


def load_model(path=None):
    return Texts(load(path))

)python";

// A JSON text in quotes of JSON and in ASCII is a literal of Python too.
std::string literal(const std::string& text) {
  return vernier::json_text(nlohmann::json(text), -1, true);
}

}  // namespace

Network::Network(bool has_units, std::int64_t padding) : padding_(padding) {
  if (!has_units) return;
  target_mean = register_buffer("target_mean", at::zeros({}, torch::kFloat64));
  target_deviation = register_buffer("target_deviation", at::ones({}, torch::kFloat64));
}

torch::Tensor Network::forward(const torch::Tensor& tokens) {
  if (tokens.dim() == 3) return scores(tokens);
  const auto output = outputs(tokens);
  if (output.size(1) > 1) return output;
  if (!target_mean.defined()) return output.squeeze(1);
  return output.squeeze(1).to(torch::kFloat64)  // numbers without dimensions do not promote
             * target_deviation +
         target_mean;
}

// Computes the texts that are there: a batch is as wide as its largest group.
torch::Tensor Network::scores(const torch::Tensor& groups) {
  const auto places = groups.ne(padding_).any(2).flatten().nonzero().squeeze(1);
  const auto some = forward(groups.flatten(0, 1).index_select(0, places));
  const auto all = at::zeros({groups.size(0) * groups.size(1)}, some.options()).index_copy(0, places, some);
  return all.view({groups.size(0), groups.size(1)});
}

void Network::standardise(const torch::Tensor& targets) {
  const auto numbers = targets.to(torch::kFloat64);
  target_mean.copy_(numbers.mean());
  target_deviation.copy_(numbers.std(/*unbiased=*/false));
}

Encoder::Encoder(const Shape& shape, CallPart call)
    : Network(shape.has_units, encoder_code.padding),
      call_(std::move(call)),
      embedding_(register_module("embedding", torch::nn::Embedding(shape.tokens, shape.width))),
      position_(register_parameter("position", at::empty({shape.length, shape.width}).normal_(0, drawn_deviation))),
      drop_(register_module("drop", torch::nn::Dropout(shape.dropout))),
      ln_(register_module("ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      last_(register_module("last", torch::nn::Linear(shape.width, shape.outputs))) {
  const torch::NoGradGuard no_grad;
  embedding_->weight.normal_(0, drawn_deviation);
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_shared<EncoderBlock>(shape.width, shape.heads, shape.dropout));
    list->push_back(blocks_.back());
  }
  register_module("blocks", list);
}

torch::Tensor Encoder::outputs(const torch::Tensor& tokens) {
  const auto is_text = tokens.ne(encoder_code.padding);
  const auto mask = is_text.unsqueeze(1).unsqueeze(1);
  auto x = drop_->forward(embedding_->forward(tokens) + position_.narrow(0, 0, tokens.size(1)));
  for (const auto& block : blocks_) {
    x = call_([block, mask](const torch::Tensor& input) { return block->forward(input, mask); }, x);
  }
  x = ln_->forward(x);
  const auto weights = is_text.unsqueeze(2).to(x.scalar_type());
  return affine(last_, (x * weights).sum(1) / weights.sum(1));
}

PublishedNetwork::PublishedNetwork(std::shared_ptr<language::Network> model, const Shape& shape, std::uint64_t seed)
    : Network(shape.has_units, Code().padding), model_(register_module("model", std::move(model))) {
  model_->drop_head();
  head_ = language::add_matrix(*this, "score", shape.outputs, model_->width());
  language::draw_weights(*named_children()["score"], seed, [](const auto&) { return drawn_deviation; });
}

// A causal model does not look at what follows a token, so padding behind a text changes nothing.
torch::Tensor PublishedNetwork::outputs(const torch::Tensor& tokens) {
  const auto last = tokens.ge(0).sum(1) - 1;
  const auto features = model_->features({.tokens = tokens.clamp_min(0)});
  const auto place = last.view({-1, 1, 1}).expand({-1, 1, features.size(2)});
  return at::linear(features.gather(1, place).squeeze(1), head_);
}

std::string python_source(const Shape& shape, const std::string& facts, const std::string& tokenizer) {
  const auto json = vernier::json_in<nlohmann::ordered_json>(facts);
  return c10::str(head, "TOKENS, LENGTH, WIDTH, LAYERS, HEADS, DROPOUT, OUTPUTS = ", shape.tokens, ", ", shape.length,
                  ", ", shape.width, ", ", shape.layers, ", ", shape.heads, ", ", shape.dropout, ", ", shape.outputs,
                  "\nHAS_UNITS = ", shape.has_units ? "True" : "False",
                  "\nPADDING, BEGIN, FIRST_ID = ", encoder_code.padding, ", ", encoder_code.before.front(), ", ",
                  encoder_code.first_id, "\nFACTS = json.loads(", literal(vernier::json_text(json, -1, true)), ")\n",
                  tokenizer.empty() ? "" : "TOKENIZER = " + literal(tokenizer) + "\n", python_encoder_block, network,
                  tokenizer.empty() ? "" : texts, python_load);
}

}  // namespace text
