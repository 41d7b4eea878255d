// The tables [[optimizer.group]], which every optimizer plugin has: options for the parameters that they name. A group
// starts from the options of [optimizer]. If several groups match a parameter, the last one holds alone.
//   group.match (required)   names of parameters, * for any text: "*.bias" or ["*.bias", "*.ln_*"]
//   group.frozen = false     true: no gradient and no update
//
//   MyOptimizer(vernier::Options& options)
//       : rates_{options.get("learning_rate", 0.1, "step size")},
//         groups_(options, [this](vernier::Options& group) {
//           rates_.push_back(group.get("learning_rate", rates_.front(), "step size"));
//         }) {}
#pragma once

#include <vernier/abi.h>
#include <vernier/options.h>
#include <vernier/run.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

// Called in Plugin::prepare. Returns the places in run.parameters of those that any of the patterns names
// (name_pattern.h). Throws Error, in the name of `who`, if a pattern names none. where: of the patterns, for the error,
// "mine: `match`".
VERNIER_API std::vector<std::size_t> parameters_named(const Run& run, const std::vector<std::string>& patterns,
                                                      const std::string& where, const std::string& who = "");

class VERNIER_API ParameterGroups {
 public:
  static constexpr std::size_t frozen = static_cast<std::size_t>(-1);

  // Called in the plugin's constructor. read_one: reads the further options of each group, in their order.
  ParameterGroups(Options& options, const std::function<void(Options&)>& read_one);

  // Called in Plugin::prepare. Returns for each of run.parameters `frozen`, 0 if no group matches, or 1 for the first
  // group. Backward computes no gradients of frozen parameters from then on; those that an optimizer before this one
  // froze get theirs again. Throws Error if a pattern names no parameter, or if all parameters are frozen.
  std::vector<std::size_t> assign(Run& run, const std::string& optimizer) const;

 private:
  struct Group {
    std::string place;  // "optimizer/adamw: [[optimizer.group]] 1"
    std::vector<std::string> match;
    bool is_frozen;
  };
  std::vector<Group> groups_;
};

}  // namespace vernier
