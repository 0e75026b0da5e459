// Hogwild (Recht et al., 2011): the ranks are threads of one process, and share one copy of the parameters and of the
// optimizer's state. Each changes it by its own gradients when it has them, without any lock; an update counts as the
// rank's share of a step (its learning rate is that share of the whole one). What two threads write at the same moment
// may get lost, and that is what the method bears.
#include <ATen/ATen.h>

#include "trireme/parallel/free_sync.h"
#include "trireme/parallel/loose_kinds.h"

namespace trireme {

namespace {

class HogwildSync final : public FreeSync {
 public:
  using FreeSync::FreeSync;

  void begin() override {
    share_store();
    FreeSync::begin();
  }

  void update(const OwnStep& step) override {
    told(step);
    step_alone(step, replica_.share);
  }

  void with_agreed(bool, const std::function<void()>& use) override {
    use();
    // Nobody changes the one copy while another rank still reads it.
    communicator().now([&] { return communicator().barrier("the store was read"); });
  }

 private:
  // All ranks' buckets become views of the first one's. Views by address, because torch forbids that what is kept for a
  // backward pass changes before it, and counts changes of what it knows to be one tensor.
  void share_store() {
    const auto address = at::full({1}, reinterpret_cast<int64_t>(&buckets()), at::kLong);
    communicator().now([&] { return communicator().broadcast(address, 0, "share the store"); });
    if (rank() != 0) {
      const auto& first = *reinterpret_cast<std::vector<Bucket>*>(address.item<int64_t>());
      for (size_t b = 0; b < buckets().size(); ++b) replica_.store.share(b, first[b]);
    }
    communicator().now([&] { return communicator().barrier("the store is shared"); });
  }
};

}  // namespace

std::unique_ptr<LooseSync> make_hogwild_sync(const Replica& replica) { return std::make_unique<HogwildSync>(replica); }

}  // namespace trireme
