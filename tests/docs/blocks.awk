# Writes a C++ file of the C++ blocks of pages, for the compiler to check: awk -f blocks.awk PAGE...
# A block of members stands in a class, one of statements in a function that has the variables that pages speak of.
# Left out are blocks that other tests compare with sources: whole programs and plugins, the toolkit's loop, the step.
function flush_block(  wraps) {
  if (block ~ /int main|VERNIER_PLUGIN|^void Step::step|GradScaler scaler\(device\)/) return
  printf "namespace block_%d {\n", ++count
  if (block ~ /(^|\n)class /) {
    begin = end = ""
  } else if (block ~ /^explicit |override \{/) {
    begin = "class Mine final : public vernier::Callback {\n public:\n"
    end = " private:\n  double factor_ = 2, limit_ = 3;\n  std::string kind_;\n  std::vector<std::string> paths_;\n" \
          "  std::int64_t seen_ = 0;\n  vernier::Tensors slow_;\n  std::optional<vernier::LossScale> inner_;\n};\n"
  } else {
    begin = "void body(Known& known) {\n" \
            "  auto& [model, smoothed, optimizer, x, target, loss, blocks, images, training] = known;\n{\n"
    end = "}\n}\n"
  }
  printf "%s#line %d \"%s\"\n%s%s}\n", begin, first, FILENAME, block, end
}
BEGIN {
  print "// Written from the pages of docs by tests/docs/blocks.awk."
  print "#include <torch/nn.h>\n#include <vernier/compare.h>\n#include <vernier/data/csv.h>\n#include <vernier/data/images.h>\n#include <vernier/text/language_data.h>"
  print "#include <vernier/mixed_precision.h>\n#include <vernier/data/numpy.h>\n#include <vernier/data/readers.h>\n#include <vernier/data/transforms.h>"
  print "#include <vernier/lab/emulated_matmul.h>\n#include <vernier/lab/random_rounding.h>\n#include <vernier/text/token_data.h>"
  print "#include <vernier/inner_plugin.h>\n#include <vernier/rule_optimizer.h>\n#include <vernier/sdk.h>\n#include <vernier/data/supervised_task.h>\n#include <vernier/toolkit.h>\n#include <vernier/unscale.h>"
  print "#include <vernier/safetensors.h>\n#include <vernier/sum_over_ranks.h>\n#include <vernier/whole_file.h>\n"
  print "struct Known {\n  torch::nn::Sequential model, smoothed;\n  vernier::AdamW optimizer;"
  print "  torch::Tensor x, target, loss;\n  std::vector<torch::nn::Sequential> blocks;"
  print "  vernier::ImageFolder images;\n  vernier::DatasetPtr training;\n};"
}
/^ *```/ && inside { flush_block(); inside = 0; next }
/^ *```cpp$/ { inside = 1; block = ""; first = FNR + 1; next }
inside && /^#include/ { ++first; next }
inside { block = block $0 "\n" }
