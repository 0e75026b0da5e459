#include "trireme/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/data/token_samples.h"

namespace trireme {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and are not swapped");

namespace {

constexpr size_t header_bytes = 256 * sizeof(int32_t);

struct HeaderFormat {
  int32_t magic;
  int32_t version;
  const char* dtype;
};
constexpr std::array header_formats = {
    HeaderFormat{20240520, 1, "uint16"},
    HeaderFormat{20240801, 7, "uint32"},
};

int32_t header_word(std::span<const std::byte> bytes, size_t index) {
  int32_t word;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

// The format whose magic number the file starts with, or null. As tokens, either magic number would be a pair beyond
// GPT-2's vocabulary or an absurd token of 20 million, so a file without a header is not mistaken for one with.
const HeaderFormat* find_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(int32_t)) return nullptr;
  const int32_t magic = header_word(bytes, 0);
  const auto found = std::ranges::find(header_formats, magic, &HeaderFormat::magic);
  return found == header_formats.end() ? nullptr : &*found;
}

// Refuses a header that does not tell the truth about the bytes after it.
void check_header(const std::string& name, const HeaderFormat& format, std::span<const std::byte> bytes,
                  const std::string& dtype, size_t token_bytes) {
  if (bytes.size() < header_bytes) {
    refuse("{}: the file is cut short: it ends after {} of the {} bytes of its header", name, bytes.size(),
           header_bytes);
  }
  const int32_t version = header_word(bytes, 1);
  if (version != format.version) {
    refuse("{}: token format {} is known in version {} only, not {}", name, format.magic, format.version, version);
  }
  if (dtype != "auto" && dtype != format.dtype) {
    refuse("{}: the header says that tokens are {}, not {}; leave the dtype at auto", name, format.dtype, dtype);
  }
  const int64_t promised = header_word(bytes, 2);
  if (promised < 0) refuse("{}: the header is damaged: it promises {} tokens", name, promised);
  const size_t promised_bytes = static_cast<size_t>(promised) * token_bytes;
  const size_t present_bytes = bytes.size() - header_bytes;
  if (present_bytes < promised_bytes) {
    refuse("{}: the file is cut short: its header promises {} tokens, {} are present", name, promised,
           present_bytes / token_bytes);
  }
  if (present_bytes > promised_bytes) {
    refuse("{}: {} bytes follow the {} tokens that the header promises", name, present_bytes - promised_bytes,
           promised);
  }
}

template <class Token>
std::span<const Token> view_as(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Token*>(bytes.data()), bytes.size() / sizeof(Token)};
}

}  // namespace

TokenFile::Tokens TokenFile::find_tokens(const std::string& name, std::span<const std::byte> bytes,
                                         const std::string& dtype) {
  if (dtype != "auto" && dtype != "uint16" && dtype != "uint32") {
    refuse("tokens may be of dtype auto, uint16 or uint32, not '{}'", dtype);
  }

  const HeaderFormat* format = find_header(bytes);
  const std::string kind = format ? format->dtype : dtype == "auto" ? "uint16" : dtype;
  const size_t token_bytes = kind == "uint16" ? sizeof(uint16_t) : sizeof(uint32_t);
  if (format) {
    check_header(name, *format, bytes, dtype, token_bytes);
    bytes = bytes.subspan(header_bytes);
  } else if (bytes.size() % token_bytes != 0) {
    refuse("{}: the file is cut short: its {} bytes are not a whole number of {} tokens", name, bytes.size(), kind);
  }
  if (kind == "uint16") return view_as<uint16_t>(bytes);
  return view_as<uint32_t>(bytes);
}

TokenFile::TokenFile(const std::filesystem::path& path, const std::string& dtype, int64_t context, int64_t vocab,
                     const Packing& packing)
    : name_(path.string()),
      file_(path),
      tokens_(find_tokens(name_, file_.bytes(), dtype)),
      context_(context),
      separator_(packing.separator) {
  std::visit(
      [&](auto tokens) {
        samples_ = count_samples(name_, static_cast<int64_t>(tokens.size()), context);
        vocab_ = vocab > 0 ? vocab : int64_t{highest_token(tokens)} + 1;
      },
      tokens_);
  if (separator_ >= vocab_)
    refuse("{}: the separator {} is outside the vocabulary of {}: no document would begin", name_, separator_, vocab_);
  if (!packing.mask.empty()) open_mask(packing.mask, std::visit([](auto tokens) { return tokens.size(); }, tokens_));
}

void TokenFile::open_mask(const std::filesystem::path& path, size_t tokens) {
  mask_name_ = path.string();
  mask_.emplace(path);
  const auto bytes = mask_->bytes();
  if (bytes.size() != tokens) {
    refuse("{}: the mask has {} bytes, {} has {} tokens: it needs one byte for each", mask_name_, bytes.size(), name_,
           tokens);
  }
}

std::span<const std::byte> TokenFile::mask_of(int64_t sample) const {
  const auto mask = mask_->bytes().subspan(static_cast<size_t>(sample * context_ + 1), static_cast<size_t>(context_));
  const auto wrong = std::ranges::find_if(mask, [](std::byte one) { return one > std::byte{1}; });
  if (wrong != mask.end()) {
    refuse("{}: byte {} is {}: a mask holds 0 and 1", mask_name_, sample * context_ + 1 + (wrong - mask.begin()),
           static_cast<int>(*wrong));
  }
  return mask;
}

int64_t TokenFile::learnt_targets(std::span<const int64_t> samples) const {
  if (!mask_) return Dataset::learnt_targets(samples);
  check_in_range(samples);
  int64_t count = 0;
  for (const int64_t sample : samples) {
    for (const std::byte one : mask_of(sample)) count += static_cast<int64_t>(one);
  }
  return count;
}

void TokenFile::apply_mask(Batch& batch, std::span<const int64_t> samples) const {
  int64_t* target = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    for (const std::byte one : mask_of(sample)) {
      if (one == std::byte{0}) *target = ignored_target;
      ++target;
    }
  }
}

void TokenFile::mark_documents(Batch& batch) const {
  batch.starts = at::empty(batch.inputs.sizes(), at::kLong);
  const int64_t* token = batch.inputs.const_data_ptr<int64_t>();
  int64_t* start = batch.starts.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
    int64_t begun = 0;  // of a document that began in an earlier sample this one knows no more
    for (int64_t place = 0; place < context_; ++place) {
      if (*token++ == separator_) begun = place;
      *start++ = begun;
    }
  }
}

Batch TokenFile::get(std::span<const int64_t> samples) const {
  check_in_range(samples);
  auto batch = std::visit(
      [&](auto tokens) {
        for (const int64_t sample : samples) {
          const auto row = sample_of(tokens, context_, sample);
          if (int64_t{highest_token(row)} < vocab_) continue;
          const auto wrong = std::ranges::find_if(row, [&](int64_t token) { return token >= vocab_; });
          refuse("{}: token {} at place {} is outside the vocabulary of {}", name_, *wrong,
                 sample * context_ + (wrong - row.begin()), vocab_);
        }
        return cut_samples(tokens, context_, samples);
      },
      tokens_);
  if (mask_) apply_mask(batch, samples);
  if (separator_ >= 0) mark_documents(batch);
  return batch;
}

std::string TokenFile::describe() const {
  const size_t tokens = std::visit([](auto tokens) { return tokens.size(); }, tokens_);
  auto text =
      fmt::format("{}: {} tokens ({}) of a vocabulary of {}, {} of {}", name_, human_count(static_cast<double>(tokens)),
                  tokens_.index() == 0 ? "uint16" : "uint32", vocab_, counted(samples_, "sample"), context_);
  if (separator_ >= 0) text += fmt::format(", documents that begin with {}", separator_);
  if (mask_) text += fmt::format(", learnt where {} says so", mask_name_);
  return text;
}

}  // namespace trireme
