// Numbered examples of a user's own as a dataset: whatever has size() and get(index) that gives something with `data`
// and `target`, as torch::data's datasets do.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme {

template <class Examples>
class ExampleDataset final : public Dataset {
 public:
  explicit ExampleDataset(Examples examples) : examples_(std::move(examples)) {}

  int64_t size() const override {
    if constexpr (requires { examples_.size().value(); }) {
      return static_cast<int64_t>(examples_.size().value());  // torch::data's is optional
    } else {
      return static_cast<int64_t>(examples_.size());
    }
  }

  Batch get(std::span<const int64_t> samples) const override {
    check_in_range(samples);
    std::vector<at::Tensor> inputs, targets;
    for (const int64_t sample : samples) {
      auto example = examples_.get(static_cast<size_t>(sample));
      inputs.push_back(std::move(example.data));
      targets.push_back(std::move(example.target));
    }
    return {at::stack(inputs), at::stack(targets)};
  }

  int64_t vocab() const override { return 0; }
  int64_t items_per_sample() const override { return 1; }
  std::string items() const override { return "samples"; }
  std::string describe() const override { return std::to_string(size()) + " samples of the program's own"; }

 private:
  mutable Examples examples_;  // torch's get() is not const
};

template <class Examples>
std::shared_ptr<const Dataset> as_dataset(Examples examples) {
  if constexpr (std::is_convertible_v<Examples, std::shared_ptr<const Dataset>>) {
    return examples;
  } else {
    return std::make_shared<ExampleDataset<Examples>>(std::move(examples));
  }
}

}  // namespace trireme
