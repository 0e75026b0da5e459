// Fingerprints of calls: what counts as the same call, and what people are told when it is not.
#include "trireme/comm/call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;

Call all_reduce_of(int64_t count, const char* name = "bucket 0") {
  Call call{
      .sequence = 17, .count = count, .collective = Collective::all_reduce, .op = ReduceOp::sum, .dtype = at::kFloat};
  std::strncpy(call.name, name, sizeof call.name - 1);
  return call;
}

std::string error_of(const std::vector<Call>& calls) {
  try {
    check_agreement(calls);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CallTest, DescribesItself) {
  EXPECT_EQ(all_reduce_of(1000).describe(), "operation 17: all_reduce(sum, Float, 1000 elements) \"bucket 0\"");
  Call broadcast{.sequence = 3, .count = 5, .collective = Collective::broadcast, .dtype = at::kBFloat16, .root = 2};
  EXPECT_EQ(broadcast.describe(), "operation 3: broadcast(from rank 2, BFloat16, 5 elements) \"\"");
  Call gather{.count = 1, .collective = Collective::all_gather, .dtype = at::kLong};
  EXPECT_EQ(gather.describe(), "operation 0: all_gather(Long, 1 elements) \"\"");
  EXPECT_EQ(Call{}.describe(), "operation 0: barrier() \"\"");
}

TEST(CallTest, NamesMayDiffer) {
  // They say where in the program a call was made, and ranks may come from different lines.
  EXPECT_TRUE(all_reduce_of(10, "bucket 0").agrees_with(all_reduce_of(10, "bucket zero")));
}

TEST(CallTest, EverythingElseMustAgree) {
  const Call call = all_reduce_of(10);
  EXPECT_TRUE(call.agrees_with(call));
  const auto changed = [&](auto change) {
    Call other = call;
    change(other);
    return other.agrees_with(call) || call.agrees_with(other);
  };
  EXPECT_FALSE(changed([](Call& other) { other.sequence = 18; }));
  EXPECT_FALSE(changed([](Call& other) { other.count = 11; }));
  EXPECT_FALSE(changed([](Call& other) { other.collective = Collective::broadcast; }));
  EXPECT_FALSE(changed([](Call& other) { other.op = ReduceOp::max; }));
  EXPECT_FALSE(changed([](Call& other) { other.dtype = at::kDouble; }));
  EXPECT_FALSE(changed([](Call& other) { other.root = 1; }));
}

TEST(CallTest, AgreementIsSilent) {
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({all_reduce_of(1)}), "");
  EXPECT_EQ(error_of({all_reduce_of(1), all_reduce_of(1, "b"), all_reduce_of(1, "c")}), "");
}

TEST(CallTest, DisagreementNamesRankZeroAndTheFirstThatDiffers) {
  EXPECT_EQ(
      error_of({all_reduce_of(1, "a"), all_reduce_of(1, "a"), all_reduce_of(2, "b"), all_reduce_of(3, "c")}),
      "ranks disagree on what to communicate: rank 0 called operation 17: all_reduce(sum, Float, 1 elements) \"a\", "
      "rank 2 called operation 17: all_reduce(sum, Float, 2 elements) \"b\"");
}

}  // namespace
}  // namespace trireme
