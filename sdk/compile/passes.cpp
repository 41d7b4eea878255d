// Forward and backward of micro-batches, recorded once and then repeated: [run] engine.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/backward.h"
#include "files/weights.h"
#include "gpu/device_graph.h"
#include "run_state.h"
#include "tape.h"

namespace vernier::compile {

namespace {

constexpr int warm_up = 2;             // passes of a shape before it is recorded
constexpr std::ptrdiff_t most = 8;     // recorded shapes, each of which holds gradients
constexpr std::size_t most_seen = 64;  // shapes that are counted
constexpr int batches = 3;             // on which a program with other last bits is compared
constexpr double gain = 0.95;          // most of the operators' time that such a program may take

// Copies between tensors of one shape and dtype. On a CPU without an operator, which would take longer than its work.
void write_to(const torch::Tensor& from, const torch::Tensor& to) {
  if (to.is_cpu() && from.is_cpu() && to.is_contiguous() && from.is_contiguous()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
}

[[noreturn]] void refuse_to_resume(const std::string& trouble) {
  throw Error("the run cannot be resumed bit for bit: its program does not stand for the operators again: " + trouble +
              "; mend that, or give --allow-inexact to resume by the operators");
}

// The end of the graph of autograd: backward of a recorded loss.
struct Replayed final : torch::autograd::Node {
  explicit Replayed(std::function<void(const torch::Tensor& slope)> that) : backward(std::move(that)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& slopes) override {
    backward(slopes[0]);
    return {};
  }
  std::string name() const override { return "Replayed"; }
  std::function<void(const torch::Tensor& slope)> backward;
};

class Passes final : public RecordedPasses {
 public:
  Passes(MakeDeviceGraph make, Recordings kind) : graphs_(std::move(make)), kind_(kind) {}
  void begin(const std::string& trouble) override;
  void forget() override { shapes_.clear(); }
  torch::Tensor loss(TrainerRun& run, const Compute& compute) override;
  std::string save() const override;
  void load(const std::string& saved, bool allow_inexact) override;

 private:
  struct Pass;
  struct Result;
  struct Shape {
    int seen = 0;
    int compared = 0;            // micro-batches
    bool is_slow = false;        // the operators take no longer
    bool is_in_use = false;      // a graph stands for the operators
    std::string program;         // the id of the one in use, or that the checkpoint asks for
    std::string flags = "-";     // Marks::flags() when it was recorded
    std::shared_ptr<Pass> pass;  // null: not recorded
    bool is_recorded() const { return pass || compared > 0 || !program.empty(); }
  };
  using Results = std::vector<torch::Tensor>;
  std::string key_of(const Run& run) const;
  bool is_used(TrainerRun& run, const Compute& compute, Shape& shape);
  bool compare(TrainerRun& run, const Compute& compute, Shape& shape);
  void accept(TrainerRun& run, const Compute& compute, Shape& shape);
  static double share_of_time(TrainerRun& run, const Compute& compute, const std::shared_ptr<Pass>& pass);
  static Result computed_by_operators(TrainerRun& run, const Compute& compute);
  static std::string difference(const Result& a, const Result& b, std::vector<double> bounds = {});
  void record(TrainerRun& run, const Compute& compute, Pass& pass);
  static void fill(const TrainerRun& run, Pass& pass);
  static torch::Tensor replayed(const TrainerRun& run, const std::shared_ptr<Pass>& pass);
  void give_up(const std::string& trouble);

  MakeDeviceGraph graphs_;  // makes graphs on this device
  Recordings kind_;
  MakeDeviceGraph make_;  // the same; null: recordings were given up
  std::map<std::string, Shape> shapes_;
  std::string trouble_;    // the reason that was logged last
  bool is_named_ = false;  // the log has said that graphs are used
};

// Numbers that forward and backward have made.
struct Passes::Result {
  torch::Tensor loss;
  std::vector<torch::Tensor> gradients, buffers;
  torch::Tensor random;  // the state of the device's generator
};

// bounds: those of the loss, the gradients and the buffers, in this order; empty: all bits are the same.
std::string Passes::difference(const Result& a, const Result& b, std::vector<double> bounds) {
  bounds.resize(1 + a.gradients.size() + a.buffers.size());
  auto bound = bounds.begin();
  const auto are_close = [&bound](const torch::Tensor& one, const torch::Tensor& other) {
    const double most = *bound++;
    if (most == 0 || !one.defined() || !other.defined()) return same_bits(one, other);
    const auto now = one.detach(), then = other.detach();
    const auto both_nan = now.isnan().logical_and(then.isnan());
    return (now - then).abs().le(most).logical_or(now.eq(then)).logical_or(both_nan).all().item<bool>();
  };
  if (!are_close(a.loss, b.loss)) return "losses";
  if (!std::ranges::equal(a.gradients, b.gradients, are_close)) return "gradients";
  if (!std::ranges::equal(a.buffers, b.buffers, are_close)) return "buffers";
  return same_bits(a.random, b.random) ? "" : "random numbers";
}

struct Passes::Pass {
  Batch batch;  // the memory that the graphs read
  std::unique_ptr<DeviceGraph> forward, backward;
  torch::Tensor loss, slope;             // loss: forward's output; slope: the loss's gradient, for backward
  std::vector<torch::Tensor> gradients;  // backward's outputs; empty if it adds to existing gradients
  std::vector<std::size_t> holders;      // use counts of the gradients while nobody keeps one
  std::optional<Marks> model;
  std::vector<const void*> sums;       // the addresses of gradients that are added to
  std::vector<torch::Tensor> written;  // buffers, whose version a replay does not raise by itself
  std::vector<c10::Storage> read;      // must outlive the graphs
};

void Passes::begin(const std::string& trouble) {
  shapes_.clear();
  make_ = graphs_;
  is_named_ = false;
  if (!trouble.empty()) give_up(trouble);
}

void Passes::give_up(const std::string& trouble) {
  make_ = nullptr;
  if (std::exchange(trouble_, trouble) == trouble) return;
  log(Level::info, "run", "engine: the operators compute forward and backward, without a recording: " + trouble);
}

// The shape of the micro-batch, and, if its gradients are added to others, the shape of the pass that holds those.
std::string Passes::key_of(const Run& run) const {
  const auto& batch = run.micro_batch;
  auto text = std::to_string(batch.samples);
  for (const auto& tensor : batch.tensors) {
    text += '/' + std::to_string(static_cast<int>(tensor.scalar_type()));
    for (const auto size : tensor.sizes()) text += ',' + std::to_string(size);
  }
  if (std::ranges::none_of(run.parameters, [](const auto& one) { return one.model.grad().defined(); })) return text;
  const auto sums = addresses(gradients_of(run));
  for (const auto& [key, shape] : shapes_) {
    if (shape.pass && shape.is_in_use && addresses(shape.pass->gradients) == sums) return text + "+" + key;
  }
  return "";
}

torch::Tensor Passes::loss(TrainerRun& run, const Compute& compute) {
  if (!make_) {
    shapes_.clear();  // shapes seen before recordings were given up
    return compute();
  }
  const auto key = key_of(run);
  if (key.empty()) return compute();  // gradients of operators, which have another address each time
  if (shapes_.size() >= most_seen && !shapes_.contains(key)) {
    std::erase_if(shapes_, [](const auto& shape) { return !shape.second.is_recorded(); });
  }
  auto& shape = shapes_[key];
  if (shape.is_slow) return compute();
  const bool is_changed = shape.pass ? shape.pass->model->now() != shape.pass->model->recorded
                                     : shape.is_recorded() && shape.flags != Marks(*run.model).flags();
  if (is_changed) shape = {};  // layers were frozen
  // Whoever has kept a gradient since the last step must not lose its numbers, and is not one of the holders below.
  const auto is_kept = [&run](const auto& one) {
    const auto* other = one.second.pass.get();
    return other != nullptr && holders(run, other->gradients) != other->holders;
  };
  if (std::ranges::any_of(shapes_, is_kept)) return compute();
  if (!is_used(run, compute, shape) || addresses(gradients_of(run)) != shape.pass->sums) return compute();
  return replayed(run, shape.pass);
}

// Returns whether graphs stand for the operators in this pass: from the third one on, or later where they are compared
// on several. In a resumed run, at once.
bool Passes::is_used(TrainerRun& run, const Compute& compute, Shape& shape) {
  const bool is_asked_for = !shape.program.empty();
  if (!shape.pass) {
    const auto recorded = std::ranges::count_if(shapes_, [](const auto& one) { return one.second.is_recorded(); });
    if (!is_asked_for && ((recorded >= most && !shape.is_recorded()) || ++shape.seen <= warm_up)) {
      return false;
    }
    shape.flags = Marks(*run.model).flags();
  }
  const int needed = kind_ == Recordings::exact || is_asked_for ? 1 : batches;
  if (shape.is_in_use) return true;
  if (!compare(run, compute, shape)) return false;
  for (auto& [key, other] : shapes_) {  // a pass that adds to gradients holds them
    if (other.pass) other.pass->holders = holders(run, other.pass->gradients);
  }
  shape.is_in_use = ++shape.compared >= needed && !shape.is_slow;
  return shape.is_in_use;
}

// Records the pass if it is not. Returns false, and has said why, if it cannot be used. The run is as it was before.
bool Passes::compare(TrainerRun& run, const Compute& compute, Shape& shape) {
  const bool is_new = shape.pass == nullptr;
  if (is_new) shape.pass = std::make_shared<Pass>();
  auto& pass = *shape.pass;
  PutBack before(run);
  try {
    for (const auto& parameter : run.parameters) {
      if (has_hook(parameter.model)) throw Error("the weight " + parameter.name + " has a hook");
    }
    const auto operators = computed_by_operators(run, compute);
    before.now();
    if (is_new) record(run, compute, pass);
    const auto gradients = is_new || before.has_gradients() ? gradients_of(run) : pass.gradients;
    before.now();
    if (is_new) pass.written = before.written();
    set_gradients(run, gradients);
    fill(run, pass);
    pass.slope.fill_(1);
    Result result{pass.loss, gradients, run.model->buffers(), {}};
    Results all = {pass.loss};
    all.insert(all.end(), gradients.begin(), gradients.end());
    all.insert(all.end(), result.buffers.begin(), result.buffers.end());
    const auto bounds = pass.forward->bounds(*pass.backward, all);
    pass.forward->replay();
    pass.backward->replay();
    result.random = random_of(run);
    const auto different = difference(result, operators, bounds);
    if (!different.empty()) {
      before.now();
      const bool do_operators_vary = !difference(computed_by_operators(run, compute), operators).empty();
      throw Error(do_operators_vary ? "two calls of the operators have different " + different +
                                          "; if LibTorch's are the cause, [run] deterministic = true ends that"
                                    : "the recording's " + different + " differ from the operators'");
    }
    if (!before.has_gradients()) pass.gradients = gradients;
    if (kind_ == Recordings::exact || !shape.program.empty() || shape.compared + 1 == batches) {
      before.now();
      accept(run, compute, shape);
    }
  } catch (...) {
    const auto trouble = caught().message;
    if (!shape.program.empty()) refuse_to_resume(trouble);
    shape.pass = nullptr;
    give_up(trouble);
    return false;
  }
  return true;
}

// Called when all comparisons are done: the program is used if it is the one of the checkpoint, or if it is faster.
void Passes::accept(TrainerRun& run, const Compute& compute, Shape& shape) {
  const auto id = shape.pass->forward->id();
  std::string time;
  if (!shape.program.empty() && shape.program != id) {
    throw Error("the checkpoint's is " + shape.program + ", and this processor, compiler and version have " + id);
  }
  if (shape.program.empty() && kind_ == Recordings::faster) {
    const auto share = share_of_time(run, compute, shape.pass);
    shape.is_slow = share > gain;
    time = c10::str(", in ", std::round(share * 100) / 100, " of the operators' time",
                    shape.is_slow ? "; the operators are used" : "");
  }
  if (shape.is_slow) {
    shape.pass = nullptr;  // compared stays, because a shape is compiled once
  } else {
    shape.program = id;
  }
  if (std::exchange(is_named_, true) && time.empty()) return;
  log(Level::info, "run",
      c10::str("engine: a recording computes forward and backward of ", run.micro_batch.samples, " samples", time));
}

// The least time of 20 calls, in turn, of at most two seconds. One thread measures its processor time, which other
// programs disturb less.
double Passes::share_of_time(TrainerRun& run, const Compute& compute, const std::shared_ptr<Pass>& pass) {
  PutBack before(run);
  const auto gradients = gradients_of(run);
  double least[2] = {1e9, 1e9};
  const auto clock = at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const auto now = [clock] {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const auto begin = now();
  for (int i = 0; i < 20 && now() - begin < 2; ++i) {
    for (const int kind : {0, 1}) {
      set_gradients(run, gradients);
      const auto start = now();
      backward(kind == 0 ? compute() : replayed(run, pass));
      least[kind] = std::min(least[kind], now() - start);
    }
  }
  return least[1] / least[0];
}

std::string Passes::save() const {
  std::string text;
  if (kind_ == Recordings::exact) return text;
  if (!make_) return "compiled-given-up\n";
  text = "compiled\n";
  for (const auto& [key, shape] : shapes_) {
    text += c10::str(key, ' ', shape.seen, ' ', shape.compared, ' ', shape.is_slow, ' ',
                     shape.program.empty() ? "-" : shape.program, ' ', shape.flags, '\n');
  }
  return text;
}

void Passes::load(const std::string& saved, bool allow_inexact) {
  const bool is_compiled = kind_ == Recordings::faster;
  compare_engines(saved, is_compiled, allow_inexact);
  if (!is_compiled || allow_inexact) return;  // the programs may be others: they are compared and timed again
  std::istringstream in(saved);
  std::string key;  // the first word is the engine, and then each shape begins with its key
  if (in >> key; key == "compiled-given-up") return give_up("the run that is resumed had given it up");
  for (Shape shape; in >> key >> shape.seen >> shape.compared >> shape.is_slow >> shape.program >> shape.flags;) {
    if (shape.program == "-") shape.program.clear();
    if (!make_ && !shape.program.empty()) refuse_to_resume(trouble_);
    // The next pass records it again, so its program runs from the same step as in a run without the stop.
    shape.seen = std::min(shape.seen, warm_up);
    shapes_[key] = shape;
  }
}

Passes::Result Passes::computed_by_operators(TrainerRun& run, const Compute& compute) {
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
void Passes::record(TrainerRun& run, const Compute& compute, Pass& pass) {
  pass.batch = run.micro_batch;
  pass.batch.tensors = clones(run.micro_batch.tensors);
  if (pass.batch.weight) *pass.batch.weight += 1;
  pass.batch.tokens += 1;
  std::ranges::fill(pass.batch.indices, 0);
  run.micro_batch = pass.batch;
  for (const auto device : {run.device, torch::Device(torch::kCPU)}) {
    torch::empty({8}, torch::TensorOptions(device)).uniform_();
  }
  pass.model.emplace(*run.model);
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

void Passes::fill(const TrainerRun& run, Pass& pass) {
  for (std::size_t i = 0; i < pass.batch.tensors.size(); ++i)
    write_to(run.micro_batch.tensors[i], pass.batch.tensors[i]);
}

torch::Tensor Passes::replayed(const TrainerRun& run, const std::shared_ptr<Pass>& pass) {
  fill(run, *pass);
  pass->forward->replay();
  for (const auto& buffer : pass->written) buffer.unsafeGetTensorImpl()->bump_version();
  auto loss = at::empty_like(pass->loss);
  write_to(pass->loss, loss);
  const auto node = std::make_shared<Replayed>([&run, pass](const torch::Tensor& slope) {
    write_to(slope, pass->slope);
    pass->backward->replay();
    if (!pass->gradients.empty()) set_gradients(run, pass->gradients);
  });
  torch::autograd::set_history(loss, node);
  return loss;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) RecordedPasses* vernier_new_recorded_passes(MakeDeviceGraph make,
                                                                                              Recordings kind) {
  return new Passes(std::move(make), kind);
}

}  // namespace vernier::compile
