#include "captured_passes.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <vernier/draft/capture.h>
#include <vernier/random_state.h>

#include <algorithm>
#include <unordered_set>

#include "run/state/shards.h"

namespace vernier {

namespace {

constexpr int warm_up = 2;             // passes of a shape before it is recorded
constexpr std::ptrdiff_t most = 8;     // recorded shapes, each of which holds gradients
constexpr std::size_t most_seen = 64;  // shapes that are counted

// Operators that make the host wait, as a recording does not allow.
constexpr std::array waiting = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"};

const void* storage_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

template <class Look>
void each_tensor(c10::ArrayRef<c10::IValue> values, const Look& look) {
  for (const auto& value : values) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) look(tensor);
    } else if (value.isList()) {  // optional tensors are a list, too
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) look(item.toTensor());
      }
    }
  }
}

// While it lives, it looks at the operators of this thread and of its backward passes.
class Watch {
 public:
  Watch() {
    current = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  Watch(Watch&&) = delete;

  const std::string& trouble() const { return trouble_; }  // why a graph cannot repeat the operators; "" if it can
  std::vector<c10::Storage> read() const {                 // storages that existed before the first operator
    std::vector<c10::Storage> all;
    for (const auto& [key, storage] : read_) all.push_back(storage);
    return all;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    if (current->trouble_.empty() && std::ranges::find(waiting, name) != waiting.end()) {
      current->trouble_ = c10::str(name, " makes the host wait for the device");
    }
    if (name == "aten::copy_") current->look_at_copy(function.inputs());
    each_tensor(function.inputs(), [](const torch::Tensor& tensor) {
      const auto* key = storage_of(tensor);
      if (key != nullptr && !current->made_.contains(key)) current->read_.emplace(key, tensor.storage());
    });
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    each_tensor(function.outputs(), [](const torch::Tensor& tensor) {
      const auto* key = storage_of(tensor);
      if (key != nullptr && !current->read_.contains(key)) current->made_.insert(key);
    });
  }
  // A graph would read the host's memory of the first time again.
  void look_at_copy(c10::ArrayRef<const c10::IValue> inputs) {
    const auto &to = inputs.at(0).toTensor(), &from = inputs.at(1).toTensor();
    if (to.device().type() != from.device().type()) trouble_ = "a tensor is copied between host and device";
  }

  static inline Watch* current = nullptr;
  at::CallbackHandle handle_;
  std::string trouble_;
  std::map<const void*, c10::Storage> read_;
  std::unordered_set<const void*> made_;
};

std::vector<torch::Tensor> clones(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> all;
  for (const auto& tensor : tensors) all.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  return all;
}

void copy_to(const std::vector<torch::Tensor>& live, const std::vector<torch::Tensor>& copies) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (live[i].defined()) live[i].detach().copy_(copies[i]);
  }
}

std::vector<torch::Tensor> gradients_of(const Run& run) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : run.parameters) all.push_back(parameter.model.grad());
  return all;
}

void set_gradients(const Run& run, const std::vector<torch::Tensor>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) run.parameters[i].model.mutable_grad() = gradients[i];
}

bool has_any(const std::vector<torch::Tensor>& tensors) {
  return std::ranges::any_of(tensors, &torch::Tensor::defined);
}

std::vector<const void*> addresses(const std::vector<torch::Tensor>& tensors) {
  std::vector<const void*> all;
  for (const auto& tensor : tensors) all.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  return all;
}

// A hook is a function of the host, which a graph would not call.
bool has_hook(const torch::Tensor& weight) {
  return !torch::autograd::impl::hooks(weight).empty() || torch::autograd::impl::post_acc_grad_hooks(weight);
}

// The parts of a model that a recording depends on: the memory of weights and buffers, weights that are frozen or
// hooked, and modules that are not in training mode. As addresses, because these are compared in each step.
std::vector<const void*> marks_of(torch::nn::Module& model) {
  auto all = addresses(model.buffers());
  for (const auto& weight : model.parameters()) {
    all.push_back(weight.const_data_ptr());
    if (!weight.requires_grad() || has_hook(weight)) all.push_back(weight.unsafeGetTensorImpl());
  }
  for (const auto& module : model.modules()) {
    if (!module->is_training()) all.push_back(module.get());
  }
  return all;
}

// How many hold the memory of each gradient, besides its parameter.
std::vector<std::size_t> holders(const Run& run, const std::vector<torch::Tensor>& gradients) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    const std::size_t own = run.parameters[i].model.grad().is_same(gradient) ? 1 : 0;
    all.push_back(gradient.defined() ? gradient.use_count() + gradient.storage().use_count() - own : 0);
  }
  return all;
}

// Why forward and backward cannot be recorded as a graph, which would call no plugin; "" if they can.
std::string why_not_captured(const Wiring& wiring) {
  if (wiring.distributed->ranks() > 1) return "several ranks train together";
  if (wiring.optimizer->steps_in_backward()) return wiring.optimizer->id() + " updates in backward";
  std::string who;
  for (const auto* plugin : wiring.plugins()) {
    const bool is_called = plugin == wiring.task.get() || plugin == wiring.precision.get() ||
                           wiring.bus.listens(*plugin, Event::BatchReady) ||
                           wiring.bus.listens(*plugin, Event::LossReady);
    const auto* capturable = dynamic_cast<const draft::Capturable*>(plugin);
    const bool allows_it = capturable != nullptr && capturable->allows_capture();
    if (is_called && !allows_it) who += (who.empty() ? "" : ", ") + plugin->id();
  }
  return who.empty() ? "" : "these plugins do not allow it: " + who;
}

std::string shape_of(const Run& run) {
  const auto& batch = run.micro_batch;
  auto text = c10::str(batch.samples, has_any(gradients_of(run)) ? " adds" : "");
  for (const auto& tensor : batch.tensors) text += c10::str(" ", tensor.scalar_type(), tensor.sizes());
  return text;
}

torch::Tensor random_of(const Run& run) {
  return at::globalContext().defaultGenerator(run.device).get_state();
}

// Gradients, written buffers, random generators and the micro-batch, as they were when it was made.
class PutBack {
 public:
  explicit PutBack(TrainerRun& run)
      : run_(run), batch_(run.micro_batch), gradients_(gradients_of(run)), sums_(clones(gradients_)) {
    for (const auto& buffer : run.model->buffers()) {
      buffers_.push_back({buffer, buffer.detach().clone(), buffer._version(), false});
    }
    random_.take(run.device);
  }
  ~PutBack() { now(); }
  PutBack(PutBack&&) = delete;

  void now() {
    run_.micro_batch = batch_;
    set_gradients(run_, gradients_);
    copy_to(gradients_, sums_);
    for (auto& [live, copy, version, is_written] : buffers_) {
      // Neither a replay nor batch normalisation raises the version.
      is_written = is_written || live._version() != version || !same_bits(live, copy);
      if (is_written) copy_to({live}, {copy});
    }
    random_.restore(run_.device);
  }
  bool has_gradients() const { return has_any(gradients_); }
  std::vector<torch::Tensor> written() const {  // buffers, until the last now()
    std::vector<torch::Tensor> all;
    for (const auto& buffer : buffers_) {
      if (buffer.is_written) all.push_back(buffer.live);
    }
    return all;
  }

 private:
  struct Buffer {
    torch::Tensor live, copy;
    std::int64_t version;
    bool is_written;
  };
  TrainerRun& run_;
  Batch batch_;
  std::vector<torch::Tensor> gradients_, sums_;
  std::vector<Buffer> buffers_;
  RandomState random_;
};

}  // namespace

// Numbers that forward and backward have made.
struct CapturedPasses::Result {
  torch::Tensor loss;
  std::vector<torch::Tensor> gradients, buffers;
  torch::Tensor random;  // the state of the device's generator
};

std::string CapturedPasses::difference(const Result& a, const Result& b) {
  if (!same_bits(a.loss, b.loss)) return "losses";
  if (!std::ranges::equal(a.gradients, b.gradients, same_bits)) return "gradients";
  if (!std::ranges::equal(a.buffers, b.buffers, same_bits)) return "buffers";
  return same_bits(a.random, b.random) ? "" : "random numbers";
}

struct CapturedPasses::Pass {
  Batch batch;  // the memory that the graphs read
  std::unique_ptr<DeviceGraph> forward, backward;
  torch::Tensor loss, slope;             // loss: forward's output; slope: the loss's gradient, for backward
  std::vector<torch::Tensor> gradients;  // backward's outputs; empty if it adds to existing gradients
  std::vector<std::size_t> holders;      // use counts of the gradients while nobody keeps one
  std::vector<const void*> model, sums;  // marks_of(); the addresses of gradients that are added to
  std::vector<torch::Tensor> written;    // buffers, whose version a replay does not raise by itself
  std::vector<c10::Storage> read;        // must outlive the graphs
};

void CapturedPasses::begin() {
  shapes_.clear();
  make_ = graphs_;
  is_named_ = false;
  if (const auto trouble = why_not_captured(wiring_); !trouble.empty()) give_up(trouble);
}

void CapturedPasses::give_up(const std::string& trouble) {
  make_ = nullptr;
  if (std::exchange(trouble_, trouble) == trouble) return;
  log(Level::info, "run", "cuda_graph: forward and backward are not recorded as a graph: " + trouble);
}

torch::Tensor CapturedPasses::loss(TrainerRun& run, const Compute& compute) {
  if (!make_) {
    shapes_.clear();  // shapes seen before recordings were given up
    return compute();
  }
  const auto key = shape_of(run);
  if (shapes_.size() >= most_seen && !shapes_.contains(key)) {
    std::erase_if(shapes_, [](const auto& shape) { return shape.second.pass == nullptr; });
  }
  auto& [seen, pass] = shapes_[key];
  if (pass && marks_of(*run.model) != pass->model) {  // after a swap, or where layers were frozen
    pass.reset();
    seen = 0;
  }
  // Whoever has kept a gradient since the last step must not lose its numbers, and is not one of the holders below.
  const auto is_kept = [&run](const auto& shape) {
    const auto* other = shape.second.pass.get();
    return other != nullptr && holders(run, other->gradients) != other->holders;
  };
  if (std::ranges::any_of(shapes_, is_kept)) return compute();
  if (!pass) {
    const auto recorded =
        std::ranges::count_if(shapes_, [](const auto& shape) { return shape.second.pass != nullptr; });
    if (recorded >= most || ++seen <= warm_up) return compute();
    pass = captured(run, compute);
    if (!pass) return compute();
    for (auto& [shape, other] : shapes_) {  // a pass that adds to gradients holds them
      if (other.pass) other.pass->holders = holders(run, other.pass->gradients);
    }
  }
  if (addresses(gradients_of(run)) != pass->sums) return compute();
  return replayed(run, pass);
}

// Returns null, and has said why, if the pass cannot be recorded. The run is as it was before.
std::shared_ptr<CapturedPasses::Pass> CapturedPasses::captured(TrainerRun& run, const Compute& compute) {
  auto pass = std::make_shared<Pass>();
  PutBack before(run);
  try {
    for (const auto& parameter : run.parameters) {
      if (has_hook(parameter.model)) throw Error("the weight " + parameter.name + " has a hook");
    }
    const auto operators = computed_by_operators(run, compute);
    before.now();
    record(run, compute, *pass);
    const auto gradients = gradients_of(run);
    before.now();
    pass->written = before.written();
    set_gradients(run, gradients);
    pass->slope.fill_(1);
    pass->forward->replay();
    pass->backward->replay();
    const auto different = difference({pass->loss, gradients, run.model->buffers(), random_of(run)}, operators);
    if (!different.empty()) {
      before.now();
      const bool do_operators_vary = !difference(computed_by_operators(run, compute), operators).empty();
      throw Error(do_operators_vary ? "two calls of the operators have different " + different +
                                          "; if LibTorch's are the cause, [run] deterministic = true ends that"
                                    : "the graph's " + different + " differ from the operators'");
    }
    if (!before.has_gradients()) pass->gradients = gradients;
  } catch (...) {
    give_up(caught().message);
    return nullptr;
  }
  if (!std::exchange(is_named_, true)) {
    const auto samples = run.micro_batch.samples;
    log(Level::info, "run", c10::str("cuda_graph: forward and backward of ", samples, " samples are a graph"));
  }
  return pass;
}

CapturedPasses::Result CapturedPasses::computed_by_operators(TrainerRun& run, const Compute& compute) {
  set_gradients(run, clones(gradients_of(run)));
  const auto of_host = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  const Watch watch;
  const auto loss = compute();
  loss.backward(torch::ones_like(loss.detach()));
  if (!watch.trouble().empty()) throw Error(watch.trouble());
  if (!run.device.is_cpu() && !same_bits(of_host, at::globalContext().defaultGenerator(torch::kCPU).get_state())) {
    throw Error("the host draws random numbers");
  }
  return {loss.detach(), gradients_of(run), clones(run.model->buffers()), random_of(run)};
}

// The numbers of the host are other ones than those that the recording is compared with.
void CapturedPasses::record(TrainerRun& run, const Compute& compute, Pass& pass) {
  pass.batch = run.micro_batch;
  pass.batch.tensors = clones(run.micro_batch.tensors);
  if (pass.batch.weight) *pass.batch.weight += 1;
  pass.batch.tokens += 1;
  std::ranges::fill(pass.batch.indices, 0);
  run.micro_batch = pass.batch;
  for (const auto device : {run.device, torch::Device(torch::kCPU)}) {
    torch::empty({8}, torch::TensorOptions(device)).uniform_();
  }
  pass.model = marks_of(*run.model);
  pass.sums = addresses(gradients_of(run));
  const Watch watch;
  torch::Tensor loss;
  pass.forward = make_();
  pass.forward->capture([&] { loss = compute(); });
  pass.slope = torch::ones_like(loss.detach());
  pass.backward = make_();
  pass.backward->capture([&] { loss.backward(pass.slope); });
  pass.loss = loss.detach();
  pass.read = watch.read();
}

namespace {

// The loss of a graph, whose backward is the other graph.
class Replayed : public torch::autograd::Function<Replayed> {
 public:
  using Backward = std::function<void(const torch::Tensor& slope)>;

  // leaf: without it there would be no backward.
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& leaf,
                               const torch::Tensor& loss, const Backward& backward) {
    context->saved_data["backward"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(backward));
    return loss.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& slopes) {
    c10::static_intrusive_pointer_cast<Kept>(context->saved_data["backward"].toCapsule())->backward(slopes[0]);
    return {{}, {}, {}};
  }

 private:
  struct Kept final : torch::CustomClassHolder {
    explicit Kept(Backward that) : backward(std::move(that)) {}
    Backward backward;
  };
};

}  // namespace

torch::Tensor CapturedPasses::replayed(const TrainerRun& run, const std::shared_ptr<Pass>& pass) {
  for (std::size_t i = 0; i < pass->batch.tensors.size(); ++i) pass->batch.tensors[i].copy_(run.micro_batch.tensors[i]);
  pass->forward->replay();
  for (const auto& buffer : pass->written) buffer.unsafeGetTensorImpl()->bump_version();
  const auto leaf = torch::zeros({}, pass->loss.options()).requires_grad_();
  return Replayed::apply(leaf, pass->loss, [&run, pass](const torch::Tensor& slope) {
    pass->slope.copy_(slope);
    pass->backward->replay();
    if (!pass->gradients.empty()) set_gradients(run, pass->gradients);
  });
}

}  // namespace vernier
