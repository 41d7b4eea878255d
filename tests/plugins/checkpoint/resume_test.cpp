// Resuming a run: a damaged checkpoint is refused, and the model takes the memory that was read.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "same_tensors.h"
#include "small_run.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace resume_test {

namespace fs = std::filesystem;

namespace {

constexpr const char* small_run = R"(
[run]
steps = 3
[task]
use = "mlp"
samples = 24
hidden = [4]
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
)";

// A run, and one of the same configuration that resumes from its checkpoint.
struct Resumed {
  Resumed() : saved(from_toml({small_run}), folder.path().string()) {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
    saved.train();
    live = std::make_unique<SmallRun>(from_toml({small_run}), folder.path().string());
    before = everything();
  }
  ~Resumed() { vernier::set_log_sink(nullptr); }
  std::string file(const char* name) const { return folder / "checkpoints/step-00000003/" + name; }
  // The model, the optimizer's memory, the place in the data, the generator.
  std::string everything() const {
    std::string all;
    for (const auto& [name, tensor] : vernier::take_snapshot(live->run, live->wiring->plugins()).tensors) {
      all += name + '\0' + bytes_of(tensor);
    }
    return all;
  }
  // With what is in the file now; names: what the message must have.
  void check_refused(const char* name, const std::string& names = "") const {
    const auto thrown = thrown_by([&] { live->resume(); });
    REQUIRE(thrown.kind == 4);
    const bool has_names = says(thrown.text, "/step-00000003/") && says(thrown.text, name) && says(thrown.text, names);
    REQUIRE_MESSAGE(has_names, thrown.text);
    REQUIRE((everything() == before));
  }

  TemporaryFolder folder;
  SmallRun saved;
  std::unique_ptr<SmallRun> live;
  std::string before;
};

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("resume: what is damaged is refused, naming file and tensor, before anything of the live run is touched") {
  const Resumed run;
  for (const char* name : {"model.safetensors", "state.safetensors"}) {
    CAPTURE(name);
    const auto path = run.file(name), whole = read_text(path);
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), sizeof header);
    for (std::size_t size = 0; size <= 8 + header; ++size) {  // within the header
      overwrite(path, whole.substr(0, size));
      run.check_refused(name);
    }
    for (std::size_t at = 8 + header; at < whole.size(); at += 3) {  // a bit of a tensor
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
      overwrite(path, changed);
      run.check_refused(name, "tensor '");
    }
    for (const std::string& foreign : {std::string(), std::string("PK\3\4 a zip"), std::string(whole.size(), '\0')}) {
      overwrite(path, foreign);
      run.check_refused(name);
    }
    overwrite(path, whole);
  }
  fs::rename(run.file("model.safetensors"), run.folder / "aside");
  fs::rename(run.file("state.safetensors"), run.file("model.safetensors"));
  fs::rename(run.folder / "aside", run.file("state.safetensors"));
  run.check_refused("model.safetensors", "tensor '");
  fs::rename(run.file("model.safetensors"), run.folder / "aside");
  fs::rename(run.file("state.safetensors"), run.file("model.safetensors"));
  fs::rename(run.folder / "aside", run.file("state.safetensors"));
  REQUIRE(run.live->resume());
  CHECK(run.live->digest() == run.saved.digest());
  CHECK(run.everything() != run.before);
}

TEST_CASE("resume: the model takes the memory of what was read, and shares it with nobody") {
  const TemporaryFolder folder;
  const auto config =
      from_toml({small_run, "[checkpoint]\nuse = 'rolling'\nevery = 1\n[task]\ninputs = 32\nhidden = [64]\n"});
  SmallRun whole(config, folder.path().string());
  whole.train();
  SmallRun resumed(config, folder.path().string());
  const auto& weight = resumed.run.parameters.front();
  REQUIRE(weight.model.nbytes() >= 4096);
  const auto* before = weight.model.const_data_ptr();
  REQUIRE(resumed.resume(folder / "checkpoints/step-00000002"));
  CHECK(weight.model.const_data_ptr() != before);
  CHECK(weight.master.const_data_ptr() == weight.model.const_data_ptr());
  resumed.train();
  CHECK(resumed.digest() == whole.digest());

  // A snapshot that somebody keeps stays what it is, whatever is trained from it.
  auto kept = *resumed.wiring->checkpoint->read(resumed.run, "");
  SmallRun third(config, folder.path().string());
  third.trainer->resume(third.run, kept);
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : third.run.parameters) parameter.model.zero_();
  SmallRun fourth(config, folder.path().string());
  fourth.trainer->resume(fourth.run, std::move(kept));
  CHECK(fourth.digest() == whole.digest());
}

TEST_CASE("resume: under each level of a precision the run goes on as the one that was not stopped") {
  const std::string fp8 = "use = 'fp8'\n", rule = "[[precision.rule]]\nmatch = 'layers.1'\nuse = 'fp8'\n";
  const std::vector<std::string> precisions = {
      "use = 'bf16'\nlevel = 'O2'\n",
      "use = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
      "use = 'bf16'\nlevel = 'O2'\n" + rule,
      fp8 + "level = 'O1'\n",
      fp8 + "level = 'O2'\n",
      fp8 + "level = 'O3'\n",
      fp8 + "level = 'O3'\nrounding = 'stochastic'\n",
      fp8 + "level = 'O2'\nrecipe = 'current'\n",
      fp8 + "level = 'O2'\nrecipe = 'block'\n",
  };
  for (const auto& precision : precisions) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const auto config = from_toml({small_run,
                                   "[checkpoint]\nuse = 'rolling'\nevery = 1\n[optimizer]\nuse = 'adamw'\neps = 1e-4\n"
                                   "[task]\nsamples = 64\ninputs = 32\nhidden = [32, 32]\n[precision]\n" +
                                       precision});
    SmallRun whole(config, folder.path().string());
    whole.train();
    SmallRun resumed(config, folder.path().string());
    REQUIRE(resumed.resume(folder / "checkpoints/step-00000002"));
    resumed.train();
    CHECK(resumed.digest() == whole.digest());
  }
}

}  // namespace resume_test
