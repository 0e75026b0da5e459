#include "trireme/data/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include "tests/data/temporary.h"

namespace trireme {
namespace {

using testing::EndsWith;

class TextFileTest : public testing::Test {
 protected:
  void write(const std::string& text) { append(path_, std::span<const char>(text)); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "text.txt";
};

TEST_F(TextFileTest, ReadsEachByteAsAToken) {
  write("abcdefghi\xff!");
  const TextFile file(path_, 5, 0);
  EXPECT_EQ(file.size(), 2);
  EXPECT_EQ(file.vocab(), 256);
  EXPECT_EQ(file.items(), "tokens");
  EXPECT_EQ(file.items_per_sample(), 5);
  const Batch batch = file.get(std::vector<int64_t>{1, 0});
  const std::vector<int64_t> inputs{'f', 'g', 'h', 'i', 255, 'a', 'b', 'c', 'd', 'e'};
  const std::vector<int64_t> targets{'g', 'h', 'i', 255, '!', 'b', 'c', 'd', 'e', 'f'};
  EXPECT_TRUE(at::equal(batch.inputs, at::tensor(inputs).view({2, 5})));
  EXPECT_TRUE(at::equal(batch.targets, at::tensor(targets).view({2, 5})));
  EXPECT_THAT(file.describe(), EndsWith("text.txt: 11 B of text, a token a byte, 2 samples of 5"));
}

TEST_F(TextFileTest, RefusesBadInput) {
  EXPECT_THAT(refusal_of([&] { TextFile(path_, 4, 0); }), EndsWith("text.txt: there is no such file"));
  write("");
  EXPECT_THAT(refusal_of([&] { TextFile(path_, 4, 0); }), EndsWith("text.txt: the file is empty"));
  write("four");
  EXPECT_THAT(refusal_of([&] { TextFile(path_, 4, 0); }),
              EndsWith("text.txt: 4 tokens are too few for one sample: a context of 4 needs 5"));
  EXPECT_EQ(refusal_of([&] { TextFile(path_, -1, 0); }), "the context must be at least 1 token, not -1");
  EXPECT_THAT(refusal_of([&] { TextFile(path_, 3, 100); }),
              EndsWith("text.txt: text is read as bytes and needs a vocabulary of at least 256, not 100"));
  EXPECT_NO_THROW(TextFile(path_, 3, 50304));
}

}  // namespace
}  // namespace trireme
