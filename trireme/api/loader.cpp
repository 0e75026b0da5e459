#include "trireme/api/loader.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/spec/share.h"

namespace trireme {

Loader::Loader(std::shared_ptr<const Dataset> dataset, World& world, const LoaderOptions& options)
    : dataset_(std::move(dataset)) {
  if (dataset_->size() < 1) refuse("Loader: the dataset is empty");
  if (options.batch < world.size())
    refuse("Loader: a batch of {} cannot be dealt to {} ranks: each needs a sample", options.batch, world.size());
  const auto share = share_of(options.batch, world.rank(), world.size());
  weight_ = static_cast<double>(share.count) / static_cast<double>(options.batch);
  steps_ = options.steps > 0 ? options.steps : std::max<int64_t>(1, dataset_->size() / options.batch);
  loader_ = std::make_unique<StepLoader>(*dataset_, SampleOrder(dataset_->size(), options.batch, options.seed),
                                         microbatches(share, 0), options.first_step);
}

LoadedBatch Loader::next() {
  auto loaded = loader_->next();
  auto& whole = loaded.microbatches.front();
  return {dataset_->decode(whole.inputs), std::move(whole.targets), weight_, loaded.step};
}

}  // namespace trireme
