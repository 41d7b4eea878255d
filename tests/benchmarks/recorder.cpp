// What callback/flight_recorder adds to a step of a small GPT (4 layers, width 128) while nothing happens, what a step
// costs of which the layers' ranges are sampled (one in `every`), and what it adds to a step of the 32-32-10 network,
// where only overhead counts.
//
//   recorder [--check]     --check: the bar alone, at most 1 % of the GPT's step; exits with 1 where it is missed
//
// The bar is the median of the ratios of steps that follow each other, in time of the processor: what other programs
// take is not counted, and what disturbs the machine for longer disturbs both. To it comes a hundredth of what a
// sampled step takes longer, for one in a hundred is sampled by default.
#include <torch/utils.h>

#include <ctime>
#include <string_view>

#include "compare.h"
#include "vernier_loop.h"

namespace {

void compare_with(const char* title, const std::vector<std::string>& sets, int rounds, int steps) {
  auto recorded = sets, sampled = sets, clipped = sets, both = sets;
  sampled.push_back("callback.flight_recorder.every=1");
  recorded.push_back("callback.flight_recorder.every=100");
  clipped.push_back("callback.clip_norm.max_norm=1.0");
  both.push_back("callback.clip_norm.max_norm=1.0");
  both.push_back("callback.flight_recorder.every=100");
  VernierLoop plain(sets), with(recorded), sample(sampled), clip(clipped), clip_with(both);
  compare(title,
          {{"without", [&] { plain.step(); }},
           {"flight_recorder", [&] { with.step(); }},
           {"flight_recorder, each step sampled", [&] { sample.step(); }}},
          rounds, steps);
  compare(title, {{"clip_norm", [&] { clip.step(); }}, {"clip_norm, flight_recorder", [&] { clip_with.step(); }}},
          rounds, steps);
}

double seconds_of(VernierLoop& loop) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  loop.step();
  return now() - start;
}

double median_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

bool is_bar_met() {
  constexpr int pairs = 150;
  constexpr double bar = 1.01, samples_a_step = 0.01;
  const auto with_every = [](const char* every) {
    return gpt_configuration(4, 8, {std::string("callback.flight_recorder.every=") + every});
  };
  VernierLoop plain(gpt_configuration(4, 8)), recorded(with_every("0")), sampled(with_every("1"));
  const auto ratios_of = [&plain](VernierLoop& loop, int count) {
    std::vector<double> ratios;
    for (int i = -2; i < count; ++i) {  // two to warm up
      const bool is_plain_first = i % 2 == 0;
      double before = is_plain_first ? seconds_of(plain) : 0;
      const double with = seconds_of(loop);
      if (!is_plain_first) before = seconds_of(plain);
      if (i >= 0) ratios.push_back(with / before);
    }
    std::sort(ratios.begin(), ratios.end());
    return ratios;
  };
  const auto ratios = ratios_of(recorded, pairs);
  const double unsampled = median_of(ratios), with_sample = median_of(ratios_of(sampled, pairs / 3));
  const double ratio = unsampled + samples_a_step * std::max(0.0, with_sample - unsampled);
  const bool is_met = ratio <= bar;
  std::printf(
      "flight_recorder, GPT, while nothing happens: x%.4f (a step without a sample x%.4f, middle half x%.4f to x%.4f "
      "of %d pairs; with one x%.3f); bar x%.2f: %s\n",
      ratio, unsampled, ratios[pairs / 4], ratios[3 * pairs / 4], pairs, with_sample, bar, is_met ? "met" : "MISSED");
  return is_met;
}

}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  if (count > 1 && words[1] == std::string_view("--check")) return is_bar_met() ? 0 : 1;
  compare_with("GPT, 4 layers of 128, 8 x 128 bytes, float32, one thread", gpt_configuration(4, 8), /*rounds=*/12,
               /*steps=*/3);
  compare_with("32-32-10 network, batch 8, float32, one thread",
               {"task.use=mlp", "task.samples=1024", "task.validation=0.0", "optimizer.use=adamw"}, /*rounds=*/40,
               /*steps=*/200);
}
