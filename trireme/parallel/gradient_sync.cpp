#include "trireme/parallel/gradient_sync.h"

#include "trireme/base/error.h"

namespace trireme {

GradientSync::GradientSync(ParameterStore& store, Communicator& communicator, Groups groups, Executor& executor)
    : store_(store), communicator_(communicator), groups_(std::move(groups)), executor_(executor) {
  auto& buckets = store_.buckets();
  expected_.resize(buckets.size());
  missing_.resize(buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (auto& stored : buckets[b].parameters) {
      expected_[b] += stored.parameter->uses;
      stored.parameter->gradient.arrived = [this, b] { arrived(b); };
    }
  }
}

GradientSync::~GradientSync() {
  for (auto& bucket : store_.buckets()) {
    for (auto& stored : bucket.parameters) stored.parameter->gradient.arrived = nullptr;
  }
}

void GradientSync::add_tasks(Graph& graph) {
  auto& buckets = store_.buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    tasks_.push_back(graph.add(
        TaskKind::reduce, static_cast<int32_t>(b), Lane::wire,
        [this, b] {
          const auto& bucket = store_.buckets()[b];
          const Group group = groups_.of(bucket);
          if (communicator_.size(group) == 1) return executor_.complete(tasks_[b]);
          communicator_.all_reduce(
              bucket.gradients, ReduceOp::sum, "reduce bucket",
              [this, b](std::exception_ptr error) { executor_.complete(tasks_[b], error); }, group);
        },
        {}, /*extra_signals=*/1));
  }
}

void GradientSync::begin_backward(bool last) {
  sending_ = last;
  next_ = 0;
  missing_ = expected_;
}

// Called by autograd's thread inside the backward pass: starts what is complete and returns.
void GradientSync::arrived(size_t bucket) {
  if (!sending_) return;
  --missing_[bucket];
  while (next_ < missing_.size() && missing_[next_] <= 0) executor_.signal(tasks_[next_++]);
}

void GradientSync::end_backward(bool last) {
  if (last && next_ != missing_.size()) {
    fail("the backward pass left bucket {} without {} of its {} gradients", next_, missing_[next_], expected_[next_]);
  }
  sending_ = false;
}

}  // namespace trireme
