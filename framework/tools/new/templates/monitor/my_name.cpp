// my_name: prints the loss and the rate of learning.
//   every = 50   steps between two lines
//
// This file is a complete plugin. A monitor only looks: if it throws, it is detached, and the training continues.
#include <vernier/sdk.h>

#include <iostream>

class MyName final : public vernier::Monitor {
 public:
  // Reads the options and does nothing else. `vernier plugins monitor/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : every_(options.get("every", 50, "steps between two lines", vernier::at_least(1))) {
    options.resumable("every");  // it changes no number of the run, so a resumed run may have another value
  }

  // Chooses the events that call this plugin. The comment over vernier::Event lists them all.
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](const vernier::Run& run) {
      if (run.quiet || run.step % every_ != 0) return;
      // item() makes the host wait for the GPU, so it comes after the interval was checked.
      std::cout << "step " << run.step << " of " << run.steps << ": loss " << run.loss.item<double>();
      if (const auto rate = run.metrics.value("learning_rate")) std::cout << ", learning rate " << *rate;
      std::cout << '\n';
    });
  }

 private:
  std::int64_t every_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
