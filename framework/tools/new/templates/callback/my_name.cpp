// my_name: computes a moving average of the loss, as a metric of the same name.
// A noisy curve can be read in it. monitor/progress shows it on the terminal, and monitor/jsonl writes it into
// losses.jsonl.
//   decay = 0.98   share of the average that is kept in each step
//
// This file is a complete plugin. Replace its rule with your own.
#include <vernier/sdk.h>

class MyName final : public vernier::Callback {
 public:
  // Reads the options and does nothing else. `vernier plugins callback/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : decay_(options.get("decay", 0.98, "share of the average that is kept in each step", vernier::between(0, 1))) {
    // The memory on which the next steps depend. With it a resumed run equals one that was never stopped, bit for bit.
    remember("average", average_);
  }

  // Chooses the events that call this plugin. The comment over vernier::Event lists them all.
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) {
      // The tensors stay on their device. An item() here would make the host wait for the GPU in every step.
      average_ = average_.defined() ? average_.lerp(run.loss, 1 - decay_) : run.loss;
      run.metrics.set("my_name", average_);
    });
  }

 private:
  double decay_;
  torch::Tensor average_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
