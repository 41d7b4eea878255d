// The files of a trained tokenizer, in the layout of GPT-2's folder.
#include <vernier/error.h>
#include <vernier/text/bpe_trainer.h>
#include <vernier/whole_file.h>

#include "files/json.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

std::string in_json(const std::string& text) {
  return json_text(Json(text));
}

std::string vocab_json(const TrainedBpe& trained) {
  std::string text = "{";
  for (std::size_t id = 0; id < trained.tokens.size(); ++id) {
    text += (id > 0 ? "," : "") + in_json(trained.tokens[id]) + ":" + std::to_string(id);
  }
  return text + "}";
}

std::string added_tokens(const std::vector<std::string>& special) {
  std::string text;
  for (std::size_t id = 0; id < special.size(); ++id) {
    text += (id > 0 ? ",\n" : "") + std::string("    {\"id\": ") + std::to_string(id) +
            ", \"content\": " + in_json(special[id]) +
            ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}";
  }
  return "[\n" + text + "\n  ]";
}

std::string tokenizer_json(const TrainedBpe& trained, const std::vector<std::string>& special) {
  const auto byte_level = [](const char* adds_space) {
    return std::string(R"({"type": "ByteLevel", "add_prefix_space": )") + adds_space +
           R"(, "trim_offsets": true, "use_regex": true})";
  };
  std::string merges;
  for (const auto& [left, right] : trained.merges) {
    merges += (merges.empty() ? "" : ",") + std::string("\n      [") +
              in_json(trained.tokens[static_cast<std::size_t>(left)]) + ", " +
              in_json(trained.tokens[static_cast<std::size_t>(right)]) + "]";
  }
  return "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": " +
         added_tokens(special) + ",\n  \"normalizer\": null,\n  \"pre_tokenizer\": " + byte_level("false") +
         ",\n  \"post_processor\": null,\n  \"decoder\": " + byte_level("true") +
         ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n" +
         "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n" +
         "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": " + vocab_json(trained) +
         ",\n    \"merges\": [" + merges + "\n    ]\n  }\n}\n";
}

std::string merges_txt(const TrainedBpe& trained) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : trained.merges) {
    text +=
        trained.tokens[static_cast<std::size_t>(left)] + " " + trained.tokens[static_cast<std::size_t>(right)] + "\n";
  }
  return text;
}

}  // namespace

void save_bpe(const fs::path& folder, const TrainedBpe& trained, const std::vector<std::string>& special) {
  for (const auto* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"}) {
    if (fs::exists(folder / name)) refuse("'" + (folder / name).string() + "' is there already; name another folder");
  }
  std::error_code trouble;
  fs::create_directories(folder, trouble);
  if (trouble) refuse("'" + folder.string() + "' cannot be made: " + trouble.message());
  write_whole(folder / "vocab.json", vocab_json(trained));
  write_whole(folder / "merges.txt", merges_txt(trained));
  write_whole(folder / "tokenizer_config.json",
              special.empty()
                  ? "{\"tokenizer_class\": \"GPT2Tokenizer\"}\n"
                  : "{\"tokenizer_class\": \"GPT2Tokenizer\", \"eos_token\": " + in_json(special[0]) + "}\n");
  write_whole(folder / "tokenizer.json", tokenizer_json(trained, special));
}

}  // namespace vernier
