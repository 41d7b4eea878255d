// The record of a NonFiniteTracer: the operations, and how data flowed between them.
#pragma once

#include <ATen/record_function.h>
#include <torch/types.h>
#include <vernier/non_finite_tracer.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace vernier {

// One input or output of an operation.
struct SeenTensor {
  std::string name;       // its name in the operator's schema
  int buffer = -1;        // index in NonFiniteTracer::Seen::buffers
  int writers = 0;        // number of the buffer's writers at that moment
  std::size_t range = 0;  // index in NonFiniteTracer::Seen::ranges
  bool is_read = true;    // false: it is only written
};

// One call of an operator, or of a node of autograd's graph.
struct SeenOperation {
  std::string name;
  int parent = -1;       // index of the operation or node that called it
  bool is_node = false;  // a node of autograd's graph, which has no inputs and outputs of its own
  bool fills_minus_inf = false;
  bool is_backward = false;
  int layer = -1;  // index of the layer; -1: none so far; -2: that of the gradient that it ends in
  bool is_after = false;
  int micro_batch = 0;
  std::vector<SeenTensor> inputs, outputs;
};

// A storage, from its allocation until another allocation reuses its address.
struct SeenBuffer {
  std::vector<int> writers;  // indices of operations, in order
  std::string name;          // name of a parameter, a buffer or a tensor of the batch; "" for others
  enum class Kind { other, parameter, buffer, batch } kind = Kind::other;
  bool is_raw = false;  // true: allocated, but not written yet
};

class NonFiniteTracer::Seen {
 public:
  Seen(const torch::nn::Module& model, bool keep_outputs);

  int begin(const at::RecordFunction& function);
  void end(const at::RecordFunction& function, int index);
  void begin_micro_batch();
  void resolve();  // copies the ranges to the host

  struct Range {
    torch::Tensor measured;  // until it is resolved
    torch::ScalarType dtype = torch::ScalarType::Undefined;
    TensorRange range;
  };

  std::mutex mutex;
  Layers layers;
  bool keep_outputs;
  std::map<const c10::StorageImpl*, std::pair<std::string, SeenBuffer::Kind>> names;
  std::vector<SeenOperation> operations;
  std::vector<SeenBuffer> buffers;
  std::unordered_map<const c10::StorageImpl*, int> buffer_of;
  std::vector<Range> ranges;
  std::vector<LayerOutput> outputs;
  std::vector<std::size_t> ranges_of_outputs;
  int micro_batch = -1;
  bool is_backward = false;  // from the first node of this micro-batch on
  int layer = -1;            // the last one that was used
  double epsilon = 0;

  int buffer_for(const torch::Tensor& tensor);
  const SeenOperation* node_of(int operation) const;  // the node in which it ran, or which it is; null in forward

 private:
  using Place = std::pair<std::uint64_t, std::int64_t>;  // a graph node's thread and sequence number
  SeenTensor look(const std::string& name, const torch::Tensor& tensor, bool is_read = true);
  int layer_in(const std::vector<std::pair<std::string, torch::Tensor>>& tensors) const;
  void find_layer(SeenOperation& operation, const std::vector<std::pair<std::string, torch::Tensor>>& tensors,
                  const Place& place);
  void keep(const SeenOperation& operation, const torch::Tensor& tensor);
  std::map<Place, int> by_sequence_;  // operations that may have a node in the graph
  std::unordered_map<int, std::vector<std::pair<std::string, torch::Tensor>>> written_;  // by unfinished operation
};

}  // namespace vernier
