// How much of what can go wrong a case tries. The short form tries the same part of a short run each time. The long
// form tries, in random order, as much of a longer run as it can in its minutes.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "long_form.h"

// A random order is another one each time, and is printed with what fails.
inline std::mt19937 random_numbers(unsigned usual) {
  const unsigned seed = is_long() ? std::random_device()() : usual;
  if (is_long()) MESSAGE("random numbers from ", seed);
  return std::mt19937(seed);
}

// The tries that a case has left. The short form tries all.
class Budget {
 public:
  ~Budget() { MESSAGE(tried_, " tried in ", std::round(minutes_since_begin() * 10) / 10, " minutes"); }
  bool has_more() {
    constexpr int cases = 8;
    const bool more = !is_long() || tried_ == 0 || minutes_since_begin() < long_minutes() / cases;
    tried_ += more ? 1 : 0;
    return more;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double minutes_since_begin() const {
    return std::chrono::duration<double, std::ratio<60>>(Clock::now() - begin_).count();
  }
  Clock::time_point begin_ = Clock::now();
  int tried_ = 0;
};

// A run that saves every step; the shortest that takes away what it saved first.
inline std::string saving_run(const std::string& in_checkpoint, const std::string& in_run, const std::string& tables) {
  return "[run]\nsteps = " + std::string(is_long() ? "12" : "4") + "\ndevice = \"cpu\"\nthreads = 1\n" + in_run + R"(
[task]
use = "mlp"
inputs = 3
hidden = [4]
classes = 2
samples = 24
[[monitor]]
use = "jsonl"
[checkpoint]
use = "rolling"
every = 1
)" + in_checkpoint +
         tables;
}

// Faults strike these runs in turn, so that a case takes no longer for their number.
inline const std::vector<std::string> saving_runs = {
    saving_run("keep_last = 2\n", "", "[optimizer]\nuse = \"adamw\"\n"),
    // By the training thread, and validations too decide what stays.
    saving_run("async = false\nkeep_last = 1\nkeep_every = 3\nkeep_best = 1\nmetric = \"accuracy\"\n",
               "validate_every = 1\n", "[optimizer]\nuse = \"adamw\"\n"),
    // As much to remember as there is: masters, their average, momentum, a scale that changes.
    saving_run("keep_last = 2\non_failure = \"continue\"\n", "validate_every = 2\n", R"([precision]
use = "fp16"
level = "O2"
[scaler]
use = "dynamic"
init_scale = 16777216
growth_interval = 1
[optimizer]
use = "sgd"
momentum = 0.9
[[callback]]
use = "ema"
decay = 0.5
)")};
constexpr std::size_t that_goes_on = 2;  // a run goes on after a save that fails

// The index of the next run to try.
inline std::size_t run_in_turn(std::size_t number) {
  static std::mt19937 random(std::random_device{}());
  return (is_long() ? random() : number) % saving_runs.size();
}
