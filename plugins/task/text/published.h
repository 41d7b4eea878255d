// A published model's folder as task/text uses it: its model reads the texts, with a new head on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../language/folder.h"
#include "network.h"
#include "tokens.h"

namespace text {

class PublishedFolder {
 public:
  // Throws Error if the config.json of the folder is not that of a model that task/gpt or task/llama knows.
  explicit PublishedFolder(const std::string& folder);

  std::int64_t longest() const;  // tokens of a text; 0: there is no limit
  // Builds the network on the CPU. dropout: in the place of those of the config; below 0: those. weights_of: the
  // folder with them; "": they are drawn by the seed, to be loaded afterwards. Throws Error if the model has too few
  // tokens or positions for the shape.
  std::shared_ptr<PublishedNetwork> make(const Shape& shape, double dropout, std::uint64_t seed,
                                         const std::string& weights_of) const;
  // The name in a published file of a parameter or layer of the network.
  std::string published_name(const std::string& name) const;
  // Writes a folder for transformers' AutoModelForSequenceClassification. files: of model and tokenizer. classes: their
  // names; none: the head gives a number. Throws Error where transformers would take the end of a text for padding.
  void write(const std::string& to, vernier::State files, const Code& code, const PublishedNetwork& network,
             const std::vector<std::string>& classes) const;

 private:
  language::Config config_;
  language::Family family_;
};

}  // namespace text
