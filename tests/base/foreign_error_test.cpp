#include "trireme/base/foreign_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

namespace trireme {
namespace {

template <class Action>
Explained explained(Action action) {
  try {
    action();
  } catch (...) {
    return explain_standard(std::current_exception());
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Error(Error::Kind::failed, "")};
}

TEST(ForeignErrorTest, OursComeBackAsTheyAre) {
  const auto [error, out_of_memory] = explained([] { refuse("no"); });
  EXPECT_STREQ(error.what(), "no");
  EXPECT_EQ(error.exit_status(), 2);
  EXPECT_FALSE(out_of_memory);
}

TEST(ForeignErrorTest, OthersAreSentencesThatFail) {
  const auto told = [](auto action) {
    const auto found = explained(action);
    EXPECT_EQ(found.error.exit_status(), 1);
    return std::string(found.error.what());
  };
  EXPECT_EQ(told([] { throw std::bad_alloc(); }), "out of memory: more was asked for than is free");
  EXPECT_TRUE(explained([] { throw std::bad_alloc(); }).out_of_memory);
  EXPECT_EQ(told([] { std::filesystem::rename("/nowhere/a", "/nowhere/b"); }),
            "/nowhere/a to /nowhere/b: No such file or directory");
  EXPECT_EQ(told([] { nlohmann::json("text").get<int>(); }),
            "a JSON file holds something else than expected: type must be number, but is string");
  EXPECT_EQ(told([] { YAML::Load("a: x")["a"].as<int>(); }),
            "a YAML file holds something else than expected in line 1: bad conversion");
  EXPECT_EQ(told([] { throw std::runtime_error("plain"); }), "plain");
  EXPECT_EQ(told([] { throw 7; }), "something was thrown that is no exception");
}

}  // namespace
}  // namespace trireme
