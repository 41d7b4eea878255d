// The requests of the first service for mixed precision, translated to configurations of jobs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace serve {

using Json = nlohmann::ordered_json;

// A request is turned into this.
struct FirstJob {
  Json config;                    // of a job
  std::string texts_name, texts;  // a file that it reads; "" where the request has no texts
};

enum class FirstKind {
  finetune,   // texts; a published model, or bytes from scratch
  optimized,  // the same with what saves memory
  optimize,   // the same in the precision that suits the device
  train       // any configuration, with the same settings of mixed precision
};

// [precision] and [scaler] of {"precision": "fp16", "level": "O2", "init_scale": 65536, …}. Throws NotAllowed for
// another key, naming those that there are.
Json precision_tables(const Json& settings);

// data: the folders below which a model may be. Throws NotAllowed. Values are checked later, by the job's plugins.
FirstJob first_job_of(FirstKind kind, const Json& body, const std::vector<std::filesystem::path>& data);

// A configuration without its precision, to compare with others.
struct Rest {
  std::string text;
  bool is_float32;
};
Rest rest_of(const std::string& config);

// The schemas of a request's parts. may_scale: the precision may be fp16, with settings of its loss scale.
Json precision_schema(bool may_scale);
Json training_schema();
Json length_schema();

}  // namespace serve
