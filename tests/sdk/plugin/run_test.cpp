#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/host.h>
#include <vernier/run.h>

#include "thrown.h"

namespace run_test {

using vernier::Batch;
using vernier::Metrics;
using vernier::Run;

namespace {

Batch batch_of(std::int64_t samples, std::int64_t tokens = 0) {
  return {{torch::arange(samples * 2).reshape({samples, 2}), torch::arange(samples)}, samples, tokens};
}

}  // namespace

TEST_CASE("batch: narrow is a view of samples, and tokens add up") {
  const Batch whole = batch_of(10, 37);
  std::int64_t first = 0, tokens = 0;
  for (const std::int64_t count : {1, 2, 3, 4}) {
    const Batch micro_batch = whole.narrow(first, count);
    CHECK(micro_batch.samples == count);
    CHECK(micro_batch.tensors[0].sizes() == torch::IntArrayRef{count, 2});
    CHECK(micro_batch.tensors[1][0].item<std::int64_t>() == first);
    CHECK(micro_batch.tensors[0].is_alias_of(whole.tensors[0]));
    first += count;
    tokens += micro_batch.tokens;
  }
  CHECK(tokens == 37);
}

TEST_CASE("batch: what is on the device already is not copied") {
  const Batch whole = batch_of(2);
  CHECK(whole.to(torch::kCPU).tensors[0].is_same(whole.tensors[0]));
}

TEST_CASE("run: gradients are those of the masters, in order, and only those that are there") {
  vernier::TrainerRun run;
  for (const char* name : {"a", "b", "c"}) {
    const auto tensor = torch::zeros({1}).requires_grad_();
    run.parameters.push_back({name, tensor, tensor});
  }
  run.parameters[0].master.mutable_grad() = torch::ones({1});
  run.parameters[2].master = torch::zeros({1});
  run.parameters[2].master.mutable_grad() = torch::full({1}, 3.0);
  const auto gradients = run.gradients();
  REQUIRE(gradients.size() == 2);
  CHECK(gradients[0].item<double>() == 1);
  CHECK(gradients[1].item<double>() == 3);
}

TEST_CASE("run: a notice knows its step and reads as one line") {
  vernier::TrainerRun run;
  run.step = 41;
  run.notice("scale_changed", {{"from", 65536.0}, {"to", std::int64_t{32768}}, {"why", std::string("inf")}},
             "the scale changed");
  REQUIRE(run.notices.size() == 1);
  CHECK(run.notices[0].step == 41);
  CHECK(run.notices[0].text() == "scale_changed from=65536 to=32768 why=inf");
  CHECK(run.notices[0].sentence == "the scale changed");
}

TEST_CASE("metrics: of this step only, in the order of this step") {
  Metrics metrics;
  metrics.set("b", 1.0);
  metrics.set("a", torch::tensor(2.0F).requires_grad_());
  CHECK(metrics.value("a") == 2.0);
  metrics.set("b", 3.0);
  vernier::HostApi::clear(metrics);
  CHECK_FALSE(metrics.value("a").has_value());
  CHECK(metrics.set_now().empty());
  metrics.set("a", 5.0);
  metrics.set("new", 7.0);
  metrics.set("b", torch::tensor(6.0F));
  metrics.set("a", 8.0);
  const auto now = metrics.set_now();
  REQUIRE(now.size() == 3);
  CHECK(now[0]->name == "a");
  CHECK(now[0]->value() == 8.0);
  CHECK(now[1]->name == "new");
  CHECK(now[2]->name == "b");
  CHECK(now[2]->value() == 6.0);
  CHECK(metrics.value("b") == 6.0);
  CHECK_FALSE(metrics.value("c").has_value());
}

TEST_CASE("metrics: what is not a number is refused, and changes nothing") {
  Metrics metrics;
  metrics.set("a", 1.0);
  const std::string remedy = ": a metric is one number; set a mean, or a metric for each number";
  CHECK(thrown_by([&] { metrics.set("a", torch::ones({3})); }) ==
        failed("the metric \"a\" is set to a tensor of shape [3]" + remedy));
  CHECK(thrown_by([&] { metrics.set("b", torch::ones({0})); }).kind == 4);
  CHECK(thrown_by([&] { metrics.set("b", torch::Tensor()); }) ==
        failed("the metric \"b\" is set to an undefined tensor" + remedy));
  CHECK(metrics.value("a") == 1.0);
  CHECK(metrics.set_now().size() == 1);
  metrics.set("b", torch::full({1}, 2.0));
  CHECK(metrics.value("b") == 2.0);
}

}  // namespace run_test
