// Launchers of several processes, and the environment variables by which a process learns its place among them. Needs
// no library.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

// A name may be several with | between them, of which the first one that is set counts; "" for none. Size and rank are
// numbers, or a list of machines that have one process each, and the name of this one.
struct Launcher {
  const char *name, *size, *rank;
  const char *local_rank = "", *local_size = "";               // numbers on this machine
  const char *address = "MASTER_ADDR", *port = "MASTER_PORT";  // rank 0's
  const char* step = "";                                       // the others count only beside it
  const char* each = "";                                       // the number of processes wanted on each machine
};

// Those that name each process come before those that name machines. Ray Train, Azure ML and PyTorchJob have torchrun's
// names; MPICH, Intel MPI and Cray those of PMI.
inline constexpr Launcher launchers[] = {
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Slurm", "SLURM_STEP_NUM_TASKS|SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "", "", "", "SLURM_STEP_ID"},
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH", "MV2_COMM_WORLD_SIZE|MVP_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK|MVP_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_LOCAL_RANK|MVP_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE|MVP_COMM_WORLD_LOCAL_SIZE"},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
    {"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"},
    {"MPI", "PMI_SIZE", "PMI_RANK|PALS_RANKID", "MPI_LOCALRANKID|PMI_LOCAL_RANK|PALS_LOCAL_RANKID",
     "MPI_LOCALNRANKS|PMI_LOCAL_SIZE|PALS_LOCAL_SIZE"},
    {"Horovod", "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"},
    {"Kubeflow", "PET_NNODES", "PET_NODE_RANK", "", "", "PET_MASTER_ADDR|MASTER_ADDR", "PET_MASTER_PORT|MASTER_PORT",
     "", "PET_NPROC_PER_NODE"},
    {"SageMaker", "SM_HOSTS", "SM_CURRENT_HOST", "", "", "MASTER_ADDR", "MASTER_PORT", "", "SM_NUM_GPUS"},
    {"AWS Batch", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX", "", "",
     "MASTER_ADDR|AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"},
    {"LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "", "", "MASTER_ADDR|LWS_LEADER_ADDRESS"},
    {"the cluster", "NNODES|NUM_NODES", "NODE_RANK", "", "", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"},
    {"Azure ML", "AZUREML_NODE_COUNT", "NODE_RANK|AZ_BATCHAI_TASK_INDEX", "", "",
     "MASTER_ADDR|AZ_BATCHAI_JOB_MASTER_NODE_IP"},
    {"PMIx", "", "PMIX_RANK"}};

inline constexpr int usual_port = 29500;  // the port of torchrun

// Returns the first of the names that is set, or "".
inline std::string set_variable(std::string_view names) {
  while (!names.empty()) {
    const std::string name(names.substr(0, names.find('|')));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    if (const char* value = std::getenv(name.c_str()); value != nullptr && *value != '\0') return name;
  }
  return "";
}

// The entries of the environment of one launcher. A text is "" where there is none.
struct Launched {
  explicit Launched(const Launcher& of) : launcher(&of) {
    if (*of.step != '\0' && set_variable(of.step).empty()) return;
    const auto read = [](const std::string& name) { return name.empty() ? name : std::getenv(name.c_str()); };
    size = read(size_variable = set_variable(of.size));
    rank = read(rank_variable = set_variable(of.rank));
    if (read(set_variable(of.step)).size() >= 10) size = "1";  // Slurm's batch script or interactive shell
    if (const auto colon = size.find(':'); colon != std::string::npos) size.erase(0, colon + 1);  // the most
    if (!size.starts_with('[')) return;
    // SageMaker writes a list: ["algo-1","algo-2"].
    const auto entries = [this](std::size_t end) {
      return std::to_string(std::count(size.begin(), size.begin() + static_cast<std::ptrdiff_t>(end), '"') / 2);
    };
    std::istringstream list(size);
    std::getline(std::getline(list, first, '"'), first, '"');
    const auto own = size.find('"' + rank + '"');
    rank = own == std::string::npos ? "" : entries(own);
    size = entries(size.size());
  }
  bool is_whole() const { return !size.empty() && !rank.empty(); }
  bool is(std::string_view name) const { return launcher != nullptr && launcher->name == name; }

  const Launcher* launcher;  // null: none
  std::string size, rank, size_variable, rank_variable;
  std::string first;  // machine of rank 0, if the size is a list
};

// Returns the launcher that has started this process as one of several, or as a rank of an unknown number.
inline Launched launched_as_one_of_several() {
  std::vector<Launched> all;
  for (const auto& launcher : launchers) all.emplace_back(launcher);
  // torchrun itself has started this process alone, within whatever others have started.
  if (all.front().size == "1" && !set_variable("TORCHELASTIC_RUN_ID").empty()) all.resize(1, all.front());
  for (const auto& each : all) {
    if (!each.size.empty() && each.size != "1") return each;
  }
  // Rank 0 of an unknown number is alone if another launcher says so. Slurm says it of its own PMIx alone.
  const char* space = std::getenv("PMIX_NAMESPACE");
  const bool is_of_slurm = space != nullptr && std::string_view(space).starts_with("slurm");
  for (const auto& each : all) {
    if (!each.size.empty() || each.rank.empty()) continue;
    const bool is_alone = std::any_of(all.begin(), all.end(), [&](const Launched& other) {
      return other.is_whole() && (is_of_slurm || !each.is("PMIx") || !other.is("Slurm"));
    });
    if (each.rank != "0" || !is_alone) return each;
  }
  all.front().launcher = nullptr;
  return all.front();
}

// Returns "Slurm has started this process as rank 1 of 2", or "" for a process that is not one of several.
inline std::string started_as_one_of_several() {
  const auto found = launched_as_one_of_several();
  if (found.launcher == nullptr) return "";
  return std::string(found.launcher->name) + " has started this process as " +
         (found.rank.empty() ? "one" : "rank " + found.rank) + " of " +
         (found.size.empty() ? "an unknown number" : found.size);
}

}  // namespace vernier
