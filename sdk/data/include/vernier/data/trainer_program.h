// A model as a C++ program that needs no LibTorch: it evaluates, predicts and goes on training.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

// The network and the data that such a program is made for. The network takes rows of a table, or sequences [samples,
// steps, numbers]. Numbers are standardised and categories get embeddings. Then come the layers of an LSTM, whose
// output at the last step is used, linear layers with relu and dropout, and a last linear layer. The weights have the
// names of torch::nn's modules.
struct TrainerPlan {
  std::vector<std::string> classes = {};  // by the number of the logit; empty: the outputs are numbers
  std::int64_t outputs = 1;               // each sample has so many
  std::int64_t numbers = 0;               // each row or step has so many
  std::int64_t steps = 0;                 // each sequence has so many; 0: the samples are rows
  // The codes of each column of categories, with that of unknown words.
  std::vector<std::int64_t> categories = {};
  std::int64_t lstm_layers = 0, lstm_width = 0;
  std::vector<std::int64_t> hidden = {};  // widths of the linear layers before the last one
  double dropout = 0;
  // For a forecast, the sequences are windows of a series, `stride` steps apart. The network predicts these `features`
  // for `horizon` steps after each window; horizon = 0: no forecast. With season > 0, windows are relative to their
  // last value, and the network adds to the last `season` steps; season = 0: they are standardised as other numbers.
  std::int64_t horizon = 0, stride = 1, season = 0;
  std::vector<std::int64_t> features = {};
  std::int64_t batch_size = 32;
  // Names in the file of weights.
  std::string mean = {}, deviation = {}, target_mean = {}, target_deviation = {}, last_weight = {}, last_bias = {};
  std::string output = {};  // names the column of predictions; several numbers are output_0, output_1 and so on. Of a
                            // forecast it names the column of the first step that is predicted.
  std::vector<std::string> feature_names = {};  // the other columns of a forecast
  // The JSON text of the columns, from Predictor::description(); "": the data are arrays.
  std::string columns = {};
  // Rows without a target, or with a missing input, are skipped by training and evaluation.
  bool skips_targets = false, skips_inputs = false;
};

// A task derives from it to be exported as such a program. Main thread only, after Task::prepare.
class VERNIER_API TrainerExportable {
 public:
  virtual ~TrainerExportable();
  // Throws Error if TrainerPlan cannot describe the network, the loss or the data.
  virtual TrainerPlan trainer_plan() const = 0;
};

// The options of torch.optim.AdamW that the program begins with.
struct TrainerDefaults {
  double learning_rate = 1e-3, weight_decay = 0.01, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

// Returns the source of the program, for C++20.
VERNIER_API std::string trainer_program(const TrainerPlan& plan, const TrainerDefaults& defaults);

}  // namespace vernier
