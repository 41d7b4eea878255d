#include <vernier/launch_place.h>

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <charconv>
#include <cstdlib>

namespace vernier {

namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_set(const char* name) {
  return !text_of(name).empty();
}

std::int64_t number_of(const char* name) {
  const auto text = text_of(name);
  std::int64_t number = -1;
  const auto* end = text.data() + text.size();
  if (const auto [last, status] = std::from_chars(text.data(), end, number); status != std::errc() || last != end) {
    refuse(c10::str("the environment has ", name, " = \"", text, "\", which is not a number"));
  }
  return number;
}

std::int64_t number_or(const char* name, std::int64_t otherwise) {
  return is_set(name) ? number_of(name) : otherwise;
}

// MASTER_PORT, or 0 if it is not set.
std::int64_t port_of_launcher() {
  if (std::getenv("MASTER_PORT") == nullptr) return 0;
  const auto port = is_set("MASTER_PORT") ? number_of("MASTER_PORT") : 0;
  if (port > 0 && port <= 65535) return port;
  refuse("the environment has MASTER_PORT = \"" + text_of("MASTER_PORT") + "\"; a port is a number from 1 to 65535");
}

struct Names {
  const char *rank, *ranks, *local_rank, *local_ranks;
};

// Ranks that are all on one machine meet where no other machine reaches them.
LaunchPlace of_variables(const char* launcher, const Names& names) {
  LaunchPlace place{number_of(names.rank), number_of(names.ranks), number_or(names.local_rank, 0)};
  const bool is_one_machine = number_or(names.local_ranks, 0) == place.ranks;
  place.address = is_one_machine ? "127.0.0.1" : text_of("MASTER_ADDR");
  place.port = port_of_launcher();
  place.launcher = launcher;
  return place;
}

LaunchPlace of_torchrun() {
  auto place = of_variables("torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (is_set("TORCHELASTIC_RESTART_COUNT")) place.attempt = text_of("TORCHELASTIC_RESTART_COUNT");
  place.launcher_has_store = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return place;
}

// Two jobs on one machine rarely get the same port.
LaunchPlace of_slurm() {
  LaunchPlace place{number_of("SLURM_PROCID"), number_of("SLURM_NTASKS"), number_or("SLURM_LOCALID", 0)};
  const char* list = is_set("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  place.address = first_node(text_of(list));
  if (text_of("SLURM_STEP_NUM_NODES") == "1") place.address = "127.0.0.1";
  place.port = 15000 + (number_or("SLURM_JOB_ID", 0) % 20000 + number_of("SLURM_STEP_ID")) % 50000;
  if (is_set("SLURM_RESTART_COUNT")) place.attempt = text_of("SLURM_RESTART_COUNT");
  place.launcher = "Slurm";
  return place;
}

LaunchPlace found() {
  if (is_set("RANK") && is_set("WORLD_SIZE")) return of_torchrun();
  const bool is_slurm_step = is_set("SLURM_STEP_ID") && is_set("SLURM_PROCID") && is_set("SLURM_NTASKS");
  if (is_slurm_step && number_of("SLURM_NTASKS") > 1) return of_slurm();  // a batch script has the last one too
  if (is_set("OMPI_COMM_WORLD_RANK")) {
    return of_variables("MPI", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE"});
  }
  if (is_set("PMI_RANK") && is_set("PMI_SIZE")) {
    return of_variables("MPI", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  }
  return {};
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
  const auto place = found();
  if (place.ranks <= 1) return "";
  return c10::str(place.launcher, " has started this process as rank ", place.rank, " of ", place.ranks,
                  ", and without [distributed] each of them would train the whole run alone; add --set "
                  "distributed.use=ddp, or --set distributed.use=none if that is meant");
}

LaunchPlace place_in_environment() {
  constexpr std::int64_t most_ranks = 1 << 20;
  auto place = found();
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
