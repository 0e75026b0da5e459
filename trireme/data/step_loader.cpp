#include "trireme/data/step_loader.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

StepLoader::StepLoader(const Dataset& dataset, SampleOrder order, std::vector<Share> pieces, int64_t first_step)
    : dataset_(dataset), order_(order), pieces_(std::move(pieces)) {
  if (order.samples() != dataset.size()) {
    fail("an order of {} samples does not fit a dataset of {}", order.samples(), dataset.size());
  }
  thread_ = std::jthread([this, first_step](std::stop_token stop) { prefetch(std::move(stop), first_step); });
}

LoadedStep StepLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  LoadedStep step = std::move(*ready_);
  ready_.reset();
  lock.unlock();
  changed_.notify_all();
  return step;
}

LoadedStep StepLoader::load(int64_t step) const {
  LoadedStep loaded;
  loaded.step = step;
  loaded.microbatches.reserve(pieces_.size());
  std::vector<int64_t> samples;
  order_.fill(step, 0, order_.batch(), samples);
  loaded.learnt_targets = dataset_.learnt_targets(samples);
  for (const Share& piece : pieces_) {
    order_.fill(step, piece.first, piece.count, samples);
    Batch batch = dataset_.get(samples);
    at::Tensor positions = at::empty({piece.count}, at::kLong);
    int64_t* position = positions.mutable_data_ptr<int64_t>();
    std::iota(position, position + piece.count, order_.position(step) + piece.first);
    dataset_.augment(batch, {position, samples.size()});
    loaded.microbatches.push_back(
        {std::move(batch.inputs), std::move(batch.targets), std::move(batch.starts), std::move(positions)});
  }
  return loaded;
}

// Builds a step only once the one before it was taken, so that no more than two are alive: one in use, one ready.
void StepLoader::prefetch(std::stop_token stop, int64_t first_step) {
  int64_t step = first_step;
  const auto publish = [&](auto&& store) {
    {
      const std::lock_guard lock(mutex_);
      store();
    }
    changed_.notify_all();
  };
  try {
    for (;; ++step) {
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return !ready_; })) return;
      }
      if (stop.stop_requested()) return;
      publish([&, loaded = load(step)]() mutable { ready_ = std::move(loaded); });
    }
  } catch (Error& error) {
    error.add_context(fmt::format("loading step {}", step));
    publish([&] { failure_ = std::current_exception(); });
  } catch (...) {
    publish([&] { failure_ = std::current_exception(); });
  }
}

}  // namespace trireme
