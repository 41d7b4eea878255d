// The fold of a cross-validation, for the functions of split.h. They hold out one of `count` equal parts, whatever
// share a task asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace vernier {

struct Fold {
  std::int64_t number = 0, count = 0;                         // number: from 1 on; count 0: there are no folds
  static std::optional<Fold> parse(const std::string& text);  // "2/5", or ""; nothing for others
};

// While it lives, the splits of this thread hold out this fold.
class FoldScope {
 public:
  explicit FoldScope(const Fold& fold);
  FoldScope(const FoldScope&) = delete;
  ~FoldScope();
  // Throws Error if there is a fold and nobody has split data: every fold would be the same.
  void require_used(const std::string& task) const;
};

// Returns the fold in force, which counts as used; its count is 0 if there is none.
Fold fold_in_use();

}  // namespace vernier
