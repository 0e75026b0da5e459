#include <ATen/ATen.h>

#include <cstring>

#include "trireme/comm/transport.h"

namespace trireme {

namespace {

Call next_call(uint64_t& calls, Collective collective, const at::Tensor& tensor) {
  Call call{.sequence = calls++, .count = tensor.numel(), .collective = collective, .dtype = tensor.scalar_type()};
  std::strncpy(call.name, "part of a sum", sizeof call.name - 1);
  return call;
}

}  // namespace

int Courier::rank() const { return transport.rank(); }
int Courier::size() const { return transport.size(); }

void Courier::all_reduce(const at::Tensor& tensor) const {
  transport.carry_out(next_call(calls, Collective::all_reduce, tensor), {tensor, {}, {}, {}, idle});
}

void Courier::all_to_all(const at::Tensor& given, const Offsets& give, const at::Tensor& taken,
                         const Offsets& take) const {
  Call call = next_call(calls, Collective::all_to_all, given);
  call.count = 0;  // each rank gives as much as it has
  transport.carry_out(call, {given, taken, give, take, idle});
}

void Courier::all_gather(const at::Tensor& tensor, const at::Tensor& output) const {
  transport.carry_out(next_call(calls, Collective::all_gather, tensor), {tensor, output, {}, {}, idle});
}

void Courier::gather_parts(const at::Tensor& tensor, const Offsets& parts) const {
  Call call = next_call(calls, Collective::gather_parts, tensor);
  call.parts = fingerprint_of(parts);
  transport.carry_out(call, {tensor, {}, parts, {}, idle});
}

}  // namespace trireme
