// Three arms of a spiral: points of the plane, and which arm each is on.
#pragma once

#include <torch/torch.h>

#include <cmath>

struct Spirals : torch::data::datasets::Dataset<Spirals> {
  torch::data::Example<> get(size_t i) override {
    const double arm = static_cast<double>(i % 3), r = 0.1 + static_cast<double>(i) / 3000, a = 6 * r + 2.1 * arm;
    return {torch::tensor({r * std::cos(a), r * std::sin(a)}), torch::tensor(static_cast<int64_t>(i % 3))};
  }
  std::optional<size_t> size() const override { return 3000; }
};
