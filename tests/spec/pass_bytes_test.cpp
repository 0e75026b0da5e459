#include "trireme/spec/pass_bytes.h"

#include <gtest/gtest.h>

#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {
namespace {

// Two hidden layers, wide enough that what products need for themselves is next to nothing.
LayerTable mlp(int64_t element_bytes = 8) {
  const ModelConfig config{.kind = ModelKind::mlp, .layers = 2, .width = 100, .inputs = 30, .classes = 10};
  return model_table(config, 0, element_bytes);
}

constexpr int64_t samples = 1000, row = 8 * samples;  // bytes of one number of each

TEST(PassBytes, OfAnMlp) {
  const auto table = mlp();
  const auto first = pass_bytes(table, 0, 1, {.samples = samples});
  EXPECT_EQ(first.input, 30 * row);
  EXPECT_EQ(first.output, 100 * row);
  EXPECT_EQ(first.kept, 0);                  // what the ReLU keeps is the output
  EXPECT_EQ(first.forward_most, 200 * row);  // before and after the ReLU
  EXPECT_EQ(first.backward_most, 200 * row);
  EXPECT_EQ(first.input_gradient, 0);
  const auto second = pass_bytes(table, 1, 2, {.samples = samples});
  EXPECT_EQ(second.input, 100 * row);
  EXPECT_EQ(second.backward_most, 300 * row);  // gradients of the output, before the ReLU, and of the input
  EXPECT_EQ(second.input_gradient, 100 * row);
  const auto whole = pass_bytes(table, 0, 3, {.samples = samples});
  EXPECT_EQ(whole.output, 0);
  EXPECT_EQ(whole.kept, (100 + 100 + 10) * row + 8);  // two inputs of layers, and the logarithms of the loss
}

TEST(PassBytes, GradientsOfWeightsKeepWhatTheyAreComputedFrom) {
  const auto table = mlp();
  const auto later = pass_bytes(table, 1, 3, {.samples = samples, .weights = WeightGradients::later});
  // Both inputs, and the gradients of what the products gave.
  EXPECT_EQ(later.waiting, (100 + 100 + 100 + 10) * row);
  const auto at_once = pass_bytes(table, 1, 3, {.samples = samples});
  EXPECT_EQ(at_once.waiting, 0);
  EXPECT_LT(at_once.backward_most, later.backward_most);
  // bf16 products come before they are added to fp32 gradients.
  const auto narrow = pass_bytes(mlp(2), 1, 3, {.samples = samples, .weights = WeightGradients::later});
  EXPECT_GE(narrow.weights_most, 100 * 100 * (2 + 4));
}

TEST(PassBytes, LayersComputedAgainKeepTheirInputs) {
  const auto table = mlp();
  const auto again = pass_bytes(table, 0, 3, {.samples = samples}, 2);
  EXPECT_EQ(again.kept, (100 + 100 + 10) * row + 8);
  EXPECT_GT(again.recomputed_most, 0);
  EXPECT_EQ(pass_bytes(table, 0, 3, {.samples = samples}).recomputed_most, 0);
  const auto gpt = model_table({.kind = ModelKind::gpt, .layers = 4, .width = 64, .heads = 2, .context = 32}, 50);
  const auto kept = pass_bytes(gpt, 0, 6, {}), recomputed = pass_bytes(gpt, 0, 6, {}, 5);
  EXPECT_LT(recomputed.kept, kept.kept / 5);
  EXPECT_GT(recomputed.backward_most, kept.backward_most);
}

TEST(PassBytes, ASkipKeepsNothingOfItsOwn) {
  ModelConfig config{.kind = ModelKind::mlp, .layers = 3, .width = 100, .inputs = 100, .classes = 100};
  const auto plain = model_table(config, 0, 8);
  config.skip = true;
  const auto skipping = model_table(config, 0, 8);
  EXPECT_EQ(pass_bytes(skipping, 0, 4, {.samples = samples}).kept,
            pass_bytes(plain, 0, 4, {.samples = samples}).kept + 100 * row);  // the sum that the head is given
  // Between two parts of the model it is one tensor more, there and back.
  const auto handed = pass_bytes(skipping, 0, 2, {.samples = samples});
  EXPECT_EQ(handed.output, 200 * row);
  const auto taken = pass_bytes(skipping, 2, 4, {.samples = samples});
  EXPECT_EQ(taken.input, 200 * row);
  EXPECT_EQ(taken.input_gradient, 200 * row);
}

// Nothing is kept for parameters that are not trained, nor of what comes before the first that is.
TEST(PassBytes, FrozenLayersKeepNothing) {
  ModelConfig config{.kind = ModelKind::gpt, .layers = 2, .width = 64, .heads = 2, .context = 32};
  config.freeze = "wte.*, wpe.*, h.0.*";
  const auto table = model_table(config, 50);
  EXPECT_EQ(pass_bytes(table, 0, 2, {}).kept, 0);
  EXPECT_GT(pass_bytes(table, 1, 2, {}).kept, 0);  // another part of the model wants a gradient
  EXPECT_EQ(pass_bytes(table, 0, 2, {}).backward_most, pass_bytes(table, 0, 2, {}).output);  // that comes, for nothing
}

// Of what programs bring, the table knows what goes in and comes out.
TEST(PassBytes, OfALayerThatSaysNothing) {
  LayerTable table;
  table.input = 10;
  table.layers = {{.name = "0", .output = 20}, {.name = "1", .output = 5}};
  EXPECT_EQ(table.kept_bytes(0), 10 * 4);
  const auto bytes = pass_bytes(table, 0, 1, {.samples = 3});
  EXPECT_EQ(bytes.output, 3 * 20 * 4);
  EXPECT_EQ(bytes.kept, 0);
}

// A tensor's memory is held as long as anybody refers to it. Sums of gradients are made in place where nobody else does.
TEST(Replay, CountsWhatIsHeld) {
  Replay pass({}, 4);
  {
    const auto x = pass.make(10);
    const auto view = x.detached();
    EXPECT_EQ(pass.held(), 40);
    const auto ids = pass.make(10, Element::index);
    EXPECT_EQ(pass.held(), 40 + 80);
    pass.use_scratch(1000);
  }
  EXPECT_EQ(pass.held(), 0);
  EXPECT_EQ(pass.most(), 1120);
  const auto x = pass.leaf(100);
  ReplayTensor y;
  {
    const auto left = replay::gelu_tanh(pass, x), right = replay::gelu_tanh(pass, x);
    y = replay::add(pass, left, right);
  }
  EXPECT_EQ(pass.held(), 800);  // neither side of the sum is kept
  pass.begin_most();
  pass.backward({y}, {pass.like(y)});
  EXPECT_EQ(pass.most(), 800 + 3 * 400);  // the gradient of y, and those of x by both sides
  EXPECT_EQ(pass.held(), 800 + 400);
  EXPECT_EQ(pass.gradient_of(x).elements, 100);
}

}  // namespace
}  // namespace trireme
