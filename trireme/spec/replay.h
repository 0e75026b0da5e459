// A forward and a backward pass played through without tensors. Layers are called as in the room nn, each operation
// allocates and frees what the one there does, and gradients travel back in the order in which LibTorch's autograd sends
// them. Nothing is computed: what comes out is how many bytes are held at each moment. The operations are declared in
// replay_functions.h, whole passes in pass_bytes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/spec/layer.h"

namespace trireme {

// What a tensor is made of: the values' own type; that of sums and statistics, which is fp32 at least; fp64; or int64.
enum class Element : uint8_t { value, wide, exact, index };

struct ReplayNode;
class ReplayMemory;  // bytes that are held as long as somebody refers to them

// Copies and views share their memory, as copies and views of LibTorch's tensors do.
struct ReplayTensor {
  double elements = 0;
  Element element = Element::value;
  bool channels_last = false;    // how an image lies in memory
  bool viewed = false;           // LibTorch makes no sums in the place of such a tensor
  ReplayNode* source = nullptr;  // the operation that its gradient goes to; null: it needs none
  size_t output = 0;             // which of that operation's results it is
  std::shared_ptr<ReplayMemory> memory;

  bool defined() const { return memory != nullptr; }
  bool needs_gradient() const { return source != nullptr; }
  // The same memory, which no gradient comes back through.
  ReplayTensor detached() const;
};
using ReplayTensors = std::vector<ReplayTensor>;

// When the gradients of weights are computed: inside of the backward pass; at its end, when the gradient of its input has
// gone; or some time later.
enum class WeightGradients : uint8_t { at_once, at_the_end, later };

struct ReplayConditions {
  int64_t samples = 1;
  int threads = 1;   // that compute
  bool adds = true;  // An earlier microbatch has left gradients of weights, which others are added to.
  WeightGradients weights = WeightGradients::at_once;
};

class Replay {
 public:
  // Of the saved tensors and the gradients of the results: the gradients of the inputs.
  using Backward = std::function<ReplayTensors(const ReplayTensors& saved, const ReplayTensors& gradients)>;

  // A value has so many bytes: 2 for bf16, 4 or 8.
  Replay(const ReplayConditions& conditions, int64_t element_bytes);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  const ReplayConditions& conditions() const { return conditions_; }
  double samples() const { return static_cast<double>(conditions_.samples); }
  // The values' type.
  bool is_bf16() const { return element_bytes_ == 2; }
  bool is_fp32() const { return element_bytes_ == 4; }
  double bytes_of(Element element) const;
  double bytes_of(const ReplayTensor& tensor) const { return tensor.elements * bytes_of(tensor.element); }

  // Passes a layer: gives its output.
  ReplayTensor through(const LayerTable& table, size_t layer, const ReplayTensor& x);
  // The same for a layer that keeps its input alone: see nn/recompute.h.
  ReplayTensor recomputed(const LayerTable& table, size_t layer, const ReplayTensor& x);
  // Whether a parameter of that layer is trained. It is known by its place among those that the layer uses.
  bool trained(size_t place) const;

  ReplayTensor make(double elements, Element element = Element::value);
  ReplayTensor like(const ReplayTensor& other) { return like(other, other.element); }
  ReplayTensor like(const ReplayTensor& other, Element element);
  // Memory that an operation takes and gives back before it ends.
  void use_scratch(double bytes);
  // A tensor that a gradient is wanted of.
  ReplayTensor leaf(double elements);
  ReplayTensor gradient_of(const ReplayTensor& leaf) const;  // undefined if none has come

  // Says that `results` come from `inputs`. If any of these needs a gradient, or the operation trains a parameter, then
  // `saved` is kept until the gradients of the results have come back.
  void record(const std::vector<ReplayTensor*>& results, const ReplayTensors& inputs, bool trains, ReplayTensors saved,
              Backward backward);
  // The same for an operation with one result, which it gives back.
  ReplayTensor record(ReplayTensor result, const ReplayTensors& inputs, bool trains, ReplayTensors saved,
                      Backward backward);
  void backward(const ReplayTensors& results, const ReplayTensors& gradients);
  // Computes a weight's gradient from these two, now or later.
  void write_gradient(const ReplayTensor& left, const ReplayTensor& right, std::function<void()> compute);
  // Computes what was put off.
  void write_gradients();
  // The bytes that it keeps until then.
  double waiting_bytes() const;

  double held() const { return held_; }
  double most() const { return most_; }
  void begin_most() { most_ = held_; }
  // The most that was held when a layer had just been computed again.
  double recomputed_most() const { return recomputed_most_; }

 private:
  friend class ReplayMemory;
  struct Write {
    ReplayTensor left, right;
    std::function<void()> compute;
  };

  void accumulate(ReplayTensor& sum, ReplayTensor gradient);
  ReplayNode* add_node();
  void become_leaf(ReplayTensor& tensor);

  const ReplayConditions conditions_;
  const int64_t element_bytes_;
  double held_ = 0, most_ = 0, recomputed_most_ = 0;
  bool records_ = true;
  const LayerTable* table_ = nullptr;
  size_t layer_ = 0;
  std::deque<ReplayNode> nodes_;
  std::vector<Write> writes_;
};

}  // namespace trireme
