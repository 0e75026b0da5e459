#include "trireme/memory/counter.h"

#include <ATen/ATen.h>

#include <memory>
#include <mutex>

#include "trireme/memory/counters.h"

namespace trireme {

namespace {

struct PassInfo : c10::DebugInfoBase {
  explicit PassInfo(Holding holding) : holding(holding) {}
  const Holding holding;
};

// LibTorch takes it along to the threads that work for a pass, and nobody else uses this place.
auto place() { return c10::DebugInfoKind::PRODUCER_INFO; }

}  // namespace

void count_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    count_host_memory();
    count_card_memory();
  });
}

PassScope::PassScope(Owner owner) : here_(owner), there_(place(), std::make_shared<PassInfo>(holding())) {}

namespace {

bool hand_over_counted(const at::Tensor& tensor, Owner to) {
  const auto& memory = tensor.storage().data_ptr();
  return tensor.is_cpu() ? hand_over_on_host(memory, to) : hand_over_on_card(memory, to);
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().data_ptr();
}

}  // namespace

void hand_over(const at::Tensor& tensor, Owner to) {
  if (has_memory(tensor)) hand_over_counted(tensor, to);
}

at::Tensor taken_over(const at::Tensor& tensor) {
  if (!has_memory(tensor) || hand_over_counted(tensor, holding().owner)) return tensor;
  const auto memory = tensor.is_cpu() ? Memory::host : Memory::card;
  const auto charge = std::make_shared<ChargedBytes>(memory, static_cast<int64_t>(tensor.nbytes()));
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), [tensor, charge](void*) {}, tensor.options());
}

Holding holding_of_pass() {
  const auto own = holding();
  if (own.counts) return own;
  const auto* info = static_cast<const PassInfo*>(c10::ThreadLocalDebugInfo::get(place()));
  return info ? info->holding : own;
}

}  // namespace trireme
