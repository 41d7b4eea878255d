// The operators of a forward pass over several samples, and the digits of their inputs and outputs.
#pragma once

#include <vernier/lab/random_rounding.h>

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace vernier {

struct OperatorDigits {
  std::string name;   // "addmm"
  std::string layer;  // the layer whose weight it uses, or ""
  std::string after;  // the layer before it; "" before the first
  double input = 0;   // the fewest digits of an input, at most those of the output's dtype
  double output = 0;
  double lost() const { return input - output; }
  std::string place() const;  // "sub, after the layer 'fc1'"
};

// Keeps each operator's output of one sample only: the variance is half the mean square of the difference between two
// successive samples. So the memory is that of a forward pass.
class ForwardDigits final : public RoundingListener, public Interceptor {
 public:
  explicit ForwardDigits(const torch::nn::Module& model) : layers_(model) {}

  void begin();  // a forward pass of the next sample
  void end() { is_on_ = false; }
  Layers& layers() { return layers_; }

  // After two samples or more.
  std::vector<OperatorDigits> operators() const;
  std::map<std::string, double> outputs() const;  // digits of each layer's output: its last operator's
  const std::optional<std::string>& other_way() const { return other_way_; }

  void called(const RoundedCall& call) override;
  Values call(const Operation& operation, Values arguments) override;

 private:
  struct Seen {
    std::string name, layer, after;
    torch::ScalarType dtype = torch::ScalarType::Float;
    bool is_rounded = false;  // false: it is exact, so it loses nothing
    std::vector<int> inputs;  // operators, -1 for what is given
    std::vector<torch::ScalarType> given;
    torch::Tensor last;
    double squares = 0, differences = 0;
  };
  void record(Seen seen, const torch::Tensor& output);
  double digits_of(const Seen& seen) const;

  Layers layers_;
  bool is_on_ = false;
  std::int64_t passes_ = 0;
  std::size_t next_ = 0;
  std::string layer_, after_;
  std::vector<Seen> seen_;
  std::map<std::string, std::size_t> last_of_layer_;
  std::unordered_map<const c10::StorageImpl*, int> made_by_;
  std::optional<std::string> other_way_;
};

}  // namespace vernier
