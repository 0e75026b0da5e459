#include "trireme/nn/parameter.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <set>

#include "trireme/nn/product.h"

namespace trireme {

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
  if (deferred) return deferred->writes.push_back({this, left, right, {}});
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
  if (deferred) return deferred->writes.push_back({this, rows, {}, {}});
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
  if (deferred) return deferred->writes.push_back({this, left, right, std::move(gradient)});
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

}  // namespace trireme
