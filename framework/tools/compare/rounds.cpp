#include "rounds.h"

#include <toml++/toml.h>
#include <algorithm>
#include <fstream>
#include <iostream>

#include "tools/common/run_files.h"
#include "tools/common/toml_text.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// TOML without the comments about places, which depend on the current folder.
std::string canonical(const toml::table& table) {
  return vernier::toml_text(table);
}

fs::path folder_of(const Plan& plan, const Candidate& candidate, int seed) {
  return plan.folder / candidate.name / ("seed-" + std::to_string(seed));
}

void report_progress(const Plan& plan, const std::string& name, const Trial& trial, const char* what) {
  if (plan.is_quiet) return;
  const auto result = result_of(trial, plan.folder);
  std::cerr << name << ", seed " << trial.seed << " of " << plan.seeds << ": " << what
            << result["state"].get<std::string>();
  const auto number = [&](const char* key, const char* unit) {
    const auto value = result.value(key, nlohmann::ordered_json());
    if (value.is_number()) std::cerr << ", " << unit << text_of(std::optional(value.get<double>()));
  };
  number("samples_per_second", "samples/s ");
  number("validation_loss", "validation loss ");
  if (result.contains("error")) std::cerr << ": " << result["error"].get<std::string>();
  std::cerr << '\n';
}

bool is_running(const fs::path& folder) {
  try {
    return is_run(folder) && read_run(folder).state == "running";
  } catch (const Refused&) {  // it is damaged
    return false;
  }
}

void train(const Plan& plan, const Candidate& candidate, Trial& trial, Children& children) {
  if (is_running(trial.folder)) {
    throw Refused(trial.folder.string() + ": another process trains this run; wait for it, or stop it first");
  }
  fs::remove_all(trial.folder);
  auto words = command_of("train", plan.common, candidate);
  words.insert(words.end(), {"--quiet", "--set=run.seed=" + std::to_string(trial.seed),
                             "--set=run.output=\"" + fs::absolute(trial.folder).string() + "\""});
  const auto ended = children.run(words);
  if (is_refusal(ended)) {
    trial.refusal = reason_of(ended);
  } else if (!is_whole(ended) && children.stopped_by() == 0) {
    trial.error = reason_of(ended);
  }
}

std::vector<Row> planned(const Plan& plan) {
  std::vector<Row> rows;
  for (const auto& candidate : plan.candidates) {
    Row row{candidate.name, {}};
    for (int seed = 1; seed <= plan.seeds; ++seed)
      row.trials.push_back({seed, folder_of(plan, candidate, seed), "", ""});
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void check_configurations(const Plan& plan, Children& children) {
  std::string first_task;
  std::vector<std::string> texts;
  for (const auto& candidate : plan.candidates) {
    const auto configuration = merged_configuration(plan.common, candidate, children);
    if (children.stopped_by() != 0) return;
    const auto table = toml::parse(configuration);
    const auto task = table["task"]["use"].value_or(std::string());
    if (texts.empty()) first_task = task;
    if (task != first_task) {
      throw Refused(candidate.name + " trains task/" + task + ", and " + plan.candidates[0].name + " task/" +
                    first_task + ": their losses cannot be compared; name configurations of one task");
    }
    texts.push_back(canonical(table));
    const auto kept = plan.folder / candidate.name / "candidate.toml";
    if (!fs::exists(kept) || read_text(kept) == texts.back()) continue;
    throw Refused(kept.string() +
                  ": the folder has runs of another configuration; choose another --output, or remove " +
                  kept.parent_path().string());
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto folder = plan.folder / plan.candidates[i].name;
    fs::create_directories(folder);
    std::ofstream file(folder / "candidate.toml", std::ios::binary);
    if (!(file << texts[i] << std::flush)) throw Refused(folder.string() + ": candidate.toml cannot be written");
  }
}

std::vector<Row> train_rounds(const Plan& plan, Children& children) {
  auto rows = planned(plan);
  for (std::size_t round = 0; round < static_cast<std::size_t>(plan.seeds); ++round) {
    for (std::size_t place = 0; place < rows.size(); ++place) {
      if (children.stopped_by() != 0) return rows;
      const auto index = round % 2 == 0 ? place : rows.size() - 1 - place;
      auto& trial = rows[index].trials[round];
      const auto& first = rows[index].trials[0];
      if (!first.refusal.empty()) {  // no seed changes that
        trial.refusal = first.refusal;
      } else if (is_complete(trial.folder)) {
        report_progress(plan, rows[index].name, trial, "is there, ");
      } else {
        train(plan, plan.candidates[index], trial, children);
        report_progress(plan, rows[index].name, trial, "");
      }
    }
  }
  return rows;
}

}  // namespace vernier
