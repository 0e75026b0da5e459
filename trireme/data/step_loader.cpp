#include "trireme/data/step_loader.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/observe/ledger.h"

namespace trireme {

StepLoader::StepLoader(const Dataset& dataset, SampleOrder order, std::vector<Share> pieces, int64_t first_step,
                       const StepLoaderOptions& options)
    : dataset_(dataset),
      order_(order),
      pieces_(std::move(pieces)),
      options_(options),
      slots_(static_cast<size_t>(options.threads)),
      taken_(first_step),
      begun_(first_step) {
  if (order.samples() != dataset.size()) {
    fail("an order of {} samples does not fit a dataset of {}", order.samples(), dataset.size());
  }
  for (int i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this, samples = Holding{holding().counts, Owner::samples}](const std::stop_token& stop) {
      const OwnerScope scope(samples);
      build(stop);
    });
  }
}

LoadedStep StepLoader::next() {
  std::unique_lock lock(mutex_);
  auto& slot = slot_of(taken_);
  changed_.wait(lock, [&] { return slot.step || slot.failure; });
  if (slot.failure) std::rethrow_exception(slot.failure);
  LoadedStep step = std::move(*slot.step);
  slot.step.reset();
  ++taken_;
  lock.unlock();
  changed_.notify_all();
  return step;
}

LoadedStep StepLoader::load(int64_t step) const {
  LoadedStep loaded;
  loaded.step = step;
  loaded.microbatches.reserve(pieces_.size());
  const auto placed = [&](const at::Tensor& tensor) {
    return options_.pinned && tensor.defined() ? tensor.pin_memory() : tensor;
  };
  std::vector<int64_t> samples;
  order_.fill(step, 0, order_.batch(), samples);
  loaded.learnt_targets = dataset_.learnt_targets(samples);
  for (const Share& piece : pieces_) {
    at::Tensor positions = at::empty({piece.count}, at::kLong);
    int64_t* position = positions.mutable_data_ptr<int64_t>();
    std::iota(position, position + piece.count, order_.position(step) + piece.first);
    Batch batch;
    if (options_.reads) {
      order_.fill(step, piece.first, piece.count, samples);
      batch = dataset_.get(samples);
      dataset_.augment(batch, {position, samples.size()});
    }
    loaded.microbatches.push_back({placed(batch.inputs), placed(batch.targets), placed(batch.starts), positions});
  }
  return loaded;
}

StepLoader::Slot StepLoader::attempt(int64_t step) const {
  try {
    return {load(step), nullptr};
  } catch (Error& error) {
    error.add_context(fmt::format("loading step {}", step));
    return {std::nullopt, std::current_exception()};
  } catch (...) {
    return {std::nullopt, std::current_exception()};
  }
}

// Begins a step only when its slot was emptied, so that no more steps are alive than threads, and the one in use.
void StepLoader::build(const std::stop_token& stop) {
  const auto may_begin = [&] { return failed_ || begun_ < taken_ + options_.threads; };
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, may_begin) && !failed_ && !stop.stop_requested()) {
    const int64_t step = begun_++;
    lock.unlock();
    Slot built = attempt(step);
    lock.lock();
    failed_ = failed_ || built.failure;
    slot_of(step) = std::move(built);
    changed_.notify_all();
  }
}

}  // namespace trireme
