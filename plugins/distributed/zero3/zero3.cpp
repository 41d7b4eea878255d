// zero3: trains as distributed/ddp does, with the same bits, and keeps each weight, its gradient, its optimizer state
// and its master on one rank. Another rank has memory for a weight only while an operator reads it: before it runs, the
// weight comes from its owner, and it goes when the next weight comes. Ranks of one machine read the owner's memory.
// Gradients are summed while backward computes others. Parameters are dealt out whole, as with distributed/zero1.
// Vectors and small weights stay on all ranks.
// Engine and options are those of distributed/ddp.
//
//   keep_gathered = false  true: a weight stays from forward to backward; this halves the traffic between machines
//   timeout = 120          seconds in which a rank must come, and answer; one whose connection breaks is lost at once
//   port = 0               where rank 0 listens; 0: as the launcher says, else 29500
//   address = ""           of the machine with rank 0; "": as the launcher says
//   interface = ""         of the network, as "eth1"; "": the one that leads to rank 0
//   compress = "none"      bf16 | fp16: the dtype in which float32 gradients are sent and summed
//   message = {}           {use = "one_bit"}: a quantizer that rounds what a rank sends; the sum itself is exact
//   error_feedback = true  a rank adds to its next gradient what rounding of the message lost
//   bucket = "8MB"         largest piece in which small tensors are sent together: gradients below 1 MB, or weights
//   shared_memory = true   ranks of one machine sum through memory that they share, and read weights there
//
// Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020,
// stage 3.
#include "weights.h"

#include "../ddp/data_parallel.h"

using vernier::Contradiction;
using vernier::Event;
using vernier::Run;

class Zero3 final : public ddp::DataParallel {
 public:
  explicit Zero3(vernier::Options& options)
      : DataParallel(options, /*in_backward=*/true),
        keeps_(options.get("keep_gathered", false,
                           "keep weights of other ranks from forward to backward: less traffic, more memory")) {
    options.resumable("keep_gathered");
  }
  ~Zero3() override {
    try {
      if (is_well_) weights_->meet();  // rank 0 may still fetch weights
    } catch (...) {                    // the run is over, and a rank that is lost has been reported
    }
  }

  bool shards_optimizer() const override { return true; }

  void attach(vernier::Bus& bus) override {
    DataParallel::attach(bus);
    if (ranks() == 1) return;
    bus.on(Event::RunBegin, [this](Run&) {
      is_well_ = true;
      if (rank() == 0) info(weights_->describe());
    });
    bus.on(Event::BatchReady, [this](Run&) {
      weights_->begin_gradients();
      weights_->keep(keeps_);
    });
    bus.on(Event::LossReady, [this](Run&) { weights_->throw_failure(); });
    bus.on(Event::BackwardDone, [this](Run&) {
      weights_->throw_failure();
      weights_->keep(false);
    });
    bus.on(Event::RunFailed, [this](Run&) {
      is_well_ = false;
      if (weights_) weights_->stop();
    });
  }

  Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    if (ranks() == 1) return {};
    for (const auto event : {Event::GradientsReady, Event::UpdateDone}) {
      if (!reads_all_gradients(other, bus, event)) continue;
      return {"use", "keeps each weight and gradient on one rank, and " + other.id() +
                         " may read those of all; use distributed/zero1, or leave it out"};
    }
    return DataParallel::contradicts(other, bus);
  }

  void prepare(Run& run) override {
    if (ranks() > 1 && !run.device.is_cpu()) {
      vernier::refuse(id() + " keeps weights in parts on CPUs alone; use distributed/zero1 on GPUs", id());
    }
    DataParallel::prepare(run);
    if (ranks() > 1) parts_.emplace([this](const torch::Tensor& numbers) { sum(numbers)(); });
  }

  // Frees weights before a resumed run reads its checkpoint.
  void check(const Run& run) override {
    DataParallel::check(run);
    if (ranks() > 1) weights_.emplace(run, group(), rank(), ranks());
  }

  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks) override {
    if (!weights_) return DataParallel::broadcast(of_ranks);
    auto whole = of_ranks;
    for (auto& tensors : whole) {
      std::erase_if(tensors, [this](const auto& tensor) { return weights_->note_written(tensor); });
    }
    DataParallel::broadcast(whole);
  }

 private:
  void meet() override {
    if (weights_) weights_->meet();
  }
  void meet_in_backward() override {
    if (weights_) weights_->meet_in_backward();
  }
  void summed(const vernier::Parameter& parameter) override {
    if (!parameter.owned) vernier::draft::leave_elsewhere(parameter.model.grad());
    if (weights_) weights_->release(parameter.model);
  }

  bool keeps_;
  bool is_well_ = false;  // true from RunBegin on, unless the run fails
  std::optional<vernier::draft::GradientParts> parts_;
  std::optional<zero3::Weights> weights_;  // from check() on
};

VERNIER_PLUGIN(Zero3, "zero3", "1.0.0")
