// Several safetensors files as one: a name is found in whichever of them holds it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/safetensors.h"

namespace trireme {

// A tensor in its file. It lives as long as the files that it was found in.
struct FoundTensor {
  const Safetensors* file = nullptr;
  const TensorInfo* info = nullptr;
  const std::filesystem::path* path = nullptr;

  explicit operator bool() const { return info != nullptr; }
  std::span<const std::byte> bytes() const { return file->bytes(*info); }
};

class TensorFiles {
 public:
  explicit TensorFiles(std::vector<std::filesystem::path> paths);

  FoundTensor find(const std::string& name) const;
  std::vector<FoundTensor> all() const;  // file by file, as they lie there
  size_t size() const { return all().size(); }

 private:
  std::vector<std::filesystem::path> paths_;
  std::vector<std::unique_ptr<Safetensors>> files_;
};

}  // namespace trireme
