// Sums of what is laid out like the store's buckets, over the ranks that hold them: by an all-reduce, or, with a codec,
// in fewer bytes (comm/compressed_sum).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/comm/compressed_sum.h"
#include "trireme/observe/recorder.h"
#include "trireme/optim/store.h"
#include "trireme/spec/config.h"

namespace trireme {

class BucketSums {
 public:
  // `groups`: by bucket, who holds it. With a codec all ranks of the world must make the same groups' sums here, since
  // each gets a group of its own for them.
  BucketSums(const CodecConfig& codec, uint64_t seed, const ParameterStore& store, Communicator& communicator,
             Recorder& recorder, std::vector<Group> groups);

  // Sums a tensor that is laid out like the bucket, in place. The same buckets in the same order on all ranks. `number`
  // is that of the step or round: random rounding is a function of it, so that a resumed run draws the same.
  void start(size_t bucket, const at::Tensor& tensor, int64_t number, const char* name, Communicator::Done done);

  bool compresses() const { return codec_.kind != CodecKind::none; }
  // What sums have cost since the last call.
  SumTraffic take_traffic();
  double residual_norm() const;  // of what this rank has left to say; between sums

  // What this rank keeps of its own, by name.
  std::map<std::string, at::Tensor> own_state() const;

 private:
  struct Gap {
    int64_t offset, count;
  };
  static std::vector<Gap> gaps_of(const Bucket& bucket, int64_t begin, int64_t end);
  void sum(size_t bucket, int64_t number, const Courier& courier, const at::Tensor& share);

  const CodecConfig codec_;
  const Key noise_;
  Communicator& communicator_;
  Recorder& recorder_;
  const std::vector<Group> groups_;                   // by bucket
  std::vector<std::unique_ptr<CompressedSum>> sums_;  // by bucket; none where this rank carries nothing
  std::vector<std::vector<Gap>> gaps_;                // by bucket: in what this rank carries of it
  std::mutex mutex_;
  SumTraffic traffic_;
};

}  // namespace trireme
