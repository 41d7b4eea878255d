// Ranks that train on GPUs. With one GPU all ranks share it, so their gradients are summed without NCCL.
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "distributed/ddp/nccl_library.h"
#include "run/process/device.h"
#include "several_ranks.h"

namespace gpu_test {

using namespace several_ranks;

namespace {

// Opens LibTorch's CUDA library, if it is there.
bool has_gpu() {
  const bool has = vernier::open_device("auto").is_cuda();
  if (!has) MESSAGE("skipped: there is no GPU here");
  return has;
}

std::string library() {
  return VERNIER_BINARY_DIR "/libvernier_nccl.so";
}

}  // namespace

TEST_CASE("gpu: ranks on GPUs train as one process on a GPU does") {
  if (!has_gpu()) return;
  for (const std::string plugin : {"ddp", "zero1"}) {
    CAPTURE(plugin);
    const std::vector<std::string> sets = {"--set=run.device=cuda", "--set=distributed.use=" + plugin};
    RunFolder alone(mlp), together(mlp), again(mlp);
    REQUIRE_MESSAGE(alone.train(sets) == 0, alone.err);
    for (auto* place : {&together, &again}) {
      const auto local_rank = [](int rank) {
        ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        return std::vector<std::string>{};
      };
      Ranks ranks(*place, 2, sets, local_rank);
      ::unsetenv("LOCAL_RANK");
      REQUIRE_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
      const bool travels_by_nccl = at::getNumGPUs() > 1 && std::filesystem::exists(library());
      CHECK_MESSAGE(says(ranks[0].err(), "NCCL is not available") == !travels_by_nccl, ranks[0].err());
    }
    CHECK(distance(weights_of(alone, 12), weights_of(together, 12)) <= 1e-5);
    CHECK(digest_of(together) == digest_of(again));
  }
}

TEST_CASE("gpu: NCCL is opened, and sums") {
  if (!has_gpu()) return;
  if (!std::filesystem::exists(library())) {
    MESSAGE("skipped: Vernier was built without NCCL");
    return;
  }
  const auto& nccl = ddp::open_nccl_library(library());
  CHECK(nccl.bus_id(0).find(':') != std::string::npos);
  const auto backend =
      nccl.open(c10::make_intrusive<c10d::HashStore>(), /*rank=*/0, /*ranks=*/1, std::chrono::seconds(30));
  const auto values = torch::arange(1000, torch::dtype(torch::kFloat32).device(torch::kCUDA));
  std::vector<at::Tensor> one{values.clone()};
  backend->allreduce(one, c10d::AllreduceOptions())->wait();
  CHECK(at::equal(one[0], values));
  backend->shutdown();
}

TEST_CASE("gpu: without its library the reason says what was missing") {
  CHECK(thrown_by([] { ddp::open_nccl_library("nowhere/libvernier_nccl.so"); }).text ==
        "Vernier was built without NCCL, since nccl.h or a header of CUDA was not found");
}

}  // namespace gpu_test
