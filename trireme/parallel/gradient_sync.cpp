#include "trireme/parallel/gradient_sync.h"

#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/words.h"

namespace trireme {

GradientSync::GradientSync(const SyncConfig& config, ParameterStore& store, Communicator& communicator, Groups groups,
                           Executor& executor, const at::Tensor& totals, BucketSums* sums)
    : kind_(config.kind),
      store_(store),
      communicator_(communicator),
      groups_(std::move(groups)),
      executor_(executor),
      totals_(totals),
      sums_(sums) {
  auto& buckets = store_.buckets();
  expected_.resize(buckets.size());
  missing_.resize(buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (auto& stored : buckets[b].parameters) {
      expected_[b] += stored.parameter->uses;
      stored.parameter->gradient.arrived = [this, b] { arrived(b); };
    }
  }
  if (kind_ == SyncKind::root) choose_roots();
  if (config.order == SyncOrder::backward) return;
  std::vector<at::Tensor> items;
  for (const auto& bucket : buckets) items.push_back(bucket.gradients);
  items.push_back(totals);
  order_ = std::make_unique<AgreedOrder>(communicator_, groups_.stage, std::move(items),
                                         static_cast<int64_t>(config.credit_mb * 1e6) / 64 * 64,
                                         [this](std::exception_ptr error) { executor_.complete(totals_task_, error); });
}

std::vector<Group> GradientSync::Groups::of(const std::vector<Bucket>& buckets) const {
  std::vector<Group> groups;
  for (const auto& bucket : buckets) groups.push_back(of(bucket));
  return groups;
}

void GradientSync::choose_roots() {
  const auto& buckets = store_.buckets();
  coming_.resize(buckets.size());
  const std::vector<BucketShape> shapes(buckets.begin(), buckets.end());
  for (const int rank : bucket_roots(shapes, [this](int tie) { return communicator_.size(groups_.of(tie)); }))
    roots_.push_back({rank, rank == communicator_.rank(groups_.of(buckets[roots_.size()]))});
  spread_order_ = trireme::spread_order(shapes);
}

GradientSync::~GradientSync() {
  for (auto& bucket : store_.buckets()) {
    for (auto& stored : bucket.parameters) stored.parameter->gradient.arrived = nullptr;
  }
}

void GradientSync::send(size_t b) {
  const auto& bucket = store_.buckets()[b];
  const Group group = groups_.of(bucket);
  if (communicator_.size(group) == 1) return executor_.complete(tasks_[b]);
  const auto done = [this, b](std::exception_ptr error) { executor_.complete(tasks_[b], error); };
  if (kind_ == SyncKind::root) {
    communicator_.reduce(bucket.gradients, ReduceOp::sum, roots_[b].rank, "reduce bucket", done, group);
  } else if (sums_) {
    sums_->start(b, bucket.gradients, number_, "reduce bucket", done);
  } else {
    communicator_.all_reduce(bucket.gradients, ReduceOp::sum, "reduce bucket", done, group);
  }
}

void GradientSync::begin_step(int64_t number, int64_t passes, const Sends& sends) {
  next_ = 0;
  number_ = number;
  tasks_ = sends;
  missing_ = expected_;
  for (auto& missing : missing_) missing *= passes;
  if (order_) order_->begin();
}

void GradientSync::hold() {
  next_ = 0;
  missing_.assign(expected_.size(), std::numeric_limits<int64_t>::max());
}

// Called by autograd's thread inside the backward pass: starts what is complete and returns.
void GradientSync::arrived(size_t bucket) {
  --missing_[bucket];
  const size_t before = next_;
  for (; next_ < missing_.size() && missing_[next_] <= 0; ++next_) {
    if (!tasks_.empty()) executor_.signal(tasks_[next_]);
  }
  if (order_ && next_ > before) order_->ready(next_);
}

void GradientSync::begin_pass(const ParameterList& parameters) {
  for (const auto& parameter : parameters) parameter->gradient.writes = 0;
}

void GradientSync::end_pass(const ParameterList& parameters) {
  std::vector<std::string> unused;
  for (const auto& parameter : parameters) {
    if (!parameter->optional || parameter->gradient.writes > 0 || !parameter->trained) continue;
    if (parameter->value.requires_grad()) unused.push_back(parameter->name);  // else its owner has frozen it
    parameter->gradient.add_nothing();
  }
  if (unused.empty() || told_unused_) return;
  told_unused_ = true;
  log::info("the loss does not depend on {}, which {} no gradient. The first: {}",
            counted(std::ssize(unused), "parameter"), unused.size() == 1 ? "gets" : "get", unused.front());
}

void GradientSync::check_complete() const {
  if (next_ == missing_.size()) return;
  fail("the backward passes left bucket {} without {} of the gradients that a microbatch gives {} of", next_,
       missing_[next_], expected_[next_]);
}

void GradientSync::sum_totals(TaskId task) {
  if (order_) {
    totals_task_ = task;
    return order_->ready(store_.buckets().size() + 1);
  }
  communicator_.all_reduce(totals_, ReduceOp::sum, "reduce loss",
                           [this, task](std::exception_ptr error) { executor_.complete(task, error); });
}

void GradientSync::spread(size_t b) {
  const auto& bucket = store_.buckets()[b];
  const Group group = groups_.of(bucket);
  if (communicator_.size(group) == 1) return;
  coming_[b] = communicator_.broadcast(bucket.master, roots_[b].rank, "send parameters", {}, group);
}

void GradientSync::await(size_t b) {
  if (order_) return order_->await(b);
  if (coming_.empty() || !coming_[b]) return;
  communicator_.wait(*coming_[b]);
  coming_[b].reset();
  if (!roots_[b].here) ParameterStore::publish(store_.buckets()[b]);
}

void GradientSync::gather_state(const Optimizer& optimizer) {
  for (const size_t b : spread_order_) {
    auto& bucket = store_.buckets()[b];
    const Group group = groups_.of(bucket);
    if (roots_[b].rank == 0) continue;
    if (!roots_[b].here) optimizer.prepare(bucket);
    for (auto& [name, tensor] : bucket.state) {
      communicator_.now([&] { return communicator_.broadcast(tensor, roots_[b].rank, "gather state", {}, group); });
    }
    if (!roots_[b].here && communicator_.rank(group) != 0) bucket.state.clear();
  }
}

void GradientSync::release_state() {
  for (const size_t b : spread_order_) {
    if (!roots_[b].here) store_.buckets()[b].state.clear();
  }
}

}  // namespace trireme
