// The parameter store owns a model's state: parameters, gradients and what the optimizer keeps, as flat buffers cut
// into buckets. The model's parameters and gradient slots are views of these buffers. Buckets are filled in the order
// in which gradients become ready, so that the first can be reduced while the backward pass goes on. Frozen parameters
// are in no bucket: they are values and nothing else, and nobody changes or sends them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/nn/parameter.h"
#include "trireme/observe/ledger.h"
#include "trireme/spec/buckets.h"
#include "trireme/spec/config.h"

namespace trireme {

// One parameter's place in its bucket.
struct StoredParameter {
  ParameterPtr parameter;
  int64_t offset = 0;  // elements from the start of the bucket
};

struct Bucket : BucketShape {
  std::vector<StoredParameter> parameters;
  at::Tensor values;     // what the model computes with
  at::Tensor master;     // what the optimizer changes: fp32 beside bf16 values, otherwise the values themselves
  at::Tensor gradients;  // of the master's type
  std::map<std::string, at::Tensor> state;  // the optimizer's, by its name for it
};

class ParameterStore {
 public:
  // Gives zeroed bytes for gradients; a communicator's allocate() makes them reachable for the ranks that share them.
  using Allocate = std::function<at::Tensor(int64_t bytes, int tie)>;

  ParameterStore(const ParameterList& parameters, Precision precision, at::Device device, double bucket_bytes,
                 const Allocate& allocate);

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  const ParameterList& frozen() const { return frozen_; }
  // What a checkpoint holds of each parameter: its piece of the masters, or a frozen one's value.
  std::map<const Parameter*, at::Tensor> masters() const;

  // Values that parameters start with, drawn where they lie: see draw(). Those that somebody gave stay as they are.
  void draw(uint64_t seed);

  // Before a step: the next gradients overwrite instead of adding.
  void begin_step();
  // After the masters changed: the model's values follow (where they are not the same memory).
  static void publish(Bucket& bucket);

  // Makes the values, masters and optimizer state of a bucket those of another store's in this process; gradients stay
  // this one's own. Changes of one are not counted as changes of the other.
  void share(size_t bucket, const Bucket& with);

  // A bucket's buffer as seen by one parameter, in its shape and order of elements.
  static at::Tensor piece(const at::Tensor& buffer, const StoredParameter& stored);

 private:
  std::vector<Bucket> buckets_;
  ParameterList frozen_;
};

// The type that a precision computes with, and that its optimizer works in.
at::ScalarType value_type(Precision precision);
at::ScalarType master_type(Precision precision);

}  // namespace trireme
