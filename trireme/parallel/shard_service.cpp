#include "trireme/parallel/shard_service.h"

#include <ATen/ATen.h>

#include <algorithm>


namespace trireme {

namespace {
constexpr uint16_t say_kind = 19, answer_kind = 20, leave_kind = 21;
MessageTag tag(uint16_t kind, size_t bucket) { return {.kind = kind, .microbatch = static_cast<int32_t>(bucket)}; }
}  // namespace

ShardMessage ShardMessage::like(const at::Tensor& tensor) {
  return {at::zeros({numbers_bytes + static_cast<int64_t>(tensor.nbytes())}, at::TensorOptions(at::kByte))};
}

ShardService::ShardService(Replica& replica, Serve serve, Leave leave)
    : replica_(replica),
      rank_(replica.world.rank()),
      ranks_(replica.world.size()),
      serve_(std::move(serve)),
      leave_(std::move(leave)) {
  const auto& buckets = replica.store.buckets();
  const int64_t asked = replica.config.sync.servers;
  std::vector<int64_t> loads(static_cast<size_t>(asked > 0 ? asked : ranks_));
  for (const auto& bucket : buckets) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bucket.elements;
    servers_.push_back(static_cast<int>(least - loads.begin()));
    drafts_.push_back(ShardMessage::like(bucket.master));
  }
  answers_.resize(buckets.size());
  listen();
}

void ShardService::listen() {
  const auto listen = [this](int from, MessageTag tag, Postbox::Take take) {
    replica_.postbox->listen(from, tag, std::move(take), [this](std::exception_ptr error) { fail(error); });
  };
  for (size_t b = 0; b < servers_.size(); ++b) {
    for (int other = 0; serves(b) && other < ranks_; ++other) {
      if (other == rank_) continue;
      listen(other, tag(say_kind, b), [this, b, other](at::Tensor said) { serve(b, other, {std::move(said)}); });
    }
    if (!serves(b))
      listen(servers_[b], tag(answer_kind, b), [this, b](at::Tensor answer) { take_answer(b, {std::move(answer)}); });
  }
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    listen(other, tag(leave_kind, 0), [this, other](const at::Tensor&) {
      std::lock_guard lock(serving_);
      leave_(other);
    });
  }
}

void ShardService::serve(size_t bucket, int from, ShardMessage said) {
  std::lock_guard lock(serving_);
  serve_(bucket, from, said);
}

void ShardService::say(const Communicator::Done& answered) {
  std::exception_ptr failure;
  {
    std::lock_guard lock(mutex_);
    failure = failure_;
    if (!failure) {
      missing_ = drafts_.size();
      answered_ = answered;
    }
  }
  if (failure || drafts_.empty()) return answered(failure);
  // Others' first: their servers work while this one does.
  for (size_t b = 0; b < drafts_.size(); ++b) {
    if (!serves(b)) replica_.postbox->send(servers_[b], tag(say_kind, b), drafts_[b].bytes);
  }
  for (size_t b = 0; b < drafts_.size(); ++b) {
    if (serves(b)) serve(b, rank_, drafts_[b]);
  }
}

void ShardService::answer(size_t bucket, int to, const ShardMessage& answer) {
  if (to == rank_) return take_answer(bucket, answer);
  replica_.postbox->send(to, tag(answer_kind, bucket), answer.bytes);
}

void ShardService::take_answer(size_t bucket, ShardMessage answer) {
  Communicator::Done call;
  {
    std::lock_guard lock(mutex_);
    answers_[bucket] = std::move(answer);
    if (--missing_ == 0) std::swap(call, answered_);
  }
  if (call) call(nullptr);
}

void ShardService::fail(std::exception_ptr error) {
  Communicator::Done call;
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    std::swap(call, answered_);
  }
  if (call) call(error);
}

void ShardService::leave() {
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank_) replica_.postbox->send(other, tag(leave_kind, 0), at::zeros({1}, at::kByte));
  }
  std::lock_guard lock(serving_);
  leave_(rank_);
}

}  // namespace trireme
