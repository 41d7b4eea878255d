// flight_recorder: samples of the layers' ranges; see flight_recorder.cpp.
#pragma once

#include <vernier/capsule.h>
#include <vernier/sdk.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace recorder {

// The last output of each layer of a step's first micro-batch.
class Outputs final : public vernier::Interceptor {
 public:
  bool changes(std::string_view) const override { return false; }
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    if (!is_collecting) return operation.proceed(std::move(arguments));  // a layer that is computed again in backward
    const std::string layer(operation.layer());
    auto results = operation.proceed(std::move(arguments));
    const bool is_tensor = !layer.empty() && !results.empty() && results.front().isTensor();
    if (is_tensor && results.front().toTensor().is_floating_point()) {
      measured.emplace_back(layer, vernier::measure_range(results.front().toTensor()),
                            results.front().toTensor().scalar_type());
    }
    return results;
  }
  std::vector<std::tuple<std::string, torch::Tensor, torch::ScalarType>> measured;
  bool is_collecting = false;
};

// The last samples of each layer's output, in a step's first micro-batch, and of each gradient.
class Ring {
 public:
  // every: steps from one sample to the next, 0: none. size: how many are kept.
  Ring(std::int64_t every, std::int64_t size) : every_(every), size_(size) {}
  void prepare(const vernier::Run& run) { layers_ = vernier::Layers(*run.model); }

  void begin_micro_batch(const vernier::Run& run);  // at BatchReady
  void end_forward();
  void sample(const vernier::Run& run);  // at GradientsReady: adds the step, where it is one of a sample

  const std::deque<vernier::StepSample>& samples() const { return samples_; }
  const torch::Tensor& bytes() const { return bytes_; }  // the bytes that are saved
  void load(const std::string& text);

 private:
  bool is_sampled(const vernier::Run& run) const { return every_ > 0 && run.step % every_ == 0; }
  static torch::Tensor bytes_of(const std::deque<vernier::StepSample>& samples);

  std::int64_t every_, size_;
  std::deque<vernier::StepSample> samples_;
  torch::Tensor bytes_ = bytes_of(samples_);  // made once a sample, because each step asks for it
  vernier::Layers layers_;
  Outputs outputs_;
  std::optional<vernier::Intercept> intercept_;
  std::int64_t sampled_ = -1;
};

}  // namespace recorder
