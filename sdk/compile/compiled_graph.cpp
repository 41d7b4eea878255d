// libvernier_compile.so writes forward and backward as a C++ program, and compiles it when it is first needed.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bounds.h"
#include "gpu/device_graph.h"
#include "library.h"
#include "source.h"

namespace vernier::compile {

namespace {

// Attention draws random numbers only if it has dropout.
bool is_random(const Tape::Call& call) {
  const auto place = call.op.schema().argumentIndexWithName("dropout_p");
  if (place && call.arguments[static_cast<std::size_t>(*place)].toDouble() == 0) return false;
  return call.op.hasTag(at::Tag::nondeterministic_seeded);
}

// Why a program cannot repeat an operator; "" if it can.
std::string why_not(const Tape::Call& call) {
  const auto& name = call.op.schema().name();
  if (is_random(call)) return name + " draws random numbers";
  if (call.op.hasTag(at::Tag::data_dependent_output) || call.op.hasTag(at::Tag::dynamic_output_shape)) {
    return name + " makes the host wait for its result";
  }
  std::string trouble;
  each_tensor(call.results, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_floating_point() && type_of(tensor.scalar_type()).empty()) {
      trouble = c10::str(name, " computes in ", tensor.scalar_type());
    }
    if (!tensor.has_storage()) trouble = name + " has a result without memory";
  });
  return trouble;
}

// Calls an operator without a rule, for the program. It writes into the memory of the result where it has an out=
// variant.
class Called {
 public:
  explicit Called(const Tape::Call& call) : call_(call) {
    const auto& schema = call.op.schema();
    if (schema.is_mutable() || call.results.size() != 1 || !call.results[0].isTensor()) return;
    out_ = c10::Dispatcher::singleton().findSchema({schema.name(), "out"});
    if (out_ && !takes_the_same(schema, out_->schema())) out_.reset();
    if (!call.results[0].toTensor().is_contiguous()) out_.reset();
  }
  void operator()() const {
    if (!out_) return Tape::repeat(call_);
    Tape::Values stack = call_.arguments;
    stack.push_back(call_.results[0]);
    out_->callBoxed(stack);
  }

 private:
  static bool takes_the_same(const c10::FunctionSchema& schema, const c10::FunctionSchema& out) {
    const auto &own = schema.arguments(), &others = out.arguments();
    return others.size() == own.size() + 1 &&
           std::equal(own.begin(), own.end(), others.begin(), [](const c10::Argument& a, const c10::Argument& b) {
             return a.name() == b.name() && *a.type() == *b.type();
           });
  }

  const Tape::Call& call_;
  std::optional<c10::OperatorHandle> out_;
};

class Program {
 public:
  Program(Calls calls, std::size_t forward, const std::vector<at::Tensor>& results)
      : calls_(std::move(calls)), memory_(calls_, results) {
    const auto source = source_of(calls_, forward, memory_);
    if (source.written == 0) throw Error("none of its operators can be compiled");
    library_ = opened(source.text);
    memory_.take();
    for (const auto& call : calls_) called_.emplace_back(call);
    log(Level::info, "compile",
        c10::str("program ", library_.id, ": ", source.written, " operators are compiled",
                 source.called.empty() ? "" : ", and it calls LibTorch's ",
                 c10::Join(", ", std::vector<std::string>(source.called.begin(), source.called.end()))));
  }
  Program(const Program&) = delete;

  const std::string& id() const { return library_.id; }
  std::vector<double> bounds(const std::vector<at::Tensor>& results) const { return bounds_of(calls_, results); }
  void forward() { run(library_.forward); }
  void backward() { run(library_.backward); }

 private:
  void run(Function function) {
    const at::AutoDispatchBelowAutograd no_graph;
    const c10::impl::ExcludeDispatchKeyGuard no_interceptors(c10::DispatchKey::TESTING_ONLY_GenericMode);
    function(memory_.arena(), memory_.outside().data(), &Program::call, this);
  }
  static void call(void* program, long number) {
    static_cast<Program*>(program)->called_[static_cast<std::size_t>(number)]();
  }

  Calls calls_;
  Memory memory_;
  Library library_;
  std::vector<Called> called_;
};

class CompiledGraph final : public DeviceGraph {
 public:
  void capture(const std::function<void()>& work) override { tape_.record(work); }

  std::vector<double> bounds(DeviceGraph& backward, const std::vector<at::Tensor>& results) override {
    auto& other = dynamic_cast<CompiledGraph&>(backward);
    if (program_ != nullptr) return program_->bounds(results);
    Calls calls = tape_.take();
    const auto forward = calls.size();
    for (auto& call : other.tape_.take()) calls.push_back(std::move(call));
    for (const auto& call : calls) {
      if (const auto trouble = why_not(call); !trouble.empty()) throw Error(trouble);
    }
    auto first = bounds_of(calls, results);
    program_ = other.program_ = std::make_shared<Program>(std::move(calls), forward, results);
    other.is_backward_ = true;
    return first;
  }
  std::string id() const override { return program_ == nullptr ? "" : program_->id(); }

  void replay() override { is_backward_ ? program_->backward() : program_->forward(); }

 private:
  Tape tape_;
  std::shared_ptr<Program> program_;
  bool is_backward_ = false;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) DeviceGraph* vernier_new_compiled_graph() {
  return new CompiledGraph;
}

}  // namespace vernier::compile
