// `vernier export --format gguf`: the file by a reader of its own. tests/oracles/gguf_models.py reads such files with
// the packages gguf and transformers.
#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "run_folder.h"
#include "thrown.h"
#include "tools/export/gguf_model.h"

namespace gguf_test {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using vernier::gguf::Type;

const std::string tokenizers = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

// A GGUF file, read by the words of its specification.
struct Read {
  explicit Read(const std::string& path) : text(read_text(path)) {
    CHECK(take<std::uint32_t>() == 0x46554747);
    CHECK(take<std::uint32_t>() == 3);
    const auto count = take<std::uint64_t>(), all = take<std::uint64_t>();
    for (std::uint64_t i = 0; i < all; ++i) {
      const auto key = take_text();
      keys[key] = take_value(take<std::uint32_t>());
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      auto& tensor = tensors[take_text()];
      for (auto left = take<std::uint32_t>(); left > 0; --left) {
        tensor.sizes.insert(tensor.sizes.begin(), static_cast<std::int64_t>(take<std::uint64_t>()));
      }
      tensor.type = static_cast<Type>(take<std::uint32_t>());
      tensor.offset = take<std::uint64_t>();
      CHECK(tensor.offset % 32 == 0);
    }
    data = (at + 31) / 32 * 32;
    CHECK(text.size() % 32 == 0);
  }

  // The numbers of a tensor in float32, one by one.
  torch::Tensor values(const std::string& name) {
    const auto& tensor = tensors.at(name);
    at = data + tensor.offset;
    auto result = torch::empty(tensor.sizes);
    auto* out = result.data_ptr<float>();
    float scale = 0;
    for (std::int64_t i = 0; i < result.numel(); ++i) {
      switch (tensor.type) {
        case Type::f32:
          out[i] = take<float>();
          break;
        case Type::f16:
          out[i] = take<c10::Half>();
          break;
        case Type::bf16:
          out[i] = take<c10::BFloat16>();
          break;
        case Type::q8_0:
          if (i % 32 == 0) scale = take<c10::Half>();
          out[i] = scale * take<std::int8_t>();
      }
    }
    return result;
  }

  template <class Number>
  Number take() {
    Number number;
    REQUIRE(at + sizeof number <= text.size());
    std::memcpy(&number, text.data() + at, sizeof number);
    at += sizeof number;
    return number;
  }
  std::string take_text() {
    const auto size = take<std::uint64_t>();
    REQUIRE(at + size <= text.size());
    at += size;
    return text.substr(at - size, size);
  }
  Json take_value(std::uint32_t type) {
    switch (type) {
      case 4:
        return take<std::uint32_t>();
      case 5:
        return take<std::int32_t>();
      case 6:
        return take<float>();
      case 7:
        return take<bool>();
      case 8:
        return take_text();
      default:
        break;
    }
    REQUIRE(type == 9);
    const auto item = take<std::uint32_t>();
    auto list = Json::array();
    for (auto left = take<std::uint64_t>(); left > 0; --left) list.push_back(take_value(item));
    return list;
  }

  struct Tensor {
    std::vector<std::int64_t> sizes;
    Type type;
    std::uint64_t offset;
  };
  std::string text;
  std::size_t at = 0, data = 0;
  std::map<std::string, Json> keys;
  std::map<std::string, Tensor> tensors;
};

// A folder of a small Llama, or what `change` makes of it.
struct Model {
  explicit Model(const std::string& tokenizer, const Json& change = {}) {
    config = {{"model_type", "llama"},      {"hidden_size", 64},
              {"intermediate_size", 48},    {"vocab_size", 500},
              {"num_hidden_layers", 1},     {"num_attention_heads", 4},
              {"num_key_value_heads", 2},   {"max_position_embeddings", 256},
              {"tie_word_embeddings", true}};
    if (!change.is_null()) config.update(change);
    torch::manual_seed(1);
    const std::pair<const char*, std::vector<std::int64_t>> all[] = {{"embed_tokens", {500, 64}},
                                                                     {"norm", {64}},
                                                                     {"layers.0.input_layernorm", {64}},
                                                                     {"layers.0.post_attention_layernorm", {64}},
                                                                     {"layers.0.self_attn.q_proj", {64, 64}},
                                                                     {"layers.0.self_attn.k_proj", {32, 64}},
                                                                     {"layers.0.self_attn.v_proj", {32, 64}},
                                                                     {"layers.0.self_attn.o_proj", {64, 64}},
                                                                     {"layers.0.mlp.gate_proj", {48, 64}},
                                                                     {"layers.0.mlp.up_proj", {48, 64}},
                                                                     {"layers.0.mlp.down_proj", {64, 48}}};
    for (const auto& [name, sizes] : all) weights[std::string("model.") + name + ".weight"] = torch::randn(sizes);
    folder.write("m/config.json", config.dump());
    vernier::save_safetensors(folder / "m/model.safetensors", weights);
    if (!tokenizer.empty()) fs::copy_file(tokenizers + tokenizer + "/tokenizer.json", folder / "m/tokenizer.json");
  }
  Read written(Type type = Type::f32) const {
    vernier::gguf::write_model(folder / "m", folder / "m.gguf", type);
    return Read(folder / "m.gguf");
  }
  const torch::Tensor& weight(const std::string& name) const { return weights.at("model." + name + ".weight"); }

  TemporaryFolder folder;
  Json config;
  vernier::Tensors weights;
};

// Checks that the rows of each head are those of its two halves, in turn.
void check_heads(const torch::Tensor& there, const torch::Tensor& here, std::int64_t heads) {
  const auto half = here.size(0) / heads / 2;
  for (std::int64_t row = 0; row < here.size(0); ++row) {
    const auto head = row / (2 * half), of_head = row % (2 * half);
    CHECK(torch::equal(there[row], here[head * 2 * half + (of_head % 2) * half + of_head / 2]));
  }
}

}  // namespace

TEST_CASE("gguf: names, places and numbers of a Llama's tensors") {
  const Model model("llama3");
  for (const auto type : {Type::f32, Type::f16, Type::bf16, Type::q8_0}) {
    auto file = model.written(type);
    CHECK(file.tensors.size() == 11);
    CHECK(torch::equal(file.values("output_norm.weight"), model.weight("norm")));
    CHECK(torch::equal(file.values("blk.0.ffn_norm.weight"), model.weight("layers.0.post_attention_layernorm")));
    const auto up = model.weight("layers.0.mlp.up_proj");
    const double step = type == Type::f32 ? 0 : type == Type::f16 ? 0x1p-11 : type == Type::bf16 ? 0x1p-8 : 0.6 / 127;
    CHECK((file.values("blk.0.ffn_up.weight") - up).abs().max().item<double>() <= step * up.abs().max().item<double>());
    CHECK(file.tensors.at("blk.0.ffn_up.weight").type == type);
    // Rows of 48 numbers cannot be cut into blocks of 32.
    CHECK(file.tensors.at("blk.0.ffn_down.weight").type == (type == Type::q8_0 ? Type::f16 : type));
  }
  auto file = model.written();
  check_heads(file.values("blk.0.attn_q.weight"), model.weight("layers.0.self_attn.q_proj"), 4);
  check_heads(file.values("blk.0.attn_k.weight"), model.weight("layers.0.self_attn.k_proj"), 2);
}

TEST_CASE("gguf: keys have the family's number of heads where it is missing, and all where it is null") {
  for (const std::string family : {"llama", "mistral"}) {
    for (const bool is_null : {false, true}) {
      CAPTURE(family);
      CAPTURE(is_null);
      Model model("llama2", {{"model_type", family}, {"num_attention_heads", 16}, {"num_key_value_heads", nullptr}});
      if (!is_null) model.config.erase("num_key_value_heads");
      model.folder.write("m/config.json", model.config.dump());
      const int heads = family == "mistral" && !is_null ? 8 : 16;
      auto file = model.written();
      CHECK(file.keys["llama.attention.head_count_kv"] == heads);
      check_heads(file.values("blk.0.attn_k.weight"), model.weight("layers.0.self_attn.k_proj"), heads);
    }
  }
}

TEST_CASE("gguf: q8_0 rounds halves away from zero, and a row of zeros stays") {
  vernier::gguf::File file;
  auto row = torch::zeros({2, 32});
  for (int i = 0; i < 32; ++i) row[0][i] = (i - 16) / 2.0;
  row[0][0] = 127.0;
  file.add("x", row, Type::q8_0);
  const TemporaryFolder folder;
  file.write(folder / "x.gguf");
  Read read(folder / "x.gguf");
  const auto values = read.values("x");
  for (int i = 1; i < 32; ++i) CHECK(values[0][i].item<double>() == std::round((i - 16) / 2.0));
  CHECK(values[1].abs().max().item<double>() == 0);
}

TEST_CASE("gguf: keys of the model and of its tokenizer") {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const struct {
    const char* tokenizer;
    Json change;
    std::map<std::string, Json> keys;
  } cases[] = {
      {"llama3",
       {},
       {{"general.architecture", "llama"},
        {"llama.context_length", 256},
        {"llama.attention.head_count_kv", 2},
        {"llama.attention.layer_norm_rms_epsilon", 1e-6F},
        {"llama.rope.freq_base", 10000.0F},
        {"tokenizer.ggml.model", "gpt2"},
        {"tokenizer.ggml.pre", "llama-bpe"},
        {"tokenizer.ggml.add_bos_token", true}}},
      {"llama3", {{"rope_theta", 5e5}, {"rope_scaling", llama3}}, {{"llama.rope.freq_base", 5e5F}}},
      {"llama3",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}},
       {{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.factor", 4.0F}}},
      {"llama2",
       {{"model_type", "mistral"}},
       {{"general.architecture", "llama"}, {"tokenizer.ggml.model", "llama"}, {"llama.context_length", 256}}},
      {"llama2", {{"model_type", "mistral"}, {"sliding_window", 32}}, {{"llama.context_length", 32}}},
      {"llama2", {{"model_type", "mistral"}, {"sliding_window", nullptr}}, {{"llama.context_length", 256}}},
      {"qwen2",
       {{"model_type", "qwen2"}},
       {{"general.architecture", "qwen2"}, {"qwen2.embedding_length", 64}, {"tokenizer.ggml.pre", "qwen2"}}},
      {"gpt2",
       {{"model_type", "qwen3"}, {"head_dim", 16}},
       {{"qwen3.attention.key_length", 16}, {"tokenizer.ggml.pre", "gpt-2"}}},
  };
  for (const auto& [tokenizer, change, keys] : cases) {
    CAPTURE(change.dump());
    const Model model(tokenizer, change);
    auto file = model.written();
    for (const auto& [key, value] : keys) CHECK_MESSAGE(file.keys[key] == value, key, " is ", file.keys[key].dump());
    const auto& tokens = file.keys["tokenizer.ggml.tokens"];
    CHECK(tokens.size() == 500);
    const auto json = Json::parse(read_text(tokenizers + tokenizer + "/tokenizer.json"));
    for (const auto& [text, id] : json["model"]["vocab"].items()) CHECK(tokens[id.get<std::size_t>()] == text);
    for (const auto& added : json["added_tokens"]) {
      CHECK(tokens[added["id"].get<std::size_t>()] == added["content"]);
      const auto type = file.keys["tokenizer.ggml.token_type"][added["id"].get<std::size_t>()];
      CHECK((type == (added["special"] ? 3 : 4) || type == 2));
    }
    CHECK(tokens[499] == "[PAD499]");
    const bool has_factors = change.dump().find("llama3") != std::string::npos;
    CHECK((file.tensors.count("rope_freqs.weight") != 0) == has_factors);
    if (!has_factors) continue;
    // The fastest turn as they did, the slowest at an eighth.
    const auto factors = file.values("rope_freqs.weight");
    CHECK(factors[0].item<double>() == 1);
    CHECK(factors[-1].item<double>() == 8);
  }
}

TEST_CASE("gguf: what llama.cpp would compute otherwise is refused in one line") {
  const struct {
    const char* tokenizer;
    Json change;
    const char* says;
  } cases[] = {
      {"llama3", {{"model_type", "gemma2"}}, "and this is gemma2; --format huggingface"},
      {"llama3", {{"hidden_act", "gelu"}}, "config.json has hidden_act = \"gelu\", which a GGUF file cannot say"},
      {"llama3", {{"num_hidden_layers", nullptr}}, "config.json has no num_hidden_layers"},
      {"llama3", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}, "rope_type = \"dynamic\""},
      {"", {}, "the run has no tokenizer.json, and GGUF holds the tokenizer; set task.tokenizer"},
      {"deepseek", {}, "cuts texts neither as GPT-2, nor as Llama 3, nor as Qwen 2"},
  };
  for (const auto& [tokenizer, change, part] : cases) {
    CAPTURE(part);
    const Model model(tokenizer, change);
    const auto thrown =
        thrown_by([&] { vernier::gguf::write_model(model.folder / "m", model.folder / "m.gguf", Type::f16); });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, part), thrown.text);
    CHECK(thrown.text.find('\n') == std::string::npos);
  }
}

TEST_CASE("gguf: a run is exported, and other formats refuse --dtype") {
  Model model("llama3");
  RunFolder run(R"(
[run]
steps = 1
output = "out"
threads = 1
[task]
use = "llama"
folder = "m"
data = ["d.txt"]
validation_share = 0.0
context = 8
batch_size = 1
[optimizer]
use = "sgd"
learning_rate = 0.0
)");
  fs::copy(model.folder / "m", run.at("m"), fs::copy_options::recursive);
  run.folder.write("d.txt", "abc abc abc never never abc abc abc never never abc abc abc");
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  fs::remove_all(run.at("m"));
  REQUIRE_MESSAGE(run.call({"export", "out", "--format", "gguf", "--dtype", "f32", "--output", "m.gguf"}) == 0,
                  run.err);
  CHECK(torch::equal(Read(run.at("m.gguf")).values("token_embd.weight"), model.weight("embed_tokens")));
  CHECK(run.call({"export", "out", "--format", "gguf", "--dtype", "q4_0", "--output", "n.gguf"}) == 2);
  CHECK(says(run.err, "--dtype is q4_0, and must be f32, f16, bf16 or q8_0"));
  CHECK(run.call({"export", "out", "--format", "huggingface", "--dtype", "f16", "--output", "n"}) == 2);
  CHECK(says(run.err, "--dtype is for --format gguf"));
  CHECK_FALSE(fs::exists(run.at("n.gguf")));
}

}  // namespace gguf_test
