// Codes of the words of a column.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vernier {

// The codes of categories, in the order in which they were added.
class Vocabulary {
 public:
  std::int64_t add(std::string_view word) {
    const auto known = codes_.find(word);
    if (known != codes_.end()) return known->second;
    const auto added = codes_.emplace(word, static_cast<std::int64_t>(words_.size())).first;
    words_.push_back(&added->first);
    return added->second;
  }
  std::optional<std::int64_t> find(std::string_view word) const {
    const auto known = codes_.find(word);
    return known == codes_.end() ? std::nullopt : std::optional(known->second);
  }
  const std::vector<const std::string*>& words() const { return words_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> codes_;
  std::vector<const std::string*> words_;  // of codes_, whose nodes stay where they are
};

}  // namespace vernier
