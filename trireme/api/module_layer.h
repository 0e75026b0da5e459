// A user's torch::nn::Module as a layer of ours. The module keeps its parameters: their storage moves into the store's
// buckets and their gradients go there as the backward pass makes them, but the tensors that the module's code uses
// stay the same ones.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/nn/model.h"

namespace trireme {

// Which of a module's parameters are adopted, and when their gradients are.
struct Adoption {
  // Whether a parameter that does not learn now is adopted all the same. Empty: it is not.
  std::function<bool(const at::Tensor&)> also;
  // Whether a gradient that a backward pass has made goes to its slot, or stays where torch puts it. Empty: it does.
  std::function<bool(const Parameter&)> takes;
};

// The module's parameters that learn, under their names in it behind `prefix`. One that it uses twice is listed once.
// A backward pass may leave some of them out. They stay adopted as long as the list lives.
ParameterList adopt_parameters(const torch::nn::Module& module, const std::string& prefix,
                               const Adoption& adoption = {});

// What the module remembers besides, such as the running statistics of a BatchNorm.
BufferList adopt_buffers(const torch::nn::Module& module, const std::string& prefix);

class ModuleLayer final : public Layer {
 public:
  // The module must map one tensor to one tensor.
  ModuleLayer(std::string name, torch::nn::AnyModule module);

  at::Tensor forward(const at::Tensor& input, const Pass& pass) override;
  bool is_pure() const override { return false; }

  // Runs a sample (a batch of one) through and counts what it costs; returns what the next layer gets.
  at::Tensor measure(const at::Tensor& sample);

 private:
  torch::nn::AnyModule module_;
};

// A list of modules as a model that can be cut between any two of them; `sample` is a batch of one.
std::unique_ptr<Model> model_of(const std::vector<torch::nn::AnyModule>& modules, const at::Tensor& sample);

// Whether one of torch's BatchNorms is among them or inside of them.
bool has_batch_norm(const std::vector<torch::nn::AnyModule>& modules);

// The modules of a Sequential, one by one.
std::vector<torch::nn::AnyModule> modules_of(const torch::nn::Sequential& sequential);

}  // namespace trireme
