// Several versions of a store's values, for pipelines whose stages go on before the microbatches that they have passed
// forward come back: a microbatch's backward pass must see the weights that its forward pass saw (weight stashing). A
// version is kept as long as somebody holds it; its memory then serves for the next one.
//
// The optimizer always works on the newest. Before it changes anything, advance() leaves what there is as a version and
// goes on in other memory, so nothing that a forward pass has saved is ever written to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/optim/store.h"

namespace trireme {

class WeightVersions {
 public:
  explicit WeightVersions(ParameterStore& store);

  int64_t newest() const { return newest_; }
  // The model computes with this version from now on, which must be the newest or held.
  void use(int64_t version);
  void hold(int64_t version);
  void release(int64_t version);
  // Versions from this one on are kept though nobody holds them yet.
  void keep_from(int64_t version);
  int64_t oldest() const { return versions_.begin()->first; }

  // Makes the newest version, which is what it was until the optimizer changes it. The caller publishes the masters.
  void advance();

  // How many versions there are, and the most there ever were; bytes of those besides the newest.
  int64_t count() const { return static_cast<int64_t>(versions_.size()); }
  int64_t most() const { return most_; }
  int64_t bytes() const;

  // For checkpoints: the values of all versions, by number and bucket; and back again. The newest one's are the
  // store's.
  struct Version {
    std::vector<at::Tensor> values;               // by bucket
    std::map<const Parameter*, at::Tensor> wide;  // copies of what is computed with in the master's type
    int64_t holders = 0;
  };
  const std::map<int64_t, Version>& all() const { return versions_; }
  void restore(int64_t newest, std::map<int64_t, Version> older);

 private:
  Version take_newest() const;
  void drop_unheld();

  ParameterStore& store_;
  std::map<int64_t, Version> versions_;
  std::vector<std::vector<at::Tensor>> spare_;  // by bucket: memory for versions to come
  int64_t newest_ = 0, in_use_ = 0, most_ = 1, kept_from_ = 0;
};

}  // namespace trireme
