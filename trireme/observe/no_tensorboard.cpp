#include "trireme/base/log.h"
#include "trireme/observe/tensorboard.h"

namespace trireme {

std::unique_ptr<MetricSink> make_tensorboard(const std::filesystem::path&, int64_t) {
  log::warn("no TensorBoard files: this program was built without protozero; install libprotozero-dev and build again");
  return nullptr;
}

bool tensorboard_built() { return false; }

}  // namespace trireme
