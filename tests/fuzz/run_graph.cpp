// Runs graphs of strangers: whatever a graph calls with whatever arguments, LibTorch computes it or throws. A tensor of
// these runs ends or begins at a page that nobody may touch, so that an access outside of it is a signal.
//
//   run_graph COUNT GRAPHS CALLS.json FOLDER
//       GRAPHS changes of the .pt2 files of a folder, each run forward and backward; COUNT changes of the arguments of
//       each operator that a graph may call, whose right calls the JSON file has
//
// The work is done by children, which write what they do next into memory that this process reads when they die.
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <caffe2/serialize/inline_container.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/graph/pt2_types.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "task/graph/graph_network.h"
#include "task/graph/run.h"
#include "task/graph/values.h"

namespace {

using c10::IValue;
using c10::TypeKind;
using nlohmann::json;

std::mt19937_64 engine(1);

std::int64_t below(std::int64_t bound) {
  return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(bound));
}
bool by_chance(int percent) {
  return below(100) < percent;
}
template <class List>
auto one_of(const List& list) {
  return *(std::begin(list) + below(std::ssize(list)));
}

// Gives each tensor pages of its own between two that nobody may touch: it ends at one or begins at the other.
class GuardedMemory final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= most, bytes, " bytes are too many");
    const auto pages = std::max<std::size_t>((bytes + page - 1) / page, 1) * page;
    auto* block = static_cast<char*>(
        ::mmap(nullptr, pages + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    TORCH_CHECK_WITH(OutOfMemoryError, block != MAP_FAILED, "no memory is left");
    TORCH_CHECK(::mprotect(block + page, pages, PROT_READ | PROT_WRITE) == 0, "no memory is left");
    const auto before = by_chance(50) ? 0 : (pages - bytes) / 16 * 16;
    auto* data = block + page + before;
    std::memset(block + page, 0x5a, std::min(pages, std::size_t{1} << 16));
    return {data, new Block{block, pages + 2 * page}, &give_back, c10::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    char* begin;
    std::size_t bytes;
  };
  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    ::munmap(block->begin, block->bytes);
  }
  static constexpr std::size_t page = 4096, most = 64 << 20;
};

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

constexpr std::int64_t large = std::int64_t{1} << 40, largest = std::numeric_limits<std::int64_t>::max();
const std::vector<std::int64_t> hostile = {
    0,           1,       -1,         2,           3,        -2,           5,      7,
    100,         1000,    2147483647, 2147483648,  -3,       large,        -large, 4294967297,
    -2147483648, largest, 1 << 16,    largest / 2, -largest, -largest / 2, 65,     -largest - 1};
const std::vector<double> odd = {0, -1, 0.5, 2, NAN, INFINITY, -INFINITY, 1e300, 1e-30, -3e9, 1e10};

// The next work of a child, for the message of its death.
struct Board {
  std::int64_t place;
  char text[4000];
};
Board* board = nullptr;

void note(std::int64_t place, const std::string& text) {
  board->place = place;
  std::snprintf(board->text, sizeof board->text, "%s", text.c_str());
}

// Does `count` pieces of work in children; one that dies or takes too long is replaced. Returns the number of deaths.
int in_children(const std::string& name, std::int64_t count, const std::function<void(std::int64_t)>& work) {
  int deaths = 0;
  for (std::int64_t first = 0; first < count && deaths < 20; first = board->place + 1) {
    note(first, "");
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
      for (auto place = first; place < count; ++place) {
        engine.seed(static_cast<std::uint64_t>(place) * 2654435761U + std::hash<std::string>()(name));
        ::alarm(20);
        note(place, "before its call");
        work(place);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status == 0) break;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) continue;  // long work is not a fault
    ++deaths;
    std::printf("%s, change %lld: %s %d: %s\n", name.c_str(), static_cast<long long>(board->place),
                WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                board->text);
  }
  return deaths;
}

void backward(const std::vector<IValue>& outputs) {
  torch::Tensor sum;
  for (const auto& output : outputs) {
    if (!output.isTensor() || !output.toTensor().defined() || !output.toTensor().requires_grad()) continue;
    auto part = output.toTensor();
    if (part.numel() > 1'000'000) continue;  // expanded
    part = (part.is_complex() ? part.abs() : part).sum().to(torch::kDouble);
    sum = sum.defined() ? sum + part : part;
  }
  if (sum.defined()) sum.backward();
}

// A text of at most one line, or nothing, is what a graph may throw.
void tried(const std::function<void()>& work) {
  try {
    work();
  } catch (const vernier::Error& error) {
    if (std::strchr(error.what(), '\n') != nullptr) std::abort();
  } catch (const std::exception&) {
  }
}

// The arguments of calls, right and changed.
class Arguments {
 public:
  explicit Arguments(bool changes) : changes_(changes) {}

  IValue of(const json& from, const c10::TypePtr& type) {
    if (from.is_null()) return {};
    switch (type->kind()) {
      case TypeKind::OptionalType:
        return of(from, type->castRaw<c10::OptionalType>()->getElementType());
      case TypeKind::TensorType:
        return from.is_object() ? IValue(tensor(from)) : graph::fitted(number(from), type);
      case TypeKind::ListType:
        return list(from, type->castRaw<c10::ListType>()->getElementType());
      case TypeKind::ScalarTypeType:
        return dtype(from.at("d").get<std::string>());
      case TypeKind::MemoryFormatType:
        return c10::MemoryFormat::Contiguous;
      case TypeKind::BoolType:
        return from.get<bool>() != (changes_ && by_chance(30));
      case TypeKind::FloatType:
        return changes() ? one_of(odd) : from.get<double>();
      case TypeKind::StringType: {
        static const std::vector<std::string> words = {"", "mean", "none", "linear", "sum", "reflect", "amax", "tanh"};
        return changes() ? one_of(words) : from.get<std::string>();
      }
      default:
        return number(from);
    }
  }

 private:
  bool changes() const { return changes_ && by_chance(30); }

  IValue number(const json& from) {
    if (from.is_object() && from.contains("c")) return c10::complex<double>(from["c"][0].get<double>(), 1);
    if (changes()) return one_of(hostile);
    if (from.is_number_float()) return from.get<double>();
    return from.is_boolean() ? IValue(from.get<bool>()) : IValue(from.get<std::int64_t>());
  }

  IValue list(const json& from, const c10::TypePtr& type) {
    std::vector<IValue> all;
    const auto& given = from.is_array() ? from : json::array({from});
    for (const auto& each : given) all.push_back(of(each, type));
    if (changes_ && by_chance(10) && !all.empty()) all.pop_back();
    if (changes_ && by_chance(10) && !all.empty()) all.push_back(all[0]);
    if (changes_ && by_chance(3)) all.clear();
    return graph::list_of(all, type);
  }

  torch::ScalarType dtype(const std::string& name) {
    static const std::vector<torch::ScalarType> some = {
        torch::kFloat, torch::kDouble, torch::kLong, torch::kInt,      torch::kBool,
        torch::kByte,  torch::kHalf,   torch::kChar, torch::kBFloat16, torch::kComplexFloat};
    if (changes_ && by_chance(10)) return one_of(some);
    for (int i = 0; i < static_cast<int>(torch::ScalarType::NumOptions); ++i) {
      const auto each = static_cast<torch::ScalarType>(i);
      if (name == c10::getDtypeNames(each).first || name == c10::getDtypeNames(each).second) return each;
    }
    return torch::kFloat;
  }

  std::vector<std::int64_t> sizes(std::vector<std::int64_t> all) {
    if (!changes_ || by_chance(50)) return all;
    const auto place = all.empty() ? 0 : below(std::ssize(all));
    const auto way = below(6);
    if (way == 0 || all.empty()) {
      all.insert(all.begin() + place, below(4));
    } else if (way == 1) {
      all.erase(all.begin() + place);
    } else {
      auto& size = all[static_cast<std::size_t>(place)];
      size = way == 2 ? 0 : way == 3 ? 1 : way == 4 ? size * 2 + 1 : size + 1;
    }
    return c10::multiply_integers(all) > 100'000 ? std::vector<std::int64_t>{2} : all;
  }

  torch::Tensor tensor(const json& from) {
    const auto type = dtype(from.at("t").get<std::string>());
    const auto shape = sizes(from.at("s").get<std::vector<std::int64_t>>());
    const auto count = c10::multiply_integers(shape);
    torch::Tensor made;
    if (at::isIntegralType(type, /*includeBool=*/false)) {
      auto values = from.value("v", std::vector<std::int64_t>{0, 1, 2});
      values.resize(static_cast<std::size_t>(count), 1);
      for (auto i = below(3); changes_ && count > 0 && i >= 0; --i) {
        if (by_chance(40)) values[static_cast<std::size_t>(below(count))] = one_of(hostile);
      }
      made = torch::tensor(values, torch::kLong).to(type).reshape(shape);
    } else {
      made = torch::randn(shape, torch::kDouble);
      if (changes_ && by_chance(15) && count > 0) made.view(-1)[below(count)] = one_of(odd);
      made = type == torch::kBool ? made > 0 : made.to(type);
    }
    if (changes_ && by_chance(15) && made.dim() > 1) made = made.transpose(0, 1);
    if (changes_ && by_chance(5) && made.dim() > 0 && made.size(0) > 0)
      made = made.narrow(0, 0, 1).expand(made.sizes());
    return made.is_floating_point() && by_chance(60) ? made.clone().requires_grad_() : made;
  }

  bool changes_;
};

std::string shown(const IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    auto text = c10::str(tensor.scalar_type(), tensor.sizes());
    if (!tensor.is_floating_point() && !tensor.is_complex() && tensor.numel() < 40) {
      for (std::int64_t i = 0; i < tensor.numel(); ++i) text += c10::str(" ", tensor.flatten()[i].item<std::int64_t>());
    }
    return text;
  }
  if (value.isList()) {
    std::string text = "[";
    for (const auto& each : value.toListRef()) text += shown(each) + ", ";
    return text + "]";
  }
  return c10::str(value);
}

// Calls an operator as a graph of one node does.
void call(const std::string& target, const json& arguments, bool changes, std::int64_t place) {
  graph::Node node;
  node.op = graph::operator_of(target);
  node.rule = *graph::rule_of(target);
  node.name = target;
  std::vector<IValue> slots;
  Arguments made(changes);
  auto text = target + ":";
  for (const auto& argument : node.op->schema().arguments()) {
    IValue value = arguments.contains(argument.name()) ? made.of(arguments.at(argument.name()), argument.real_type())
                   : argument.default_value()          ? *argument.default_value()
                                                       : IValue();
    if (argument.real_type()->kind() == TypeKind::DeviceObjType) value = torch::Device(torch::kCPU);
    text += " " + argument.name() + "=" + shown(value);
    node.arguments.push_back({.kind = graph::Argument::Kind::slot, .slot = std::ssize(slots), .type = {}});
    slots.push_back(std::move(value));
  }
  note(place, text);
  graph::Graph graph;
  for (std::size_t i = 0; i < node.op->schema().returns().size(); ++i) {
    const auto is_list = node.op->schema().returns()[i].type()->kind() == TypeKind::ListType;
    if (is_list) return node.op->callBoxed(slots);
    node.outputs.push_back({std::ssize(slots)});
    graph.outputs.push_back({.kind = graph::Argument::Kind::slot, .slot = std::ssize(slots)});
    slots.emplace_back();
  }
  graph.slots = std::ssize(slots);
  graph.nodes.push_back(std::move(node));
  backward(graph::run(graph, std::move(slots), {}));
}

// A file of a graph: its records, and its program apart.
struct Seed {
  std::string name, record;
  std::vector<std::pair<std::string, std::string>> records;
  json program;
};

Seed seed_of(const std::filesystem::path& file) {
  Seed seed;
  seed.name = file.filename().string();
  caffe2::serialize::PyTorchStreamReader reader(file.string());
  for (const auto& record : reader.getAllRecords()) {
    auto [data, size] = reader.getRecord(record);
    std::string bytes(static_cast<const char*>(data.get()), size);
    if (record.starts_with("models/")) {
      seed.record = record;
      seed.program = json::parse(bytes);
    } else if (record.starts_with("data/")) {
      seed.records.emplace_back(record, std::move(bytes));
    }
  }
  for (auto& node : seed.program["graph_module"]["graph"]["nodes"]) node["metadata"] = json::object();
  return seed;
}

// Changes a value somewhere below, mostly deep below.
void change(json& value, const json& other) {
  if (value.is_structured() && !value.empty() && !by_chance(3)) {
    const auto place = below(std::ssize(value));
    if (value.is_object()) return change(std::next(value.begin(), place).value(), other);
    if (by_chance(4)) return value.erase(static_cast<std::size_t>(place)), void();
    if (by_chance(4)) return value.push_back(value[static_cast<std::size_t>(place)]);
    return change(value[static_cast<std::size_t>(place)], other);
  }
  if (value.is_number_integer()) {
    value = one_of(hostile);
  } else if (value.is_number_float()) {
    value = by_chance(50) ? json("Infinity") : json(one_of(std::vector<double>{0, -1, 1e300}));
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_string() && other.is_string()) {
    value = other;
  } else {
    value = by_chance(50) ? json(one_of(hostile)) : other;
  }
}

void change_node(json& nodes, const std::vector<std::string>& targets) {
  if (!nodes.is_array() || nodes.empty()) return;
  auto& node = nodes[static_cast<std::size_t>(below(std::ssize(nodes)))];
  auto& inputs = node["inputs"];
  switch (below(6)) {
    case 0:
      node["target"] = "torch.ops." + one_of(targets);
      return;
    case 1: {  // another operator with the arguments of its schema
      const auto target = one_of(targets);
      node["target"] = "torch.ops." + target;
      std::size_t i = 0;
      for (const auto& argument : graph::operator_of(target)->schema().arguments()) {
        if (i < inputs.size()) inputs[i++]["name"] = argument.name();
      }
      return;
    }
    case 2: {  // the argument of another node
      const auto& from = nodes[static_cast<std::size_t>(below(std::ssize(nodes)))]["inputs"];
      if (!inputs.empty() && !from.empty()) {
        inputs[static_cast<std::size_t>(below(std::ssize(inputs)))]["arg"] =
            from[static_cast<std::size_t>(below(std::ssize(from)))]["arg"];
      }
      return;
    }
    default:
      if (!inputs.empty()) change(inputs[static_cast<std::size_t>(below(std::ssize(inputs)))]["arg"], "x");
  }
}

std::string bytes_of(const Seed& seed, const json& program) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  const auto text = program.dump();
  writer.writeRecord(seed.record, text.data(), text.size());
  for (const auto& [record, data] : seed.records) writer.writeRecord(record, data.data(), data.size());
  writer.writeEndOfFile();
  return bytes;
}

// Reads a graph, and runs it forward and backward for three samples, and in evaluation.
void run_network(const std::string& bytes, const json& program) {
  const auto tensor = torch::from_blob(const_cast<char*>(bytes.data()), {std::ssize(bytes)}, torch::kUInt8);
  graph::GraphNetwork network(tensor.clone(), "model.pt2", "");
  std::vector<torch::Tensor> inputs;
  const auto& values = program["graph_module"]["graph"]["tensor_values"];
  for (const auto& spec : program["graph_module"]["signature"]["input_specs"]) {
    if (!spec.contains("user_input")) continue;
    const auto& meta = values.at(spec["user_input"]["arg"]["as_tensor"]["name"].get<std::string>());
    std::vector<std::int64_t> sizes;
    for (const auto& size : meta.at("sizes")) sizes.push_back(size.value("as_int", std::int64_t{3}));
    const auto dtype = vernier::pt2::dtype_of(meta.at("dtype").get<int>()).value();
    if (sizes.size() > 6 || c10::multiply_integers(sizes) > 10'000) return;
    inputs.push_back(at::isIntegralType(dtype, true) ? torch::randint(0, 7, sizes, torch::kLong).to(dtype)
                                                     : torch::randn(sizes, torch::kFloat).to(dtype));
  }
  network.train(true);
  backward({network.forward(inputs)});
  network.eval();
  const torch::NoGradGuard no_grad;
  network.forward(inputs);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s COUNT GRAPHS CALLS.json FOLDER\n", argv[0]);
    return 2;
  }
  const std::int64_t count = std::atoll(argv[1]), graphs = std::atoll(argv[2]);
  board =
      static_cast<Board*>(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
#ifdef __SANITIZE_THREAD__
  std::puts("skipped: the thread sanitizer ends the process where memory is missing, and this one has one thread");
  return 77;
#endif
  const rlimit data{std::size_t{4} << 30, std::size_t{4} << 30};
  ::setrlimit(RLIMIT_DATA, &data);
  at::set_num_threads(1);
  static NoWarnings no_warnings;
  c10::WarningUtils::set_warning_handler(&no_warnings);
  c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));  // each error would make one
  static GuardedMemory memory;
  c10::SetCPUAllocator(&memory, /*priority=*/0xFF);
  const auto calls = json::parse(std::ifstream(argv[3]));
  const auto targets = graph::all_targets();
  int faults = 0;
  struct Work {
    const std::string* target;
    const json* arguments;
    bool changes;
  };
  std::vector<Work> work;
  for (const auto& target : targets) {
    if (!graph::operator_of(target) || !calls.contains(target)) {
      std::printf("%s is on the list, and %s\n", target.c_str(),
                  calls.contains(target) ? "LibTorch has no such operator" : "has no call in the file of calls");
      ++faults;
      continue;
    }
    const auto& known = calls.at(target);
    for (const auto& each : known) work.push_back({&target, &each, false});
    for (std::int64_t i = 0; i < count; ++i) {
      work.push_back({&target, &known[static_cast<std::size_t>(i % std::ssize(known))], true});
    }
  }
  faults += in_children("operators", std::ssize(work), [&](std::int64_t place) {
    const auto& [target, arguments, changes] = work[static_cast<std::size_t>(place)];
    tried([&] { call(*target, *arguments, changes, place); });
  });
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(argv[4])) {
    if (entry.path().extension() == ".pt2") seeds.push_back(seed_of(entry.path()));
  }
  std::ranges::sort(seeds, {}, &Seed::name);
  for (const auto& seed : seeds) {
    faults += in_children(seed.name, graphs / std::ssize(seeds), [&](std::int64_t place) {
      tried([&] {
        auto program = seed.program;
        for (auto i = place == 0 ? 0 : 1 + below(2); i > 0; --i) {
          if (by_chance(10)) {
            change(program["graph_module"], "x");
          } else {
            change_node(program["graph_module"]["graph"]["nodes"], targets);
          }
        }
        note(place, program["graph_module"]["graph"]["nodes"].dump());
        run_network(bytes_of(seed, program), program);
      });
    });
  }
  std::printf("%zu operators, %lld changes of the arguments of each; %zu graphs, %lld changes in all; %d faults\n",
              targets.size(), static_cast<long long>(count), seeds.size(), static_cast<long long>(graphs), faults);
  return faults == 0 ? 0 : 1;
}
