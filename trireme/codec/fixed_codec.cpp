#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/codec/envelope.h"
#include "trireme/codec/fixed_format.h"
#include "trireme/codec/kinds.h"

namespace trireme {

namespace {

FixedKind fixed_kind(CodecKind kind) {
  switch (kind) {
    case CodecKind::fp16: return FixedKind::fp16;
    case CodecKind::bf16: return FixedKind::bf16;
    case CodecKind::int8: return FixedKind::int8;
    case CodecKind::int4: return FixedKind::int4;
    case CodecKind::sign: return FixedKind::sign;
    default: fail("not a codec of fixed length");
  }
}

class FixedCodec final : public Codec {
 public:
  explicit FixedCodec(const CodecConfig& config)
      : Codec(config.kind, is_scaled(config.kind) ? static_cast<uint32_t>(config.block) : 0),
        format_{fixed_kind(config.kind), config.block, config.rounding == Rounding::stochastic} {}

  std::string name() const override {
    static constexpr const char* names[] = {"fp16", "bf16", "int8", "int4", "sign"};
    std::string name = names[static_cast<size_t>(format_.kind)];
    if (format_.scaled()) name += fmt::format(", blocks of {}", format_.block);
    const bool rounds = format_.kind == FixedKind::int8 || format_.kind == FixedKind::int4;
    return format_.stochastic && rounds ? name + ", stochastic" : name;
  }
  bool on_cards() const override { return true; }

 private:
  static bool is_scaled(CodecKind kind) { return kind != CodecKind::fp16 && kind != CodecKind::bf16; }

  int64_t most_payload(int64_t count) const override { return format_.bytes(count); }

  FixedEncoding encoding(const at::Tensor& values, const at::Tensor& residual, Key noise, uint8_t* payload) const {
    return {values.const_data_ptr<float>(),
            residual.defined() ? residual.mutable_data_ptr<float>() : nullptr,
            0,
            values.numel(),
            noise,
            payload,
            payload + format_.scale_offset(values.numel())};
  }

  FixedDecoding decoding(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const {
    const int64_t count = values.numel();
    if (static_cast<int64_t>(payload.size()) != format_.bytes(count))
      fail("{} values take {} bytes, and these are {}", count, format_.bytes(count), payload.size());
    return {payload.data(), payload.data() + format_.scale_offset(count), count, values.mutable_data_ptr<float>(),
            adding};
  }

  // Whole blocks whose codes stay in the second cache until they are checked.
  int64_t piece() const { return std::max(format_.block, 32768 / format_.block * format_.block); }

  int64_t write(const at::Tensor& values, const at::Tensor& residual, Key noise, uint8_t* payload,
                MessageSum& sum) const override {
    const auto whole = encoding(values, residual, noise, payload);
    for (int64_t first = 0; first < whole.count; first += piece()) {
      auto work = whole;
      work.first = first;
      work.count = std::min(piece(), whole.count - first);
      work.values += first;
      if (work.residual) work.residual += first;
      work.codes += format_.code_bytes(first);
      work.scales += 4 * format_.blocks(first);
      encode_fixed(format_, work);
      sum.add({work.codes, static_cast<size_t>(format_.code_bytes(work.count))});
    }
    if (format_.scaled()) std::fill(payload + format_.code_bytes(whole.count), whole.scales, uint8_t{0});
    return format_.bytes(whole.count);
  }

  void read_sealed(Sealed& message, const at::Tensor& values, bool adding) const override {
    const auto whole = decoding(message.payload(), values, adding);
    for (int64_t first = 0; first < whole.count; first += piece()) {
      auto work = whole;
      work.count = std::min(piece(), whole.count - first);
      work.values += first;
      work.codes += format_.code_bytes(first);
      work.scales += 4 * format_.blocks(first);
      message.pass(static_cast<size_t>(format_.code_bytes(first + work.count)));
      decode_fixed(format_, work);
    }
    message.check();
  }

  void read(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const override {
    decode_fixed(format_, decoding(payload, values, adding));
  }

  int64_t write_on_card(const at::Tensor& values, const at::Tensor& residual, Key noise,
                        uint8_t* message) const override {
    encode_fixed_cuda(format_, encoding(values, residual, noise, message), values.device().index());
    return format_.bytes(values.numel());
  }

  void read_on_card(std::span<const uint8_t> message, const at::Tensor& values, bool adding) const override {
    decode_fixed_cuda(format_, decoding(message, values, adding), values.device().index());
  }

  const FixedFormat format_;
};

}  // namespace

void encode_fixed(const FixedFormat& format, const FixedEncoding& work) {
  switch (format.kind) {
    case FixedKind::fp16:
    case FixedKind::bf16: return encode_casts(format, work);
    case FixedKind::int8:
    case FixedKind::int4: return encode_integers(format, work);
    case FixedKind::sign: return encode_signs(format, work);
  }
}

void decode_fixed(const FixedFormat& format, const FixedDecoding& work) {
  switch (format.kind) {
    case FixedKind::fp16:
    case FixedKind::bf16: return decode_casts(format, work);
    case FixedKind::int8:
    case FixedKind::int4: return decode_integers(format, work);
    case FixedKind::sign: return decode_signs(format, work);
  }
}

std::unique_ptr<Codec> make_fixed_codec(const CodecConfig& config) {
  if (config.block < 8 || config.block > 1 << 20 || config.block % 8 != 0)
    refuse("a block of {} elements: a codec's blocks have a multiple of 8 elements, and at most 2^20", config.block);
  return std::make_unique<FixedCodec>(config);
}

}  // namespace trireme
