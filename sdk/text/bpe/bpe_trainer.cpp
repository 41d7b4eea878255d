#include <vernier/text/bpe_trainer.h>

#include <vernier/error.h>

#include <algorithm>
#include <numeric>

#include "pieces.h"
#include "text/files/tokenizer_file.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

using IdPair = std::pair<TokenId, TokenId>;

struct IdPairHash {
  std::size_t operator()(const IdPair& pair) const {
    const auto both = static_cast<std::uint64_t>(pair.first) << 32 | static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>(both * 0x9E3779B97F4A7C15 >> 16);
  }
};

// The rules are those of tokenizers/src/models/bpe/trainer.rs, with their corners: the count of a pair that was merged
// is not taken back, and an entry of the queue knows the words in which its pair was new.
class BpeTrainer {
 public:
  BpeTrainer(const PieceCounts& pieces, const BpeTraining& training) : training_(training) {
    for (const auto& token : training.special) put(token);
    make_alphabet();
    for (const auto& [piece, count] : pieces.counts()) {
      auto& word = words_.emplace_back();
      for (const char c : piece) word.push_back(of_byte_[static_cast<unsigned char>(c)]);
      counts_.push_back(count);
    }
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::size_t j = 1; j < words_[i].size(); ++j) change({words_[i][j - 1], words_[i][j]}, i, counts_[i]);
    }
    enqueue_new();
  }

  TrainedBpe train() {
    while (static_cast<std::int64_t>(trained_.tokens.size()) < training_.vocabulary && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      auto top = std::move(queue_.back());
      queue_.pop_back();
      if (const auto now = pairs_[top.pair]; top.count != now) {
        top.count = now;
        push(std::move(top));
        continue;
      }
      if (top.count < 1 || top.count < training_.min_count) break;
      merge(top);
      enqueue_new();
    }
    return std::move(trained_);
  }

 private:
  struct Entry {
    std::int64_t count;
    IdPair pair;
    std::vector<std::size_t> places;  // words that had the pair when the entry was made
    // std::push_heap has the largest first.
    bool operator<(const Entry& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  TokenId put(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<TokenId>(trained_.tokens.size()));
    if (is_new) trained_.tokens.push_back(token);
    return found->second;
  }
  // The bytes by the code points of the characters that stand for them; so that of the bytes that stand for themselves
  // comes first.
  void make_alphabet() {
    std::array<unsigned, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), 0U);
    std::ranges::sort(bytes, {}, [](unsigned byte) { return character_at(byte_characters()[byte], 0).code; });
    for (const auto byte : bytes) of_byte_[byte] = put(byte_characters()[byte]);
  }

  void change(IdPair pair, std::size_t place, std::int64_t by) {
    pairs_[pair] += by;
    if (by < 0) return;
    auto& places = new_places_[pair];
    if (places.empty() || places.back() != place) places.push_back(place);
  }
  void enqueue_new() {
    for (auto& [pair, places] : new_places_) {
      if (const auto count = pairs_[pair]; count > 0) push({count, pair, std::move(places)});
    }
    new_places_.clear();
  }
  void push(Entry entry) {
    queue_.push_back(std::move(entry));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void merge(const Entry& entry) {
    const auto [left, right] = entry.pair;
    const auto joined =
        put(trained_.tokens[static_cast<std::size_t>(left)] + trained_.tokens[static_cast<std::size_t>(right)]);
    trained_.merges.emplace_back(left, right);
    for (const auto place : entry.places) merge_in(place, left, right, joined);
  }
  void merge_in(std::size_t place, TokenId left, TokenId right, TokenId joined) {
    auto& word = words_[place];
    const auto count = counts_[place];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < word.size();) {
      if (word[i] != left || i + 1 == word.size() || word[i + 1] != right) {
        word[kept++] = word[i++];
        continue;
      }
      if (kept > 0) {
        change({word[kept - 1], left}, place, -count);
        change({word[kept - 1], joined}, place, count);
      }
      if (i + 2 < word.size()) {
        change({right, word[i + 2]}, place, -count);
        change({joined, word[i + 2]}, place, count);
      }
      word[kept++] = joined;
      i += 2;
    }
    word.resize(kept);
  }

  const BpeTraining& training_;
  TrainedBpe trained_;
  std::unordered_map<std::string, TokenId> ids_;
  std::array<TokenId, 256> of_byte_{};
  std::vector<std::vector<TokenId>> words_;
  std::vector<std::int64_t> counts_;  // number of each word
  std::unordered_map<IdPair, std::int64_t, IdPairHash> pairs_;
  std::unordered_map<IdPair, std::vector<std::size_t>, IdPairHash> new_places_;
  std::vector<Entry> queue_;
};

}  // namespace

void PieceCounts::add(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = piece_end(PieceRule::gpt2, text, at);
    const auto piece = text.substr(at, end - at);
    const auto found = counts_.find(piece);
    if (found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(piece, 1);
    }
    at = end;
  }
}

void PieceCounts::add(PieceCounts&& others) {
  if (counts_.empty()) counts_.swap(others.counts_);
  for (const auto& [piece, count] : others.counts_) counts_[piece] += count;
}

std::size_t last_piece_cut(std::string_view text) {
  if (text.empty()) return 0;
  for (auto at = character_before(text, text.size()); at > 0;) {
    const auto before = character_before(text, at);
    if (always_ends_piece(character_at(text, before).code, character_at(text, at).code)) return at;
    at = before;
  }
  return 0;
}

TrainedBpe train_bpe(const PieceCounts& counts, const BpeTraining& training) {
  if (training.vocabulary < 256 || training.vocabulary > most_tokens) {
    refuse("a vocabulary of " + std::to_string(training.vocabulary) + " cannot be trained: it has the 256 bytes, and " +
           "at most 16777216 tokens");
  }
  return BpeTrainer(counts, training).train();
}

}  // namespace vernier
