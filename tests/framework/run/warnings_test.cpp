#include "run/process/warnings.h"

#include <doctest/doctest.h>

#include "log_lines.h"
#include "toy_run.h"

namespace warnings_test {

using vernier::Event;
using vernier::Run;

TEST_CASE("warnings: what LibTorch warns of in every step is logged once, with plugin and step") {
  struct Warns final : toy::Task {
    torch::Tensor loss(const vernier::Batch& micro_batch) override {
      TORCH_WARN("the kernel of ", "loss", "\nis slow");
      return toy::Task::loss(micro_batch);
    }
    torch::Tensor validate(Run&) override {
      TORCH_WARN("validated");
      return {};
    }
  };
  const LogLines log;
  toy::Toy toy;
  toy.wiring.task = std::make_unique<Warns>();
  toy.on(Event::GradientsReady, [](Run& run) {
    TORCH_WARN("the norm is slow");
    if (run.step >= 3) TORCH_WARN("late");
  });
  toy.prepare(/*validate_every=*/2).train(toy.run);
  const std::string rest = " (further warnings of this text are left out)";
  CHECK(LogLines::lines() ==
        std::vector<std::string>{"task/toy in step 1: LibTorch warns: the kernel of loss is slow" + rest,
                                 "callback/told in step 1: LibTorch warns: the norm is slow" + rest,
                                 "task/toy after step 2: LibTorch warns: validated" + rest,
                                 "callback/told in step 4: LibTorch warns: late" + rest});
}

TEST_CASE("warnings: after a run LibTorch warns as before") {
  toy::Toy toy;
  auto* const before = c10::WarningUtils::get_warning_handler();
  toy.prepare().train(toy.run);
  CHECK(c10::WarningUtils::get_warning_handler() == before);
}

}  // namespace warnings_test
