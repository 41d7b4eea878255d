// Pooling of images, in the terms of simd_avx512.h and simd_avx2.h. A file that is compiled for a set of instructions
// includes this after the header of its set.

namespace vernier {

namespace {

constexpr std::int64_t together = 64;  // windows of a row

struct Windows {
  float largest[together];
  std::int32_t places[together];
};

// The windows [first, first + count) of a row meet one number each: `from` has that of window 0. stride: 0 if it is not
// known when this is compiled.
template <std::int64_t known_stride>
VERNIER_INLINE void meet(const float* from, std::int64_t place, std::int64_t stride, std::int64_t begin,
                         std::int64_t end, std::int64_t first, Windows& windows) {
  const auto step = known_stride > 0 ? known_stride : stride;
  for (auto i = begin; i < end; ++i) {
    const float number = from[i * step], before = windows.largest[i - first];
    const bool wins = number > before || number != number;
    windows.largest[i - first] = wins ? number : before;
    windows.places[i - first] = wins ? static_cast<std::int32_t>(place + i * step) : windows.places[i - first];
  }
}

template <std::int64_t known_stride>
VERNIER_INLINE void pool(const PoolSide& height, const PoolSide& width, const float* image, float* out,
                         std::int64_t* places) {
  Windows windows;
  for (std::int64_t row = 0; row < height.most; ++row) {
    const auto top = row * height.stride - height.padding;
    const auto begin = std::max<std::int64_t>(top, 0), end = std::min(top + height.kernel, height.size);
    for (std::int64_t first = 0; first < width.most; first += together) {
      const auto last = std::min(first + together, width.most);
      for (auto i = first; i < last; ++i) {
        windows.largest[i - first] = -std::numeric_limits<float>::infinity();
        windows.places[i - first] =
            static_cast<std::int32_t>(begin * width.size + std::max<std::int64_t>(i * width.stride - width.padding, 0));
      }
      for (auto y = begin; y < end; ++y) {
        for (std::int64_t x = 0; x < width.kernel; ++x) {
          const auto shift = x - width.padding;  // place of the number that window 0 meets
          const auto from = shift >= 0 ? 0 : (-shift + width.stride - 1) / width.stride;
          const auto to = shift >= width.size ? 0 : (width.size - 1 - shift) / width.stride + 1;
          meet<known_stride>(image + y * width.size + shift, y * width.size + shift, width.stride,
                             std::max(first, from), std::min(last, to), first, windows);
        }
      }
      for (auto i = first; i < last; ++i) {
        out[row * width.most + i] = windows.largest[i - first];
        places[row * width.most + i] = windows.places[i - first];
      }
    }
  }
}

constexpr auto each_lane = std::make_index_sequence<lanes>();
// split takes the numbers of two registers at even or at odd places. join puts such two together again, and returns
// their lower or upper half.
template <int odd>
VERNIER_INLINE Numbers split(Numbers a, Numbers b) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, (2 * i + odd)...);
  }
  (each_lane);
}
template <int half>
VERNIER_INLINE Numbers join(Numbers even, Numbers odd) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return __builtin_shufflevector(even, odd, (half * lanes / 2 + i / 2 + i % 2 * lanes)...);
  }
  (each_lane);
}

// 32-bit integers in a register. A place of 64 bits is two of them, the second 0.
using Integers = decltype(Numbers() < Numbers());
// The distance of each window's first number from that of the first window.
constexpr Integers columns = []<std::size_t... i>(std::index_sequence<i...>) {
  return Integers{static_cast<int>(2 * i)...};
}
(each_lane);

// Calls body(i, windows, left, right) for each register of windows in a row, of which i is the first. The masks choose
// its windows, and the pixels of the two registers that these are over.
template <class Body>
VERNIER_INLINE void in_pairs(std::int64_t windows, const Body& body) {
  std::int64_t i = 0;
  for (; i + lanes <= windows; i += lanes) body(i, all, all, all);
  const auto rest = windows - i;
  if (rest > 0) body(i, first(rest), first(2 * rest), first(std::max<std::int64_t>(2 * rest - lanes, 0)));
}

// Pools an image in windows of 2x2 without padding.
VERNIER_INLINE void pool_2x2(std::int64_t rows, const PoolSide& width, const float* image, float* out,
                             std::int64_t* places) {
  for (std::int64_t row = 0; row < rows; ++row, out += width.most, places += width.most) {
    in_pairs(width.most, [&](std::int64_t i, Which windows, Which left, Which right) {
      const auto place = 2 * (row * width.size + i);
      const float *const top = image + place, *const bottom = top + width.size;
      const auto top_left = load(top, left), top_right = load(top + lanes, right);
      const auto bottom_left = load(bottom, left), bottom_right = load(bottom + lanes, right);
      auto largest = split<0>(top_left, top_right);
      auto found = columns + static_cast<int>(place);
      const auto meet_next = [&](Numbers next, std::int64_t distance) {
        const auto wins = (next > largest) | (next != next);
        largest = wins ? next : largest;
        found = wins ? columns + static_cast<int>(place + distance) : found;
      };
      meet_next(split<1>(top_left, top_right), 1);
      meet_next(split<0>(bottom_left, bottom_right), width.size);
      meet_next(split<1>(bottom_left, bottom_right), width.size + 1);
      store(largest, out + i, windows);
      auto* const to = reinterpret_cast<float*>(places + i);
      store(join<0>((Numbers)found, Numbers()), to, left);
      store(join<1>((Numbers)found, Numbers()), to + lanes, right);
    });
  }
}

bool pool_2x2_backward(const PoolSide& height, const PoolSide& width, const float* dy, const std::int64_t* places,
                       float* dx) {
  Integers is_elsewhere = {};
  for (std::int64_t row = 0; row < height.most; ++row, dy += width.most, places += width.most) {
    in_pairs(width.most, [&](std::int64_t i, Which windows, Which left, Which right) {
      const auto place = 2 * (row * width.size + i);
      const auto* const from = reinterpret_cast<const float*>(places + i);
      const auto a = load(from, left), b = load(from + lanes, right);
      const auto gradient = load(dy + i, windows) + Numbers();  // LibTorch adds it too: -0 becomes 0
      const auto distance = (Integers)split<0>(a, b) - columns - static_cast<int>(place);
      Integers is_found = {};
      const auto part = [&](std::int64_t wanted) {
        const auto is_here = distance == static_cast<int>(wanted);
        is_found |= is_here;
        return is_here ? gradient : Numbers();
      };
      const auto top_even = part(0), top_odd = part(1);
      const auto bottom_even = part(width.size), bottom_odd = part(width.size + 1);
      is_elsewhere |= (Integers)only(windows, (Numbers)(~is_found | (Integers)split<1>(a, b)));
      float *const top = dx + place, *const bottom = top + width.size;
      store(join<0>(top_even, top_odd), top, left);
      store(join<1>(top_even, top_odd), top + lanes, right);
      store(join<0>(bottom_even, bottom_odd), bottom, left);
      store(join<1>(bottom_even, bottom_odd), bottom + lanes, right);
    });
    for (const auto y : {2 * row, 2 * row + 1})
      std::fill(dx + y * width.size + 2 * width.most, dx + (y + 1) * width.size, 0.F);
  }
  std::fill(dx + 2 * height.most * width.size, dx + height.size * width.size, 0.F);
  int sum = 0;
  for (std::int64_t i = 0; i < lanes; ++i) sum |= is_elsewhere[i];
  return sum == 0;
}

// The plain loop: each window begins with -inf, and out = x, place = its index for each x in it, row by row, that is
// larger than out or NaN. Here the numbers that stand at one place of their windows meet them together.
void max_pool(const PoolSide& height, const PoolSide& width, const float* image, float* out, std::int64_t* places) {
  if (is_pair(height) && is_pair(width)) return pool_2x2(height.most, width, image, out, places);
  if (width.stride == 1) return pool<1>(height, width, image, out, places);
  if (width.stride == 2) return pool<2>(height, width, image, out, places);
  pool<0>(height, width, image, out, places);
}

constexpr PoolKernels pool_kernels = {max_pool, pool_2x2_backward};

}  // namespace

VERNIER_DEFINE_KERNELS(instructions, pool_kernels, PoolKernels)

}  // namespace vernier
