#include "trireme/base/pattern.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Pattern, AStarStandsForAnyCharacters) {
  EXPECT_TRUE(matches("wte.weight", "wte.weight"));
  EXPECT_FALSE(matches("wte.weight", "wte.weights"));
  EXPECT_FALSE(matches("wte.weight", "a.wte.weight"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*", "anything"));
  EXPECT_TRUE(matches("h.*.attn.*", "h.11.attn.c_attn.weight"));
  EXPECT_FALSE(matches("h.*.attn.*", "h.11.mlp.c_fc.weight"));
  EXPECT_TRUE(matches("*attn*", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("*.ab", "x.a.ab"));  // the first place that fits is not the right one
  EXPECT_FALSE(matches("", "x"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("h.1*", "h.2.ln_1.weight"));
}

TEST(Pattern, ListsAreCutAtCommas) {
  EXPECT_EQ(split_patterns(""), std::vector<std::string>{});
  EXPECT_EQ(split_patterns(" , "), std::vector<std::string>{});
  EXPECT_EQ(split_patterns("wte.*"), std::vector<std::string>{"wte.*"});
  EXPECT_EQ(split_patterns("wte.*, h.0.* ,,h.1.*"), (std::vector<std::string>{"wte.*", "h.0.*", "h.1.*"}));
  EXPECT_TRUE(matches_any(split_patterns("a,b*"), "bc"));
  EXPECT_FALSE(matches_any({}, "bc"));
}

}  // namespace
}  // namespace trireme
