#include "trireme/codec/codec.h"

#include "trireme/base/error.h"
#include "trireme/codec/envelope.h"

namespace trireme {

namespace {

std::span<const uint8_t> bytes_of(const at::Tensor& message) {
  return {message.const_data_ptr<uint8_t>(), static_cast<size_t>(message.numel())};
}

void check_message(const at::Tensor& message, const at::Tensor& values) {
  if (message.scalar_type() != at::kByte || !message.is_contiguous() || message.dim() != 1)
    fail("a message is a flat, contiguous tensor of bytes");
  if (message.device() != values.device())
    fail("a message on {} cannot hold values on {}", message.device().str(), values.device().str());
}

}  // namespace

void Codec::check_values(const at::Tensor& values, const char* what) const {
  if (values.scalar_type() != at::kFloat || !values.is_contiguous() || values.dim() != 1)
    fail("{}: {} are a flat, contiguous tensor of fp32", name(), what);
  if (!values.is_cpu() && !(on_cards() && values.is_cuda()))
    fail("{}: not for tensors on {}", name(), values.device().str());
}

int64_t Codec::most_bytes(int64_t count) const { return envelope_bytes + most_payload(count); }

int64_t Codec::encode(const at::Tensor& values, const at::Tensor& residual, Key noise,
                      const at::Tensor& message) const {
  check_values(values, "values");
  check_message(message, values);
  const int64_t count = values.numel();
  if (residual.defined()) {
    check_values(residual, "residuals");
    if (residual.numel() != count || residual.device() != values.device())
      fail("{}: {} residuals for {} values", name(), residual.numel(), count);
  }
  if (message.numel() < most_bytes(count))
    fail("{}: {} bytes may be too few for {} values", name(), message.numel(), count);
  auto* begin = message.mutable_data_ptr<uint8_t>();
  if (!values.is_cpu()) return write_on_card(values, residual, noise, begin);
  Envelope envelope;
  envelope.kind = static_cast<uint16_t>(kind_);
  envelope.setting = setting_;
  envelope.count = static_cast<uint64_t>(count);
  MessageSum sum;
  const int64_t length = write(values, residual, noise, begin + envelope_bytes, sum);
  envelope.payload_bytes = static_cast<uint64_t>(length);
  seal(envelope, sum, begin);
  return envelope_bytes + length;
}

void Codec::take(const at::Tensor& message, const at::Tensor& values, bool adding) const {
  check_values(values, "values");
  check_message(message, values);
  if (!values.is_cpu()) return read_on_card(bytes_of(message), values, adding);
  Envelope expected;
  expected.kind = static_cast<uint16_t>(kind_);
  expected.setting = setting_;
  expected.count = static_cast<uint64_t>(values.numel());
  try {
    Sealed sealed(expected, bytes_of(message));
    read_sealed(sealed, values, adding);
  } catch (Error& error) {
    throw error.add_context(name());
  }
}

void Codec::read_sealed(Sealed& message, const at::Tensor& values, bool adding) const {
  message.check();
  read(message.payload(), values, adding);
}

int64_t Codec::write_on_card(const at::Tensor&, const at::Tensor&, Key, uint8_t*) const {
  fail("{}: not on cards", name());
}

void Codec::read_on_card(std::span<const uint8_t>, const at::Tensor&, bool) const { fail("{}: not on cards", name()); }

}  // namespace trireme
