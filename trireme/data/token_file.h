// Tokens as plain little-endian numbers in a file, read through a memory map. Three formats are known:
//   llm.c, GPT-2:    256 int32 of header (magic 20240520, version 1, token count), then uint16 tokens
//   llm.c, Llama 3:  256 int32 of header (magic 20240801, version 7, token count), then uint32 tokens
//   nanoGPT:         no header; uint16 or uint32 tokens, as the caller says
// Beside it may lie a mask, a file of one byte for each token: 1 where it is learnt, 0 where it is only read. And a
// token may separate documents: each begins with it, and what comes before is no context for what comes after. Tokens
// are checked against the model's vocabulary as batches are built, so opening a huge file stays instant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "trireme/base/files.h"
#include "trireme/data/dataset.h"

namespace trireme {

// What a token file does not say by itself.
struct Packing {
  std::filesystem::path mask;  // empty: every token is learnt
  int64_t separator = -1;      // the token with which documents begin; -1: there are none
};

class TokenFile final : public Dataset {
 public:
  // `dtype` is "uint16", "uint32" or "auto": the header's, and uint16 where there is no header.
  // `vocab` 0 reads the whole file once and takes its highest token + 1.
  TokenFile(const std::filesystem::path& path, const std::string& dtype, int64_t context, int64_t vocab,
            const Packing& packing = {});

  int64_t size() const override { return samples_; }
  Batch get(std::span<const int64_t> samples) const override;
  int64_t vocab() const override { return vocab_; }
  int64_t items_per_sample() const override { return context_; }
  int64_t learnt_targets(std::span<const int64_t> samples) const override;
  std::string items() const override { return "tokens"; }
  std::string describe() const override;

 private:
  using Tokens = std::variant<std::span<const uint16_t>, std::span<const uint32_t>>;

  void open_mask(const std::filesystem::path& path, size_t tokens);
  // The mask of a sample's targets.
  std::span<const std::byte> mask_of(int64_t sample) const;
  void apply_mask(Batch& batch, std::span<const int64_t> samples) const;
  void mark_documents(Batch& batch) const;
  static Tokens find_tokens(const std::string& name, std::span<const std::byte> bytes, const std::string& dtype);

  std::string name_;
  MappedFile file_;
  Tokens tokens_;  // a view into file_
  int64_t context_;
  int64_t samples_;
  int64_t vocab_;
  std::string mask_name_;
  std::optional<MappedFile> mask_;
  int64_t separator_;
};

}  // namespace trireme
