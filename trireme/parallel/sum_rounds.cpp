#include "trireme/parallel/sum_rounds.h"

#include <ATen/ATen.h>

#include <future>

namespace trireme {

SumRounds::SumRounds(Replica& replica, int64_t slots, int64_t totals, const char* name)
    : communicator_(replica.world.communicator()),
      holders_(replica.holders),
      name_(name),
      sums_(replica.codec, static_cast<uint64_t>(replica.config.train.seed), replica.store, communicator_,
            replica.world.recorder(),
            std::vector<Group>(replica.store.buckets().size(),
                               replica.codec.kind == CodecKind::none ? holders_ : communicator_.split(replica.stage))),
      slots_(static_cast<size_t>(slots)) {
  for (auto& slot : slots_) {
    slot.tensors = like_buckets(replica);
    slot.totals = at::zeros({totals}, at::kDouble);
  }
}

void SumRounds::start(int64_t round) {
  auto& slot = this->slot(round);
  // A round is done with its last call; what goes wrong before makes the later calls fail as well.
  for (size_t b = 0; b < slot.tensors.size(); ++b) sums_.start(b, slot.tensors[b], round, name_, {});
  communicator_.all_reduce(
      slot.totals, ReduceOp::sum, name_, [this, round](std::exception_ptr error) { ended(round, error); }, holders_);
}

bool SumRounds::done(int64_t round) const {
  std::lock_guard lock(mutex_);
  return round <= done_;
}

void SumRounds::when_done(int64_t round, Communicator::Done call) {
  std::exception_ptr failure;
  {
    std::lock_guard lock(mutex_);
    failure = failure_;
    if (round > done_ && !failure) {
      awaited_ = round;
      waiting_ = std::move(call);
      return;
    }
  }
  call(failure);
}

void SumRounds::wait(int64_t round) {
  std::promise<void> ended;
  when_done(round, [&ended](std::exception_ptr error) { error ? ended.set_exception(error) : ended.set_value(); });
  ended.get_future().get();
}

void SumRounds::ended(int64_t round, std::exception_ptr error) {
  if (error) return fail(error);
  Communicator::Done call;
  {
    std::lock_guard lock(mutex_);
    done_ = round;
    if (awaited_ <= done_) std::swap(call, waiting_);
  }
  if (call) call(nullptr);
}

void SumRounds::fail(std::exception_ptr error) {
  Communicator::Done call;
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    std::swap(call, waiting_);
  }
  if (call) call(error);
}

void SumRounds::restart(int64_t first) {
  std::lock_guard lock(mutex_);
  done_ = first - 1;
}

}  // namespace trireme
