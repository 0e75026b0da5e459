#include "trireme/nn/parameter.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/nn/on_threads.h"
#include "trireme/nn/product.h"

namespace trireme {

namespace {

// What is put off does not keep alive the operations that it came from, and with them the input of the pass.
void put_off(GradientSlot* slot, const at::Tensor& left, const at::Tensor& right,
             std::function<at::Tensor()> gradient = {}) {
  slot->deferred->writes.push_back(
      {slot, left.detach(), right.defined() ? right.detach() : right, std::move(gradient)});
}

}  // namespace

void GradientSlot::written() {
  fresh = false;
  ++writes;
  if (arrived) arrived();
}

void GradientSlot::add(const at::Tensor& gradient) {
  if (fresh) {
    view.copy_(gradient);
  } else {
    view.add_(gradient);
  }
  written();
}

void GradientSlot::add_nothing() {
  if (fresh) view.zero_();
  written();
}

void GradientSlot::add_product(const at::Tensor& left, const at::Tensor& right) {
  if (deferred) return put_off(this, left, right);
  write_product(left, right);
}

void GradientSlot::write_product(const at::Tensor& left, const at::Tensor& right) {
  if (view.scalar_type() == left.scalar_type()) {
    product_into(view, left, right, /*add=*/!fresh);
    return written();
  }
  add(at::mm(left, right));  // a bf16 product into an fp32 gradient
}

void GradientSlot::add_column_sums(const at::Tensor& rows) {
  if (deferred) return put_off(this, rows, {});
  write_column_sums(rows);
}

void GradientSlot::write_column_sums(const at::Tensor& rows) {
  if (fresh) {
    at::sum_out(view, rows, {0}, false, view.scalar_type());
  } else {
    view.add_(rows.sum(at::IntArrayRef{0}, false, view.scalar_type()));
  }
  written();
}

void GradientSlot::add_rows(const at::Tensor& places, const at::Tensor& rows) {
  if (fresh) view.zero_();
  view.index_add_(0, places, rows.to(view.scalar_type()));
  written();
}

void GradientSlot::add_computed(std::function<at::Tensor()> gradient, const at::Tensor& left, const at::Tensor& right) {
  if (deferred) return put_off(this, left, right, std::move(gradient));
  add(gradient());
}

int64_t DeferredGradients::bytes() const {
  std::set<const void*> seen;
  int64_t sum = 0;
  for (const auto& write : writes) {
    for (const auto* tensor : {&write.left, &write.right}) {
      if (!tensor->defined() || !seen.insert(tensor->storage().unsafeGetStorageImpl()).second) continue;
      sum += static_cast<int64_t>(tensor->storage().nbytes());
    }
  }
  return sum;
}

void DeferredGradients::compute(size_t begin, size_t end) {
  const c10::NoGradGuard no_grad;
  for (size_t i = begin; i < end; ++i) {
    auto& write = writes[i];
    if (write.gradient) {
      write.slot->add(write.gradient());
    } else if (write.right.defined()) {
      write.slot->write_product(write.left, write.right);
    } else {
      write.slot->write_column_sums(write.left);
    }
    write = {};  // memory goes back as the work gets done
  }
}

ParameterPtr make_parameter(const ParameterSpec& spec) {
  auto parameter = std::make_shared<Parameter>();
  static_cast<ParameterSpec&>(*parameter) = spec;
  const auto format = spec.shape.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  parameter->value =
      at::empty(spec.shape, at::device(at::kMeta).dtype(at::kDouble), format).set_requires_grad(spec.trained);
  return parameter;
}

namespace {

double start_of(const Initial& initial, Key key, uint64_t place) {
  switch (initial.kind) {
    case Initial::Kind::zeros: return 0;
    case Initial::Kind::ones: return 1;
    case Initial::Kind::normal: return initial.scale * normal(key, place);
    case Initial::Kind::uniform: return initial.scale * (2 * uniform(key, place) - 1);
    case Initial::Kind::given: break;
  }
  fail("a parameter that was given has no start of its own");
}

}  // namespace

void draw(const ParameterSpec& parameter, uint64_t seed, const at::Tensor& into) {
  constexpr int64_t at_once = 1 << 20, grain = 16384;  // elements
  const c10::NoGradGuard no_grad;
  const Key key = Key{seed}.with("init").with(parameter.name);
  auto shape = into.sizes().vec();
  if (into.numel() == 0) return;
  const int64_t row = into.numel() / shape[0], rows = std::max<int64_t>(1, at_once / row);
  for (int64_t first = 0; first < into.size(0); first += rows) {
    shape[0] = std::min(rows, into.size(0) - first);
    const auto values = at::empty(shape, at::kDouble);
    auto* data = values.data_ptr<double>();
    const auto before = static_cast<uint64_t>(first * row);
    on_threads(values, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] = start_of(parameter.initial, key, before + static_cast<uint64_t>(i));
    });
    into.narrow(0, first, shape[0]).copy_(values);
  }
}

}  // namespace trireme
