#include "trireme/optim/versions.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/memory/counter.h"

namespace trireme {

namespace {

// Whether the model computes with the masters themselves.
bool one_copy(const Bucket& bucket) { return bucket.values.is_same(bucket.master); }

}  // namespace

WeightVersions::WeightVersions(ParameterStore& store) : store_(store), spare_(store.buckets().size()) {
  versions_[0] = take_newest();
}

WeightVersions::Version WeightVersions::take_newest() const {
  Version version;
  for (const auto& bucket : store_.buckets()) {
    version.values.push_back(bucket.values);
    if (!predicts()) continue;
    for (const auto& stored : bucket.parameters) {
      if (stored.parameter->wide)
        version.wide[stored.parameter.get()] = ParameterStore::piece(bucket.master, stored).clone();
    }
  }
  return version;
}

void WeightVersions::predict(double changes) {
  ahead_ = changes;
  if (changes == 0) return;
  const OwnerScope scope(Owner::parameters);
  for (auto& bucket : store_.buckets()) {
    if (!one_copy(bucket)) continue;
    bucket.values = bucket.master.clone();
    hand_over(bucket.master, Owner::masters);
  }
  restore(newest_, {});
}

void WeightVersions::use(int64_t number) {
  if (number == in_use_) return;
  const auto found = versions_.find(number);
  if (found == versions_.end()) fail("version {} of the weights is gone: the newest is {}", number, newest_);
  const auto& version = found->second;
  auto& buckets = store_.buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const auto& stored : buckets[b].parameters) {
      auto& value = stored.parameter->value;
      if (!stored.parameter->wide || one_copy(buckets[b])) {
        value.set_data(ParameterStore::piece(version.values[b], stored));
      } else if (number == newest_ && !predicts()) {
        value.set_data(ParameterStore::piece(buckets[b].master, stored));
      } else {
        value.set_data(version.wide.at(stored.parameter.get()));
      }
    }
  }
  in_use_ = number;
}

void WeightVersions::use_masters() {
  if (!predicts()) return use(newest_);
  for (auto& bucket : store_.buckets()) {
    const auto values = bucket.master.to(bucket.values.scalar_type());  // the masters, where the types are the same
    for (const auto& stored : bucket.parameters)
      stored.parameter->value.set_data(ParameterStore::piece(stored.parameter->wide ? bucket.master : values, stored));
  }
  in_use_ = -1;
}

void WeightVersions::hold(int64_t version) { ++versions_.at(version).holders; }

void WeightVersions::release(int64_t version) {
  --versions_.at(version).holders;
  drop_unheld();
}

void WeightVersions::keep_from(int64_t version) {
  kept_from_ = version;
  drop_unheld();
}

void WeightVersions::drop_unheld() {
  for (auto it = versions_.begin(); it != versions_.end();) {
    if (it->first == newest_ || it->first >= kept_from_ || it->second.holders > 0) {
      ++it;
      continue;
    }
    if (it->first == in_use_) use(newest_);
    for (size_t b = 0; b < spare_.size(); ++b) spare_[b].push_back(it->second.values[b]);
    it = versions_.erase(it);
  }
}

at::Tensor WeightVersions::fresh_values(size_t bucket) {
  auto& spare = spare_[bucket];
  if (spare.empty()) return at::empty_like(store_.buckets()[bucket].values);
  const auto values = spare.back();
  spare.pop_back();
  return values;
}

void WeightVersions::advance() {
  c10::NoGradGuard no_grad;
  auto& buckets = store_.buckets();
  auto& old = versions_.at(newest_);
  const bool kept = old.holders > 0 || newest_ >= kept_from_;
  const OwnerScope scope(Owner::versions);
  for (size_t b = 0; kept && b < buckets.size(); ++b) {
    auto& bucket = buckets[b];
    const auto fresh = fresh_values(b);
    hand_over(bucket.values, Owner::versions);
    hand_over(fresh, Owner::parameters);
    if (one_copy(bucket)) {
      fresh.copy_(bucket.master);
      bucket.master = fresh;
    } else if (!predicts()) {
      for (const auto& stored : bucket.parameters) {
        if (stored.parameter->wide)
          old.wide[stored.parameter.get()] = ParameterStore::piece(bucket.master, stored).clone();
      }
    }
    bucket.values = fresh;
  }
  const int64_t number = newest_++;
  versions_[newest_] = take_newest();
  if (!kept) versions_.erase(number);
  in_use_ = -1;
  use(newest_);
  most_ = std::max(most_, count());
}

void WeightVersions::change(size_t b, const std::function<void(Bucket&)>& optimize) {
  c10::NoGradGuard no_grad;
  auto& bucket = store_.buckets()[b];
  if (!predicts()) {
    optimize(bucket);
    ParameterStore::publish(bucket);
    return;
  }
  const OwnerScope scope(Owner::working);
  if (!before_.defined() || before_.numel() < bucket.elements) before_ = at::empty_like(bucket.master);
  auto before = before_.narrow(0, 0, bucket.elements);
  before.copy_(bucket.master);
  optimize(bucket);
  const bool same_type = bucket.values.scalar_type() == bucket.master.scalar_type();
  auto predicted = same_type ? bucket.values : before;
  at::lerp_out(predicted, before, bucket.master, 1 + ahead_);
  if (!same_type) bucket.values.copy_(predicted);
  auto& wide = versions_.at(newest_).wide;
  for (const auto& stored : bucket.parameters) {
    if (stored.parameter->wide) wide.at(stored.parameter.get()).copy_(ParameterStore::piece(predicted, stored));
  }
}

int64_t WeightVersions::bytes() const {
  int64_t sum = 0;
  for (const auto& [number, version] : versions_) {
    if (number == newest_) continue;
    for (const auto& values : version.values) sum += static_cast<int64_t>(values.nbytes());
    for (const auto& [parameter, values] : version.wide) sum += static_cast<int64_t>(values.nbytes());
  }
  return sum;
}

void WeightVersions::restore(int64_t newest, std::map<int64_t, Version> versions) {
  versions_ = std::move(versions);
  newest_ = newest;
  if (predicts() && versions_.count(newest_)) {
    for (size_t b = 0; b < spare_.size(); ++b) store_.buckets()[b].values = versions_[newest_].values[b];
  } else {
    versions_[newest_] = take_newest();
  }
  kept_from_ = versions_.begin()->first;
  in_use_ = -1;
  use(newest_);
  most_ = count();
}

}  // namespace trireme
