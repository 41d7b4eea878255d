// Training of byte-level BPE: the same tokens and merges as `BpeTrainer` of the package tokenizers, 0.23.
#pragma once

#include <vernier/text/tokenizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vernier {

// How often each piece occurs, cut as GPT-2 cuts a text.
class VERNIER_API PieceCounts {
 public:
  void add(std::string_view text);  // valid UTF-8; a text that comes in parts is cut where last_piece_cut() says
  void add(PieceCounts&& others);
  const auto& counts() const { return counts_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

// The last place at which a text may be cut without changing its pieces; 0 if there is none.
VERNIER_API std::size_t last_piece_cut(std::string_view text);

struct BpeTraining {
  std::int64_t vocabulary = 8000;    // tokens at most, with the special ones and the 256 bytes
  std::int64_t min_count = 0;        // a pair that occurs less often is not merged
  std::vector<std::string> special;  // they get the first ids
};

struct TrainedBpe {
  std::vector<std::string> tokens;  // by id, as they stand in the files
  std::vector<std::pair<TokenId, TokenId>> merges;
};

// Merges the pair that occurs most often, of several the one of the smallest ids, until there are enough tokens.
VERNIER_API TrainedBpe train_bpe(const PieceCounts& counts, const BpeTraining& training);

// Writes tokenizer.json, vocab.json, merges.txt and tokenizer_config.json. The first special token is the one that ends
// a text. Throws Error if the folder has one of these files already or if one cannot be written.
VERNIER_API void save_bpe(const std::filesystem::path& folder, const TrainedBpe& trained,
                          const std::vector<std::string>& special);

}  // namespace vernier
