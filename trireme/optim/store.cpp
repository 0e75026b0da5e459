#include "trireme/optim/store.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "trireme/base/error.h"

namespace trireme {

at::ScalarType value_type(Precision precision) {
  switch (precision) {
    case Precision::fp64: return at::kDouble;
    case Precision::fp32: return at::kFloat;
    case Precision::bf16: return at::kBFloat16;
  }
  fail("no such precision");
}

at::ScalarType master_type(Precision precision) { return precision == Precision::fp64 ? at::kDouble : at::kFloat; }

namespace {

// Buckets of the parameters that are trained, as spec/buckets lays them out; without memory yet.
std::vector<Bucket> cut(const ParameterList& parameters, int64_t largest) {
  std::vector<BucketItem> items;
  for (const auto& parameter : parameters) {
    items.push_back({parameter->value.numel(), parameter->trained, parameter->decays(), parameter->tie,
                     parameter->owned});
  }
  std::vector<Bucket> buckets;
  for (const auto& layout : lay_out_buckets(items, largest)) {
    auto& bucket = buckets.emplace_back(Bucket{layout});
    for (const auto& place : layout.places) bucket.parameters.push_back({parameters[place.item], place.offset});
  }
  return buckets;
}

// Owners of a tensor that others gave keep it, and look at the new memory. Not a view of it: changes of the memory would
// then count as changes of the value.
void move_to(Parameter& parameter, const at::Tensor& memory) {
  auto& value = parameter.value;
  if (value.is_meta()) value = at::empty({0}, memory.options()).set_requires_grad(parameter.trained);
  value.set_data(memory);
}

}  // namespace

ParameterStore::ParameterStore(const ParameterList& parameters, Precision precision, at::Device device,
                               double bucket_bytes, const Allocate& allocate) {
  c10::NoGradGuard no_grad;
  const auto values = at::TensorOptions().device(device).dtype(value_type(precision));
  const auto masters = values.dtype(master_type(precision));
  const auto master_bytes = static_cast<int64_t>(at::elementSize(master_type(precision)));
  buckets_ = cut(parameters, static_cast<int64_t>(bucket_bytes) / master_bytes);
  const bool one_copy = value_type(precision) == master_type(precision);
  const OwnerScope scope(Owner::parameters);
  for (auto& bucket : buckets_) {
    {
      const OwnerScope masters_scope(one_copy ? Owner::parameters : Owner::masters);
      bucket.master = at::zeros({bucket.elements}, masters);
    }
    bucket.values = one_copy ? bucket.master : at::zeros({bucket.elements}, values);
    {
      const OwnerScope gradients_scope(Owner::gradients);
      bucket.gradients = allocate(bucket.elements * master_bytes, bucket.tie).view(master_type(precision));
    }
    for (auto& stored : bucket.parameters) {
      if (!stored.parameter->value.is_meta()) piece(bucket.master, stored).copy_(stored.parameter->value);
      move_to(*stored.parameter, piece(stored.parameter->wide ? bucket.master : bucket.values, stored));
      stored.parameter->gradient.view = piece(bucket.gradients, stored);
    }
    publish(bucket);
  }
  for (const auto& parameter : parameters) {
    if (parameter->trained) continue;
    const auto& given = parameter->value;
    move_to(*parameter, given.is_meta() ? at::empty_like(given, values) : given.to(values, false, /*copy=*/true));
    frozen_.push_back(parameter);
  }
}

std::map<const Parameter*, at::Tensor> ParameterStore::masters() const {
  std::map<const Parameter*, at::Tensor> found;
  for (const auto& bucket : buckets_) {
    for (const auto& stored : bucket.parameters) found[stored.parameter.get()] = piece(bucket.master, stored);
  }
  for (const auto& parameter : frozen_) found[parameter.get()] = parameter->value;
  return found;
}

void ParameterStore::draw(uint64_t seed) {
  c10::NoGradGuard no_grad;
  const auto has_start = [](const auto& parameter) { return parameter->initial.kind != Initial::Kind::given; };
  for (auto& bucket : buckets_) {
    for (auto& stored : bucket.parameters) {
      if (has_start(stored.parameter)) trireme::draw(*stored.parameter, seed, piece(bucket.master, stored));
    }
    publish(bucket);
  }
  for (const auto& parameter : frozen_) {
    if (has_start(parameter)) trireme::draw(*parameter, seed, parameter->value);
  }
}

void ParameterStore::begin_step() {
  for (auto& bucket : buckets_) {
    for (auto& stored : bucket.parameters) stored.parameter->gradient.fresh = true;
  }
}

void ParameterStore::publish(Bucket& bucket) {
  if (!bucket.values.is_same(bucket.master)) bucket.values.copy_(bucket.master);
}

void ParameterStore::share(size_t number, const Bucket& with) {
  c10::NoGradGuard no_grad;
  auto& bucket = buckets_[number];
  // The same memory, which lives as long as whoever looks at it.
  const auto view = [](const at::Tensor& tensor) {
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), [tensor](void*) {}, tensor.options());
  };
  bucket.master = view(with.master);
  bucket.values = with.values.is_same(with.master) ? bucket.master : view(with.values);
  for (auto& [name, tensor] : bucket.state) tensor = view(with.state.at(name));
  for (auto& stored : bucket.parameters)
    stored.parameter->value.set_data(piece(stored.parameter->wide ? bucket.master : bucket.values, stored));
}

at::Tensor ParameterStore::piece(const at::Tensor& buffer, const StoredParameter& stored) {
  const auto& shape = stored.parameter->value;
  return buffer.narrow(0, stored.offset, shape.numel()).as_strided(shape.sizes(), shape.strides());
}

}  // namespace trireme
