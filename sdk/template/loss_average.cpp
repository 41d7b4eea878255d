// loss_average: a moving average of the loss, as the metric "loss_average", so that a noisy curve can be read.
//   decay = 0.98   share of the average that is kept each step
//
// This file is a plugin whole. Copy the folder, rename, and put your rule in the place of this one.
#include <vernier/sdk.h>

class LossAverage final : public vernier::Callback {
 public:
  // Reads its options, and does nothing else. Reading declares: `vernier plugins callback/loss_average` prints this.
  explicit LossAverage(vernier::Options& options)
      : decay_(options.get("decay", 0.98, "share of the average that is kept each step", vernier::between(0, 1))) {}

  // Says at which moments of the step it is told. The comment over vernier::Event shows them all.
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) {
      // Tensors stay on their device: no item() here, or the GPU would stand still in every step.
      average_ = average_.defined() ? average_.lerp(run.loss, 1 - decay_) : run.loss;
      run.metrics.set("loss_average", average_);
    });
  }

  // Called once, when model and device are known: the place to refuse what cannot work, by throwing vernier::Error.
  void prepare(vernier::Run& run) override { device_ = run.device; }

  // What the next steps depend on, so that a resumed run goes on bit for bit.
  vernier::State save() const override {
    vernier::State state;
    if (average_.defined()) state.put("average", average_);
    return state;
  }
  void load(const vernier::State& state) override {
    average_ = state.has("average") ? state.tensor("average").to(device_) : torch::Tensor();
  }

 private:
  double decay_;
  torch::Device device_ = torch::kCPU;
  torch::Tensor average_;
};

VERNIER_PLUGIN(LossAverage, "loss_average", "0.1.0")
