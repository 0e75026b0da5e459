#include "trireme/spec/replay.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

class ReplayMemory {
 public:
  ReplayMemory(Replay& replay, double bytes) : replay_(replay), bytes_(bytes) {
    replay_.held_ += bytes_;
    replay_.most_ = std::max(replay_.most_, replay_.held_);
  }
  ~ReplayMemory() { replay_.held_ -= bytes_; }
  ReplayMemory(const ReplayMemory&) = delete;
  ReplayMemory& operator=(const ReplayMemory&) = delete;

  double bytes() const { return bytes_; }

 private:
  Replay& replay_;
  const double bytes_;
};

// An operation that waits for its backward pass. Of a leaf, the gradient that has come.
struct ReplayNode {
  struct Edge {
    ReplayNode* to = nullptr;
    size_t output = 0;
  };
  uint64_t number = 0;  // the later an operation was called, the earlier its backward pass
  bool is_leaf = false;
  bool channels_last = false;  // how a leaf lies
  std::vector<Edge> edges;     // where the gradients of its inputs go
  ReplayTensors saved, gradients;
  Replay::Backward backward;
  size_t awaited = 0;  // gradients that are still to come
  bool seen = false;
};

ReplayTensor ReplayTensor::detached() const {
  auto tensor = *this;
  tensor.source = nullptr;
  return tensor;
}

Replay::Replay(const ReplayConditions& conditions, int64_t element_bytes)
    : conditions_(conditions), element_bytes_(element_bytes) {}
Replay::~Replay() = default;

double Replay::bytes_of(Element element) const {
  switch (element) {
    case Element::value: return static_cast<double>(element_bytes_);
    case Element::wide: return static_cast<double>(std::max<int64_t>(4, element_bytes_));
    case Element::exact:
    case Element::index: return 8;
  }
  fail("no such element");
}

namespace {

// A layer that has not said what it does keeps what goes in and what comes out.
ReplayTensor unknown_layer(Replay& pass, const ReplayTensor& x, double elements) {
  auto y = pass.make(elements);
  return pass.record(y, {x}, true, {x, y}, [&pass](const ReplayTensors& saved, const ReplayTensors&) {
    return ReplayTensors{pass.like(saved[0])};
  });
}

}  // namespace

ReplayTensor Replay::through(const LayerTable& table, size_t layer, const ReplayTensor& x) {
  table_ = &table;
  layer_ = layer;
  const auto& spec = table.layers[layer];
  return spec.replay ? spec.replay(*this, x) : unknown_layer(*this, x, samples() * static_cast<double>(spec.output));
}

bool Replay::trained(size_t place) const { return table_->weights.at(table_->layers[layer_].uses.at(place)).trained; }

ReplayTensor Replay::make(double elements, Element element) {
  ReplayTensor tensor;
  tensor.elements = elements;
  tensor.element = element;
  tensor.memory = std::make_shared<ReplayMemory>(*this, elements * bytes_of(element));
  return tensor;
}

ReplayTensor Replay::like(const ReplayTensor& other, Element element) {
  auto tensor = make(other.elements, element);
  tensor.channels_last = other.channels_last;
  return tensor;
}

void Replay::use_scratch(double bytes) { most_ = std::max(most_, held_ + bytes); }

ReplayNode* Replay::add_node() {
  auto& node = nodes_.emplace_back();
  node.number = nodes_.size();
  return &node;
}

void Replay::become_leaf(ReplayTensor& tensor) {
  tensor.source = add_node();
  tensor.source->is_leaf = true;
  tensor.source->channels_last = tensor.channels_last;
  tensor.source->number = std::numeric_limits<uint64_t>::max();  // its turn is at once
  tensor.source->gradients.resize(1);
}

ReplayTensor Replay::leaf(double elements) {
  auto tensor = make(elements);
  become_leaf(tensor);
  return tensor;
}

ReplayTensor Replay::gradient_of(const ReplayTensor& leaf) const {
  return leaf.source->saved.empty() ? ReplayTensor() : leaf.source->saved.front();
}

void Replay::record(const std::vector<ReplayTensor*>& results, const ReplayTensors& inputs, bool trains,
                    ReplayTensors saved, Backward backward) {
  const bool needed = std::any_of(inputs.begin(), inputs.end(), [](const auto& x) { return x.needs_gradient(); });
  if (!records_ || !(needed || trains)) return;
  auto* node = add_node();
  for (const auto& input : inputs) node->edges.push_back({input.source, input.output});
  // Gradients do not travel by what is kept.
  for (auto& tensor : saved) tensor.source = nullptr;
  node->saved = std::move(saved);
  node->backward = std::move(backward);
  node->gradients.resize(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    results[i]->source = node;
    results[i]->output = i;
  }
}

ReplayTensor Replay::record(ReplayTensor result, const ReplayTensors& inputs, bool trains, ReplayTensors saved,
                            Backward backward) {
  record({&result}, inputs, trains, std::move(saved), std::move(backward));
  return result;
}

// A second gradient is added to the first, in its place if nobody else has that.
void Replay::accumulate(ReplayTensor& sum, ReplayTensor gradient) {
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (sum.memory.use_count() > 1 || sum.viewed) {
    sum = like(sum);
  }
}

void Replay::backward(const ReplayTensors& results, const ReplayTensors& gradients) {
  std::vector<ReplayNode*> found;
  const auto find = [&](ReplayNode* node) {
    if (node == nullptr) return;
    ++node->awaited;
    if (!std::exchange(node->seen, true)) found.push_back(node);
  };
  for (const auto& result : results) find(result.source);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& edge : found[i]->edges) find(edge.to);
  }
  const auto later = [](const ReplayNode* left, const ReplayNode* right) { return left->number < right->number; };
  std::priority_queue<ReplayNode*, std::vector<ReplayNode*>, decltype(later)> ready(later);
  const auto arrive = [&](const ReplayNode::Edge& edge, ReplayTensor gradient) {
    if (edge.to == nullptr) return;
    if (gradient.defined()) accumulate(edge.to->gradients[edge.output], std::move(gradient));
    if (--edge.to->awaited == 0) ready.push(edge.to);
  };
  for (size_t i = 0; i < results.size(); ++i) arrive({results[i].source, results[i].output}, gradients[i]);
  while (!ready.empty()) {
    auto& node = *ready.top();
    ready.pop();
    auto arrived = std::exchange(node.gradients, {});
    if (node.is_leaf) {
      // Taken as it is, if nobody else has it and it lies as the leaf does.
      const bool taken = arrived[0].memory.use_count() == 1 && arrived[0].channels_last == node.channels_last;
      node.saved.push_back(taken ? arrived[0] : like(arrived[0]));
      continue;
    }
    auto passed = node.backward(node.saved, arrived);
    arrived.clear();
    node.saved.clear();
    node.backward = nullptr;
    for (size_t i = 0; i < node.edges.size(); ++i) arrive(node.edges[i], std::exchange(passed[i], {}));
  }
}

void Replay::write_gradient(const ReplayTensor& left, const ReplayTensor& right, std::function<void()> compute) {
  if (conditions_.weights == WeightGradients::at_once) return compute();
  writes_.push_back({left, right, std::move(compute)});
}

void Replay::write_gradients() {
  for (auto& write : writes_) {
    write.compute();
    write = {};
  }
  writes_.clear();
}

double Replay::waiting_bytes() const {
  std::set<const ReplayMemory*> seen;
  double bytes = 0;
  for (const auto& write : writes_) {
    for (const auto* tensor : {&write.left, &write.right}) {
      if (tensor->defined() && seen.insert(tensor->memory.get()).second) bytes += tensor->memory->bytes();
    }
  }
  return bytes;
}

ReplayTensor Replay::recomputed(const LayerTable& table, size_t layer, const ReplayTensor& x) {
  const auto& uses = table.layers[layer].uses;
  const bool learns = x.needs_gradient() || std::any_of(uses.begin(), uses.end(),
                                                        [&](size_t one) { return table.weights[one].trained; });
  if (!records_ || !learns) return through(table, layer, x);
  records_ = false;
  auto y = through(table, layer, x.detached());
  records_ = true;
  const auto backward = [this, &table, layer, needed = x.needs_gradient()](const ReplayTensors& saved,
                                                                           const ReplayTensors& gradients) {
    auto input = saved[0];
    if (needed) become_leaf(input);
    const auto output = through(table, layer, input);
    recomputed_most_ = std::max(recomputed_most_, held_);
    this->backward({output}, gradients);
    if (!needed) return ReplayTensors(1);
    return std::exchange(input.source->saved, {});
  };
  return record(std::move(y), {x}, /*trains=*/true, {x}, backward);
}

}  // namespace trireme
