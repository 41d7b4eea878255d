// Tokens of text on one thread: 3 MB of this repository's code and prose in texts of 64 kB, and a vocabulary of 16,000
// tokens that is trained on them: byte-level BPE cut as GPT-2 and as Llama 3 do, WordPiece, Unigram, and the two of
// SentencePiece. Rivals: the package tokenizers (encode_batch_fast, its fastest way), tiktoken with the same merges,
// and sentencepiece, where python3 has them (tokenizer_rival.py). The ids must be the same. Bar: faster than all.
//
//   tokenizer [--check]     --check: exits with 1 where a bar is missed
#include <vernier/text/bpe_trainer.h>
#include <vernier/text/tokenizer.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "compare.h"
#include "python_rival.h"
#include "text/unicode/unicode.h"

namespace {

namespace fs = std::filesystem;

constexpr std::size_t text_bytes = 64 << 10, all_bytes = 3 << 20;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The files of the repository, several times if they are too few.
std::string corpus() {
  std::vector<fs::path> files;
  for (const auto* folder : {"docs", "framework", "sdk", "plugins", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(VERNIER_SOURCE_DIR) / folder)) {
      const auto kind = entry.path().extension();
      if (kind == ".md" || kind == ".cpp" || kind == ".h" || kind == ".py") files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  std::string text;
  while (text.size() < all_bytes) {
    for (const auto& file : files) text += vernier::with_replacements(read(file));
  }
  text.resize(all_bytes);
  return text.substr(0, text.rfind('\n'));
}

std::vector<std::string> texts_of(const std::string& all) {
  std::vector<std::string> texts;
  for (std::string_view rest = all; !rest.empty();) {
    const auto size = rest.size() > text_bytes ? rest.rfind('\n', text_bytes) + 1 : rest.size();
    texts.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return texts;
}

// Two folders with the same tokens: trained as GPT-2 cuts a text, and the same with Llama 3's rule.
void make_tokenizers(const std::string& text, const fs::path& folder) {
  vernier::PieceCounts counts;
  counts.add(text);
  vernier::BpeTraining training;
  training.vocabulary = 16000;
  training.special = {"<|endoftext|>"};
  vernier::save_bpe(folder / "gpt2", vernier::train_bpe(counts, training), training.special);
  auto json = read(folder / "gpt2" / "tokenizer.json");
  const std::string from =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const std::string regex =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*)"
      R"(|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  json.replace(
      json.find(from), from.size(),
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")" + regex +
          R"("}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, )" +
          R"("trim_offsets": true, "use_regex": false}]})");
  fs::create_directories(folder / "llama3");
  write(folder / "llama3" / "tokenizer.json", json);
}

bool are_same_ids(const vernier::Tokenizer& tokenizer, const std::vector<std::string>& texts, const fs::path& path) {
  const auto recorded = read(path);
  std::string bytes;
  for (const auto& text : texts) {
    const auto ids = tokenizer.encode(text);
    bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(vernier::TokenId));
  }
  return bytes == recorded;
}

bool compare_style(const char* style, const std::vector<std::string>& texts, std::size_t bytes,
                   const fs::path& folder) {
  Python python("tokenizer_rival.py", {folder.string(), style});  // trains some of the styles
  if (!vernier::has_tokenizer(folder / style)) {
    std::printf("%s: skipped, since python3 has not its packages\n", style);
    return true;
  }
  const auto tokenizer = vernier::open_tokenizer(folder / style);
  std::vector<Rival> rivals = {{"vernier::Tokenizer", [&] {
                                  for (const auto& text : texts) tokenizer->encode(text);
                                }}};
  bool is_met = true;
  for (const std::string name : {"tokenizers", "tiktoken", "sentencepiece"}) {
    if (!python.has(name)) continue;
    rivals.push_back({name, [&python, name] { python.call(name); }});
    python.call("ids " + name);
    const bool is_same = are_same_ids(*tokenizer, texts, folder / (name + ".ids"));
    std::printf("%s: the ids of %s are %s\n", style, name.c_str(), is_same ? "the same" : "others");
    is_met = is_met && is_same;
  }
  const auto done = compare((std::string(style) + ": 3 MB in texts of 64 kB").c_str(), rivals, 5, 1);
  for (const auto& rival : done) {
    std::printf("  %-44s %8.1f MB/s; Vernier is %.1f times as fast\n", rival.name.c_str(),
                static_cast<double>(bytes) / 1e6 / rival.median(), rival.ratio(done[0]));
    is_met = is_met && (&rival == done.data() || rival.ratio(done[0]) > 1);
  }
  std::printf("  bar, faster than the others: %s\n", is_met ? "met" : "missed");
  return is_met;
}

}  // namespace

int main(int argc, char** argv) {
  char made[] = "/tmp/vernier-tokenizer-XXXXXX";
  if (::mkdtemp(made) == nullptr) return 1;
  const fs::path folder = made;
  const auto all = corpus();
  const auto texts = texts_of(all);
  write(folder / "text.txt", all);
  make_tokenizers(all, folder);
  bool is_met = true;
  for (const auto* style : {"gpt2", "llama3", "bert", "t5", "sentencepiece_bpe", "sentencepiece_unigram"}) {
    is_met = compare_style(style, texts, all.size(), folder) && is_met;
  }
  fs::remove_all(folder);
  const bool checks = argc > 1 && std::string_view(argv[1]) == "--check";
  return checks && !is_met ? 1 : 0;
}
