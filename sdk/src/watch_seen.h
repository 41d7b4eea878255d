// What a Watch has seen: operations, and how data flowed between them.
#pragma once

#include <ATen/record_function.h>
#include <vernier/watch.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace vernier {

// One tensor that an operation took or gave.
struct SeenTensor {
  std::string name;   // in the operator's schema
  int buffer = -1;    // in Watch::Seen::buffers
  int writers = 0;    // how many of the buffer's had written when it was looked at
  std::size_t range = 0;  // in Watch::Seen::ranges
  bool is_read = true;    // false: only written
};

struct SeenOperation {
  std::string name;
  int parent = -1;        // the operation or node that called it
  bool is_node = false;   // of autograd's graph: it has no data of its own
  bool fills_minus_inf = false;
  bool is_backward = false;
  bool is_update = false;
  int layer = -1;         // -1: none so far; -2: that of the gradient in which it ends
  bool is_after = false;
  int piece = 0;
  std::vector<SeenTensor> inputs, outputs;
};

// A storage while it holds what some operation made.
struct SeenBuffer {
  std::vector<int> writers;  // operations, in order
  std::string name;          // of a parameter, buffer or tensor of the batch; "" for others
  enum class Kind { other, parameter, buffer, batch } kind = Kind::other;
  bool is_raw = false;  // allocated, and not written yet
};

class Watch::Seen {
 public:
  Seen(const torch::nn::Module& model, bool keep_outputs);

  int begin(const at::RecordFunction& function);
  void end(const at::RecordFunction& function, int index);
  void begin_piece();
  void resolve();  // brings the ranges to the host

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
  int piece = -1;
  bool is_backward = false;  // since the first node of this piece
  bool is_update = false;    // since begin_update
  int layer = -1;            // the last one that was met
  double epsilon = 0;

  int buffer_for(const torch::Tensor& tensor);

 private:
  using Place = std::pair<std::uint64_t, std::int64_t>;  // of a node in the graph: the thread, and its count there
  SeenTensor look(const std::string& name, const torch::Tensor& tensor, bool is_read = true);
  int layer_in(const std::vector<std::pair<std::string, torch::Tensor>>& tensors) const;
  void find_layer(SeenOperation& operation, const std::vector<std::pair<std::string, torch::Tensor>>& tensors,
                  const Place& place);
  bool is_in_node(int operation) const;
  void keep(const SeenOperation& operation, const torch::Tensor& tensor);
  std::map<Place, int> by_sequence_;  // operations that may have a node
  std::unordered_map<int, std::vector<std::pair<std::string, torch::Tensor>>> written_;  // by an operation at work
};

}  // namespace vernier
