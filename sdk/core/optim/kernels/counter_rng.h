// Random bits for the stochastic rounding of optimizer states (the rule is in stochastic_rounding.h). They are a
// function of seed, parameter, step count and the element's index. So no generator is saved, all threads and devices
// give the same bits, and the host need not know which updates a GPU skipped. The function applies the finalizer of
// MurmurHash3 (Appleby) twice: each of its output bits depends on every input bit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace vernier {

class CountedNoise {
 public:
  CountedNoise(std::uint64_t seed, std::uint64_t parameter) {
    // splitmix64 (Steele et al., OOPSLA 2014)
    std::uint64_t z = seed + (parameter + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    place_ = static_cast<std::uint32_t>(z);
    count_ = static_cast<std::uint32_t>(z >> 32);
  }

  std::uint32_t place() const { return place_; }
  std::uint32_t count() const { return count_; }
  std::uint32_t now() const { return now_; }  // the step's count, from set_step()
  void set_step(std::uint32_t step) { now_ = count_ + step * golden; }
  // Returns two random numbers of 16 bits for the element at this index.
  std::uint32_t operator()(std::uint32_t place) const { return mixed(mixed(place ^ place_) + now_); }

  // The same for the indices 0 to count - 1, with a step count on the device. Returns int32.
  at::Tensor operator()(std::int64_t count, const at::Tensor& step) const {
    const auto places = at::arange(count, step.options().dtype(at::kInt));
    const auto now = step.to(at::kInt) * static_cast<std::int32_t>(golden) + static_cast<std::int32_t>(count_);
    return mixed(mixed(places.bitwise_xor(static_cast<std::int32_t>(place_))).add_(now));
  }

  // The parts of the function, for kernels that compute it for several indices at once.
  static constexpr std::uint32_t a = 0x85ebca6b, b = 0xc2b2ae35;
  static std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ x >> 16) * a;
    x = (x ^ x >> 13) * b;
    return x ^ x >> 16;
  }

 private:
  static constexpr std::uint32_t golden = 0x9e3779b9;

  static at::Tensor mixed(const at::Tensor& x) {
    const auto shifted = [](const at::Tensor& y, int bits) {  // int32 shifts its sign bit in
      return y.bitwise_right_shift(bits).bitwise_and((1 << (32 - bits)) - 1);
    };
    auto y = x.bitwise_xor(shifted(x, 16)).mul_(static_cast<std::int32_t>(a));
    y = y.bitwise_xor(shifted(y, 13)).mul_(static_cast<std::int32_t>(b));
    return y.bitwise_xor_(shifted(y, 16));
  }

  std::uint32_t place_, count_, now_ = 0;
};

}  // namespace vernier
