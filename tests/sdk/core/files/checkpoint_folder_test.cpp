#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <torch/nn/module.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/safetensors.h>
#include <vernier/unfinished_checkpoint.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "file_mode.h"
#include "files/checkpoint_manifest.h"
#include "files/shards.h"
#include "files/weights.h"
#include "same_tensors.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace checkpoint_folder_test {

using vernier::CheckpointManifest;
using vernier::Tensors;
namespace fs = std::filesystem;

namespace {

Tensors some_model(double value = 1) {
  return {{"h.0.weight", torch::full({3, 4}, value)},
          {"h.0.bias", torch::full({4}, value, torch::kBFloat16)},
          {"ready", torch::ones({2}, torch::kBool)}};
}

Tensors some_state(double value = 1) {
  return {{"run/step", torch::tensor(std::int64_t{10})},
          {"plugin/optimizer/adamw/mean", torch::full({3, 4}, value)},
          {"nothing", torch::empty({0, 3})}};
}

CheckpointManifest about() {
  CheckpointManifest manifest;
  manifest.step = 10;
  manifest.run = "näme";
  manifest.plugins = {{"task/mlp", "1.0.0"}, {"optimizer/adamw", "1.2.0"}};
  manifest.configuration = R"({"run":{"steps":20}})";
  return manifest;
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A checkpoint in a folder of its own.
struct Saved {
  Saved() : path(folder / "step-00000010") {
    manifest = vernier::write_checkpoint(path, about(), some_model(), some_state());
  }
  Thrown read() const {
    return thrown_by([&] { vernier::read_checkpoint(path); });
  }
  TemporaryFolder folder;
  std::string path;
  CheckpointManifest manifest;
};

}  // namespace

TEST_CASE("checkpoint folder: what was written is read, with what the manifest says of it") {
  const Saved saved;
  const auto stored = vernier::read_checkpoint(saved.path);
  check_equal(some_model(), stored.model.tensors);
  check_equal(some_state(), stored.state.tensors);
  CHECK(stored.manifest.version == 2);
  CHECK(stored.manifest.step == 10);
  CHECK(stored.manifest.run == "näme");
  CHECK(stored.manifest.configuration == R"({"run":{"steps":20}})");
  CHECK(stored.manifest.versions.at("torch") == std::string(TORCH_VERSION));
  REQUIRE(stored.manifest.plugins.size() == 2);
  CHECK(stored.manifest.plugins[1].id == "optimizer/adamw");
  CHECK(stored.manifest.plugins[1].version == "1.2.0");
  const auto& weight = stored.manifest.files.at("model.safetensors").tensors.at("h.0.weight");
  CHECK(weight.dtype == "F32");
  CHECK(weight.shape == std::vector<std::int64_t>{3, 4});
  const auto& nothing = stored.manifest.files.at("state.safetensors").tensors.at("nothing");
  CHECK(nothing.checksum == "99aa06d3014798d86001c324468d497f");  // xxhsum -H2 prints this for an empty file
  for (const char* name : {"model.safetensors", "state.safetensors"}) {
    CHECK(stored.manifest.files.at(name).bytes == fs::file_size(fs::path(saved.path) / name));
    CHECK(saved.manifest.files.at(name).bytes == stored.manifest.files.at(name).bytes);
  }
  check_equal(some_model(), vernier::read_checkpoint_model(saved.path).model.tensors);
  CHECK(vernier::verify_checkpoint(saved.path).step == 10);
  CHECK(vernier::is_checkpoint(saved.path));
  CHECK_FALSE(vernier::is_checkpoint(saved.folder.path()));
}

TEST_CASE("checkpoint folder: the parts that ranks write of a state are read as one") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000010";
  const auto write = [&](const Tensors& first, const Tensors& second) {
    vernier::UnfinishedCheckpoint unfinished(path);
    auto manifest = about();
    manifest.files = vernier::write_checkpoint_files(unfinished.folder(), {some_model()}, {some_state()});
    for (const auto& [rank, tensors] : {std::pair(1, first), std::pair(2, second)}) {
      const auto files = vernier::write_checkpoint_shard(unfinished.folder(), rank, {tensors});
      manifest.files.merge(vernier::parse_files("", vernier::files_text("", files)));
    }
    return unfinished.complete(manifest);
  };
  const Tensors first = {{"plugin/optimizer/adamw/a", torch::full({5}, 1.5)}}, second = {{"b", torch::ones({2, 2})}};
  CHECK(write(first, second).files.size() == 4);
  auto all = some_state();
  all["plugin/optimizer/adamw/a"] = torch::full({5}, 1.5);
  all["b"] = torch::ones({2, 2});
  check_equal(all, vernier::read_checkpoint(path).state.tensors);
  check_equal(some_model(), vernier::read_checkpoint_model(path).model.tensors);
  CHECK(vernier::verify_checkpoint(path).files.contains("state-rank-2.safetensors"));

  fs::rename(path + "/state-rank-1.safetensors", folder / "aside");
  CHECK(says(thrown_by([&] { vernier::read_checkpoint(path); }).text, "state-rank-1.safetensors"));
  CHECK(says(thrown_by([&] { vernier::verify_checkpoint(path); }).text, "state-rank-1.safetensors"));

  write(first, first);
  CHECK(says(thrown_by([&] { vernier::read_checkpoint(path); }).text,
             "it is in state-rank-2.safetensors and in another file of the state"));
  {
    const vernier::UnfinishedCheckpoint given_up(path);
    CHECK(fs::exists(given_up.folder()));
  }
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("checkpoint folder: a model in parts has the names and the index that Hugging Face's libraries read") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000010", index = path + "/model.safetensors.index.json";
  const std::vector<std::string> names = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors"};
  Tensors whole = {{"a", torch::ones({2, 3})}};
  vernier::UnfinishedCheckpoint unfinished(path);
  auto manifest = about();
  manifest.files = vernier::write_checkpoint_files(unfinished.folder(), {whole}, {some_state()});
  for (const int rank : {1, 2, 3}) {  // rank 2 has none of the model
    Tensors part = {{c10::str("r", rank), torch::full({2}, rank)}};
    if (rank != 2) {
      const auto name = c10::str("w", rank);
      whole[name] = torch::full({5}, rank, torch::kBFloat16);
      part["model/" + name] = whole[name];
    }
    manifest.files.merge(vernier::write_checkpoint_shard(unfinished.folder(), rank, {part}));
  }
  const auto written = unfinished.complete(manifest);
  const auto json = nlohmann::json::parse(read_text(index));
  CHECK(json == nlohmann::json{{"metadata", {{"total_size", 44}}},
                               {"weight_map", {{"a", names[0]}, {"w1", names[1]}, {"w3", names[2]}}}});
  CHECK_FALSE(fs::exists(path + "/model.safetensors"));
  for (const auto& [name, place] : json["weight_map"].items()) {
    check_equal({{name, whole.at(name)}}, vernier::load_safetensors(path + "/" + place.get<std::string>()));
  }
  CHECK(vernier::verify_checkpoint(path).files.size() == written.files.size());
  check_equal(whole, vernier::read_checkpoint(path).model.tensors);
  check_equal(whole, vernier::read_checkpoint_model(path).model.tensors);
  check_equal(whole, vernier::model_of_run(path).tensors);
  folder.write("step-00000010/model.safetensors.index.json", read_text(index) + " ");
  CHECK(thrown_by([&] { vernier::verify_checkpoint(path); }) ==
        failed(index + ": was changed: it does not list the files of the manifest"));
  fs::remove(path + "/" + names[1]);
  CHECK(says(thrown_by([&] { vernier::read_checkpoint_model(path); }).text, names[1] + ": cannot be opened"));
}

TEST_CASE("checkpoint folder: a rank reads its own part, and checks the bytes of the others") {
  struct Second final : vernier::Distributed {
    std::int64_t rank() const override { return 1; }
  } const second;
  const TemporaryFolder folder;
  const auto path = folder / "step-00000010";
  const auto large = torch::ones({2048}), small = torch::ones({});
  const std::string adamw = "plugin/optimizer/adamw/", master = "plugin/precision/bf16/master/";
  const Tensors own = {{adamw + "own/exp_avg", large},
                       {adamw + "their/step", small},
                       {master + "own", large},
                       {"rank/1/model/x", large},
                       {"plugin/precision/fp8/float8/their", large},
                       {"plugin/callback/ema/their", large}},
                others = {{adamw + "their/exp_avg", large},
                          {"plugin/optimizer/outer/inner/their/exp_avg", large},
                          {master + "their", large},
                          {"rank/0/model/x", large},
                          {"trainer/rewind/1/" + adamw + "their/exp_avg", large},
                          {"trainer/rewind/1/model/their", large}};
  auto state = own;
  state.insert(others.begin(), others.end());
  vernier::write_checkpoint(path, about(), {{"own", large}, {"their", large}}, state);
  vernier::TrainerRun run;
  run.model = std::make_shared<torch::nn::Module>();
  // Parameters of other ranks may be called like a key ("exp_avg") or a folder ("master") of entries.
  for (const std::string name : {"own", "their", "exp_avg", "master", "optimizer"}) {
    const auto weight = run.model->register_parameter(name, large.clone());
    run.parameters.push_back({name, weight, weight, false, name == "own"});
  }
  vernier::draft::leave_elsewhere(run.parameters[1].model);
  const auto read = [&] {
    const vernier::OwnPart part(run, second);
    return vernier::read_checkpoint(path);
  };
  check_equal(own, read().state.tensors);
  check_equal({{"own", large}}, read().model.tensors);
  check_equal(state, vernier::read_checkpoint(path).state.tensors);

  const auto file = path + "/model.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-1, std::ios::end).put('!').flush();
  CHECK(says(thrown_by([&] { read(); }).text, file + ": tensor 'their': its bytes were changed"));
}

TEST_CASE("checkpoint folder: a model of which each rank has a part of the tensors does not look whole") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000010";
  auto state = some_state();
  state["run/model_parts"] = torch::tensor(2);
  vernier::write_checkpoint(path, about(), some_model(), state);
  CHECK_FALSE(fs::exists(path + "/model.safetensors"));
  CHECK_FALSE(fs::exists(path + "/model.safetensors.index.json"));
  check_equal(some_model(), vernier::load_safetensors(path + "/model-shared.safetensors"));
  check_equal(some_model(), vernier::read_checkpoint(path).model.tensors);
  vernier::verify_checkpoint(path);
}

TEST_CASE("checkpoint folder: only its owner reads it, whatever the umask") {
  const auto before = ::umask(0);
  const Saved saved;
  ::umask(before);
  CHECK(mode_of(saved.path) == 0700);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(saved.path)) {
    names.insert(entry.path().filename().string());
    CHECK(mode_of(entry.path()) == 0600);
  }
  CHECK(names == std::set<std::string>{"manifest.json", "model.safetensors", "state.safetensors"});
  CHECK(std::distance(fs::directory_iterator(saved.folder.path()), {}) == 1);
}

TEST_CASE("checkpoint folder: a checkpoint that stands there is replaced, anything else is not") {
  const Saved saved;
  std::ofstream(saved.path + "/more") << "of the old one";
  vernier::write_checkpoint(saved.path, about(), some_model(2), some_state(2));
  check_equal(some_model(2), vernier::read_checkpoint(saved.path).model.tensors);
  CHECK_FALSE(fs::exists(saved.path + "/more"));
  CHECK(std::distance(fs::directory_iterator(saved.folder.path()), {}) == 1);

  const auto refusal = [&](const std::string& path) {
    return thrown_by([&] { vernier::write_checkpoint(path, about(), some_model(), some_state()); });
  };
  const auto file = saved.folder.write("file", "precious");
  CHECK(refusal(file) == failed(file + ": is there, and is not a checkpoint"));
  CHECK(read_text(file) == "precious");
  for (const char* others : {"papers/thesis.txt", "checkpoints/step-1/manifest.json"}) {
    const auto mine = saved.folder.write(others, "mine"), place = saved.folder / fs::path(others).begin()->string();
    CHECK(
        says(refusal(place).text, place + ": is a folder with other files, and not a checkpoint; choose another path"));
    CHECK(read_text(mine) == "mine");
  }
  fs::remove(saved.path + "/manifest.json");  // a damaged checkpoint may be replaced
  CHECK(refusal(saved.path).text.empty());
  fs::create_directory(saved.folder / "empty");
  CHECK(refusal(saved.folder / "empty").text.empty());
  fs::create_directory_symlink(saved.path, saved.folder / "link");
  CHECK(refusal(saved.folder / "link") == failed(saved.folder / "link" + ": is there, and is not a checkpoint"));
}

TEST_CASE("checkpoint folder: a folder that is a link, or that others may write to, is refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "link");
  const auto refusal = [&](const std::string& parent) {
    return thrown_by(
        [&] { vernier::write_checkpoint(parent + "/step-00000010", about(), some_model(), some_state()); });
  };
  CHECK(refusal(folder / "link") == failed(folder / "link" + ": is a symbolic link; give the folder itself"));
  for (const mode_t mode : {0770, 0707, 0777, 01777}) {
    ::chmod((folder / "real").c_str(), mode);
    CHECK(refusal(folder / "real") ==
          failed(folder / "real" + ": can be written to by others; chmod go-w it, or take another folder"));
  }
  ::chmod((folder / "real").c_str(), 0755);
  CHECK(refusal(folder / "real") == Thrown{});
  if (::chown((folder / "real").c_str(), 12345, static_cast<gid_t>(-1)) == 0) {  // only root may
    CHECK(refusal(folder / "real") ==
          failed(folder / "real" +
                 ": belongs to another user (id 12345), who can write to it; chown it, or take another folder"));
  }
  CHECK(refusal(folder / "none") == failed(folder / "none" + ": cannot be looked at: No such file or directory"));
}

TEST_CASE("checkpoint folder: files in it are not read through links") {
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const Saved saved;
    fs::rename(saved.path + "/" + name, saved.folder / "elsewhere");
    fs::create_symlink(saved.folder / "elsewhere", saved.path + "/" + name);
    CHECK(saved.read() == failed(saved.path + "/" + name + ": cannot be opened: Too many levels of symbolic links"));
  }
}

TEST_CASE("checkpoint folder: progress counts every byte of a tensor") {
  const TemporaryFolder folder;
  const Tensors large = {{"large", torch::zeros({3, 1 << 20})}};
  std::vector<std::uint64_t> told;
  vernier::write_checkpoint(folder / "step-00000001", {}, large, some_state(),
                            [&](std::uint64_t bytes) { told.push_back(bytes); });
  CHECK(std::ranges::is_sorted(told));
  CHECK(told.size() >= 12);
  std::uint64_t all = large.at("large").nbytes();
  for (const auto& [name, tensor] : some_state()) all += tensor.nbytes();
  CHECK(told.back() == all);
}

namespace {

// A manifest of another writer. The digits here and below are from Python's xxhash.
std::string with_checksum(const std::string& text, const std::string& digits) {
  return text + ",\"checksum\":\"" + digits + "\"}\n";
}

}  // namespace

TEST_CASE("checkpoint folder: checksums are those of another implementation, whoever takes them") {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    at::set_num_threads(threads);
    const TemporaryFolder folder;
    const auto manifest = vernier::write_checkpoint(folder / "step-00000001", {}, some_model(), {});
    const auto& tensors = manifest.files.at("model.safetensors").tensors;
    CHECK(tensors.at("h.0.weight").checksum == "1af8c9b392cf6ed8a31ba90982781b24");
    CHECK(thrown_by([&] { vernier::verify_checkpoint(folder / "step-00000001"); }) == Thrown{});
  }
  at::set_num_threads(before);
}

namespace {

// As tests/oracles/checkpoint.py makes them.
torch::Tensor numbers(std::vector<std::int64_t> shape, torch::ScalarType type) {
  const auto values = (torch::arange(c10::multiply_integers(shape)) * 5).remainder(11);
  return (type == torch::kBool ? values.ne(0) : type == torch::kUInt8 ? values : values - 5).to(type).view(shape);
}

}  // namespace

TEST_CASE("checkpoint folder: what Python wrote from the specification alone is read, and ours are the same bytes") {
  const std::string theirs = VERNIER_SOURCE_DIR "/tests/oracles/checkpoint";
  const Tensors model = {{"h.10.weight", numbers({3, 4}, torch::kFloat32)},
                         {"h.2.weight", numbers({5}, torch::kBFloat16)},
                         {"half", numbers({2, 2, 2}, torch::kFloat16)},
                         {"ready", numbers({3}, torch::kBool)},
                         {"größe", numbers({}, torch::kFloat64)}};
  const Tensors state = {{"run/step", torch::tensor(std::int64_t{7})},
                         {"plugin/optimizer/adamw/0/mean", numbers({3, 4}, torch::kFloat32)},
                         {"random/cpu", numbers({17}, torch::kUInt8)},
                         {"nothing", numbers({0, 3}, torch::kFloat32)},
                         {"few", numbers({2}, torch::kInt32)}};
  const auto stored = vernier::read_checkpoint(theirs);
  check_equal(stored.model.tensors, model);
  check_equal(stored.state.tensors, state);
  CHECK(stored.manifest.step == 7);
  CHECK(stored.manifest.run == "python");
  CHECK(stored.manifest.configuration == R"({"run":{"steps":7}})");
  const TemporaryFolder folder;
  const auto ours = folder / "step-00000007";
  const auto manifest = vernier::write_checkpoint(ours, about(), model, state);
  for (const auto& [name, said] : stored.manifest.files) {
    CAPTURE(name);
    CHECK(read_text(ours + "/" + name) == read_text(theirs + "/" + name));
    const auto& written = manifest.files.at(name);
    CHECK(written.bytes == said.bytes);
    CHECK(written.header_checksum == said.header_checksum);
    REQUIRE(written.tensors.size() == said.tensors.size());
    for (const auto& [tensor, described] : said.tensors) {
      CHECK(written.tensors.at(tensor).checksum == described.checksum);
      CHECK(written.tensors.at(tensor).dtype == described.dtype);
      CHECK(written.tensors.at(tensor).shape == described.shape);
    }
  }
}

TEST_CASE("checkpoint folder: another version of the format is refused, naming both") {
  const auto refusal = [](const std::string& text, const std::string& digits) {
    return thrown_by([&] { vernier::parse_manifest("m", with_checksum(text, digits)); });
  };
  CHECK(refusal(R"({"format":"vernier.checkpoint","version":3)", "bf398561e4bc923ec7fb2c106b287ef3") ==
        configuration("m: its format is version 3, and this Vernier reads version 2; read it with the Vernier that "
                      "wrote it"));
  CHECK(refusal(R"({"format":"vernier.checkpoint","version":1)", "6dd98e7c0e132b8715233dbe22a3f229") ==
        configuration("m: its format is version 1, and this Vernier reads version 2; read it with the Vernier that "
                      "wrote it"));
}

TEST_CASE("checkpoint folder: a manifest with wrong members is refused") {
  CHECK(thrown_by([] {
          vernier::parse_manifest(
              "m", with_checksum(R"({"format":"other","version":2)", "4f72af5f748b7954dcc349e0b515e206"));
        }) == failed("m: is not the manifest of a checkpoint"));
  CHECK(thrown_by([] {
          vernier::parse_manifest("m", with_checksum(R"({"format":"vernier.checkpoint","version":2,"step":-1)",
                                                     "07862973861229d6400a8a39329277b9"));
        }) == failed("m: its 'step' is not what it must be: -1"));
}

TEST_CASE("checkpoint folder: cut short anywhere, it is refused by the name of the file") {
  const Saved saved;
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const std::string path = saved.path + "/" + name, bytes = read_text(path);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CAPTURE(size);
      write_bytes(path, bytes.substr(0, size));
      const auto thrown = saved.read();
      REQUIRE(thrown.kind == 4);
      REQUIRE_MESSAGE(thrown.text.starts_with(path + ": "), thrown.text);
    }
    write_bytes(path, bytes + '\0');
    CHECK(saved.read().text.starts_with(path + ": "));
    write_bytes(path, bytes);
  }
  const std::string path = saved.path + "/model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 1);
  CHECK(says(saved.read().text, "'ready' is the first that is not whole"));
}

TEST_CASE("checkpoint folder: a changed bit anywhere is refused, by the names of file and tensor") {
  const Saved saved;
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const std::string path = saved.path + "/" + name, bytes = read_text(path);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      CAPTURE(i);
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
      write_bytes(path, changed);
      const auto thrown = saved.read();
      REQUIRE(thrown.kind == 4);
      REQUIRE_MESSAGE(thrown.text.starts_with(path + ": "), thrown.text);
      REQUIRE(thrown_by([&] { vernier::verify_checkpoint(saved.path); }) == thrown);
    }
    write_bytes(path, bytes);
  }
  const std::string path = saved.path + "/model.safetensors";
  auto bytes = read_text(path);
  bytes[bytes.size() - 3] ^= 0x10;  // the last but three of all bytes: two BOOL stand behind it
  write_bytes(path, bytes);
  CHECK(says(saved.read().text, path + ": tensor 'h.0.bias': its bytes were changed: their checksum is "));
}

TEST_CASE("checkpoint folder: the file of another checkpoint is refused") {
  const Saved saved;
  const auto other = saved.folder / "step-00000020";
  for (const std::string name : {"model.safetensors", "state.safetensors"}) {
    vernier::write_checkpoint(other, about(), some_model(2), some_state(2));
    fs::copy_file(saved.path + "/" + name, other + "/" + name, fs::copy_options::overwrite_existing);
    const auto thrown = thrown_by([&] { vernier::read_checkpoint(other); });
    CHECK(says(thrown.text, other + "/" + name + ": tensor '"));
    CHECK(says(thrown.text, "its bytes were changed"));
  }
  auto model = some_model();
  model["h.0.weight"] = torch::ones({4, 3});
  vernier::write_checkpoint(other, about(), model, some_state());
  fs::copy_file(saved.path + "/model.safetensors", other + "/model.safetensors", fs::copy_options::overwrite_existing);
  CHECK(thrown_by([&] { vernier::read_checkpoint(other); }) ==
        failed(other + "/model.safetensors: tensor 'h.0.weight': it is F32 [3, 4], and F32 [4, 3] in the manifest"));
  model["more"] = torch::ones({1});
  model.erase("ready");
  vernier::save_safetensors(other + "/model.safetensors", model);
  CHECK(thrown_by([&] { vernier::read_checkpoint(other); }) ==
        failed(other + "/model.safetensors: tensor 'ready': it is in the manifest and not in the file"));
  model["ready"] = torch::ones({2}, torch::kBool);
  vernier::save_safetensors(other + "/model.safetensors", model);
  CHECK(thrown_by([&] { vernier::read_checkpoint(other); }) ==
        failed(other + "/model.safetensors: tensor 'more': it is in the file and not in the manifest"));
}

TEST_CASE("checkpoint folder: foreign files and missing ones are refused") {
  for (const std::string name : {"manifest.json", "model.safetensors", "state.safetensors"}) {
    const Saved saved;
    const std::string path = saved.path + "/" + name;
    for (const std::string& foreign : {std::string(), std::string("{}"), std::string("PK\3\4 a zip"),
                                       std::string(4096, '\0'), std::string(4096, 'x')}) {
      write_bytes(path, foreign);
      CHECK(saved.read().text.starts_with(path + ": "));
    }
    fs::remove(path);
    fs::create_directory(path);
    CHECK(saved.read().text.starts_with(path + ": "));
    fs::remove(path);
    const auto thrown = saved.read();
    CHECK(thrown.kind == 4);
    CHECK(says(thrown.text, path + ": cannot be opened: No such file or directory"));
    CHECK(vernier::is_checkpoint(saved.path) == (name != "manifest.json"));
  }
}

TEST_CASE("checkpoint folder: what cannot be saved is refused, and nothing is left") {
  const TemporaryFolder folder;
  const auto refusal = [&](const Tensors& model, const CheckpointManifest& manifest = {}) {
    const auto thrown = thrown_by([&] { vernier::write_checkpoint(folder / "step-00000001", manifest, model, {}); });
    CHECK(fs::is_empty(folder.path()));
    return thrown.text;
  };
  CHECK(says(refusal({{"a", torch::Tensor()}}), "model.safetensors: tensor 'a': it is undefined"));
  CHECK(says(refusal({{"\xff", torch::ones({1})}}), "is not UTF-8"));
  CheckpointManifest manifest;
  manifest.configuration = "{";
  CHECK(says(refusal({}, manifest), "manifest.json: the configuration is not JSON"));
  manifest.configuration = "[]";
  CHECK(says(refusal({}, manifest), "manifest.json: the configuration is not an object"));
  manifest.configuration = "{}";
  manifest.run = "\xff";
  CHECK(says(refusal({}, manifest), "manifest.json: a name or text in it is not UTF-8"));
}

TEST_CASE("checkpoint folder: names sort as steps do, and a folder is listed newest first") {
  CHECK(vernier::checkpoint_name(100) == "step-00000100");
  CHECK(vernier::checkpoint_name(123456789) == "step-123456789");
  CHECK(vernier::step_of_checkpoint("runs/x/step-00000100") == 100);
  for (const char* name : {"latest", "step-", "step-1x", ".tmp-a1b2c3", "abandoned-step-00000010"}) {
    CHECK(vernier::step_of_checkpoint(name) == -1);
  }
  const TemporaryFolder folder;
  CHECK(vernier::checkpoints_in(folder / "none").empty());
  for (const char* name : {"step-00000020", "step-123456789", "step-00000003", "other"}) {
    fs::create_directory(folder / name);
  }
  CHECK(vernier::checkpoints_in(folder.path()) ==
        std::vector<std::string>{folder / "step-123456789", folder / "step-00000020", folder / "step-00000003"});
}

TEST_CASE("checkpoint folder: one that was put aside stands for its name, until there is another") {
  const TemporaryFolder folder;
  const std::string place = folder / "step-00000003", aside = folder / ".old-step-00000003";
  const auto write = [](const std::string& path, std::int64_t step) {
    vernier::write_checkpoint(path, {.step = step}, {{"w", torch::full({2}, step, torch::kFloat32)}}, {});
  };
  write(folder / "step-00000002", 2);
  write(place, 3);
  fs::rename(place, aside);  // a writer was killed between two renames
  CHECK(vernier::step_of_checkpoint(aside) == 3);
  CHECK(vernier::checkpoints_in(folder.path()) == std::vector<std::string>{aside, folder / "step-00000002"});
  for (const auto& path : {place, place + "/", aside}) {
    CAPTURE(path);
    CHECK(vernier::is_checkpoint(path));
    CHECK(vernier::read_manifest(path).step == 3);
    CHECK(vernier::verify_checkpoint(path).step == 3);
    CHECK(vernier::read_checkpoint(path).model.tensors.at("w")[0].item<float>() == 3);
    CHECK(vernier::read_checkpoint_model(path).model.tensors.at("w")[0].item<float>() == 3);
  }
  write(place, 4);
  CHECK(vernier::read_manifest(place).step == 4);
  CHECK_FALSE(fs::exists(aside));

  fs::rename(place, aside);
  vernier::remove_unfinished_checkpoints(folder.path());
  CHECK(vernier::read_manifest(place).step == 4);
  CHECK_FALSE(fs::exists(aside));

  fs::copy(place, aside, fs::copy_options::recursive);  // killed after both renames
  CHECK(vernier::checkpoints_in(folder.path()) == std::vector<std::string>{place, folder / "step-00000002"});
  vernier::remove_unfinished_checkpoints(folder.path());
  CHECK(vernier::read_manifest(place).step == 4);
  CHECK_FALSE(fs::exists(aside));
}

TEST_CASE("checkpoint folder: what killed writers left is removed, and nothing that it points to") {
  const TemporaryFolder folder, elsewhere;
  folder.write(".tmp-a1b2c3/model.safetensors", "half");
  folder.write("step-00000001/manifest.json", "kept");
  elsewhere.write("precious", "kept");
  fs::create_directory_symlink(elsewhere.path(), folder / ".tmp-link");
  vernier::remove_unfinished_checkpoints(folder.path());
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
  CHECK(fs::exists(elsewhere / "precious"));
}

}  // namespace checkpoint_folder_test
