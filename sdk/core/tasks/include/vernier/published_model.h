// Models in the form in which others publish and read them, a folder of Hugging Face: config.json and safetensors.
#pragma once

#include <vernier/abi.h>

#include <map>
#include <string>

namespace vernier {

// A task whose model is such a model derives from it beside Task, for `vernier export --format huggingface`. Main
// thread only, after Task::prepare.
class VERNIER_API PublishedModel {
 public:
  virtual ~PublishedModel();
  // The name in published files of a tensor or module of run.model: "transformer.h.0.attn.c_attn" for
  // "h.0.attn.c_attn". Names that are not the model's own get the form that they would have.
  virtual std::string published_name(const std::string& name) const = 0;
  virtual std::string published_folder() const = 0;  // the folder that it was read from
  // Layers of the published model that are one with a layer of run.model, as a head is with the embedding that it is
  // tied to: {"lm_head", "model.embed_tokens"}, both by their published names. By default none.
  virtual std::map<std::string, std::string> ties() const;
  virtual std::string task_type() const;  // in the words of PEFT; by default "CAUSAL_LM"
  // Writes the model as it is now. The folder does not exist yet.
  virtual void write_published(const std::string& folder) const = 0;
};

}  // namespace vernier
