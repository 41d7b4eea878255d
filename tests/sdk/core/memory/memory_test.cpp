#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <new>
#include <random>
#include <thread>
#include <vector>

namespace memory_test {

using vernier::allocated_memory;
using vernier::bytes_of;
using vernier::is_out_of_memory;
using vernier::limit_memory;

namespace {

constexpr auto cpu = torch::kCPU;

// The limit of these tests goes with them.
struct Limited {
  explicit Limited(std::int64_t bytes) { limit_memory(cpu, bytes); }
  ~Limited() { limit_memory(cpu, 0); }
};

template <class Body>
std::exception_ptr thrown_by(const Body& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

torch::Tensor of_bytes(std::int64_t count) {
  return torch::empty({count}, torch::kUInt8);
}

}  // namespace

TEST_CASE("memory: tensors are counted while they live, by the bytes that were asked for") {
  vernier::count_memory(cpu);
  const auto before = allocated_memory(cpu).now;
  vernier::reset_peak_memory(cpu);
  std::mt19937 random(1);
  std::vector<torch::Tensor> tensors;
  std::int64_t expected = 0, highest = 0;
  for (int i = 0; i < 1000; ++i) {
    if (!tensors.empty() && random() % 3 == 0) {
      const auto place = random() % tensors.size();
      expected -= static_cast<std::int64_t>(tensors[place].nbytes());
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(place));
    } else {
      tensors.push_back(of_bytes(static_cast<std::int64_t>(random() % 10000)));
      expected += static_cast<std::int64_t>(tensors.back().nbytes());
    }
    highest = std::max(highest, expected);
    REQUIRE(allocated_memory(cpu).now - before == expected);
  }
  CHECK(allocated_memory(cpu).peak - before == highest);
  tensors.clear();
  CHECK(allocated_memory(cpu).now == before);
  vernier::reset_peak_memory(cpu);
  CHECK(allocated_memory(cpu).peak == before);
}

TEST_CASE("memory: a tensor that grows, changes hands or is freed by another thread is counted right") {
  vernier::count_memory(cpu);
  const auto before = allocated_memory(cpu).now;
  {
    auto tensor = torch::zeros({10});
    tensor.resize_({1000});
    CHECK(allocated_memory(cpu).now - before == 4000);
    std::thread([tensor = std::move(tensor)]() mutable { tensor.reset(); }).join();
  }
  CHECK(allocated_memory(cpu).now == before);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 2000; ++k) of_bytes(k);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(allocated_memory(cpu).now == before);
}

TEST_CASE("memory: who asks for more than the limit gets an exception, and all goes on") {
  vernier::count_memory(cpu);
  const auto kept = of_bytes(3'000'000);
  const Limited limited(allocated_memory(cpu).now + 5'000'000);
  const auto before = allocated_memory(cpu).now;
  of_bytes(5'000'000);
  const auto trouble = thrown_by([] { of_bytes(5'000'001); });
  REQUIRE(trouble);
  CHECK(is_out_of_memory(trouble));
  CHECK(allocated_memory(cpu).now == before);
  try {
    std::rethrow_exception(trouble);
  } catch (const c10::OutOfMemoryError& error) {
    CHECK(vernier::message(error).find("5.00 MB more were requested, and ") != std::string::npos);
  }
  of_bytes(5'000'000);
  CHECK(vernier::free_memory(cpu) == 5'000'000);
  limit_memory(cpu, 0);
  of_bytes(6'000'000);
  CHECK(vernier::memory_limit(cpu) == 0);
  CHECK(vernier::free_memory(cpu) > 5'000'000);
}

TEST_CASE("memory: an exception is known as memory that ran out, nested too, and others are not") {
  CHECK(is_out_of_memory(std::make_exception_ptr(std::bad_alloc())));
  // As much as no machine has: LibTorch's own allocator refuses.
  CHECK(is_out_of_memory(thrown_by([] { of_bytes(std::int64_t{1} << 60); })));
  CHECK(is_out_of_memory(thrown_by([] {
    try {
      throw std::bad_alloc();
    } catch (...) {
      vernier::rethrow_naming("callback/told", " in step 1", vernier::Error::Kind::training);
    }
  })));
  CHECK_FALSE(is_out_of_memory(thrown_by([] { throw vernier::Error("memory ran out of luck"); })));
  CHECK_FALSE(is_out_of_memory(thrown_by([] { throw 1; })));
  CHECK_FALSE(is_out_of_memory(thrown_by([] { TORCH_CHECK(false, "shapes differ"); })));
}

TEST_CASE("memory: amounts are read with their units, and nothing else is") {
  CHECK(bytes_of("123", 0) == 123);
  CHECK(bytes_of("6GB", 0) == 6'000'000'000);
  CHECK(bytes_of("1.5 MiB", 0) == 1'572'864);
  CHECK(bytes_of("500 kB", 0) == 500'000);
  CHECK(bytes_of("80%", 1000) == 800);
  CHECK(bytes_of("100 %", 1000) == 1000);
  for (const auto* text : {"", "GB", "-1GB", "0", "0%", "101%", "1 G", "1GB2", "nan", "inf", "1e999GB", "six"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(bytes_of(text, 1000), doctest::Contains("which is not an amount of memory; write"),
                         vernier::Error);
  }
}

TEST_CASE("memory: what the machine has and leaves is plausible") {
  CHECK(vernier::device_memory(cpu) > 100'000'000);
  CHECK(vernier::free_memory(cpu) > 1'000'000);
  CHECK(vernier::free_memory(cpu) < vernier::device_memory(cpu));
}

}  // namespace memory_test
