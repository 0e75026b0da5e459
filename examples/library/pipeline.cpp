// Trains a list of modules with everything that `trireme train` has. Settings are words of the command line:
//   mpirun -np 4 ./pipeline parallel.pipe=2 train.microbatch=25
#include <trireme/trireme.h>

#include <cstdio>

#include "spirals.h"

int main(int argc, char** argv) try {
  const auto world = trireme::World::start();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                            torch::nn::Linear(64, 3));
  std::vector<std::string> settings{"train.batch=300", "train.steps=200", "optimizer.lr=1e-2", "run_dir=pipeline-run"};
  settings.insert(settings.end(), argv + 1, argv + argc);
  trireme::Trainer trainer(*world, trireme::modules_of(net), Spirals(), settings);
  trainer.on_step([&](const trireme::StepReport& report) {
    if (world->rank() == 0 && report.step % 50 == 0) std::printf("step %ld: loss %.6f\n", report.step, report.loss);
  });
  trainer.run();
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_status();
}
