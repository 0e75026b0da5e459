#include "trireme/bench/train_cases.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/bench/torch_peer.h"
#include "trireme/spec/config.h"

namespace trireme {
namespace {

TEST(TrainCases, AreConfigurations) {
  for (const std::string& name : std::vector<std::string>{"mlp", "gpt", "tiny", "llama", "resnet18", "vgg11"}) {
    const auto& known = known_case(name);
    EXPECT_NO_THROW(load_config({}, overrides_of(known))) << name;
    EXPECT_DOUBLE_EQ(known.tolerance, 1e-4) << name;  // what the documentation promises
  }
  EXPECT_THROW(known_case("gtp"), Error);
}

TEST(TorchPeer, NamesItsVariants) {
  EXPECT_EQ(TorchPeer::known(), (std::vector<std::string>{"eager", "eager-fastest", "compile", "compile-fastest"}));
}

TEST(TorchPeer, OnACardAllProductsAreOfOneLibrary) {
  TorchPeer peer("python3", "/nonexistent");
  std::vector<std::string> names;
  for (const auto& variant : peer.variants({}, /*card=*/true)) names.push_back(variant.name);
  EXPECT_EQ(names, (std::vector<std::string>{"eager", "compile"}));
  EXPECT_THROW(peer.variants({"eager-fastest"}, /*card=*/true), Error);
  EXPECT_EQ(peer.matrices({"eager"}, /*card=*/true), "cuBLAS");
}

}  // namespace
}  // namespace trireme
