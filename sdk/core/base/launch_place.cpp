#include <vernier/launch_place.h>

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/launchers.h>

#include <charconv>
#include <cstdlib>

#include "given.h"

namespace vernier {

namespace {

std::string text_of(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

std::int64_t number_of(const std::string& name, const std::string& text) {
  std::int64_t number = -1;
  const auto* end = text.data() + text.size();
  if (const auto [last, status] = std::from_chars(text.data(), end, number); status != std::errc() || last != end) {
    refuse(c10::str("the environment has ", name, " = \"", text, "\", which is not a number"));
  }
  return number;
}

// names: as those of a Launcher.
std::int64_t number_or(const char* names, std::int64_t otherwise) {
  const auto name = set_variable(names);
  return name.empty() ? otherwise : number_of(name, text_of(name));
}

// Returns 0 if no variable names a port.
std::int64_t port_of(const char* names) {
  const auto name = set_variable(names);
  if (name.empty() && std::getenv("MASTER_PORT") == nullptr) return 0;
  const auto port = name.empty() ? 0 : number_of(name, text_of(name));
  if (port > 0 && port <= 65535) return port;
  const std::string shown = name.empty() ? "MASTER_PORT" : name;
  refuse("the environment has " + shown + " = \"" + text_of(shown) + "\"; a port is a number from 1 to 65535");
}

// Two jobs on one machine rarely get the same port.
void complete_slurm(LaunchPlace& place) {
  const char* list = text_of("SLURM_STEP_NODELIST").empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST";
  place.address = text_of("SLURM_STEP_NUM_NODES") == "1" ? "127.0.0.1" : first_node(text_of(list));
  place.port = 15000 + (number_or("SLURM_JOB_ID", 0) % 20000 + number_or("SLURM_STEP_ID", 0)) % 50000;
  if (const auto count = text_of("SLURM_RESTART_COUNT"); !count.empty()) place.attempt = count;
}

// The number that the cluster wants on each machine, or 1 where it leaves that to torchrun ("auto", "gpu", "cpu").
std::int64_t processes_of_a_machine(const Launcher& launcher) {
  const auto name = set_variable(launcher.each), text = text_of(name);
  return text.empty() || text.find_first_not_of("0123456789") != std::string::npos ? 1 : number_of(name, text);
}

constexpr const char* incomplete =
    ", and the rest of its place is missing; set WORLD_SIZE to their number and RANK to the place of each, from 0";

// The entries of the launcher of several processes, or else those of torchrun for one.
Launched found() {
  const Launched several = launched_as_one_of_several(), torchrun(launchers[0]);
  return several.launcher == nullptr && torchrun.is_whole() ? torchrun : several;
}

// Ranks that are all on one machine meet where no other machine reaches them.
LaunchPlace place_of(const Launched& launched) {
  const auto& names = *launched.launcher;
  LaunchPlace place{number_of(launched.rank_variable, launched.rank), number_of(launched.size_variable, launched.size),
                    number_or(names.local_rank, 0)};
  place.launcher = names.name;
  if (launched.is("Slurm")) {
    complete_slurm(place);
    return place;
  }
  const bool is_one_machine = number_or(names.local_size, 0) == place.ranks;
  place.address = is_one_machine ? "127.0.0.1" : text_of(set_variable(names.address));
  if (place.address.empty()) place.address = launched.first;
  place.port = port_of(names.port);
  if (!launched.is("torchrun")) return place;
  if (const auto count = text_of("TORCHELASTIC_RESTART_COUNT"); !count.empty()) place.attempt = count;
  place.launcher_has_store = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return place;
}

}  // namespace

std::string first_node(const std::string& list) {
  const auto open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const auto close = list.find(']', open);
  if (close == std::string::npos) return list;
  const auto number = list.substr(open + 1, list.find_first_of(",-]", open) - open - 1);
  return first_node(list.substr(0, open) + number + list.substr(close + 1, list.find(',', close) - close - 1));
}

std::string several_of_launcher() {
  const auto* given = Given::place();
  if (given != nullptr && given->ranks == 1) return "";
  const auto started =
      given == nullptr ? started_as_one_of_several()
                       : c10::str(given->launcher, " has made this process rank ", given->rank, " of ", given->ranks);
  if (started.empty()) return "";
  if (given == nullptr && !found().is_whole())
    return started + incomplete + ", or add --set distributed.use=none to train alone";
  return started +
         ", and without [distributed] each of them would train the whole run alone; add --set "
         "distributed.use=ddp, or --set distributed.use=none if that is meant";
}

std::int64_t local_rank_in_environment() {
  if (const auto* given = Given::place(); given != nullptr) return given->local_rank;
  const auto launched = found();
  return launched.launcher == nullptr ? 0 : number_or(launched.launcher->local_rank, 0);
}

LaunchPlace place_in_environment() {
  if (const auto* given = Given::place(); given != nullptr) return *given;
  constexpr std::int64_t most_ranks = 1 << 20;
  const auto launched = found();
  if (launched.launcher == nullptr) return {};
  if (!launched.is_whole()) refuse(started_as_one_of_several() + incomplete);
  if (const auto each = processes_of_a_machine(*launched.launcher); each > 1) {
    refuse(c10::str(launched.launcher->name, " wants ", each, " processes on each machine (", launched.launcher->each,
                    "), and this is one; call `vernier launch` there, which takes the same words and starts them"));
  }
  const auto place = place_of(launched);
  if (place.ranks > most_ranks) {
    refuse(c10::str(place.launcher, " has started this process as one of ", place.ranks, " ranks; at most ", most_ranks,
                    " can train together"));
  }
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks) {
    refuse(c10::str(place.launcher, " has started this process as rank ", place.rank, " of ", place.ranks,
                    ", which does not exist"));
  }
  return place;
}

}  // namespace vernier
