#include "weight_files.h"

#include <vernier/error.h>

#include <string.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace vernier {

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& text) {
  throw Error(path + ": " + text, Error::Kind::configuration);
}

[[noreturn]] void refuse(const std::string& path, const std::string& tensor, const std::string& text) {
  refuse(path, "tensor '" + tensor + "': " + text);
}

// What is kept under "<plugin>…/<kind>/<name of the weight>".
Tensors kept_by(const std::string& plugin, const StoredCheckpoint& stored, const std::string& kind) {
  Tensors kept;
  for (const auto& [name, tensor] : stored.state) {
    const auto place = name.find("/" + kind + "/");
    if (name.starts_with(plugin) && place != std::string::npos) {
      kept[name.substr(place + kind.size() + 2)] = tensor;
    }
  }
  return kept;
}

std::int64_t not_finite(const torch::Tensor& tensor) {
  return tensor.numel() - tensor.isfinite().sum().item<std::int64_t>();
}

std::string python_dtype(torch::ScalarType type) {
  return "torch." + c10::getDtypeNames(type).first;
}

// A text of Python in double quotes.
std::string python_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      constexpr char digits[] = "0123456789abcdef";
      quoted += std::string("\\x0") + digits[c & 15];
      quoted[quoted.size() - 2] = digits[c >> 4];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string python_shape(c10::IntArrayRef sizes) {
  std::string text = "(";
  for (const auto size : sizes) text += std::to_string(size) + (sizes.size() == 1 ? "," : ", ");
  if (sizes.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

constexpr const char* python_code = R"(

def load(path=None, device="cpu"):
    """The weights by name. path: the safetensors file; default: the one beside this file."""
    path = path or os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE)
    weights = load_file(path, device=device)
    for name in sorted(TENSORS.keys() | weights.keys()):
        if name not in weights:
            raise ValueError(f"{path}: has no tensor {name!r}")
        if name not in TENSORS:
            raise ValueError(f"{path}: tensor {name!r} is not of this model")
        found = (weights[name].dtype, tuple(weights[name].shape))
        if found != TENSORS[name]:
            raise ValueError(f"{path}: tensor {name!r} is {found}, and must be {TENSORS[name]}")
    return weights


class Model(torch.nn.Module):
    """The weights as parameters and buffers of modules, by their dotted names."""

    def __init__(self, path=None, device="cpu"):
        super().__init__()
        weights = load(path, device)
        for name in TENSORS:
            module, (*parts, last) = self, name.split(".")
            for part in parts:
                if part not in dict(module.named_children()):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            if weights[name].is_floating_point() and last not in ("running_mean", "running_var"):
                module.register_parameter(last, torch.nn.Parameter(weights[name]))
            else:
                module.register_buffer(last, weights[name])
)";

// As task/gpt computes it (plugins/task/gpt/model.cpp).
constexpr const char* python_forward_of_gpt2 = R"(
    def forward(self, tokens):
        """Logits [batch, time, vocabulary] of what follows each of the tokens, int64 [batch, time]. No dropout."""

        def linear(layer, x):  # a weight is [inputs, outputs]
            return F.linear(x, layer.weight.t(), layer.bias)

        def norm(layer, x):
            return F.layer_norm(x, layer.weight.shape, layer.weight, layer.bias, 1e-5)

        x = F.embedding(tokens, self.wte.weight) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h.children():
            q, k, v = linear(block.attn.c_attn, norm(block.ln_1, x)).chunk(3, dim=2)
            q, k, v = (y.unflatten(2, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(block.attn.c_proj, y.transpose(1, 2).flatten(2))
            y = F.gelu(linear(block.mlp.c_fc, norm(block.ln_2, x)), approximate="tanh")
            x = x + linear(block.mlp.c_proj, y)
        return F.linear(norm(self.ln_f, x), self.wte.weight)
)";

constexpr const char* python_program = R"(

if __name__ == "__main__":
    loaded = load(*sys.argv[1:2])
    for name, tensor in loaded.items():
        print(f"{name}  {tensor.dtype}  {tuple(tensor.shape)}")
    print(f"{len(loaded)} tensors, as they must be")
)";

bool is_causal_mask(const std::string& name, const torch::Tensor& tensor) {
  return name.ends_with(".attn.masked_bias") || (name.ends_with(".attn.bias") && tensor.dim() == 4);
}

// The shapes of a GPT-2 of so many layers, by name.
std::map<std::string, std::vector<std::int64_t>> gpt2_shapes(std::int64_t layers, std::int64_t width,
                                                             std::int64_t vocabulary, std::int64_t context) {
  std::map<std::string, std::vector<std::int64_t>> shapes = {{"wte.weight", {vocabulary, width}},
                                                             {"wpe.weight", {context, width}},
                                                             {"ln_f.weight", {width}},
                                                             {"ln_f.bias", {width}}};
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string block = "h." + std::to_string(i) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      shapes[block + norm + ".weight"] = {width};
      shapes[block + norm + ".bias"] = {width};
    }
    const auto linear = [&](const std::string& name, std::int64_t inputs, std::int64_t outputs) {
      shapes[block + name + ".weight"] = {inputs, outputs};
      shapes[block + name + ".bias"] = {outputs};
    };
    linear("attn.c_attn", width, 3 * width);
    linear("attn.c_proj", width, width);
    linear("mlp.c_fc", width, 4 * width);
    linear("mlp.c_proj", 4 * width, width);
  }
  return shapes;
}

const torch::Tensor& table(const std::string& path, const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) refuse(path, "has no tensor '" + name + "', so it is not of GPT-2's layout");
  if (found->second.dim() != 2) refuse(path, name, c10::str("is ", found->second.sizes(), ", not a table"));
  return found->second;
}

// Counts blocks by their first norm; what else a block lacks is then told by its name.
std::int64_t count_blocks(const Tensors& tensors) {
  std::int64_t layers = 0;
  while (tensors.count("h." + std::to_string(layers) + ".ln_1.weight") != 0) ++layers;
  return layers;
}

bool is_gpt2(const Tensors& tensors) {
  const auto tokens = tensors.find("wte.weight"), positions = tensors.find("wpe.weight");
  if (tokens == tensors.end() || positions == tensors.end()) return false;
  if (tokens->second.dim() != 2 || positions->second.dim() != 2) return false;
  const auto shapes =
      gpt2_shapes(count_blocks(tensors), tokens->second.size(1), tokens->second.size(0), positions->second.size(0));
  return std::ranges::equal(tensors, shapes, [](const auto& tensor, const auto& shape) {
    return tensor.first == shape.first && tensor.second.sizes() == c10::IntArrayRef(shape.second);
  });
}

}  // namespace

Tensors best_weights(const StoredCheckpoint& stored) {
  const auto masters = kept_by("plugin/precision/", stored, "master");
  const auto compensations = kept_by("plugin/precision/", stored, "compensation");
  Tensors weights;
  for (const auto& [name, tensor] : stored.model) {
    const auto master = masters.find(name), compensation = compensations.find(name);
    if (master != masters.end()) {
      weights[name] = master->second;
    } else if (compensation != compensations.end()) {
      weights[name] = tensor.to(torch::kFloat32).add_(compensation->second);
    } else {
      weights[name] = tensor;
    }
  }
  return weights;
}

Tensors averaged_weights(const std::string& path, const StoredCheckpoint& stored) {
  const auto averages = kept_by("plugin/callback/ema/", stored, "average");
  if (averages.empty()) {
    refuse(path, "has no average of the weights; a run with [[callback]] use = \"ema\" keeps one once it has begun");
  }
  auto weights = best_weights(stored);
  for (const auto& [name, average] : averages) weights[name] = average;
  return weights;
}

Tensors cast_weights(const std::string& path, const Tensors& tensors, torch::ScalarType dtype) {
  Tensors cast;
  for (const auto& [name, tensor] : tensors) {
    cast[name] = tensor.is_floating_point() ? tensor.to(dtype) : tensor;
    if (!tensor.is_floating_point()) continue;
    const auto lost = not_finite(cast[name]) - not_finite(tensor);
    if (lost > 0) {
      refuse(path, name,
             c10::str(lost, " of its values are too large for ", c10::getDtypeNames(dtype).first,
                      "; take bfloat16 or float32"));
    }
  }
  return cast;
}

std::string python_module(const std::string& weights, const std::string& from, const Tensors& tensors,
                          std::optional<std::int64_t> heads) {
  const bool has_forward = heads && is_gpt2(tensors);
  std::ostringstream out;
  out << "# Weights of " << from << "; needs torch and safetensors.\n#\n"
      << "#   weights = load()    the tensors by name; names, dtypes and shapes are checked\n"
      << "#   model = Model()     a torch.nn.Module that has them"
      << (has_forward ? ": logits = model(tokens)\n" : "; a subclass of yours gives it a forward\n")
      << "#\n# Run as a program it checks the file, or that of the path it is given, and prints what is in it.\n"
      << "import os\nimport sys\n\nimport torch\n"
      << (has_forward ? "import torch.nn.functional as F\n" : "") << "from safetensors.torch import load_file\n\n"
      << "FILE = " << python_text(weights) << "\n\n";
  if (has_forward) out << "HEADS = " << *heads << "\n\n";
  out << "TENSORS = {\n";
  // The tenth layer comes after the second: modules are made in this order, and who goes through them expects it.
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  std::ranges::stable_sort(names, [](const auto& a, const auto& b) { return ::strverscmp(a.c_str(), b.c_str()) < 0; });
  for (const auto& name : names) {
    const auto& tensor = tensors.at(name);
    out << "    " << python_text(name) << ": (" << python_dtype(tensor.scalar_type()) << ", "
        << python_shape(tensor.sizes()) << "),\n";
  }
  out << "}\n" << python_code << (has_forward ? python_forward_of_gpt2 : "") << python_program;
  return out.str();
}

Tensors from_gpt2(const std::string& path, const Tensors& published, std::vector<std::string>& told) {
  const std::string prefix = "transformer.";
  Tensors tensors;
  std::int64_t masks = 0;
  torch::Tensor head;
  for (const auto& [full, tensor] : published) {
    const std::string name = full.starts_with(prefix) ? full.substr(prefix.size()) : full;
    if (is_causal_mask(name, tensor)) {
      ++masks;
    } else if (name == "lm_head.weight") {
      head = tensor;
    } else if (!tensors.emplace(name, tensor).second) {
      refuse(path, name, "is there with and without '" + prefix + "' before its name");
    }
  }
  const auto& tokens = table(path, tensors, "wte.weight");
  const auto& positions = table(path, tensors, "wpe.weight");
  const auto width = tokens.size(1), layers = count_blocks(tensors);
  if (layers == 0) refuse(path, "has no tensor 'h.0.ln_1.weight', so it is not of GPT-2's layout");
  if (head.defined() && !head.equal(tokens)) {
    refuse(path, "lm_head.weight", "differs from 'wte.weight'; GPT-2 and task/gpt have one tensor for both");
  }
  // [outputs, inputs] where a program has made Linear of GPT-2's Conv1D. That of attn.c_proj is square: told by this
  // one.
  const auto first = tensors.find("h.0.attn.c_attn.weight");
  const bool is_linear = first != tensors.end() && first->second.dim() == 2 && first->second.size(0) == 3 * width;
  const auto shapes = gpt2_shapes(layers, width, tokens.size(0), positions.size(0));
  std::int64_t turned = 0;
  for (const auto& [name, shape] : shapes) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) refuse(path, "has no tensor '" + name + "'");
    auto& tensor = found->second;
    if (is_linear && name.starts_with("h.") && tensor.dim() == 2) {
      tensor = tensor.t().contiguous();
      ++turned;
    }
    if (tensor.sizes() != c10::IntArrayRef(shape)) {
      refuse(path, name, c10::str("is ", found->second.sizes(), ", and must be ", c10::IntArrayRef(shape)));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (shapes.count(name) == 0) refuse(path, name, "is none of GPT-2's");
  }
  told.push_back(c10::str("GPT-2 of ", layers, layers == 1 ? " layer" : " layers", ", width ", width, ", context ",
                          positions.size(0), ", vocabulary ", tokens.size(0)));
  if (turned > 0) told.push_back(c10::str(turned, " weights transposed from [outputs, inputs]"));
  if (masks > 0) told.push_back(c10::str(masks, " causal masks left out"));
  if (head.defined()) told.push_back("lm_head.weight left out: it is wte.weight");
  return tensors;
}

}  // namespace vernier
