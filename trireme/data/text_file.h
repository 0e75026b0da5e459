// Any file as byte-level text: each byte is a token of a vocabulary of 256. Needs no tokenizer and no preparation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "trireme/base/files.h"
#include "trireme/data/dataset.h"

namespace trireme {

class TextFile final : public Dataset {
 public:
  static constexpr int64_t byte_values = 256;

  // `vocab` is the model's vocabulary, refused when it cannot hold every byte; 0 when there is no model to check yet.
  TextFile(const std::filesystem::path& path, int64_t context, int64_t vocab);

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  int64_t vocab() const override { return byte_values; }
  int64_t items_per_sample() const override { return context_; }
  std::string items() const override { return "tokens"; }
  std::string describe() const override;

 private:
  std::span<const uint8_t> tokens() const;

  std::string name_;
  MappedFile file_;
  int64_t context_;
  int64_t samples_;
};

}  // namespace trireme
