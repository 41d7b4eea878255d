#include "device.h"

#include <ATen/ops/scalar_tensor.h>
#include <doctest/doctest.h>

#include <cmath>

#include "thrown.h"

using vernier::LateFlag;

TEST_CASE("device: a late flag is received once, and what was put last") {
  LateFlag flag;
  CHECK(flag.receive() == std::nullopt);
  for (const bool value : {false, true}) {
    flag.put(value);
    CHECK(flag.receive() == value);
    CHECK(flag.receive() == std::nullopt);
  }
  flag.put(true);
  flag.put(false);
  CHECK(flag.receive() == false);
  CHECK(flag.receive() == std::nullopt);
}

TEST_CASE("device: a late flag that was looked at is still received") {
  LateFlag flag;
  CHECK(flag.peek() == std::nullopt);
  flag.put(true);
  CHECK(flag.peek() == true);
  CHECK(flag.peek() == true);
  CHECK(flag.receive() == true);
  CHECK(flag.peek() == std::nullopt);
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
                        "\", which is no device; it takes auto, cpu, cuda, or cuda:1 for the second GPU"));
  }
}
