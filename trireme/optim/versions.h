// Several versions of a store's values, for pipelines whose stages go on before the microbatches that they have passed
// forward come back: a microbatch's backward pass must see the weights that its forward pass saw (weight stashing). A
// version is kept as long as somebody holds it; its memory then serves for the next one.
//
// The optimizer always works on the newest. Before it changes anything, advance() leaves what there is as a version and
// goes on in other memory, so nothing that a forward pass has saved is ever written to.
//
// A version may be a prediction: what the model computes with is not W(v) but W(v) + a (W(v) - W(v-1)), the weights as
// they will be a changes later if they go on as they just went. Gradients of weights that are a changes old then fit
// the weights that they change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "trireme/optim/store.h"

namespace trireme {

class WeightVersions {
 public:
  explicit WeightVersions(ParameterStore& store);

  // From now on versions are predictions, so many changes ahead; 0 = none. The masters then have memory of their own.
  void predict(double changes);
  bool predicts() const { return ahead_ > 0; }

  int64_t newest() const { return newest_; }
  // The model computes with this version from now on, which must be the newest or held.
  void use(int64_t version);
  // The same with the masters themselves, up to the next use().
  void use_masters();
  void hold(int64_t version);
  void release(int64_t version);
  // Versions from this one on are kept though nobody holds them yet.
  void keep_from(int64_t version);
  int64_t oldest() const { return versions_.begin()->first; }

  // Makes the newest version, whose values are those of the last one until change() has been called for each bucket.
  void advance();
  // The optimizer changes a bucket's masters, and the newest version follows.
  void change(size_t bucket, const std::function<void(Bucket&)>& optimize);

  // How many versions there are, and the most there ever were; bytes of those besides the newest.
  int64_t count() const { return static_cast<int64_t>(versions_.size()); }
  int64_t most() const { return most_; }
  int64_t bytes() const;

  // For checkpoints: the values of all versions, by number and bucket; and back again. The newest one's are the
  // store's, if it is no prediction.
  struct Version {
    std::vector<at::Tensor> values;               // by bucket
    std::map<const Parameter*, at::Tensor> wide;  // copies of what is computed with in the master's type
    int64_t holders = 0;
  };
  const std::map<int64_t, Version>& all() const { return versions_; }
  void restore(int64_t newest, std::map<int64_t, Version> versions);

 private:
  Version take_newest() const;
  void drop_unheld();
  at::Tensor fresh_values(size_t bucket);

  ParameterStore& store_;
  std::map<int64_t, Version> versions_;
  std::vector<std::vector<at::Tensor>> spare_;  // by bucket: memory for versions to come
  at::Tensor before_;                           // a bucket's masters, while they change
  int64_t newest_ = 0, in_use_ = 0, most_ = 1, kept_from_ = 0;
  double ahead_ = 0;
};

}  // namespace trireme
