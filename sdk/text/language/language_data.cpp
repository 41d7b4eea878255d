#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/error.h>
#include <vernier/text/language_data.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/parts.h"
#include "data/readers/mapped_file.h"
#include "language_texts.h"

namespace vernier {

namespace {

constexpr std::int64_t ignored = -100;  // target that cross_entropy_loss() ignores

// A part of a text that is in one row.
struct Chunk {
  std::size_t first;   // in all tokens
  std::int64_t count;  // inputs; one token more is the last target
  std::size_t line;    // line of its text in the file; 0: the text is the whole file
};

class LanguageDataset final : public Dataset {
 public:
  // unit: "line" or "element", which chunks count.
  LanguageDataset(std::string path, std::string unit, std::int64_t length, TokenizedText all,
                  std::vector<std::vector<Chunk>> rows)
      : path_(std::move(path)), unit_(std::move(unit)), length_(length), all_(std::move(all)), rows_(std::move(rows)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Sample get(std::int64_t index, Random&) const override {
    auto inputs = at::zeros({length_}, torch::kInt64), targets = at::full({length_}, ignored, torch::kInt64);
    auto positions = at::zeros({length_}, torch::kInt64), segments = at::zeros({length_}, torch::kInt64);
    const auto data = [](torch::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); };
    std::int64_t at = 0, segment = 0;
    for (const auto& [first, count, line] : rows_[static_cast<std::size_t>(index)]) {
      ++segment;
      for (std::int64_t i = 0; i < count; ++i, ++at) {
        const auto token = first + static_cast<std::size_t>(i);
        data(inputs)[at] = all_.ids[token];
        if (all_.is_learned[token + 1]) data(targets)[at] = all_.ids[token + 1];
        data(positions)[at] = i;
        data(segments)[at] = segment;
      }
    }
    return {inputs, targets, positions, segments};
  }
  // "'chats.jsonl' lines 17, 3 and 2 more": the texts of the row. Of a file that is one text, its tokens.
  std::string where(std::int64_t index) const override {
    const auto& row = rows_[static_cast<std::size_t>(index)];
    const auto& [first, count, line] = row.front();
    if (line == 0) return c10::str("'", path_, "' tokens ", first, " to ", first + static_cast<std::size_t>(count));
    std::vector<std::string> lines;
    for (const auto& chunk : row) {
      const auto text = std::to_string(chunk.line);
      if (lines.empty() || lines.back() != text) lines.push_back(text);
    }
    return "'" + path_ + "' " + unit_ + (lines.size() > 1 ? "s " : " ") + some_of(lines);
  }
  std::string fingerprint() const override {
    Checksum checksum;
    checksum.add(all_.ids.data(), all_.ids.size() * sizeof(TokenId));
    const std::string learned(all_.is_learned.begin(), all_.is_learned.end());
    checksum.add(learned.data(), learned.size());
    return c10::str(size(), " rows of ", length_, " tokens, ", all_.ids.size(), " tokens, XXH3 ", checksum.digits());
  }

 private:
  std::string path_, unit_;
  std::int64_t length_;
  TokenizedText all_;
  std::vector<std::vector<Chunk>> rows_;
};

// Each chunk into the row with the least room that is enough, the longest first.
std::vector<std::vector<Chunk>> packed_rows(const std::vector<Chunk>& chunks, std::int64_t length, bool packs) {
  std::vector<std::vector<Chunk>> rows;
  if (!packs) {
    for (const auto& chunk : chunks) rows.push_back({chunk});
    return rows;
  }
  auto sorted = chunks;
  std::ranges::stable_sort(sorted, std::ranges::greater(), &Chunk::count);
  std::multimap<std::int64_t, std::size_t> with_room;  // room, row
  for (const auto& chunk : sorted) {
    const auto found = with_room.lower_bound(chunk.count);
    const auto row = found == with_room.end() ? rows.size() : found->second;
    const auto room = (found == with_room.end() ? length : found->first) - chunk.count;
    if (found == with_room.end()) {
      rows.emplace_back();
    } else {
      with_room.erase(found);
    }
    rows[row].push_back(chunk);
    if (room > 0) with_room.emplace(room, row);
  }
  return rows;
}

std::int64_t learned_in(const TokenizedText& all, const Chunk& chunk) {
  const auto first = all.is_learned.begin() + static_cast<std::ptrdiff_t>(chunk.first) + 1;
  return std::count(first, first + chunk.count, true);
}

}  // namespace

LanguageData read_language_data(const Tokenizer& tokenizer, const std::string& path,
                                const LanguageDataOptions& options) {
  if (options.length < 1) refuse("rows of " + std::to_string(options.length) + " tokens cannot be made; at least 1");
  const LanguageTexts texts(tokenizer, path, options);
  std::vector<TokenizedText> parts(texts.size());
  for_each_part(parts.size(), [&](std::size_t i) { parts[i] = texts.tokenized(i); });
  LanguageData data;
  TokenizedText all;
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& part = parts[i];
    const auto inputs = static_cast<std::int64_t>(part.ids.size()) - 1;
    const auto begin = all.ids.size();
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    all.is_learned.insert(all.is_learned.end(), part.is_learned.begin(), part.is_learned.end());
    std::int64_t learned = 0;
    for (std::int64_t first = 0; first < inputs && (first == 0 || part.goes_on); first += options.length) {
      const Chunk chunk{begin + static_cast<std::size_t>(first), std::min(options.length, inputs - first),
                        texts.line(i)};
      const auto here = learned_in(all, chunk);
      if (here == 0) continue;
      learned += here;
      data.tokens += chunk.count;
      chunks.push_back(chunk);
    }
    ++(learned > 0 ? data.texts : data.left_out);
    const bool is_cut =
        !part.goes_on && inputs > options.length &&
        std::find(part.is_learned.begin() + options.length + 1, part.is_learned.end(), true) != part.is_learned.end();
    data.cut += is_cut && learned > 0 ? 1 : 0;
    data.learned += learned;
    data.chats += part.form == LanguageLine::Form::messages ? 1 : 0;
    data.prompts += part.form == LanguageLine::Form::prompt ? 1 : 0;
    part = {};
  }
  if (chunks.empty()) {
    refuse("'" + path + "' has no text with a token to learn in its first " + std::to_string(options.length) +
           " tokens; give texts, or a larger context");
  }
  data.dataset = std::make_shared<LanguageDataset>(path, texts.unit(), options.length, std::move(all),
                                                   packed_rows(chunks, options.length, options.packs));
  return data;
}

torch::Tensor mixture_weights(const std::vector<DatasetPtr>& datasets, const std::vector<double>& shares) {
  if (datasets.size() != shares.size() || datasets.empty()) {
    refuse(c10::str("a mixture needs a share for each dataset: there are ", datasets.size(), " datasets and ",
                    shares.size(), " shares"));
  }
  std::int64_t samples = 0;
  for (const auto& dataset : datasets) samples += dataset->size();
  auto weights = at::empty({samples}, torch::kFloat64);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    if (!std::isfinite(shares[i]) || shares[i] < 0) refuse(c10::str("the share ", shares[i], " is not 0 or more"));
    const auto size = datasets[i]->size();
    if (size == 0 && shares[i] > 0) refuse(c10::str("dataset ", i, " has no samples, and the share ", shares[i]));
    if (size > 0) weights.narrow(0, first, size).fill_(shares[i] / static_cast<double>(size));
    first += size;
  }
  return weights;
}

}  // namespace vernier
