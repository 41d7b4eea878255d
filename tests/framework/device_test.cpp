#include "device.h"

#include <doctest/doctest.h>

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

TEST_CASE("device: what was received can be put back, as a checkpoint does") {
  LateFlag flag;
  flag.put(true);
  const auto seen = flag.receive();
  REQUIRE(seen.has_value());
  flag.put(*seen);
  CHECK(flag.receive() == true);
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
