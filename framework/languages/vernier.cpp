// <vernier.h> over vernier::Trainer.
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier.h>
#include <vernier/data/data_loader.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/error.h>
#include <vernier/trainer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "common/free_ports.h"
#include "visit.h"

struct vernier_trainer {
  vernier::Guest guest;
  vernier::TrainerOptions options;
  std::atomic<int> stop = 0;  // the flag TrainerOptions::stop, which outlives each trainer
  std::unique_ptr<vernier::Trainer> trainer;
  bool is_used = false;
  std::vector<std::string> columns;  // their names in the last prediction
  const std::thread::id thread = std::this_thread::get_id();
};

namespace {

using vernier::refuse;

thread_local std::string last_error;

struct Dtype {
  int number;  // a vernier_dtype
  torch::ScalarType type;
};
constexpr Dtype dtypes[] = {{VERNIER_FLOAT32, torch::kFloat32},
                            {VERNIER_FLOAT64, torch::kFloat64},
                            {VERNIER_INT32, torch::kInt32},
                            {VERNIER_INT64, torch::kInt64},
                            {VERNIER_UINT8, torch::kUInt8}};

// Call it in a catch (...) block.
int failed() noexcept {
  try {
    auto [text, kind] = vernier::caught();
    last_error = std::move(text);
    return static_cast<int>(kind);
  } catch (...) {
    return VERNIER_FAILED;  // no memory for the text
  }
}

template <class Body>
int answer(const Body& body) noexcept {
  try {
    body();
    return VERNIER_OK;
  } catch (...) {
    return failed();
  }
}

const char* text_of(const char* text, const char* name) {
  if (text == nullptr) refuse(std::string(name) + " is NULL");
  return text;
}

template <class Value>
Value& place_of(Value* place, const char* name) {
  if (place == nullptr) refuse(std::string(name) + " is NULL");
  return *place;
}

// Calls body with a trainer, as a visit.
template <class Body>
int visit(vernier_trainer* of, const Body& body) noexcept {
  return answer([&] {
    auto& trainer = place_of(of, "the trainer");
    if (std::this_thread::get_id() != trainer.thread) {
      refuse("a trainer is used by the thread that opened it, and by no other; vernier_stop() may be called by any");
    }
    const vernier::Visit now(trainer.guest);
    body(trainer);
  });
}

// The same for a function that uses the run.
template <class Body>
int use(vernier_trainer* of, const Body& body) noexcept {
  return visit(of, [&](vernier_trainer& trainer) {
    trainer.is_used = true;
    body(*trainer.trainer);
  });
}

// Changes the options of a trainer that has not been used. It reads the TOML again, so that an error shows here. After
// an error the options are as they were.
template <class Change>
int configure(vernier_trainer* of, const char* name, const Change& change) noexcept {
  return visit(of, [&](vernier_trainer& trainer) {
    if (trainer.is_used) refuse(std::string(name) + " comes too late: it stands before the first use of the trainer");
    auto options = trainer.options;
    change(options);
    trainer.trainer = std::make_unique<vernier::Trainer>(options);
    trainer.options = std::move(options);
  });
}

// The array where it lies.
torch::Tensor tensor_of(const vernier_array* given, const std::string& name) {
  const auto& array = place_of(given, "the array");
  const auto* known = std::ranges::find(dtypes, array.dtype, &Dtype::number);
  if (known == std::end(dtypes))
    refuse(c10::str(name, " has the dtype ", array.dtype, ", which is not a vernier_dtype"));
  if (array.dims < 1 || array.dims > VERNIER_MOST_DIMS) {
    refuse(c10::str(name, " has ", array.dims, " dimensions; it may have 1 to ", VERNIER_MOST_DIMS));
  }
  const auto dims = static_cast<std::size_t>(array.dims);
  const c10::IntArrayRef shape(array.shape, dims), strides(array.strides, dims);
  const auto is_negative = [](std::int64_t number) { return number < 0; };
  if (std::ranges::any_of(shape, is_negative)) refuse(c10::str(name, " has the shape ", shape));
  if (std::ranges::any_of(strides, is_negative)) {
    refuse(c10::str(name, " has the strides ", strides, "; none may be below 0: give a copy in the other order"));
  }
  if (array.data == nullptr) refuse(name + " has no data: the pointer is NULL");
  if (std::ranges::all_of(strides, [](std::int64_t stride) { return stride == 0; })) {
    return at::from_blob(array.data, shape, known->type);
  }
  return at::from_blob(array.data, shape, strides, known->type);
}

// A column for each number of a sample: float64 [samples, columns].
torch::Tensor predict(vernier::Task& task, const torch::Device& device, std::vector<std::string>& names) {
  auto* supervised = dynamic_cast<vernier::SupervisedTask*>(&task);
  auto* predictor = dynamic_cast<vernier::Predictor*>(&task);
  if (supervised == nullptr || predictor == nullptr) refuse(task.id() + " reads no samples to predict");
  constexpr std::int64_t batch = 4096;
  const auto dataset = predictor->read_inputs("inputs.npy");
  vernier::DataLoader loader(dataset, {.batch_size = batch, .order = vernier::Sampler::Order::sequential});
  std::vector<torch::Tensor> rows;
  for (auto left = loader.batches_per_epoch(); left > 0; --left) {
    const auto samples = loader.next().to(device);
    auto columns = predictor->predict(samples);
    if (columns.empty()) columns.push_back({"output", supervised->forward(samples)});
    std::vector<torch::Tensor> side_by_side;
    names.clear();
    for (const auto& column : columns) {
      side_by_side.push_back(column.numbers.to(torch::kCPU, torch::kFloat64).reshape({samples.samples, -1}));
      const auto parts = side_by_side.back().size(1);
      for (std::int64_t i = 0; i < parts; ++i) {
        names.push_back(parts == 1 ? column.name : column.name + "_" + std::to_string(i));
      }
    }
    rows.push_back(at::cat(side_by_side, 1));
  }
  return at::cat(rows);
}

// Returns a name of this machine by which others find it.
std::string own_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) refuse("this machine has no name");
  return name;
}

}  // namespace

const char* vernier_version() {
  return VERNIER_VERSION;
}

const char* vernier_error() {
  return last_error.c_str();
}

int vernier_open(const char* file, const char* text, vernier_trainer** trainer) {
  return answer([&] {
    auto& opened = place_of(trainer, "the place of the trainer");
    if (file == nullptr && text == nullptr) refuse("vernier_open() is given neither a file nor TOML text");
    auto made = std::make_unique<vernier_trainer>();
    const vernier::Visit now(made->guest);
    made->options.stop = &made->stop;
    if (file != nullptr) made->options.files = {file};
    if (text != nullptr) made->options.toml = text;
    made->trainer = std::make_unique<vernier::Trainer>(made->options);
    opened = made.release();
  });
}

int vernier_set(vernier_trainer* trainer, const char* key, const char* value) {
  return configure(trainer, "vernier_set()", [&](auto& options) {
    options.sets.push_back(text_of(key, "the key") + ("=" + std::string(text_of(value, "the value"))));
  });
}

int vernier_plugin_path(vernier_trainer* trainer, const char* folder) {
  return configure(trainer, "vernier_plugin_path()",
                   [&](auto& options) { options.plugin_paths.emplace_back(text_of(folder, "the folder")); });
}

int vernier_quiet(vernier_trainer* trainer, int quiet) {
  return configure(trainer, "vernier_quiet()", [&](auto& options) { options.quiet = quiet != 0; });
}

int vernier_writes_folder(vernier_trainer* trainer, int writes) {
  return configure(trainer, "vernier_writes_folder()", [&](auto& options) { options.writes_folder = writes != 0; });
}

int vernier_give(vernier_trainer* trainer, const char* name, const vernier_array* array) {
  return configure(trainer, "vernier_give()", [&](auto&) {
    const std::string file = text_of(name, "the name of the array");
    if (!file.ends_with(".npy"))
      refuse("an array stands for a file whose name ends in .npy, and not for '" + file + "'");
    trainer->guest.arrays[file] = tensor_of(array, "'" + file + "'");
  });
}

int vernier_ranks(vernier_trainer* trainer, int rank, int ranks, int local_rank, const char* address, int port) {
  return configure(trainer, "vernier_ranks()", [&](auto&) {
    constexpr int most_ranks = 1 << 20;
    if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks || local_rank < 0) {
      refuse(c10::str("rank ", rank, " of ", ranks, ", local rank ", local_rank, ", does not exist"));
    }
    if (ranks > 1 && (address == nullptr || *address == '\0')) refuse("several ranks need the address of rank 0");
    if (ranks > 1 && (port < 1 || port > 65535)) refuse(c10::str("the port of rank 0 is ", port, "; it is 1 to 65535"));
    vernier::LaunchPlace place{rank, ranks, local_rank};
    if (ranks > 1) place.address = address, place.port = port;
    place.launcher = "the program";
    trainer->guest.place = place;
  });
}

int vernier_meeting(int one_machine, char* address, size_t size, int* port) {
  return answer([&] {
    const std::string name = one_machine != 0 ? "127.0.0.1" : own_name();
    auto& number = place_of(port, "the place of the port");
    if (size <= name.size()) refuse("there is no room for the address " + name);
    const auto found = vernier::free_ports(1);
    if (found.empty()) refuse("this machine has no free port for the ranks");
    std::memcpy(&place_of(address, "the place of the address"), name.c_str(), name.size() + 1);
    number = found.front();
  });
}

int vernier_resume(vernier_trainer* trainer, const char* path, int allow_inexact) {
  return use(trainer, [&](vernier::Trainer& of) { of.resume(path == nullptr ? "" : path, allow_inexact != 0); });
}

int vernier_step(vernier_trainer* trainer, int* trained) {
  return use(trainer, [&](vernier::Trainer& of) {
    const bool has = of.train_step();
    if (trained != nullptr) *trained = has ? 1 : 0;
  });
}

int vernier_epoch(vernier_trainer* trainer, int64_t* steps) {
  return use(trainer, [&](vernier::Trainer& of) {
    const auto count = of.train_epoch();
    if (steps != nullptr) *steps = count;
  });
}

int vernier_train(vernier_trainer* trainer) {
  return use(trainer, [](vernier::Trainer& of) { of.train(); });
}

int vernier_stop(vernier_trainer* trainer) {
  if (trainer == nullptr) return VERNIER_REFUSED;
  trainer->stop = -1;
  return VERNIER_OK;
}

int vernier_save(vernier_trainer* trainer, const char* path) {
  return use(trainer, [&](vernier::Trainer& of) { of.save(path == nullptr ? "" : path); });
}

int vernier_swap(vernier_trainer* trainer, const char* toml) {
  return use(trainer, [&](vernier::Trainer& of) { of.swap(text_of(toml, "the TOML")); });
}

int vernier_validate(vernier_trainer* trainer, double* loss) {
  return use(trainer,
             [&](vernier::Trainer& of) { place_of(loss, "the place of the loss") = of.validate().value_or(NAN); });
}

int vernier_predict(vernier_trainer* trainer, const vernier_array* inputs, const vernier_array* outputs) {
  return use(trainer, [&](vernier::Trainer& of) {
    const vernier::Tensors given = {{"inputs.npy", tensor_of(inputs, "the array of inputs")}};
    const auto place = tensor_of(outputs, "the array of outputs");
    if (!place.is_floating_point()) refuse("the array of outputs must be VERNIER_FLOAT32 or VERNIER_FLOAT64");
    std::vector<std::string> names;
    torch::Tensor rows;
    of.validate([&](vernier::Task& task) {
      const vernier::Given arrays(nullptr, &given);
      rows = predict(task, of.run().device, names);
    });
    if (!rows.defined()) refuse("there is no model: vernier_stop() was called before it was made");
    if (place.dim() == 1 && names.size() == 1) rows = rows.squeeze(1);
    if (rows.sizes() != place.sizes()) {
      refuse(c10::str("the array of outputs has the shape ", place.sizes(), ", and the predictions ", rows.sizes(),
                      ": ", vernier::some_of(names)));
    }
    place.copy_(rows);
    trainer->columns = std::move(names);
  });
}

int vernier_column(vernier_trainer* trainer, int64_t index, const char** name) {
  return visit(trainer, [&](vernier_trainer& of) {
    const bool is_there = index >= 0 && index < std::ssize(of.columns);
    place_of(name, "the place of the name") = is_there ? of.columns[static_cast<std::size_t>(index)].c_str() : nullptr;
  });
}

int vernier_metric(vernier_trainer* trainer, const char* name, double* value) {
  return use(trainer, [&](vernier::Trainer& of) {
    const auto all = of.metrics();
    const auto found = all.find(text_of(name, "the name of the metric"));
    if (found == all.end()) {
      std::vector<std::string> names;
      for (const auto& [each, number] : all) names.push_back(each);
      refuse("there is no metric '" + std::string(name) +
             "' now; there are: " + (names.empty() ? "none" : vernier::some_of(names)));
    }
    place_of(value, "the place of the value") = found->second;
  });
}

int vernier_result(vernier_trainer* trainer, vernier_outcome* outcome) {
  return visit(trainer, [&](vernier_trainer& of) {
    const auto result = of.trainer->outcome();
    auto& place = place_of(outcome, "the place of the outcome");
    place = {result.steps, result.loss.value_or(NAN), result.validation_loss.value_or(NAN), result.seconds, ""};
    result.ended_by.copy(place.ended_by, sizeof place.ended_by - 1);
  });
}

int vernier_close(vernier_trainer* trainer) {
  if (trainer == nullptr) return VERNIER_OK;
  const int status = visit(trainer, [](vernier_trainer& of) { of.trainer.reset(); });
  if (status == VERNIER_OK) delete trainer;
  return status;
}
