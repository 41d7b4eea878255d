#include "run/process/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <doctest/doctest.h>

#include <cmath>

#include "thrown.h"

namespace device_test {

TEST_CASE("device: late numbers are received once, those that were sent last, as they were then") {
  vernier::LateNumbers late;
  CHECK(late.receive() == std::nullopt);
  const auto numbers = at::scalar_tensor(1).expand({3}).to(at::kFloat).contiguous();
  late.send(numbers);
  numbers.fill_(2);
  CHECK(late.receive() == std::vector<float>{1, 1, 1});
  CHECK(late.receive() == std::nullopt);
  late.send(numbers);
  late.send(numbers.slice(0, 0, 1) * 3);
  CHECK(late.receive() == std::vector<float>{6});
  CHECK(late.receive() == std::nullopt);
}

TEST_CASE("device: any number but 0 sets a flag") {
  for (const float number : {1.0F, -1.0F, HUGE_VALF}) CHECK(vernier::is_set(at::scalar_tensor(number)));
  for (const float number : {0.0F, -0.0F}) CHECK_FALSE(vernier::is_set(at::scalar_tensor(number)));
}

TEST_CASE("device: the processor has a peak of memory") {
  CHECK(vernier::open_device("cpu") == c10::Device(c10::kCPU));
  CHECK(vernier::peak_memory(c10::kCPU) > 1 << 20);
}

TEST_CASE("device: a name that is none is refused") {
  for (const std::string name : {"", "gpu", "cpu:x", "CUDA"}) {
    CHECK(thrown_by([&] { vernier::open_device(name); }) ==
          configuration("is \"" + name +
                        "\", which is not a device; it takes auto, cpu, cuda, or cuda:1 for the second GPU"));
  }
}

}  // namespace device_test
