// Tests task/my_name without the runner: its data, and that its model learns them.
#include "my_name.cpp"

#include <vernier/host.h>

#include <fstream>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

TEST_CASE("the task learns to tell two classes apart") {
  const std::string file = "my_name_test.csv";
  std::ofstream lines(file);
  lines << "x,y,class\n";
  for (int i = 0; i < 60; ++i) lines << i % 7 << ',' << i % 5 << ',' << (i % 7 > 3 ? "right" : "left") << '\n';
  lines.close();
  // Each option is its value with the place that an error names, here "test".
  vernier::Options options("task/my_name", {{"data", {file, "test"}}, {"batch_size", {std::int64_t{16}, "test"}}},
                           "test");
  torch::manual_seed(1);  // seeds the first weights
  MyName task(options);
  vernier::HostApi::refuse_unread(options);
  vernier::TrainerRun run;
  task.prepare(run);
  CHECK(task.batches_per_epoch() == 3);  // 48 of the 60 lines; a fifth is held out

  torch::optim::SGD optimizer(run.model->parameters(), 0.5);
  for (int step = 0; step < 200; ++step) {
    const auto batch = task.next();
    CHECK(batch.samples == 16);
    const auto loss = task.loss(batch);
    CHECK(loss.dim() == 0);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  run.model->eval();
  const torch::NoGradGuard no_grad;
  CHECK(task.validate(run).item<double>() < 0.4);
  CHECK(run.metrics.value("accuracy").value() > 0.7);
  std::remove(file.c_str());
}
