#include "trireme/spec/pass_bytes.h"

#include <algorithm>
#include <cmath>

#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

int64_t whole(double bytes) { return std::llround(std::min(bytes, 9e18)); }

// As a rank's part of the model goes through both passes: see train/stage_passes.cpp.
class Part {
 public:
  Part(const LayerTable& table, size_t begin, size_t end, const ReplayConditions& conditions, size_t recomputed)
      : table_(table), begin_(begin), end_(end), recomputed_(recomputed), pass_(conditions, table.element_bytes) {
    bytes_.input = whole(take_inputs());
  }

  PassBytes forward() {
    const double before = pass_.held();
    pass_.begin_most();
    {
      auto x = through_layers();
      if (last()) {
        loss_ = replay::cross_entropy(pass_, x);
      } else {
        outputs_.push_back(std::move(x));
        for (size_t k = 0; k < table_.skips.size(); ++k) {
          if (holds(table_.skips[k].from) && !holds(table_.skips[k].to)) outputs_.push_back(skipped_[k]);
        }
      }
    }
    skipped_.clear();
    double handed_on = 0;
    for (const auto& output : outputs_) handed_on += pass_.bytes_of(output);
    bytes_.output = whole(handed_on);
    bytes_.kept = whole(pass_.held() - before - handed_on);
    bytes_.forward_most = whole(pass_.most() - before);
    return bytes_;
  }

  PassBytes both() {
    forward();
    backward();
    return bytes_;
  }

 private:
  bool first() const { return begin_ == 0; }
  bool last() const { return end_ == table_.layers.size(); }
  bool holds(size_t layer) const { return begin_ <= layer && layer < end_; }
  double elements(int64_t of_a_sample) const { return pass_.samples() * static_cast<double>(of_a_sample); }

  double take_inputs() {
    if (first()) {
      const auto element = table_.layers.front().takes_ids ? Element::index : Element::value;
      inputs_.push_back(pass_.make(elements(table_.input), element));
    } else {
      inputs_.push_back(pass_.leaf(elements(table_.layers[begin_ - 1].output)));
    }
    skipped_.resize(table_.skips.size());
    for (size_t k = 0; k < table_.skips.size(); ++k) {
      const auto& skip = table_.skips[k];
      if (holds(skip.from) || !holds(skip.to)) continue;
      skipped_[k] = pass_.leaf(elements(table_.layers[skip.from].output));
      inputs_.push_back(skipped_[k]);
    }
    return pass_.held();
  }

  // See Model::forward.
  ReplayTensor through_layers() {
    auto x = inputs_.front();
    for (size_t i = begin_; i < end_; ++i) {
      for (size_t k = 0; k < table_.skips.size(); ++k) {
        if (table_.skips[k].to == i) x = replay::add(pass_, x, skipped_[k]);
      }
      if (i < recomputed_) {
        x = pass_.recomputed(table_, i, x);
      } else {
        x = pass_.through(table_, i, x);
      }
      for (size_t k = 0; k < table_.skips.size(); ++k) {
        if (table_.skips[k].from == i) skipped_[k] = x;
      }
    }
    return x;
  }

  void backward() {
    const double before = pass_.held();
    pass_.begin_most();
    ReplayTensors gradients;
    if (last()) {
      pass_.backward({loss_}, {pass_.make(1, Element::wide)});
    } else {
      for (const auto& output : outputs_) {
        gradients.push_back(pass_.like(output));
        gradients.back().channels_last = false;  // a message lies as tensors do by default
      }
      pass_.backward(outputs_, gradients);
    }
    gradients.clear();
    const auto returned = gradients_of_inputs();
    for (const auto& gradient : returned) bytes_.input_gradient += whole(pass_.bytes_of(gradient));
    inputs_.clear();
    outputs_.clear();
    loss_ = {};
    bytes_.waiting = whole(pass_.waiting_bytes());
    if (pass_.conditions().weights == WeightGradients::at_the_end) pass_.write_gradients();
    bytes_.backward_most = whole(pass_.most() - before);
    bytes_.recomputed_most = whole(std::max(0.0, pass_.recomputed_most() - before));
    const double waiting = pass_.held();
    pass_.begin_most();
    pass_.write_gradients();
    bytes_.weights_most = whole(pass_.most() - waiting);
  }

  ReplayTensors gradients_of_inputs() const {
    ReplayTensors gradients;
    for (const auto& input : inputs_) {
      if (input.needs_gradient()) gradients.push_back(pass_.gradient_of(input));
    }
    return gradients;
  }

  const LayerTable& table_;
  const size_t begin_, end_, recomputed_;
  PassBytes bytes_;
  Replay pass_;
  ReplayTensors inputs_, skipped_, outputs_;
  ReplayTensor loss_;
};

}  // namespace

PassBytes pass_bytes(const LayerTable& table, size_t begin, size_t end, const ReplayConditions& conditions,
                     size_t recomputed) {
  return Part(table, begin, end, conditions, recomputed).both();
}

PassBytes forward_bytes(const LayerTable& table, size_t begin, size_t end, const ReplayConditions& conditions,
                        size_t recomputed) {
  return Part(table, begin, end, conditions, recomputed).forward();
}

}  // namespace trireme
