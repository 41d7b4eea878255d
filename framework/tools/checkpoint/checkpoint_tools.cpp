#include "checkpoint_tools.h"

#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/name_pattern.h>
#include <vernier/options.h>
#include <vernier/plugin.h>
#include <vernier/safetensors.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "cli/command.h"
#include "common/log.h"
#include "common/output_file.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "files/weights.h"
#include "kept_checkpoints.h"
#include "weight_files.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {

constexpr const char* usage = R"(usage: vernier checkpoint TOOL …

  list RUN                    the checkpoints of a run: step, size, age, whether it is whole; 4 if none is
  verify PATH…                reads every byte of a checkpoint, or of all checkpoints of a run
  show PATH [PATTERN…]        tensors with dtype, shape and statistics; with patterns ('*.weight') only those that match
  export PATH FILE            writes the model's weights to a safetensors file
  import FILE… NEW            merges safetensors files, such as shards, into one that [run] init_from takes

PATH is a checkpoint, or a run, which stands for its newest checkpoint. The [checkpoint] plugin of the run reads it.

options
  --dtype DTYPE               export, import: float32, bfloat16 or float16; the default keeps the dtypes
  --weights masters|model|average
                              export: float32 master weights if the run kept them (the default), the model's weights, or
                              the average of callback/ema, callback/swa or optimizer/asgd
  --force                     export, import: replaces a file that is there
  --trust                     runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER        looks there first for the plugin that keeps the checkpoints of the run
)";

const std::vector<std::string> all_tools = {"list", "verify", "show", "export", "import"};

using Words = std::vector<std::string>;

void print_table(const TextRows& rows, const std::string& sides) {
  std::istringstream lines(aligned(rows, sides));
  for (std::string line; std::getline(lines, line);) std::cout << "  " << line << '\n';
}

std::string age_of(const fs::path& path) {
  std::error_code none;
  const auto written = fs::last_write_time(path, none);
  if (none) return "?";
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - written).count();
  if (seconds < 120) return std::to_string(std::max<std::int64_t>(seconds, 0)) + " s";
  if (seconds < 7200) return std::to_string(seconds / 60) + " min";
  if (seconds < 172800) return std::to_string(seconds / 3600) + " h";
  return std::to_string(seconds / 86400) + " d";
}

// While a run trains, it removes its older checkpoints.
bool is_gone(const std::string& path) {
  std::error_code none;
  return !fs::exists(fs::symlink_status(path, none));
}

std::string size_of(const CheckpointManifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return memory_text(static_cast<std::int64_t>(bytes));
}

std::size_t tensors_of(const CheckpointManifest& manifest) {
  std::size_t count = 0;
  for (const auto& [name, file] : manifest.files) count += file.tensors.size();
  return count;
}

// The names of links by the name of their target: {"step-00000800", "best, latest"}.
std::map<std::string, std::string> links_in(const std::string& folder) {
  std::map<std::string, std::string> links;
  std::error_code trouble;
  for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    std::error_code none;
    if (!entry->is_symlink(none)) continue;
    auto& names = links[fs::read_symlink(entry->path(), none).filename().string()];
    names += (names.empty() ? "" : ", ") + entry->path().filename().string();
  }
  return links;
}

std::string step_text(std::int64_t step) {
  return step < 0 ? "" : std::to_string(step);
}

int list(const Words& paths, const Host& host) {
  if (paths.size() != 1) refuse("name one run, as in `vernier checkpoint list runs/quickstart`");
  const KeptCheckpoints kept(paths[0], host);
  if (kept.paths().empty()) refuse(paths[0] + ": holds no checkpoint");
  const auto links = links_in(kept.folder());
  std::vector<Words> rows = {{"step", "size", "age", "", ""}};
  Words trouble;
  bool is_any_whole = false;
  for (const auto& path : kept.paths()) {
    const auto link = links.find(fs::path(path).filename().string());
    Words row = {step_text(step_of_checkpoint(path)), "", age_of(path), "whole", ""};
    try {
      const auto manifest = kept.glance(path);
      row[0] = step_text(manifest.step);
      row[1] = size_of(manifest);
      is_any_whole = true;
    } catch (...) {
      if (is_gone(path)) continue;
      const auto [text, kind] = caught();
      row[3] = kind == Error::Kind::configuration ? "of another version" : "not whole";
      trouble.push_back(text);
    }
    if (link != links.end()) row[4] = link->second;
    rows.push_back(std::move(row));
  }
  std::cout << kept.folder() << '\n';
  print_table(rows, "rrrll");
  for (const auto& line : trouble) std::cout << line << '\n';
  return is_any_whole ? 0 : static_cast<int>(Error::Kind::training);
}

int verify(const Words& paths, const Host& host) {
  if (paths.empty()) refuse("name a checkpoint or a run, as in `vernier checkpoint verify runs/quickstart`");
  int status = 0;
  for (const auto& path : paths) {
    const KeptCheckpoints kept(path, host);
    kept.refuse_none();
    for (const auto& checkpoint : kept.paths()) {
      try {
        const auto manifest = kept.verify(checkpoint);
        std::cout << checkpoint << ": whole, " << tensors_of(manifest) << " tensors, " << size_of(manifest)
                  << std::endl;
      } catch (...) {
        if (checkpoint != path && is_gone(checkpoint)) {
          std::cout << checkpoint << ": skipped: the running training has deleted it" << std::endl;
          continue;
        }
        const auto [text, kind] = caught();
        write_log(static_cast<int>(Level::error), "vernier", text);
        status = std::max(status, static_cast<int>(kind));
      }
    }
  }
  return status;
}

StoredCheckpoint read_newest(const std::string& path, const Host& host, std::string& read) {
  const KeptCheckpoints kept(path, host);
  kept.refuse_none();
  read = kept.paths().front();
  return kept.read(read);
}

struct Statistics {
  double least = HUGE_VAL, most = -HUGE_VAL, sum = 0, squares = 0;
  std::int64_t finite = 0, count = 0;
};

// In float64 and in chunks: a copy of a large tensor would need at least twice its memory.
Statistics statistics_of(const torch::Tensor& tensor) {
  constexpr std::int64_t chunk = 1 << 20;
  Statistics all;
  const auto real = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  const auto flat = real.reshape({-1});
  all.count = flat.numel();
  for (std::int64_t first = 0; first < all.count; first += chunk) {
    const auto values = flat.narrow(0, first, std::min(chunk, all.count - first)).to(torch::kFloat64);
    const auto finite = values.masked_select(values.isfinite());
    if (finite.numel() == 0) continue;
    all.least = std::fmin(all.least, finite.min().item<double>());
    all.most = std::fmax(all.most, finite.max().item<double>());
    all.sum += finite.sum().item<double>();
    all.squares += finite.square().sum().item<double>();
    all.finite += finite.numel();
  }
  return all;
}

// The text of a U8 tensor in quotes, or "" if it is not plain ASCII.
std::string text_in(const torch::Tensor& tensor) {
  if (tensor.scalar_type() != torch::kUInt8 || tensor.dim() != 1 || tensor.numel() == 0) return "";
  const std::string text(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.numel()));
  const bool is_plain = std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' && c < 127; });
  return is_plain ? "\"" + (text.size() > 60 ? text.substr(0, 57) + "…" : text) + "\"" : "";
}

Words row_of(const std::string& name, const torch::Tensor& tensor, const std::string& dtype) {
  Words row = {name, dtype, c10::str(tensor.sizes())};
  if (const auto text = text_in(tensor); !text.empty()) {
    row.push_back(text);
  } else if (tensor.dim() == 0 && !tensor.is_floating_point() && !tensor.is_complex()) {
    row.push_back(std::to_string(tensor.to(torch::kInt64).item<std::int64_t>()));
  } else if (const auto all = statistics_of(tensor); all.count > 0) {
    const auto number = [&](double value) { return all.finite > 0 ? print_number("%.4g", value) : "-"; };
    const auto finite = static_cast<double>(all.finite);
    row.insert(row.end(), {number(all.least), number(all.most), number(all.sum / finite),
                           number(std::sqrt(all.squares / finite)), std::to_string(all.count - all.finite)});
  }
  return row;
}

// Returns the number of tensors.
std::size_t show_tensors(const std::string& title, const Tensors& tensors,
                         const std::map<std::string, CheckpointManifest::Tensor>& described, const Words& patterns) {
  std::vector<Words> rows = {{"", "dtype", "shape", "min", "max", "mean", "rms", "not finite"}};
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!patterns.empty() && !matches_any(patterns, name)) continue;
    const auto found = described.find(name);
    rows.push_back(
        row_of(name, tensor, found != described.end() ? found->second.dtype : c10::toString(tensor.scalar_type())));
    elements += tensor.numel();
  }
  if (rows.size() == 1) return 0;
  std::cout << '\n' << title << ": " << rows.size() - 1 << " tensors, " << elements << " elements\n";
  print_table(rows, "lllrrrrr");
  return rows.size() - 1;
}

int show(const Words& words, const Host& host) {
  if (words.empty()) refuse("name a checkpoint or a run, as in `vernier checkpoint show runs/quickstart`");
  std::string path;
  const auto stored = read_newest(words[0], host, path);
  const auto& manifest = stored.manifest;
  std::cout << path << "\nstep " << manifest.step << " of run " << manifest.run;
  if (manifest.version > 0) std::cout << ", format " << manifest.version;
  for (const auto& [name, version] : manifest.versions) std::cout << ", " << name << ' ' << version;
  std::cout << '\n';
  Words plugins;
  for (const auto& plugin : manifest.plugins) plugins.push_back(plugin.id + " " + plugin.version);
  if (!plugins.empty()) std::cout << joined(plugins) << '\n';
  std::map<std::string, CheckpointManifest::Tensor> described;
  for (const auto& [name, file] : manifest.files) described.insert(file.tensors.begin(), file.tensors.end());
  const Words patterns(words.begin() + 1, words.end());
  const auto shown = show_tensors("model", stored.model.tensors, described, patterns) +
                     show_tensors("state", stored.state.tensors, described, patterns);
  if (shown == 0 && !patterns.empty()) refuse(path + ": no tensor has a name that matches " + patterns[0]);
  return 0;
}

std::optional<torch::ScalarType> dtype_in(const po::variables_map& given) {
  if (given.count("dtype") == 0) return std::nullopt;
  const auto& name = given["dtype"].as<std::string>();
  const std::pair<const char*, torch::ScalarType> known[] = {
      {"float32", torch::kFloat32}, {"bfloat16", torch::kBFloat16}, {"float16", torch::kFloat16}};
  for (const auto& [word, type] : known) {
    if (name == word) return type;
  }
  refuse("--dtype is " + shortened(name) + ", and must be float32, bfloat16 or float16");
}

void write_weights(const std::string& path, const Tensors& tensors) {
  WholeFile file(path);
  save_safetensors(file.part(), tensors, Metadata{{"format", "pt"}});
  file.finish();
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : tensors) elements += tensor.numel();
  std::cout << path << ": " << tensors.size() << " tensors, " << elements << " elements, "
            << memory_text(static_cast<std::int64_t>(fs::file_size(path))) << '\n';
}

int export_weights(const Words& words, const po::variables_map& given, const Host& host) {
  if (words.size() != 2) {
    refuse(
        "name a checkpoint or run and a file, as in `vernier checkpoint export runs/quickstart weights.safetensors`");
  }
  const auto& target = words[1];
  if (fs::path(target).extension() != ".safetensors") refuse(target + ": its name must end in .safetensors");
  const auto which = word_or(given, "weights", "masters");
  if (which != "masters" && which != "model" && which != "average") {
    refuse("--weights is " + shortened(which) + ", and must be masters, model or average");
  }
  const auto dtype = dtype_in(given);
  refuse_output(given, target);

  std::string path;
  auto stored = read_newest(words[0], host, path);
  if (stored.state.has("run/model_parts")) {
    refuse(path + ": has a part of the model for each of several ranks; docs/guides/distributed.md puts them together");
  }
  if (which != "model") stored.model.tensors = best_weights(stored);
  auto weights = stored.model.tensors;
  if (which == "average") {
    auto model = model_of_run(path, std::move(stored));
    if (model.average.empty()) {
      refuse(path +
             ": an evaluation of this run has no average of the weights; a run with [[callback]] use = \"ema\" or "
             "\"swa\", or with [optimizer] use = \"asgd\", keeps one once it has begun");
    }
    weights = std::move(model.tensors);
  }
  if (dtype) weights = cast_weights(path, weights, *dtype);
  write_weights(target, weights);
  return 0;
}

int import_weights(const Words& words, const po::variables_map& given) {
  if (words.size() < 2) {
    refuse(
        "name a file to read and one to write, as in `vernier checkpoint import model.safetensors "
        "weights.safetensors`");
  }
  const auto dtype = dtype_in(given);
  refuse_output(given, words.back());
  Tensors tensors;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    for (const auto& [name, tensor] : load_safetensors(words[i])) {
      if (!tensors.emplace(name, tensor).second) {
        refuse(words[i] + ": tensor '" + name + "': there are two of this name");
      }
    }
  }
  if (dtype) tensors = cast_weights(words[0], tensors, *dtype);
  write_weights(words.back(), tensors);
  return 0;
}

// Runs the tool that the first word names.
int run_tool(const po::variables_map& given) {
  auto words = words_of(given);
  if (words.empty()) refuse("name a tool: list, verify, show, export or import; see vernier checkpoint --help");
  const std::string tool = words.front();
  words.erase(words.begin());
  if (std::ranges::find(all_tools, tool) == all_tools.end()) {
    const auto near = nearest(tool, all_tools);
    refuse("checkpoint has no tool \"" + shortened(tool) + "\"" +
           (near.empty() ? "; see vernier checkpoint --help" : "; did you mean " + near + "?"));
  }
  if (tool != "export") refuse_unread(given, "checkpoint " + tool, {"weights"});
  if (tool != "export" && tool != "import") refuse_unread(given, "checkpoint " + tool, {"dtype", "force"});
  const auto host = cli::make_host(given);
  if (tool == "list") return list(words, host);
  if (tool == "verify") return verify(words, host);
  if (tool == "show") return show(words, host);
  if (tool == "export") return export_weights(words, given, host);
  return import_weights(words, given);
}

}  // namespace

Verb checkpoint_verb() {
  po::options_description options;
  options.add_options()("dtype", po::value<std::string>())("weights", po::value<std::string>())("trust", "")(
      "plugin-path", po::value<std::vector<std::string>>())("force", "");
  return {"checkpoint",
          usage,
          options,
          run_tool,
          {{"checkpoint", all_tools},
           {"--dtype", {"float32", "bfloat16", "float16"}},
           {"--weights", {"masters", "model", "average"}}}};
}

}  // namespace vernier
