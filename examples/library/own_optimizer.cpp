// The loop that everybody writes, with optimizers and schedules of torch. Run it alone, or on many ranks:
//   mpirun -np 4 ./own_optimizer
#include <trireme/trireme.h>

#include <cstdio>

#include "spirals.h"

static_assert(TRIREME_VERSION_MAJOR * 1000 + TRIREME_VERSION_MINOR >= 1, "this needs Trireme 0.1");

int main() try {
  const auto world = trireme::World::start();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 3));
  net->to(world->device(), torch::kDouble);
  trireme::DataParallel model(net, *world);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(1e-3));
  torch::optim::StepLR schedule(optimizer, /*step_size=*/10, /*gamma=*/0.5);
  trireme::Loader loader(Spirals(), *world, {.batch = 300, .seed = 1});
  for (int epoch = 1; epoch <= 20; ++epoch) {
    double loss = 0;
    for (auto& batch : loader) {
      const auto inputs = batch.inputs.to(world->device(), torch::kDouble), targets = batch.targets.to(world->device());
      optimizer.zero_grad();
      const auto error = torch::nn::functional::cross_entropy(model.forward(inputs), targets);
      model.backward(error, batch.weight);  // instead of error.backward()
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      loss = model.mean(error.item<double>(), batch.weight);
    }
    schedule.step();
    if (world->rank() == 0) std::printf("epoch %d: loss %.12f\n", epoch, loss);
  }
  if (world->rank() == 0) torch::save(optimizer, "own-optimizer.pt");
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_status();
}
