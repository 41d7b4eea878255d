// my_name: a small network that tells classes apart.
// It trains on a CSV file with a column that says the class.
// data               required: CSV file
// target = "class"   the column that is predicted
// width = 32         of the hidden layer
// The options of every SupervisedTask come with it: `vernier plugins task/my_name` prints them.
#include <torch/torch.h>
#include <vernier/data/csv.h>
#include <vernier/data/supervised_task.h>
#include <vernier/sdk.h>

class MyName final : public vernier::SupervisedTask {
 public:
  explicit MyName(vernier::Options& options)
      : SupervisedTask(options),
        path_(options.require<std::string>("data", "CSV file")),
        target_(options.get("target", "class", "the column that is predicted")),
        width_(options.get("width", 32, "of the hidden layer", vernier::between(1, 65536))) {}

  void build(vernier::Run& run) override {
    vernier::CsvOptions csv;
    csv.target = target_;
    csv.types[target_] = vernier::CsvType::category;
    const auto table = vernier::read_csv(path_, csv);
    const auto classes = std::ssize(table.schema.target->vocabulary);
    const auto [training, held_out] = vernier::split(vernier::csv_dataset(table), 0.2, run.seed);
    set_training(training);
    add_validation(held_out);
    set_model(torch::nn::Sequential(torch::nn::Linear(table.numbers.size(1), width_), torch::nn::ReLU(),
                                    torch::nn::Linear(width_, classes)));
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    add_metric(vernier::accuracy());
  }

 private:
  std::string path_, target_;
  std::int64_t width_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
