#include "trireme/train/loaded_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/optim/store.h"
#include "trireme/spec/hugging_face.h"
#include "trireme/spec/models/models.h"
#include "trireme/train/weights.h"

namespace trireme {

namespace fs = std::filesystem;

CheckpointInfo find_checkpoint(const fs::path& path) {
  if (const auto link = dangling_link(path); !link.empty()) refuse("{}: give a run's folder or a checkpoint", link);
  if (!fs::exists(path)) refuse("{} does not exist: give a run's folder or a checkpoint", path.string());
  return fs::exists(path / "manifest.json") ? open_checkpoint(path) : newest_checkpoint(path);
}

SavedModel find_model(const fs::path& path) {
  SavedModel saved;
  if (fs::exists(path) && hugging_face::holds_model(path)) {
    const auto source = open_source_model(path);
    saved.folder = source.folder;
    saved.config.model = source.model;
    saved.bytes = source.bytes;
    return saved;
  }
  saved.checkpoint = find_checkpoint(path);
  saved.folder = saved.checkpoint->folder;
  describe(saved.config).read_text(saved.checkpoint->config, (saved.folder / "manifest.json").string());
  saved.bytes = saved.config.data.kind == DataKind::text;
  auto& model = saved.config.model;
  if (model.kind == ModelKind::custom || saved.checkpoint->config.empty())
    refuse("{} holds the model of a program that uses the library: only that program can ask it",
           saved.folder.string());
  if (reads_tokens(model.kind)) model.vocab = open_source_model(saved.folder).model.vocab;
  return saved;
}

int64_t SavedModel::answers() const {
  return reads_tokens(config.model.kind) ? config.model.vocab : config.model.classes;
}

int64_t SavedModel::parameter_bytes(Precision precision) const {
  return model_table(config.model, config.model.vocab).parameters() * value_bytes(precision);
}

void check_same_questions(const SavedModel& saved, const ModelConfig& asked, int64_t answers) {
  const auto& model = saved.config.model;
  const auto same = [&](const char* what, int64_t theirs, int64_t wanted) {
    if (theirs != wanted) refuse("{}: its {} is {}, and {} is needed", saved.folder.string(), what, theirs, wanted);
  };
  const auto reads = [](ModelKind kind) {
    return reads_tokens(kind) ? "tokens" : takes_images(kind) ? "images" : "vectors";
  };
  if (std::string(reads(model.kind)) != reads(asked.kind)) {
    refuse("{} holds a model of {}, and one of {} is needed", saved.folder.string(), reads(model.kind),
           reads(asked.kind));
  }
  if (reads_tokens(model.kind)) {
    same("vocabulary (model.vocab)", saved.answers(), answers);
    if (model.context < asked.context) {
      refuse("{} reads sequences of {} tokens at most, and model.context = {} is asked", saved.folder.string(),
             model.context, asked.context);
    }
    return;
  }
  same("model.classes", saved.answers(), answers);
  if (takes_images(model.kind)) {
    same("model.image", model.image, asked.image);
    same("model.channels", model.channels, asked.channels);
  } else {
    same("model.inputs", model.inputs, asked.inputs);
  }
}

at::Tensor LoadedModel::operator()(const at::Tensor& inputs, const Documents& documents) const {
  c10::NoGradGuard no_grad;
  Pass pass;
  pass.documents = documents;
  return model->forward(inputs, pass);
}

LoadedModel load_model(SavedModel saved, Precision precision, at::Device device) {
  LoadedModel loaded;
  const auto& config = saved.config.model;
  loaded.model = build_model(config, config.vocab);
  loaded.model->buffers_to(master_type(precision), device);
  const auto parameters = loaded.model->parameters();
  // A store reads the files; a bucket for each parameter, so that of the store nothing stays but their values, and
  // gradients that take no memory.
  const auto nothing = [](int64_t bytes, int) { return at::empty({bytes}, at::device(at::kMeta).dtype(at::kByte)); };
  ParameterStore store(parameters, precision, device, /*bucket_bytes=*/0, nothing);
  if (!saved.checkpoint || config.lora_rank > 0) {
    load_weights(open_source_model(saved.checkpoint ? fs::path(config.from) : saved.folder), parameters, store,
                 /*whole_model=*/true);
  }
  if (saved.checkpoint) {
    load_checkpoint(*saved.checkpoint, saved_parameters(*loaded.model), store, /*with_optimizer=*/false,
                    /*whole_model=*/true, loaded.model->buffers());
  }
  loaded.saved = std::move(saved);
  return loaded;
}

}  // namespace trireme
