#include "trireme/spec/layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

LayerTable two_layers() {
  LayerTable table;
  table.input = 7;
  table.layers = {{.name = "one",
                   .forward_flops = 10,
                   .backward_flops = 20,
                   .depth = 5,
                   .parameters = 100,
                   .output = 3},
                  {.name = "two",
                   .forward_flops = 1,
                   .backward_flops = 2,
                   .depth = 0,
                   .parameters = 11,
                   .output = 1}};
  return table;
}

TEST(LayerTable, SumsItsLayers) {
  auto table = two_layers();
  EXPECT_EQ(table.parameters(), 111);
  EXPECT_EQ(table.flops(), 33);
  // What goes in and comes out, and the loss: a logarithm, and itself.
  EXPECT_EQ(table.activation_bytes(), (7 + 3 + 1) * 4 + (1 + 1) * 4);
  table.element_bytes = 2;
  EXPECT_EQ(table.activation_bytes(), (7 + 3 + 1) * 2 + (1 + 1) * 4);
  EXPECT_EQ(table.kept_bytes(0), 7 * 2);
  EXPECT_EQ(LayerTable{}.parameters(), 0);
}

TEST(LayerTable, HasALineForEachLayer) {
  const auto text = two_layers().full();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, testing::StartsWith("layer"));
  EXPECT_THAT(text, testing::HasSubstr("\ntwo "));  // without depth there is no parallelism to divide by, and no NaN
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("nan")));
}

TEST(Product, CountsMultiplicationsAndATreeOfAdditions) {
  EXPECT_EQ(product_flops(2, 3, 5), 60);
  EXPECT_EQ(product_depth(1), 1);
  EXPECT_EQ(product_depth(2), 2);
  EXPECT_EQ(product_depth(1024), 11);
  EXPECT_EQ(product_depth(1025), 12);
}

}  // namespace
}  // namespace trireme
