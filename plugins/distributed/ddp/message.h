// The options `message` and `error_feedback`: a quantizer rounds what a rank sends of its gradients.
#pragma once

#include <vernier/draft/message_rounding.h>
#include <vernier/sdk.h>

#include <map>
#include <memory>
#include <string>

namespace ddp {

class Message {
 public:
  explicit Message(vernier::Options& options);
  bool is_rounded() const { return rounding_ != nullptr; }
  void attach(vernier::Bus& bus);
  void prepare(vernier::Run& run);
  void check(const vernier::Run& run) const;
  std::vector<vernier::MetricInfo> metrics() const;

  // Called without gradient mode. Replaces a rank's gradient by what it sends. Error feedback adds what earlier
  // messages of it lost, in units of the loss without a scale. What is kept of that does not change if the gradient
  // has inf or NaN, if the update is skipped, or if is_own is false: the rank has no gradient, and sends zeros.
  void round(const std::string& parameter, torch::Tensor gradient, bool is_own, const vernier::Run& run);

  vernier::State save() const;
  void load(const vernier::State& state);

 private:
  std::unique_ptr<vernier::Plugin> quantizer_;
  vernier::draft::MessageRounding* rounding_ = nullptr;  // null: messages are not rounded
  bool feeds_back_;
  std::map<std::string, torch::Tensor> errors_;  // by parameter, flat
  std::map<std::string, torch::Tensor> before_;  // errors that this update has replaced, until it is done
};

}  // namespace ddp
