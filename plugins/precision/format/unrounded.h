// The operators that add up products and were not rounded.
#pragma once

#include <vernier/layers.h>

#include <set>
#include <string>
#include <string_view>

namespace formats {

// Returns true for the name of an operator that adds up products of numbers, such as "mv" or "aten::conv_tbc".
bool adds_products(std::string_view name);

// While it lives, LibTorch's dispatcher shows it each operator that this thread calls, and what that one calls in turn.
class Unrounded {
 public:
  // found: gets the operators that the model called, as "lstm of rnn".
  Unrounded(vernier::Layers& layers, std::set<std::string>& found);
  ~Unrounded();
  Unrounded(const Unrounded&) = delete;
  Unrounded& operator=(const Unrounded&) = delete;
  // Called before the operator in work is rounded, or computed as a rule says. What it calls is not looked at then.
  static void settle();

 private:
  friend struct UnroundedCalls;
  vernier::Layers& layers_;
  std::set<std::string>& found_;
  Unrounded* before_;
  std::uint64_t callback_ = 0;
};

}  // namespace formats
