// Advice on mixed precision for a model on this machine, by `vernier advise`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace serve {

struct AdviceRequest {
  std::filesystem::path model;  // folder of a published model
  double gigabytes = 0;         // the most memory that a training may take, in 10^9 bytes; 0: no limit
  std::int64_t batch_size = 8;
};

// Trains a few steps of variants on texts of its own, in processes of their own, for less than a minute. Where
// that fails or takes too long, the answer is by the machine's instructions, without evidence. program: vernier. Throws
// HttpRefused with 503 while another thread is in it.
nlohmann::ordered_json advice_on(const std::string& program, const AdviceRequest& request);

}  // namespace serve
