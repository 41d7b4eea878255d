// model_parallel: the ranks hold one model together. Each has a part of the model, and computes every sample with it;
// the model calls collectives where it needs the others. The loss is divided by the number of ranks. Gradients of
// weights that all ranks have are summed, and each of these weights has one rank that updates it and keeps its state.
// The task says which tensors are in parts: task/graph, with a file for each rank, as model = "rank-{rank}.pt2".
// Options are those of distributed/ddp.
//
//   timeout = 120          seconds in which a rank must come, and answer; one whose connection breaks is lost at once
//   port = 0               where rank 0 listens; 0: as the launcher says, else 29500
//   address = ""           of the machine with rank 0; "": as the launcher says
//   interface = ""         of the network, as "eth1"; "": the one that leads to rank 0
//   compress = "none"      bf16 | fp16: the dtype in which float32 gradients are sent and summed
//   message = {}           {use = "one_bit"}: a quantizer that rounds what a rank sends; the sum itself is exact
//   error_feedback = true  a rank adds to its next gradient what rounding of the message lost
//   bucket = "8MB"         largest piece in which small tensors are sent together: gradients below 1 MB, or weights
//   overlap = false        true: gradients are summed while backward computes others; pays on a slow network
//   shared_memory = true   ranks of one machine sum through memory that they share, instead of Gloo
//
// Source: M. Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism,
// arXiv:1909.08053, 2019.
#include <ATen/ops/zeros_like.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/draft/model_parts.h>

#include "../ddp/data_parallel.h"

using vernier::Run;
using vernier::draft::ModelParts;

class ModelParallel final : public ddp::DataParallel {
 public:
  explicit ModelParallel(vernier::Options& options) : DataParallel(options) {}
  bool shards_optimizer() const override { return true; }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    if (ranks() == 1) return {};
    const auto* accumulation = dynamic_cast<const vernier::Accumulation*>(&other);
    if (accumulation != nullptr && accumulation->can_shrink()) {
      return {"use", "sums over the ranks in each micro-batch, and " + other.id() +
                         " may change their sizes; use accumulation/fixed"};
    }
    if (reads_all_gradients(other, bus, vernier::Event::GradientsReady)) {
      return {"use", "leaves a part of the gradients on each rank, and " + other.id() + " reads all; leave it out"};
    }
    const auto* optimizer = dynamic_cast<const vernier::Optimizer*>(&other);
    const auto* by_element = dynamic_cast<const vernier::draft::UpdatesElements*>(&other);
    if (optimizer != nullptr && (by_element == nullptr || !by_element->updates_each_element())) {
      return {"use", "gives a rank a part of a parameter, and " + other.id() +
                         " looks at the whole of it to update an element; use optimizer/adamw"};
    }
    return DataParallel::contradicts(other, bus);
  }

  void prepare(Run& run) override {
    if (ranks() > 1 && !run.device.is_cpu()) vernier::refuse(id() + " trains on CPUs alone; set [run] device", id());
    DataParallel::prepare(run);
    if (ranks() == 1 || run.is_stopping()) return;
    const auto add_up = [this](const torch::Tensor& numbers) { sum(numbers)(); };
    gradients_.emplace(add_up);
    parts_.emplace(rank(), ranks(), add_up);
    group().register_collectives();
  }

  void check(const Run& run) override {
    DataParallel::check(run);
    if (!parts_ || parts_->names()) return;
    vernier::refuse(id() + " is for a model in parts: task/graph with model = \"rank-{rank}.pt2\"; use distributed/ddp",
                    id());
  }

  // A part has a gradient on all ranks, or on none. Another weight has its gradient where it is updated.
  void all_reduce(Run& run, torch::Tensor numbers) override {
    DataParallel::all_reduce(run, numbers);
    for (const auto& parameter : run.parameters) {
      auto& gradient = parameter.model.mutable_grad();
      const bool is_part = ModelParts::is_part(parameter.name);
      if (is_part && !gradient.defined()) gradient = at::zeros_like(parameter.model);
      if (!is_part && !parameter.owned && gradient.defined()) vernier::draft::leave_elsewhere(gradient);
    }
  }

 private:
  std::optional<vernier::draft::GradientParts> gradients_;
  std::optional<ModelParts> parts_;
};

VERNIER_PLUGIN(ModelParallel, "model_parallel", "1.0.0")
