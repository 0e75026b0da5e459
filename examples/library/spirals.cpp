// Tells the arms of a spiral apart. Run it alone, or on many ranks: mpirun -np 4 ./spirals
#include "spirals.h"

#include <trireme/trireme.h>

#include <cstdio>

int main() try {
  const auto world = trireme::World::start();  // under mpirun, srun or torchrun, or alone
  torch::manual_seed(1);                       // the same parameters on every rank
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 3));
  net->to(world->device());  // this rank's card, or the CPU
  trireme::DataParallel model(net, *world);
  trireme::AdamW optimizer(model, {.lr = 1e-2});
  trireme::Loader loader(Spirals(), *world, {.batch = 300, .seed = 1});
  for (int epoch = 1; epoch <= 20; ++epoch) {
    double loss = 0;
    for (auto& batch : loader) {
      const auto inputs = batch.inputs.to(world->device()), targets = batch.targets.to(world->device());
      const auto error = torch::nn::functional::cross_entropy(model.forward(inputs), targets);
      model.backward(error, batch.weight);  // averages the gradients over the ranks
      optimizer.step();
      loss = model.mean(error.item<double>(), batch.weight);
    }
    if (world->rank() == 0) std::printf("epoch %d: loss %.6f\n", epoch, loss);
  }
  trireme::save("spirals-run", model, optimizer);
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_status();
}
