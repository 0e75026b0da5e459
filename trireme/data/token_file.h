// Tokens as plain little-endian numbers in a file, read through a memory map. Three formats are known:
//   llm.c, GPT-2:    256 int32 of header (magic 20240520, version 1, token count), then uint16 tokens
//   llm.c, Llama 3:  256 int32 of header (magic 20240801, version 7, token count), then uint32 tokens
//   nanoGPT:         no header; uint16 or uint32 tokens, as the caller says
// Tokens are checked against the model's vocabulary as batches are built, so opening a huge file stays instant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>

#include "trireme/base/files.h"
#include "trireme/data/dataset.h"

namespace trireme {

class TokenFile final : public Dataset {
 public:
  // `dtype` is "uint16", "uint32" or "auto": the header's, and uint16 where there is no header.
  // `vocab` 0 reads the whole file once and takes its highest token + 1.
  TokenFile(const std::filesystem::path& path, const std::string& dtype, int64_t context, int64_t vocab);

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  int64_t vocab() const override { return vocab_; }
  int64_t items_per_sample() const override { return context_; }
  std::string items() const override { return "tokens"; }
  std::string describe() const override;

 private:
  using Tokens = std::variant<std::span<const uint16_t>, std::span<const uint32_t>>;

  static Tokens find_tokens(const std::string& name, std::span<const std::byte> bytes, const std::string& dtype);

  std::string name_;
  MappedFile file_;
  Tokens tokens_;  // a view into file_
  int64_t context_;
  int64_t samples_;
  int64_t vocab_;
};

}  // namespace trireme
