// Masks and documents of token files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/data/temporary.h"
#include "trireme/data/dataset.h"
#include "trireme/data/step_loader.h"
#include "trireme/data/token_file.h"

namespace trireme {
namespace {

using testing::HasSubstr;

const std::vector<uint16_t> tokens{9, 1, 2, 9, 3, 4, 5, 9, 9, 6, 7, 8, 1};
const std::vector<uint8_t> mask{0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0};

class PackingTest : public testing::Test {
 protected:
  PackingTest() {
    append(folder_ / "tokens", tokens);
    append(folder_ / "mask", mask);
  }
  TokenFile open(const std::string& mask_name, int64_t separator, int64_t context = 6) {
    const Packing packing{mask_name.empty() ? std::filesystem::path() : folder_ / mask_name, separator};
    return TokenFile(folder_ / "tokens", "auto", context, 10, packing);
  }
  static std::vector<int64_t> row(const at::Tensor& tensor, int64_t index) {
    const auto* data = tensor.const_data_ptr<int64_t>() + index * tensor.size(1);
    return {data, data + tensor.size(1)};
  }

  TemporaryFolder folder_;
};

TEST_F(PackingTest, DocumentsBeginAtTheSeparator) {
  const auto batch = open("", 9).get(std::vector<int64_t>{0, 1});
  EXPECT_EQ(row(batch.starts, 0), (std::vector<int64_t>{0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(row(batch.starts, 1), (std::vector<int64_t>{0, 1, 2, 2, 2, 2}));  // it begins inside a document
  EXPECT_FALSE(open("", -1).get(std::vector<int64_t>{0}).starts.defined());
}

TEST_F(PackingTest, TargetsAreMasked) {
  const auto file = open("mask", -1);
  const auto batch = file.get(std::vector<int64_t>{1, 0});
  constexpr int64_t none = ignored_target;
  EXPECT_EQ(row(batch.targets, 1), (std::vector<int64_t>{1, none, 9, none, none, 5}));
  EXPECT_EQ(row(batch.targets, 0), (std::vector<int64_t>{9, none, none, none, none, none}));
  EXPECT_EQ(row(batch.inputs, 0), (std::vector<int64_t>{5, 9, 9, 6, 7, 8}));  // they are read all the same
  EXPECT_EQ(file.learnt_targets(std::vector<int64_t>{0}), 3);
  EXPECT_EQ(file.learnt_targets(std::vector<int64_t>{0, 1, 1}), 5);
  EXPECT_EQ(open("", 9).learnt_targets(std::vector<int64_t>{0, 1}), 12);
}

// Every rank knows how many targets the whole step learns from, also through the held-out share's slices.
TEST_F(PackingTest, TheLoaderCountsTheWholeStep) {
  const DataOptions options{.kind = "tokens",
                            .path = folder_ / "tokens",
                            .mask = folder_ / "mask",
                            .separator = 9,
                            .context = 3,
                            .vocab = 10,
                            .validation = 0.25};
  const auto data = open_dataset(options);
  ASSERT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.validation->learnt_targets(std::vector<int64_t>{0}), 0);
  const SampleOrder order(3, 3, 1);
  for (const auto& share : {Share{0, 3}, Share{0, 1}, Share{2, 1}}) {
    StepLoader loader(*data.train, order, microbatches(share, 1), 0);
    const auto step = loader.next();
    EXPECT_EQ(step.learnt_targets, 4);
    EXPECT_EQ(step.microbatches.size(), static_cast<size_t>(share.count));
    for (const auto& one : step.microbatches) EXPECT_EQ(one.starts.sizes(), one.inputs.sizes());
  }
}

TEST_F(PackingTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal_of([&] { open("", 10); }), HasSubstr("the separator 10 is outside the vocabulary of 10"));
  EXPECT_THAT(refusal_of([&] { open("none", -1); }), HasSubstr("there is no such file"));
  append(folder_ / "short", std::vector<uint8_t>(5, 1));
  EXPECT_THAT(refusal_of([&] { open("short", -1); }), HasSubstr("the mask has 5 bytes"));
  append(folder_ / "wrong", std::vector<uint8_t>{1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_THAT(refusal_of([&] { open("wrong", -1).get(std::vector<int64_t>{0}); }), HasSubstr("byte 4 is 7"));
}

}  // namespace
}  // namespace trireme
