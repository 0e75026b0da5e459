#include "trireme/data/text_file.h"

#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/data/token_samples.h"

namespace trireme {

TextFile::TextFile(const std::filesystem::path& path, int64_t context, int64_t vocab)
    : name_(path.string()), file_(path), context_(context) {
  if (vocab > 0 && vocab < byte_values) {
    refuse("{}: text is read as bytes and needs a vocabulary of at least {}, not {}", name_, byte_values, vocab);
  }
  samples_ = count_samples(name_, static_cast<int64_t>(tokens().size()), context);
}

std::span<const uint8_t> TextFile::tokens() const {
  const auto bytes = file_.bytes();
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Batch TextFile::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  return cut_samples(tokens(), context_, samples);
}

std::string TextFile::describe() const {
  return fmt::format("{}: {} of text, a token a byte, {} of {}", name_,
                     human_bytes(static_cast<double>(tokens().size())), counted(samples_, "sample"), context_);
}

}  // namespace trireme
