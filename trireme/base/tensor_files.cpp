#include "trireme/base/tensor_files.h"

#include <utility>

namespace trireme {

TensorFiles::TensorFiles(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)) {
  for (const auto& path : paths_) files_.push_back(std::make_unique<Safetensors>(path));
}

FoundTensor TensorFiles::find(const std::string& name) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (const auto* tensor = files_[i]->find(name)) return {files_[i].get(), tensor, &paths_[i]};
  }
  return {};
}

std::vector<FoundTensor> TensorFiles::all() const {
  std::vector<FoundTensor> tensors;
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& tensor : files_[i]->tensors()) tensors.push_back({files_[i].get(), &tensor, &paths_[i]});
  }
  return tensors;
}

}  // namespace trireme
