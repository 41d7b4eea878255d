// Runs with callback/flight_recorder into which a fault comes.
#pragma once

#include <doctest/doctest.h>
#include <vernier/capsule.h>
#include <vernier/host.h>
#include <vernier/layers.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "small_run.h"

namespace flight {

using vernier::Event;
using vernier::Run;

// A fault, its place, and its step, counted from 1.
struct Fault {
  std::string where;  // loss, input, activation, activation gradient, gradient, weight
  std::string layer;  // or the parameter
  double value;
  std::int64_t step;
  bool once = false;     // not when the step is repeated
  bool divides = false;  // by 0, instead of becoming `value`
  std::string text() const {
    std::ostringstream out;
    out << where << " of " << layer << (divides ? " is divided by 0" : " becomes ");
    if (!divides) out << value;
    out << " in step " << step;
    return out.str();
  }
};

// Changes the memory, not the graph: tensors saved for backward see it, as with a fault of the machine.
inline void spoil(const torch::Tensor& tensor, double value) {
  const torch::NoGradGuard no_grad;
  tensor.variable_data().view(-1)[tensor.numel() / 2].fill_(value);
}

inline torch::Tensor ones_and_a_zero(const torch::Tensor& like) {
  auto divisor = torch::ones_like(like, torch::MemoryFormat::Contiguous);
  spoil(divisor, 0);
  return divisor;
}

inline std::vector<vernier::TensorRange> ranges_of(const vernier::Values& values) {
  std::vector<vernier::TensorRange> all;
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) all.push_back(vernier::range_of(value.toTensor()));
  }
  return all;
}

// The operation that a fault was put into, as it was when the whole batch met it last.
struct Met {
  std::string operation;
  std::vector<vernier::TensorRange> inputs, outputs;
};

class Injector final : public vernier::Callback, public vernier::Interceptor {
 public:
  explicit Injector(Fault fault) : fault_(std::move(fault)) { set_id("callback/injector"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) { begin(run); });
    bus.on(Event::LossReady, [this](Run& run) {
      guard_.reset();
      if (is_on_ && fault_.where == "loss") {
        noted() = {"mul", {vernier::range_of(run.micro_batch_loss)}, {}};
        run.micro_batch_loss = run.micro_batch_loss * fault_.value;
        noted().outputs = {vernier::range_of(run.micro_batch_loss)};
      }
    });
    bus.on(Event::GradientsReady, [this](Run&) { is_on_ = false; });
  }
  void prepare(Run& run) override { layers_ = vernier::Layers(*run.model); }
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    const auto inputs = ranges_of(arguments);
    auto results = operation.proceed(std::move(arguments));
    if (is_met_ || operation.layer() != fault_.layer || !results.front().toTensor().is_floating_point()) return results;
    auto output = results.front().toTensor();
    // A block that keeps its input alone has a graph only when it is computed again.
    if (fault_.where == "activation gradient" && !output.requires_grad()) return results;
    is_met_ = true;
    if (fault_.where == "activation") {
      spoil_by_fault(output);
      noted() = {std::string(operation.name()), inputs, ranges_of(results)};
    }
    if (fault_.where == "activation gradient") {
      output.register_hook([this](const torch::Tensor& g) { return spoiled(g); });
    }
    return results;
  }
  Met met;

 private:
  // In place.
  void spoil_by_fault(const torch::Tensor& tensor) {
    const auto& memory = tensor.variable_data();
    if (fault_.divides) {
      const torch::NoGradGuard no_grad;
      const auto divisor = ones_and_a_zero(memory);
      noted() = {"div_", {vernier::range_of(memory), vernier::range_of(divisor)}, {}};
      memory.div_(divisor);
      noted().outputs = {vernier::range_of(memory)};
    } else {
      spoil(memory, fault_.value);
      noted() = {"fill_", {}, {vernier::range_of(memory.view(-1)[tensor.numel() / 2])}};
    }
  }
  torch::Tensor spoiled(const torch::Tensor& gradient) {
    if (!is_on_) return gradient;
    if (fault_.divides) {
      const auto divisor = ones_and_a_zero(gradient);
      const auto other = gradient.detach() / divisor;
      noted() = {"div", {vernier::range_of(gradient), vernier::range_of(divisor)}, {vernier::range_of(other)}};
      return other;
    }
    auto other = gradient.detach().clone();
    spoil(other, fault_.value);
    noted() = {"fill_", {}, {vernier::range_of(other.view(-1)[other.numel() / 2])}};
    return other;
  }
  // Parts of the batch are run again in the search for its samples.
  Met& noted() { return is_part_ ? of_part_ : met; }
  void begin(Run& run) {
    is_on_ = false;
    is_part_ = run.batch.samples < samples_;
    samples_ = std::max(samples_, run.batch.samples);
    const bool is_first = !run.loss.defined();  // the first micro-batch has no loss yet
    if (!is_first || run.step + 1 != fault_.step || (fault_.once && times_ > 0)) return;
    ++times_;
    is_on_ = true;
    is_met_ = false;
    if (fault_.where == "input") {
      run.micro_batch.tensors[0] = run.micro_batch.tensors[0].clone();
      spoil_by_fault(run.micro_batch.tensors[0]);
    }
    for (auto& parameter : run.parameters) {
      if (parameter.name != fault_.layer) continue;
      if (fault_.where == "weight") spoil_by_fault(parameter.model);
      if (fault_.where == "gradient" && times_ == 1) {
        parameter.model.register_hook([this](const torch::Tensor& g) { return spoiled(g); });
      }
    }
    if (fault_.where.starts_with("activation")) guard_.emplace(layers_, *this);
  }

  Fault fault_;
  vernier::Layers layers_;
  bool is_on_ = false, is_met_ = false, is_part_ = false;
  std::int64_t samples_ = 0;
  Met of_part_;
  int times_ = 0;
  std::optional<vernier::Intercept> guard_;
};

inline constexpr const char* recorder = "[[callback]]\nuse = 'flight_recorder'\n";

inline std::string told(const vernier::Notice& notice, const std::string& key) {
  for (const auto& [name, value] : notice.details) {
    if (name != key) continue;
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  }
  return "";
}

inline std::string last_log;

// A run with a fault, and what the recorder said of it.
struct Flight {
  Flight(const std::vector<std::string>& config, const std::optional<Fault>& fault)
      : run(from_toml(config), output.path()) {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) {
      if (text.starts_with("step ")) last_log = text;
    });
    if (fault) {
      injector.emplace(*fault);
      injector->prepare(run.run);
      vernier::HostApi::attach(run.wiring->bus, *injector, false);
    }
    run.on(Event::GradientsReady, [this](Run& now) {
      is_bad |= !std::isfinite(now.loss.item<double>()) || !now.non_finite_gradients().empty();
    });
    run.on(Event::StepEnd, [this](Run& now) {
      for (const auto& notice : now.notices) {
        if (notice.name == "non_finite") notices.push_back(notice);
      }
    });
  }
  ~Flight() { vernier::set_log_sink(nullptr); }
  TemporaryFolder output;
  std::optional<Injector> injector;
  SmallRun run;
  bool is_bad = false;
  std::vector<vernier::Notice> notices;
};

inline std::string gpt(const TemporaryFolder& folder, int steps, const std::string& more = "") {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  return "[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
         "']\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 8\nbatch_size = 6\nvalidation = 0.0\n" + more +
         "[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
}

inline std::string images(const TemporaryFolder& folder, int steps) {
  std::string images("\0\0\x08\x03\0\0\0\x40\0\0\0\x08\0\0\0\x08", 16), labels("\0\0\x08\x01\0\0\0\x40", 8);
  for (int i = 0; i < 64; ++i) {
    labels += static_cast<char>(i % 10);
    for (int pixel = 0; pixel < 64; ++pixel) images += static_cast<char>((i % 10) * 20 + pixel * (i % 3));
  }
  return "[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'images'\nimages = '" +
         folder.write("images", images) + "'\nlabels = '" + folder.write("labels", labels) +
         "'\nbatch_size = 12\nchannels = 4\n[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n"
         "[checkpoint]\nuse = 'none'\n";
}

inline std::string mlp(int steps) {
  return "[run]\nsteps = " + std::to_string(steps) +
         "\n[task]\nuse = 'mlp'\nsamples = 64\nbatch_size = 6\n[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n"
         "[checkpoint]\nuse = 'none'\n";
}

inline const std::vector<std::string> precisions = {
    "[precision]\nuse = 'fp32'\n", "[precision]\nuse = 'bf16'\n",
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\n"};

inline std::string layer_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

inline void check_same(const std::vector<std::pair<std::string, vernier::TensorRange>>& told,
                       const std::vector<vernier::TensorRange>& met, const std::vector<std::string>& names = {}) {
  REQUIRE(told.size() >= met.size());
  for (std::size_t i = 0; i < met.size(); ++i) {
    const auto& [name, range] = told[i];
    CAPTURE(name);
    if (!names.empty()) CHECK(name == names[i]);
    CHECK((range.dtype == met[i].dtype));
    CHECK(range.elements == met[i].elements);
    CHECK(range.amax == met[i].amax);
    CHECK(range.rms == met[i].rms);
    CHECK(range.zeros == met[i].zeros);
    CHECK(range.infs == met[i].infs);
    CHECK(range.nans == met[i].nans);
    CHECK(range.negative_infs == met[i].negative_infs);
  }
}

inline vernier::Capsule capsule_of(const Flight& flight, const vernier::Notice& notice) {
  REQUIRE_FALSE(told(notice, "capsule").empty());
  auto capsule = vernier::read_capsule(flight.output.path() / told(notice, "capsule"));
  REQUIRE(capsule.origin);
  CHECK(capsule.origin->phase == told(notice, "phase"));
  CHECK(capsule.origin->operation == told(notice, "operation"));
  CHECK(capsule.origin->tensor == told(notice, "tensor"));
  return capsule;
}

// Checks the ranges of an operation: those that it had, with finite inputs and outputs that are not.
inline void check_ranges(const vernier::NonFiniteOrigin& origin, const Met& met) {
  const auto is_finite = [](const auto& named) { return named.second.is_finite(); };
  CHECK(std::ranges::all_of(origin.inputs, is_finite));
  CHECK_FALSE(std::ranges::all_of(origin.outputs, is_finite));
  check_same(origin.inputs, met.inputs);
  check_same(origin.outputs, met.outputs);
}

}  // namespace flight
