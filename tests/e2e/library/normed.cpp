// A small convolutional net with BatchNorms on made-up images, fp64: by DataParallel, or with settings by Trainer.
// or by DataParallel with an optimizer of torch, moved to the device when it was already wrapped.
//   normed cpu|cuda [late | key=value …]      prints the loss of every step
#include <trireme/trireme.h>

#include <cstdio>
#include <cstring>

struct Images : torch::data::datasets::Dataset<Images> {
  torch::data::Example<> get(size_t i) override {
    const auto place = static_cast<double>(i);
    return {torch::arange(192, torch::kDouble).mul_(0.05 + 0.01 * place).sin_().view({3, 8, 8}),
            torch::tensor(static_cast<int64_t>(i % 5))};
  }
  std::optional<size_t> size() const override { return 60; }
};

int main(int argc, char** argv) try {
  using namespace torch::nn;
  const auto world = trireme::World::start();
  const auto device = argc > 1 && std::strcmp(argv[1], "cuda") == 0 ? world->device() : torch::Device(torch::kCPU);
  torch::manual_seed(1);
  Sequential net(Conv2d(Conv2dOptions(3, 8, 3).padding(1)), BatchNorm2d(8), ReLU(),
                 Conv2d(Conv2dOptions(8, 12, 3).stride(2).bias(false)),
                 BatchNorm2d(BatchNorm2dOptions(12).affine(false)), ReLU(), Flatten(), Linear(108, 5));
  const auto print = [&](double loss) {
    if (world->rank() == 0) std::printf("loss %.17g\n", loss);
  };
  if (argc > 2 && std::strcmp(argv[2], "late") == 0) {
    net->to(torch::kDouble);
    trireme::DataParallel model(net, *world);
    net->to(device);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(1e-2));
    for (auto& batch : trireme::Loader(Images(), *world, {.batch = 12, .steps = 8})) {
      optimizer.zero_grad(/*set_to_none=*/batch.step % 2 == 0);
      const auto loss = functional::cross_entropy(model.forward(batch.inputs.to(device)), batch.targets.to(device));
      model.backward(loss, batch.weight);
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      print(model.mean(loss.item<double>(), batch.weight));
    }
    return 0;
  }
  if (argc > 2) {
    std::vector<std::string> settings{"train.batch=12",   "train.steps=8",      "optimizer.lr=1e-2",
                                      "optimizer.clip=0", "optimizer.warmup=0", "train.precision=fp64"};
    if (device.is_cuda()) settings.push_back("train.device=cuda");
    settings.insert(settings.end(), argv + 2, argv + argc);
    trireme::Trainer trainer(*world, trireme::modules_of(net), Images(), settings);
    trainer.on_step([&](const trireme::StepReport& report) { print(report.loss); });
    trainer.run();
    return 0;
  }
  net->to(device, torch::kDouble);
  trireme::DataParallel model(net, *world);
  trireme::AdamW optimizer(model, {.lr = 1e-2});
  for (auto& batch : trireme::Loader(Images(), *world, {.batch = 12, .steps = 8})) {
    const auto loss = functional::cross_entropy(model.forward(batch.inputs.to(device)), batch.targets.to(device));
    model.backward(loss, batch.weight);
    optimizer.step();
    print(model.mean(loss.item<double>(), batch.weight));
  }
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_status();
}
