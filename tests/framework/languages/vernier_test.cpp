// <vernier.h>: what it refuses, arrays in any form, and the process of the program, which stays as it was.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier.h>
#include <vernier/data/numpy.h>

#include <cfenv>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/given.h"
#include "core/process_state.h"
#include "temporary_folder.h"

namespace languages_test {

namespace {

// Wide enough that LibTorch computes with several threads.
const std::string toml = R"([run]
steps = 6
device = "cpu"
threads = 2
[task]
use = "tabular"
data = "x.npy"
targets = "y.npy"
kind = "regression"
hidden = [512]
batch_size = 128
validation_share = 0.25
[optimizer]
use = "adamw"
learning_rate = 0.01
)";

constexpr std::int64_t rows = 256;
using Numbers = std::vector<double>;

// They have few bits, so that float32 has the same numbers.
Numbers states() {
  Numbers numbers;
  for (std::int64_t i = 0; i < 2 * rows; ++i) numbers.push_back(static_cast<double>((37 * i) % 521) / 256 - 1);
  return numbers;
}

Numbers forces() {
  Numbers numbers;
  const auto x = states();
  for (std::size_t i = 0; i < rows; ++i) numbers.push_back(x[2 * i] * x[2 * i] - x[2 * i + 1]);
  return numbers;
}

vernier_array array_of(const void* data, int dtype, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides = {}) {
  vernier_array array = {const_cast<void*>(data), dtype, static_cast<std::int32_t>(shape.size()), {}, {}};
  std::ranges::copy(shape, array.shape);
  std::ranges::copy(strides, array.strides);
  return array;
}

// A trainer in a folder of its own, or without one.
struct Opened {
  explicit Opened(const std::string& text = toml, bool writes = false) {
    REQUIRE(vernier_open(nullptr, text.c_str(), &trainer) == VERNIER_OK);
    REQUIRE(vernier_quiet(trainer, 1) == VERNIER_OK);
    REQUIRE(vernier_writes_folder(trainer, writes ? 1 : 0) == VERNIER_OK);
    REQUIRE(vernier_set(trainer, "run.output", (folder / "out").c_str()) == VERNIER_OK);
    give(array_of(x.data(), VERNIER_FLOAT64, {rows, 2}), array_of(y.data(), VERNIER_FLOAT64, {rows}));
  }
  Opened(const Opened&) = delete;
  ~Opened() { vernier_close(trainer); }

  void give(const vernier_array& inputs, const vernier_array& targets) {
    REQUIRE(vernier_give(trainer, "x.npy", &inputs) == VERNIER_OK);
    REQUIRE(vernier_give(trainer, "y.npy", &targets) == VERNIER_OK);
  }
  // The predictions for all rows: equal where the weights are.
  Numbers predicted() {
    Numbers numbers(rows);
    const auto inputs = array_of(x.data(), VERNIER_FLOAT64, {rows, 2});
    const auto outputs = array_of(numbers.data(), VERNIER_FLOAT64, {rows});
    CHECK(vernier_predict(trainer, &inputs, &outputs) == VERNIER_OK);
    return numbers;
  }
  Numbers trained() {
    CHECK_MESSAGE(vernier_train(trainer) == VERNIER_OK, std::string(vernier_error()));
    return predicted();
  }

  const TemporaryFolder folder;
  const Numbers x = states(), y = forces();
  vernier_trainer* trainer = nullptr;
};

// A function of the OpenMP library that LibTorch has brought.
template <class Function>
Function* of_openmp(const char* name) {
  auto* function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  REQUIRE((function != nullptr));
  return function;
}

Numbers of_plain_run() {
  static const auto numbers = Opened().trained();
  return numbers;
}

}  // namespace

TEST_CASE("a call that cannot be right is refused, in a line") {
  Opened opened, used;
  REQUIRE(vernier_train(used.trainer) == VERNIER_OK);
  auto* trainer = opened.trainer;
  double number = 7;
  int trained = 7, port = 7;
  char address[256] = "kept";
  vernier_trainer* none = nullptr;
  const Numbers x = states();
  const auto fits = array_of(x.data(), VERNIER_FLOAT64, {rows, 2});
  const auto array = [&](int dtype, const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
    const auto made = array_of(x.data(), dtype, shape, strides);
    return vernier_give(trainer, "x.npy", &made);
  };
  const auto predict = [&](const std::vector<std::int64_t>& in, int dtype, const std::vector<std::int64_t>& out) {
    Numbers to(4 * rows, 7);
    const auto inputs = array_of(x.data(), VERNIER_FLOAT64, in), outputs = array_of(to.data(), dtype, out);
    const int status = vernier_predict(used.trainer, &inputs, &outputs);
    CHECK(to == Numbers(4 * rows, 7));
    return status;
  };
  const struct {
    const char* says;
    std::function<int()> call;
  } cases[] = {{"the trainer is NULL", [&] { return vernier_train(nullptr); }},
               {"the trainer is NULL", [&] { return vernier_step(nullptr, &trained); }},
               {"the trainer is NULL", [&] { return vernier_set(nullptr, "a", "b"); }},
               {"neither a file nor TOML text", [&] { return vernier_open(nullptr, nullptr, &none); }},
               {"the place of the trainer is NULL", [&] { return vernier_open(nullptr, "", nullptr); }},
               {"there.toml", [&] { return vernier_open("not/there.toml", nullptr, &none); }},
               {"TOML text:1", [&] { return vernier_open(nullptr, "[run", &none); }},
               {"steps", [&] { return vernier_set(trainer, "run.steps.more.", "1"); }},
               {"the value is NULL", [&] { return vernier_set(trainer, "run.steps", nullptr); }},
               {"vernier_set() comes too late", [&] { return vernier_set(used.trainer, "run.steps", "1"); }},
               {"vernier_give() comes too late", [&] { return vernier_give(used.trainer, "x.npy", &fits); }},
               {"whose name ends in .npy", [&] { return vernier_give(trainer, "x.csv", &fits); }},
               {"the array is NULL", [&] { return vernier_give(trainer, "x.npy", nullptr); }},
               {"'x.npy' has the dtype 9",
                [&] {
                  return array(9, {rows, 2}, {});
                }},
               {"'x.npy' has 0 dimensions", [&] { return array(VERNIER_FLOAT64, {}, {}); }},
               {"'x.npy' has the shape [-1, 2]",
                [&] {
                  return array(VERNIER_FLOAT64, {-1, 2}, {});
                }},
               {"none may be below 0",
                [&] {
                  return array(VERNIER_FLOAT64, {rows, 2}, {-2, 1});
                }},
               {"'x.npy' has no data",
                [&] {
                  const auto empty = array_of(nullptr, VERNIER_FLOAT64, {rows, 2});
                  return vernier_give(trainer, "x.npy", &empty);
                }},
               {"rank 2 of 2", [&] { return vernier_ranks(trainer, 2, 2, 0, "127.0.0.1", 1234); }},
               {"need the address", [&] { return vernier_ranks(trainer, 0, 2, 0, nullptr, 1234); }},
               {"the port of rank 0 is 0", [&] { return vernier_ranks(trainer, 0, 2, 0, "127.0.0.1", 0); }},
               {"no room for the address", [&] { return vernier_meeting(1, address, 4, &port); }},
               {"there is no metric 'beauty' now; there are: loss",
                [&] { return vernier_metric(used.trainer, "beauty", &number); }},
               {"must be VERNIER_FLOAT32 or",
                [&] {
                  return predict({rows, 2}, VERNIER_INT64, {rows});
                }},
               {"shape [256, 2], and the predictions [256, 1]",
                [&] {
                  return predict({rows, 2}, VERNIER_FLOAT64, {rows, 2});
                }},
               {"'inputs.npy' has 1 columns",
                [&] {
                  return predict({rows, 1}, VERNIER_FLOAT64, {rows});
                }},
               {"the run has ended", [&] { return vernier_swap(used.trainer, "[precision]\nuse = \"bf16\""); }}};
  for (const auto& [says, call] : cases) {
    CAPTURE(says);
    CHECK(call() == VERNIER_REFUSED);
    const std::string text = vernier_error();
    CHECK_MESSAGE(text.find(says) != std::string::npos, text);
  }
  std::thread([&] {
    CHECK(vernier_error() == std::string());
    CHECK(vernier_train(trainer) == VERNIER_REFUSED);
    CHECK(std::string(vernier_error()).find("by the thread that opened it") != std::string::npos);
  }).join();
  CHECK(none == nullptr);
  CHECK(std::strcmp(address, "kept") == 0);
  CHECK((number == 7 && trained == 7 && port == 7));
  CHECK(vernier_close(nullptr) == VERNIER_OK);
  CHECK((opened.trained() == of_plain_run()));  // nothing of that counts
}

TEST_CASE("an array of any form gives the weights of a plain one, and is not copied") {
  const Numbers x = states(), y = forces();
  std::vector<float> narrow(x.begin(), x.end());
  Numbers columns, apart(8 * rows, NAN), every_third(3 * rows, NAN);
  for (std::size_t column = 0; column < 2; ++column) {
    for (std::size_t row = 0; row < rows; ++row) columns.push_back(x[2 * row + column]);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    apart[8 * row + 1] = x[2 * row], apart[8 * row + 4] = x[2 * row + 1];
    every_third[3 * row] = y[row];
  }
  const auto plain = array_of(y.data(), VERNIER_FLOAT64, {rows});
  const struct {
    const char* form;
    vernier_array inputs, targets;
  } cases[] = {{"order of Fortran", array_of(columns.data(), VERNIER_FLOAT64, {rows, 2}, {1, rows}), plain},
               {"with gaps", array_of(apart.data() + 1, VERNIER_FLOAT64, {rows, 2}, {8, 3}), plain},
               {"strides of C", array_of(x.data(), VERNIER_FLOAT64, {rows, 2}, {2, 1}), plain},
               {"targets with gaps", array_of(x.data(), VERNIER_FLOAT64, {rows, 2}),
                array_of(every_third.data(), VERNIER_FLOAT64, {rows}, {3})}};
  for (const auto& [form, inputs, targets] : cases) {
    CAPTURE(form);
    Opened opened;
    opened.give(inputs, targets);
    CHECK((opened.trained() == of_plain_run()));
    std::vector<float> numbers(rows);
    const auto outputs = array_of(numbers.data(), VERNIER_FLOAT32, {rows, 1}), in = inputs;
    CHECK(vernier_predict(opened.trainer, &in, &outputs) == VERNIER_OK);
    CHECK(numbers.front() == static_cast<float>(of_plain_run().front()));
  }
  {
    Opened opened;
    opened.give(array_of(narrow.data(), VERNIER_FLOAT32, {rows, 2}), plain);
    opened.trained();
    double loss = NAN;
    CHECK(vernier_metric(opened.trainer, "validation_loss", &loss) == VERNIER_OK);
    CHECK(loss < 2);
    const char* name = nullptr;
    CHECK((vernier_column(opened.trainer, 0, &name) == VERNIER_OK && std::string(name) == "prediction"));
    CHECK((vernier_column(opened.trainer, 1, &name) == VERNIER_OK && name == nullptr));
  }
  const vernier::Tensors given = {{"x.npy", torch::ones({2})}};
  const vernier::Given arrays(nullptr, &given);
  CHECK(vernier::read_npy("x.npy").data_ptr() == given.at("x.npy").data_ptr());
}

TEST_CASE("the program says its place among ranks, and not the environment") {
  const auto expected = of_plain_run();
  ::setenv("WORLD_SIZE", "4", 1);
  ::setenv("RANK", "3", 1);
  Opened of_two, alone;
  CHECK(vernier_ranks(of_two.trainer, 0, 2, 0, "127.0.0.1", 1234) == VERNIER_OK);
  CHECK(vernier_train(of_two.trainer) == VERNIER_REFUSED);
  const std::string text = vernier_error();
  CHECK_MESSAGE(text.starts_with("the program has made this process rank 0 of 2, and without [distributed]"), text);
  CHECK(vernier_ranks(alone.trainer, 0, 1, 0, nullptr, 0) == VERNIER_OK);
  CHECK((alone.trained() == expected));
  char address[256] = "";
  int port = 0;
  CHECK(vernier_meeting(0, address, sizeof address, &port) == VERNIER_OK);
  CHECK((address[0] != '\0' && port > 0));
  ::unsetenv("WORLD_SIZE");
  ::unsetenv("RANK");
}

TEST_CASE("a step at a time, an epoch, a stop, and a checkpoint give the weights of a whole run") {
  const auto expected = of_plain_run();
  {
    Opened opened;
    int trained = 1, steps = -1;
    for (; trained == 1; ++steps) CHECK(vernier_step(opened.trainer, &trained) == VERNIER_OK);
    CHECK((steps == 6 && opened.predicted() == expected));
    vernier_outcome outcome;
    CHECK(vernier_result(opened.trainer, &outcome) == VERNIER_OK);
    CHECK((outcome.steps == 6 && outcome.loss > 0 && std::string(outcome.ended_by) == "done"));
  }
  Opened first(toml, true);
  std::int64_t steps = 0;
  double loss = NAN;
  CHECK((vernier_epoch(first.trainer, &steps) == VERNIER_OK && steps == 2));
  CHECK((vernier_validate(first.trainer, &loss) == VERNIER_OK && loss > 0));
  first.predicted();
  const auto saved = first.folder / "saved";
  CHECK(vernier_save(first.trainer, saved.c_str()) == VERNIER_OK);
  std::thread([&] { CHECK(vernier_stop(first.trainer) == VERNIER_OK); }).join();
  CHECK(vernier_train(first.trainer) == VERNIER_OK);
  vernier_outcome outcome;
  CHECK(vernier_result(first.trainer, &outcome) == VERNIER_OK);
  CHECK((outcome.steps == 2 && std::string(outcome.ended_by) == "stopped"));
  Opened second(toml, true);
  CHECK_MESSAGE(vernier_resume(second.trainer, saved.c_str(), 0) == VERNIER_OK, std::string(vernier_error()));
  CHECK((second.trained() == expected));
}

TEST_CASE("a stop counts from the opening of a trainer until it is closed") {
  Opened opened;
  std::thread([&] { CHECK(vernier_stop(opened.trainer) == VERNIER_OK); }).join();
  REQUIRE(vernier_set(opened.trainer, "run.steps", "5") == VERNIER_OK);
  CHECK(vernier_train(opened.trainer) == VERNIER_OK);
  vernier_outcome outcome;
  CHECK(vernier_result(opened.trainer, &outcome) == VERNIER_OK);
  CHECK((outcome.steps == 0 && std::string(outcome.ended_by) == "stopped"));

  // The plugin's destructor raises the signal while vernier_close() runs.
  Opened raises(toml + "[[callback]]\nuse = \"" VERNIER_BINARY_DIR
                       "/fixtures/plugins/callback/ends.so\"\nhow = \"sys\"\nevent = \"destructor\"\n");
  CHECK_MESSAGE(vernier_step(raises.trainer, nullptr) == VERNIER_OK, std::string(vernier_error()));
  static vernier_trainer* closing;
  static volatile std::sig_atomic_t status;
  closing = std::exchange(raises.trainer, nullptr);
  status = -1;
  auto* const before = std::signal(SIGSYS, [](int) { status = vernier_stop(closing); });
  CHECK(vernier_close(closing) == VERNIER_OK);
  std::signal(SIGSYS, before);
  CHECK(status == VERNIER_OK);
}

TEST_CASE("the process of the program is as it was, and its modes change no bit") {
  const auto expected = of_plain_run();
  const auto before_all = vernier::ProcessState::now();
  auto* const openmp_threads = of_openmp<int()>("omp_get_max_threads");
  auto* const set_openmp_threads = of_openmp<void(int)>("omp_set_num_threads");
  const int threads = openmp_threads();
  // Threads of OpenMP that the program has made have its modes.
  std::fesetround(FE_UPWARD);
  ::feenableexcept(FE_DIVBYZERO);
  set_openmp_threads(3);
  of_openmp<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel")(
      [](void*) { std::fesetround(FE_UPWARD); }, nullptr, 0, 0);
  std::signal(SIGINT, [](int) {});
  std::signal(SIGUSR1, SIG_IGN);
  std::setlocale(LC_ALL, "C.UTF-8");
  std::feclearexcept(FE_ALL_EXCEPT);
  const auto before = vernier::ProcessState::now();
  const auto is_as_before = [&] {
    const int flags = std::fetestexcept(FE_ALL_EXCEPT);
    CHECK_MESSAGE(before.changed_in(vernier::ProcessState::now()) == "",
                  before.changed_in(vernier::ProcessState::now()));
    CHECK((std::fegetround() == FE_UPWARD && ::fegetexcept() == FE_DIVBYZERO && flags == 0));
    CHECK(openmp_threads() == 3);
    std::feclearexcept(FE_ALL_EXCEPT);
  };
  {
    Opened opened;
    std::feclearexcept(FE_ALL_EXCEPT);  // the numbers of the test are not exact
    CHECK(vernier_train(opened.trainer) == VERNIER_OK);
    is_as_before();
    CHECK((opened.predicted() == expected));
    is_as_before();
    const auto nothing = array_of(nullptr, 0, {});
    CHECK(vernier_predict(opened.trainer, &nothing, &nothing) == VERNIER_REFUSED);
    is_as_before();
  }
  is_as_before();
  ::fedisableexcept(FE_ALL_EXCEPT);
  before_all.restore();
  set_openmp_threads(threads);
}

}  // namespace languages_test
