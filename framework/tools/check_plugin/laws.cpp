#include "laws.h"

#include <string_view>

namespace vernier {

const std::vector<Law>& laws() {
  static const std::vector<Law> all = {
      {"loads", nullptr, check_loads, "vernier check run.toml; for options that must be given, say --set KEY=VALUE"},
      {"documents its options", nullptr, check_documents_options, ""},
      {"refuses unknown keys", nullptr, check_refuses_unknown_keys, ""},
      {"refuses values of another type", nullptr, check_refuses_other_types, ""},
      {"repeats", nullptr, check_repeats,
       "vernier train run.toml, twice, with --set run.output=one and =two; compare `digest` in the two summary.json"},
      {"resumes", nullptr, check_resumes,
       "vernier train run.toml, and stop it with Ctrl-C; then the same with --resume; compare `digest` in summary.json "
       "with that of a run that was not stopped"},
      {"acts in its run", Callback::role, check_acts,
       "vernier train run.toml, once without the [[callback]]; compare `digest` in summary.json"},
      {"trains every weight", nullptr, check_trains, ""},
      {"leaves evaluations alone", nullptr, check_evaluation,
       "vernier train run.toml, once with --set run.validate_every=0; compare `digest` in summary.json"},
      {"resumes in micro-batches, at O2 and at O3", nullptr, check_conditions,
       "vernier train run.toml with --set accumulation.micro_batches=3, or with --set precision.use=bf16 --set "
       "precision.level=O3 --set precision.rounding=kahan"},
      {"trains on two ranks", nullptr, check_two_ranks, "vernier launch -n 2 run.toml --set distributed.use=ddp"},
      {"undoes a failed step", nullptr, check_undoes, ""},
      {"bears failures of others", nullptr, check_bears_failures, ""},
      {"leaves the thread as it was", nullptr, check_leaves_the_thread, ""},
      {"leaves the process as it was", nullptr, check_leaves_the_process, ""},
      {"does not grow", nullptr, check_growth, "vernier train run.toml --set run.steps=100000; watch its memory"},
      {"does not wait for the device", nullptr, check_host_syncs, ""},
      {"its save() takes no time", nullptr, check_save_time, ""},
      {"its loader resumes", Task::role, check_task_loader, "vernier check run.toml"},
      {"its loss is one mean, however a batch is split", Task::role, check_task_parts,
       "vernier train run.toml --set run.steps=1, once with --set accumulation.micro_batches=4"},
      {"its gradients are the plain ones", Scaler::role, check_scaler, ""},
      {"its micro-batches cover the batch", Accumulation::role, check_accumulation, ""},
      {"its loss is the mean of the whole batch", Accumulation::role, check_accumulation_mean,
       "vernier train run.toml --set run.steps=1, once with --set accumulation.use=fixed; compare the losses"},
      {"changes nothing where the update is skipped", Optimizer::role, check_optimizer, ""},
      {"obeys the learning rate's factor", Optimizer::role, check_rate, ""},
      {"updates each parameter alone, if it says so", Optimizer::role, check_updates_alone, ""},
      {"takes the same step at any loss scale", "optimizer or callback", check_other_scale,
       "vernier train run.toml with --set scaler.use=static --set scaler.scale=1, and with 1024; compare the losses"},
      {"leaves loss and batch as they are", "callback or monitor", check_leaves_numbers, ""},
      {"loses nothing if it is killed while it writes", Checkpoint::role, check_crash_while_writing, ""},
      {"reads the snapshot that is asked for", Checkpoint::role, check_reads_what_is_asked,
       "vernier checkpoint list, and vernier train run.toml --resume=PATH with each of them"},
      {"only looks", Monitor::role, check_monitor,
       "vernier train run.toml, once without the [[monitor]]; compare `digest` in summary.json"},
  };
  return all;
}

bool applies(const Law& law, const Subject& subject) {
  return law.role == nullptr || std::string_view(law.role).find(subject.role) != std::string_view::npos;
}

}  // namespace vernier
