// Evaluates with other weights than the trained ones, such as an average of them. For Plugin::evaluate:
//
//   torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
//     return with_weights(average_, run, body);
//   }
#pragma once

#include <vernier/plugin.h>
#include <vernier/run.h>

#include <functional>
#include <vector>

namespace vernier {

// Runs body with these weights in the model, one for each of run.parameters, of their shapes and rounded to their
// dtypes. Afterwards the trained weights return, with the same bits, even if body throws. The weights are overwritten,
// not replaced: layers stay known by their storage, and their versions show the change. Takes their memory once more.
// Throws Error if there is not one weight for each parameter.
VERNIER_API torch::Tensor with_weights(const std::vector<torch::Tensor>& weights, const Run& run,
                                       const std::function<torch::Tensor()>& body);

// The memory of the plugins that evaluate with weights of their own, which they are known by. For a callback that puts
// the model of an earlier validation back: the trained weights alone are not that model. Valid at Validated.
class VERNIER_API Averages {
 public:
  virtual ~Averages();
  virtual State keep(const Plugin& requester) = 0;  // a copy; its entries are for put_back() alone
  virtual void put_back(const Run& run, const State& kept, std::int64_t step) = 0;  // step: of the validation
};
VERNIER_API Averages* averages_of(const Run& run);  // null if there is no trainer

}  // namespace vernier
