// The ways by which real jobs of one server could read its files: the code of a model, the options of plugins and
// outputs, a run of another job, links. The tables of set-ups and of calls are in sandbox_test.cpp, and graphs that
// name operators which read files are in plugins/task/graph_test.cpp.
#include <torch/script.h>

#include <fstream>

#include "job_server.h"

namespace ways_test {

using namespace job_server;

namespace {

// A module whose forward reads a file and prints it.
void write_reader(const std::string& file, const std::string& secret) {
  torch::jit::Module model("__torch__.Reader");
  model.register_parameter("weight", torch::ones({1, 1}).set_requires_grad(true), false);
  model.define("def forward(self, x):\n  bytes: List[int] = torch.from_file('" + secret +
               "', False, 300, dtype=0).long().tolist()\n  print(bytes)\n  return x * self.weight[0]\n");
  model.save(file);
}

std::string config_of(const fs::path& data, const std::string& model, const std::string& more = "") {
  return "[run]\nsteps = 2\ndevice = \"cpu\"\n[optimizer]\nuse = \"sgd\"\n[task]\nuse = \"script\"\nmodel = \"" +
         model + "\"\ninputs = [\"" + (data / "points.csv:x").string() + "\"]\ntarget = \"" +
         (data / "points.csv:z").string() + "\"\nloss = \"mse\"\n" + more;
}

}  // namespace

TEST_CASE("ways: no job reads the server's files, by code, options, outputs, runs of others or links") {
  const TemporaryFolder temporary, out;
  const auto data = fs::canonical(temporary.path()), output = fs::canonical(out.path());
  JobServer server({"--cores", "2", "--data", data, "--output-data", output}, /*with_script=*/false);
  if (server.server_log().find("no Landlock") != std::string::npos) return;
  std::string rows = "x,z\n";
  for (int i = 0; i < 40; ++i) rows += std::to_string(0.1 + i * 0.37) + "," + std::to_string(0.2 + i * 0.71) + "\n";
  temporary.write("points.csv", rows);
  fs::create_directory_symlink(server.path(), data / "link");
  const auto tokens = (fs::canonical(server.path()) / "tokens").string();
  // The code of a model, which the sandbox alone stops.
  std::vector<std::int64_t> readers;
  for (const auto& secret : {std::string("../../tokens"), tokens, (data / "link/tokens").string()}) {
    const auto file = data / ("reads-" + std::to_string(readers.size()) + ".pt");
    write_reader(file, secret);
    readers.push_back(server.submit(config_of(data, file)));
  }
  write_reader(data / "good.pt", data / "points.csv");
  const auto good = server.submit(config_of(data, data / "good.pt"));
  for (const auto id : readers) {
    CHECK(server.waits_for(id, "failed"));
    CHECK_MESSAGE(server.log(id).find("ermission denied") != std::string::npos, server.log(id));
  }
  CHECK(server.waits_for(good, "done"));
  CHECK(server.log(good).find("[120, 44, 122") != std::string::npos);  // "x,z" is not secret
  // A job whose configuration names a place is refused when it is submitted.
  const auto run = "jobs/" + std::to_string(good) + "/run";
  const std::string named[] = {
      config_of(data, tokens),
      config_of(data, data / "link/tokens"),
      config_of(data, data / "good.pt", "[[monitor]]\nuse = \"csv\"\nfile = \"" + tokens + "\"\n"),
      config_of(data, data / "good.pt", "[[monitor]]\nuse = \"csv\"\nfile = \"../../tokens\"\n"),
      config_of(data, data / "good.pt", "[[callback]]\nuse = \"flight_recorder\"\nfolder = \"" + tokens + "\"\n"),
      config_of(data, data / "good.pt", "[[callback]]\nuse = \"control\"\ntokens = \"../../tokens\"\n"),
      "[run]\ninit_from = \"../" + std::to_string(good) + "/run\"\n" + config_of(data, data / "good.pt").substr(6),
      "[run]\ninit_from = \"" + (data / "link" / run).string() + "\"\n" + config_of(data, data / "good.pt").substr(6),
      "[run]\noutput = \"../" + std::to_string(good) + "/run\"\n" + config_of(data, data / "good.pt").substr(6),
      config_of(data, data / "good.pt", "[checkpoint]\nuse = \"/tmp/x.so\"\n"),
      "include = [\"" + tokens + "\"]\n" + config_of(data, data / "good.pt"),
  };
  for (const auto& config : named) {
    CAPTURE(config);
    CHECK(server.post("/v1/jobs", Json{{"config", config}}.dump()).status == 422);
  }
  // Nothing that clients or jobs may read has a token.
  for (const auto& [scope, token] : server.tokens) {
    for (const auto id : readers) CHECK(server.log(id).find(token) == std::string::npos);
    CHECK(server.get("/v1/jobs").text.find(token) == std::string::npos);
  }
  CHECK(read_text(tokens).find("admin ") != std::string::npos);
}

}  // namespace ways_test
