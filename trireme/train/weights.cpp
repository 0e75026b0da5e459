#include "trireme/train/weights.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/spec/hugging_face.h"

namespace trireme {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return DType::f64;
    case at::kFloat: return DType::f32;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    case at::kLong: return DType::i64;
    default: fail("tensors of type {} are not saved", c10::toString(type));
  }
}

at::ScalarType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return at::kDouble;
    case DType::f32: return at::kFloat;
    case DType::bf16: return at::kBFloat16;
    case DType::f16: return at::kHalf;
    case DType::i64: return at::kLong;
    default: refuse("tensors of type {} cannot be loaded as parameters", dtype_name(dtype));
  }
}

at::Tensor tensor_of(const FoundTensor& found) {
  auto values = at::empty(found.info->shape, type_of(found.info->dtype));
  const auto bytes = found.bytes();
  std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
  return values;
}

std::unique_ptr<TensorFiles> open_weights(const SourceModel& source) {
  if (source.layout == SourceModel::Layout::trireme)
    verify_files(source.folder, read_manifest(source.folder), /*prefix=*/"model");
  return std::make_unique<TensorFiles>(source.files);
}

std::map<std::string, FoundTensor> by_our_names(const SourceModel& source, const TensorFiles& files) {
  std::map<std::string, FoundTensor> known;
  for (const auto& found : files.all()) {
    const auto name = source.layout == SourceModel::Layout::hugging_face
                          ? hugging_face::our_name(source.model, found.info->name)
                          : found.info->name;
    if (name) known.emplace(*name, found);
  }
  return known;
}

void load_weights(const SourceModel& source, const ParameterList& parameters, ParameterStore& store, bool whole_model) {
  c10::NoGradGuard no_grad;
  const auto files = open_weights(source);
  auto known = by_our_names(source, *files);
  const auto masters = store.masters();
  for (const auto& parameter : parameters) {
    if (parameter->adapter) continue;
    const auto found = known.find(parameter->name);
    if (found == known.end()) refuse("{} has no {}, which this model needs", source.folder.string(), parameter->name);
    const auto& target = masters.at(parameter.get());
    auto values = tensor_of(found->second);
    // Of the positions that the model knows, the first are enough for shorter sequences.
    if (parameter->name == "wpe.weight" && values.dim() == 2 && values.size(0) > target.size(0)) {
      log::info("{}: of {} positions the first {} are taken (model.context)", parameter->name, values.size(0),
                target.size(0));
      values = values.narrow(0, 0, target.size(0));
    }
    if (values.sizes() != target.sizes()) {
      refuse("{} has shape [{}] in {} and [{}] in this model", parameter->name, fmt::join(values.sizes(), ", "),
             found->second.path->string(), fmt::join(target.sizes(), ", "));
    }
    target.copy_(values);
    known.erase(found);
  }
  if (whole_model && !known.empty()) {
    const auto& [name, found] = *known.begin();
    refuse("{} holds {}, which this model has not", found.path->string(), name);
  }
  for (auto& bucket : store.buckets()) ParameterStore::publish(bucket);
}

}  // namespace trireme
