#include "trials.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "common/run_files.h"

namespace vernier {

namespace {

using Words = std::vector<std::string>;

// The runner refuses fp16 with scaler/none. A fixed scale of 1 computes the same, and skips updates that overflow.
const std::vector<Candidate> precisions = {
    {"fp32", {}, {"precision.use=fp32", "scaler.use=none"}},
    {"fp16-unscaled", {}, {"precision.use=fp16", "scaler.use=static", "scaler.scale=1.0"}},
    {"fp16-mixed", {}, {"precision.use=fp16", "scaler.use=dynamic"}},
    {"bf16", {}, {"precision.use=bf16", "scaler.use=none"}},
    {"fp16-accumulated",
     {},
     {"precision.use=fp16", "scaler.use=dynamic", "accumulation.use=fixed", "accumulation.micro_batches=4"}},
    {"fp8", {}, {"precision.use=fp8", "scaler.use=none"}}};

// At the commas that are in no brackets and no quotes: "[1, 2],[3]" has two parts.
Words split(const std::string& text) {
  Words parts(1);
  int depth = 0;
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      quote = c == quote ? '\0' : quote;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else {
      depth += (c == '[' || c == '{') ? 1 : (c == ']' || c == '}') ? -1 : 0;
      if (c == ',' && depth == 0) {
        parts.emplace_back();
        continue;
      }
    }
    parts.back() += c;
  }
  return parts;
}

// Lists without what a folder's name lacks: "[64, 64]" is 64,64.
std::string plain(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (std::string("[]{}\"' ").find(c) == std::string::npos) text += c;
  }
  return text;
}

// "precision=fp32,bf16": a candidate for each value.
std::vector<Candidate> read_sweep(const std::string& sweep) {
  const auto sign = sweep.find('=');
  const auto refuse = [&](const std::string& why) {
    throw Refused("--sweep " + sweep + ": " + why + ", as in --sweep precision=fp32,bf16");
  };
  if (sign == std::string::npos || sign == 0) refuse("write KEY=VALUE,VALUE");
  std::string key = sweep.substr(0, sign);
  if (key.find('.') == std::string::npos) key += ".use";
  const bool names_plugins = key.ends_with(".use");
  std::vector<Candidate> all;
  for (const auto& value : split(sweep.substr(sign + 1))) {
    if (value.empty()) refuse("a value is empty; write KEY=VALUE,VALUE");
    const auto name = names_plugins ? value : key.substr(key.rfind('.') + 1) + "=" + plain(value);
    all.push_back({name, {}, {key + "=" + value}});
  }
  return all;
}

// float32 first. bf16 and fp16 are the policies of these names, and a file is a recipe.
std::vector<Candidate> format_candidates(const std::string& formats) {
  std::vector<Candidate> all = {precisions[0]};
  for (const auto& name : split(formats)) {
    if (name.empty()) throw Refused("--formats: a name is empty, as in --formats nvfp4,mxfp8,bf16");
    if (name == "fp32") continue;
    if (name == "bf16") {
      all.push_back({name, {}, {"precision.use=bf16", "scaler.use=none"}});
    } else if (name == "fp16") {
      all.push_back({name, {}, {"precision.use=fp16", "scaler.use=dynamic"}});
    } else if (name.ends_with(".toml")) {
      all.push_back({std::filesystem::path(name).stem().string(), {name}, {}});
    } else {
      all.push_back({name, {}, {"precision.use=format", "precision.forward=" + name, "scaler.use=none"}});
    }
  }
  return all;
}

// Every one of the first with every one of the others.
std::vector<Candidate> product(const std::vector<Candidate>& first, const std::vector<Candidate>& others) {
  if (first.size() * others.size() > most_candidates) {
    throw Refused("these are more than " + std::to_string(most_candidates) +
                  " candidates; leave out files or values of --sweep");
  }
  std::vector<Candidate> all;
  for (const auto& one : first) {
    for (const auto& other : others) {
      auto both = one;
      both.name += (one.name.empty() || other.name.empty() ? "" : ",") + other.name;
      both.files.insert(both.files.end(), other.files.begin(), other.files.end());
      both.sets.insert(both.sets.end(), other.sets.begin(), other.sets.end());
      all.push_back(std::move(both));
    }
  }
  return all;
}

// Names are those of folders, too.
std::string safe(std::string name) {
  constexpr std::size_t longest = 100;
  for (auto& c : name) {
    const bool is_kept =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string("._=,+-").find(c) != std::string::npos;
    if (!is_kept) c = '-';
  }
  if (name.starts_with('.')) name.front() = '-';
  return name.substr(0, longest);
}

void distinguish(std::vector<Candidate>& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto wanted = safe(all[i].name);
    all[i].name = wanted;
    const auto is_taken = [&] {
      return std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                         [&](const Candidate& other) { return other.name == all[i].name; });
    };
    for (int number = 2; is_taken(); ++number) all[i].name = wanted + "-" + std::to_string(number);
  }
}

}  // namespace

std::vector<Candidate> candidates_of(const Wanted& wanted) {
  std::vector<Candidate> all;
  const bool has_parts = !wanted.sweeps.empty() || wanted.precisions || !wanted.formats.empty();
  const bool are_named_by_files = wanted.files.size() > 1 || !has_parts;
  for (const auto& file : wanted.files) {
    Candidate candidate;
    if (are_named_by_files) candidate.name = std::filesystem::path(file).stem().string();
    candidate.files = wanted.bases;
    candidate.files.push_back(file);
    all.push_back(std::move(candidate));
  }
  if (wanted.precisions) all = product(all, precisions);
  if (!wanted.formats.empty()) all = product(all, format_candidates(wanted.formats));
  for (const auto& sweep : wanted.sweeps) all = product(all, read_sweep(sweep));
  if (all.size() > most_candidates) product(all, {Candidate{}});
  distinguish(all);
  return all;
}

std::vector<std::string> command_of(const char* verb, const Common& common, const Candidate& candidate) {
  std::vector<std::string> words = {verb};
  words.insert(words.end(), candidate.files.begin(), candidate.files.end());
  for (const auto* sets : {&common.sets, &candidate.sets}) {
    for (const auto& set : *sets) words.push_back("--set=" + set);
  }
  for (const auto& path : common.plugin_paths) words.push_back("--plugin-path=" + path);
  return words;
}

std::string reason_of(const Ended& ended) {
  const auto last = last_line(ended.err);
  if (last.empty()) return "vernier ended with status " + std::to_string(ended.status);
  const std::string program = "vernier: ";
  return last.starts_with(program) ? last.substr(program.size()) : last;
}

bool is_refusal(const Ended& ended) {
  return ended.status == 2 || ended.status == 3;
}

bool is_whole(const Ended& ended) {
  return ended.status == 0 || ended.status == 5 || ended.status == 124;
}

std::string merged_configuration(const Common& common, const Candidate& candidate, Children& children) {
  const auto ended = children.run(command_of("config", common, candidate));
  if (children.stopped_by() != 0) return "";
  if (ended.status != 0) throw Refused(reason_of(ended));
  return ended.out;
}

}  // namespace vernier
