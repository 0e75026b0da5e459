// The layer table: what each layer of a model costs, per sample, before anything is run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct LayerSpec {
  std::string name;
  double forward_flops = 0;   // work of the forward pass
  double backward_flops = 0;  // work of the backward pass
  double depth = 0;           // longest chain of dependent operations: work / depth is the average parallelism
  int64_t parameters = 0;     // elements; a tied parameter counts where it is first used
  int64_t tied = 0;           // elements that an earlier layer counts, and that a stage without that layer holds too
  int64_t frozen = 0;         // of the parameters, elements that are not trained
  int64_t activations = 0;    // elements kept for the backward pass
  int64_t output = 0;         // elements handed to the next layer
};

struct LayerTable {
  std::vector<LayerSpec> layers;
  int64_t element_bytes = 4;  // of parameters and activations

  int64_t parameters() const;
  double flops() const;  // forward and backward of one sample
  int64_t activation_bytes() const { return sum(&LayerSpec::activations) * element_bytes; }
  std::string full() const;  // a table for people

 private:
  int64_t sum(int64_t LayerSpec::* field) const;
};

// Work and depth of a matrix product [m, k] × [k, n]: a multiplication and a tree of additions.
double product_flops(double m, double k, double n);
double product_depth(double k);

}  // namespace trireme
