// The history of a metric for a page: as many points as a page can show, of any number of steps.
#pragma once

#include <cstdint>
#include <vector>

namespace vernier {

// At most `most` parts of equally many steps. It takes all of its memory at once.
class History {
 public:
  static constexpr std::size_t most = 1024;
  struct Part {
    std::int64_t step;  // the first
    double min, max;
  };
  History() { parts_.reserve(most); }
  void add(std::int64_t step, double value);
  // At most so many parts.
  std::vector<Part> parts(std::size_t limit) const;

 private:
  static void join(std::vector<Part>& parts);  // each two
  std::vector<Part> parts_;
  std::int64_t width_ = 1;  // steps
};

}  // namespace vernier
