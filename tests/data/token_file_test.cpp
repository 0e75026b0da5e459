#include "trireme/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include <numeric>

#include "tests/data/temporary.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

template <class Token>
std::vector<Token> counting(size_t count) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), Token{0});
  return tokens;
}

class TokenFileTest : public testing::Test {
 protected:
  std::string refused(const std::string& dtype = "auto", int64_t context = 4, int64_t vocab = 0) {
    return refusal_of([&] { TokenFile(path_, dtype, context, vocab); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "tokens.bin";
};

// Every format holds the same tokens 0, 1, 2 …, and reads the same.
void expect_counting(const TokenFile& file, int64_t tokens, int64_t context) {
  EXPECT_EQ(file.size(), (tokens - 1) / context);
  EXPECT_EQ(file.vocab(), tokens);
  EXPECT_EQ(file.items(), "tokens");
  EXPECT_EQ(file.items_per_sample(), context);
  const std::vector<int64_t> samples = {file.size() - 1, 0};
  const Batch batch = file.get(samples);
  const auto row = at::arange(context);
  const auto inputs = at::stack({row + samples[0] * context, row});
  EXPECT_TRUE(at::equal(batch.inputs, inputs)) << batch.inputs;
  EXPECT_TRUE(at::equal(batch.targets, inputs + 1)) << batch.targets;
  EXPECT_TRUE(batch.inputs.is_contiguous() && batch.targets.is_contiguous());
}

TEST_F(TokenFileTest, ReadsLlmcGpt2Files) {
  append_header(path_, 20240520, 1, 30);
  append(path_, counting<uint16_t>(30));
  expect_counting(TokenFile(path_, "auto", 4, 0), 30, 4);
  expect_counting(TokenFile(path_, "uint16", 4, 0), 30, 4);
}

TEST_F(TokenFileTest, ReadsLlmcLlama3Files) {
  append_header(path_, 20240801, 7, 30);
  append(path_, counting<uint32_t>(30));
  expect_counting(TokenFile(path_, "auto", 4, 0), 30, 4);
  expect_counting(TokenFile(path_, "uint32", 4, 0), 30, 4);
}

TEST_F(TokenFileTest, ReadsFilesWithoutHeader) {
  append(path_, counting<uint16_t>(30));
  expect_counting(TokenFile(path_, "auto", 4, 0), 30, 4);
  expect_counting(TokenFile(path_, "uint16", 4, 0), 30, 4);
  const auto wide = folder_ / "wide.bin";
  append(wide, counting<uint32_t>(30));
  expect_counting(TokenFile(wide, "uint32", 4, 0), 30, 4);
}

TEST_F(TokenFileTest, HoldsTheWholeRangeOfItsDtype) {
  append(path_, std::vector<uint32_t>{0xffffffffU, 1, 0x80000000U});
  const TokenFile file(path_, "uint32", 2, 0);
  EXPECT_EQ(file.vocab(), int64_t{1} << 32);
  const Batch batch = file.get(std::vector<int64_t>{0});
  EXPECT_EQ(batch.inputs[0][0].item<int64_t>(), 0xffffffffLL);
  EXPECT_EQ(batch.targets[0][1].item<int64_t>(), 0x80000000LL);
}

TEST_F(TokenFileTest, CountsOnlyWholeSamples) {
  append(path_, counting<uint16_t>(9));
  EXPECT_EQ(TokenFile(path_, "auto", 8, 0).size(), 1);  // 8 inputs and the last target: the shortest that gives one
  EXPECT_EQ(TokenFile(path_, "auto", 4, 0).size(), 2);
  EXPECT_EQ(TokenFile(path_, "auto", 5, 0).size(), 1);
  EXPECT_EQ(TokenFile(path_, "auto", 1, 0).size(), 8);
}

TEST_F(TokenFileTest, DescribesItself) {
  append(path_, counting<uint16_t>(30));
  EXPECT_THAT(TokenFile(path_, "auto", 4, 100).describe(),
              EndsWith("tokens.bin: 30 tokens (uint16) of a vocabulary of 100, 7 samples of 4"));
}

TEST_F(TokenFileTest, GivesAnEmptyBatchForNoSamples) {
  append(path_, counting<uint16_t>(30));
  const Batch batch = TokenFile(path_, "auto", 4, 0).get({});
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{0, 4}));
}

TEST_F(TokenFileTest, RefusesWhatIsNotThere) {
  EXPECT_THAT(refused(), AllOf(HasSubstr("tokens.bin"), HasSubstr("no such file")));
  append(path_, std::vector<uint16_t>{});
  EXPECT_THAT(refused(), AllOf(HasSubstr("tokens.bin"), HasSubstr("empty")));
}

TEST_F(TokenFileTest, RefusesUnknownDtypes) {
  append(path_, counting<uint16_t>(30));
  EXPECT_EQ(refused("float32"), "tokens may be of dtype auto, uint16 or uint32, not 'float32'");
}

TEST_F(TokenFileTest, RefusesTooFewTokens) {
  append(path_, counting<uint16_t>(8));
  EXPECT_THAT(refused("auto", 8), EndsWith("tokens.bin: 8 tokens are too few for one sample: a context of 8 needs 9"));
  EXPECT_EQ(refused("auto", 0), "the context must be at least 1 token, not 0");
}

TEST_F(TokenFileTest, RefusesAHeaderWithNoTokens) {
  append_header(path_, 20240520, 1, 0);
  EXPECT_THAT(refused(), EndsWith("tokens.bin: 0 tokens are too few for one sample: a context of 4 needs 5"));
}

TEST_F(TokenFileTest, RefusesHalfATokenAtTheEnd) {
  append(path_, std::vector<uint8_t>(61));
  EXPECT_THAT(refused(), EndsWith("tokens.bin: the file is cut short: its 61 bytes are not a whole number of uint16 "
                                  "tokens"));
  append(path_, std::vector<uint8_t>(1));
  EXPECT_THAT(refused("uint32"), EndsWith("its 62 bytes are not a whole number of uint32 tokens"));
}

TEST_F(TokenFileTest, RefusesFewerTokensThanPromised) {
  append_header(path_, 20240520, 1, 30);
  append(path_, counting<uint16_t>(29));
  EXPECT_THAT(refused(), EndsWith("tokens.bin: the file is cut short: its header promises 30 tokens, 29 are present"));
}

TEST_F(TokenFileTest, RefusesMoreBytesThanPromised) {
  append_header(path_, 20240801, 7, 29);
  append(path_, counting<uint32_t>(30));
  EXPECT_THAT(refused(), EndsWith("tokens.bin: 4 bytes follow the 29 tokens that the header promises"));
}

TEST_F(TokenFileTest, RefusesAFileThatEndsInItsHeader) {
  append(path_, std::vector<int32_t>{20240520, 1, 30});
  EXPECT_THAT(refused(),
              EndsWith("tokens.bin: the file is cut short: it ends after 12 of the 1024 bytes of its header"));
}

TEST_F(TokenFileTest, RefusesDamagedHeaders) {
  append_header(path_, 20240520, 1, -5);
  EXPECT_THAT(refused(), EndsWith("tokens.bin: the header is damaged: it promises -5 tokens"));
}

TEST_F(TokenFileTest, RefusesUnknownVersions) {
  append_header(path_, 20240520, 2, 30);
  append(path_, counting<uint16_t>(30));
  EXPECT_THAT(refused(), EndsWith("tokens.bin: token format 20240520 is known in version 1 only, not 2"));
}

TEST_F(TokenFileTest, RefusesADtypeThatTheHeaderDenies) {
  append_header(path_, 20240520, 1, 30);
  append(path_, counting<uint16_t>(30));
  EXPECT_THAT(refused("uint32"),
              EndsWith("tokens.bin: the header says that tokens are uint16, not uint32; leave the dtype at auto"));
}

TEST_F(TokenFileTest, RefusesTokensOutsideTheVocabularyWhereTheyAreRead) {
  auto tokens = counting<uint16_t>(30);
  tokens[18] = 5000;
  append(path_, tokens);
  const TokenFile file(path_, "auto", 4, 30);
  EXPECT_NO_THROW(file.get(std::vector<int64_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_THAT(refusal_of([&] { file.get(std::vector<int64_t>{0, 4}); }),
              EndsWith("tokens.bin: token 5000 at place 18 is outside the vocabulary of 30"));
}

TEST_F(TokenFileTest, ChecksTheLastTargetToo) {
  append(path_, std::vector<uint16_t>{0, 1, 2, 3, 9});
  EXPECT_THAT(refusal_of([&] { TokenFile(path_, "auto", 4, 9).get(std::vector<int64_t>{0}); }),
              EndsWith("token 9 at place 4 is outside the vocabulary of 9"));
}

TEST_F(TokenFileTest, FailsOnSamplesThatDoNotExist) {
  append(path_, counting<uint16_t>(30));
  const TokenFile file(path_, "auto", 4, 0);
  EXPECT_THROW(file.get(std::vector<int64_t>{7}), Error);
  EXPECT_THROW(file.get(std::vector<int64_t>{-1}), Error);
}

TEST_F(TokenFileTest, ReadsAnywhereInALargeFile) {
  const int64_t count = 4'000'000, context = 128;
  const auto token_at = [](int64_t place) {
    return static_cast<uint16_t>(mix64(static_cast<uint64_t>(place)) % 50257);
  };
  std::vector<uint16_t> tokens(count);
  for (int64_t place = 0; place < count; ++place) tokens[static_cast<size_t>(place)] = token_at(place);
  append(path_, tokens);
  const TokenFile file(path_, "uint16", context, 50257);
  const Key key = Key{1}.with("large");
  for (uint64_t round = 0; round < 200; ++round) {
    std::vector<int64_t> samples(16);
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i] = static_cast<int64_t>(bits64(key.with(round), i) % static_cast<uint64_t>(file.size()));
    }
    const Batch batch = file.get(samples);
    const auto inputs = batch.inputs.accessor<int64_t, 2>(), targets = batch.targets.accessor<int64_t, 2>();
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t j = 0; j < context; ++j) {
        const int64_t place = samples[static_cast<size_t>(i)] * context + j;
        ASSERT_EQ(inputs[i][j], token_at(place));
        ASSERT_EQ(targets[i][j], token_at(place + 1));
      }
    }
  }
}

// Places beyond 2^32: a sparse file, so that the disk holds only its last page.
TEST_F(TokenFileTest, ReadsBeyondFourGigatokens) {
  const uint64_t count = (uint64_t{1} << 32) + 1025;
  append(path_, std::vector<uint16_t>{7});
  std::error_code error;
  std::filesystem::resize_file(path_, (count - 1) * sizeof(uint16_t), error);
  if (error) GTEST_SKIP() << "no sparse file of 8 GiB here: " << error.message();
  append(path_, std::vector<uint16_t>{9});
  const TokenFile file(path_, "uint16", 1024, 10);
  EXPECT_EQ(file.size(), (int64_t{1} << 22) + 1);
  const Batch batch = file.get(std::vector<int64_t>{file.size() - 1, 0});
  EXPECT_EQ(batch.targets[0][1023].item<int64_t>(), 9);
  EXPECT_EQ(batch.inputs[0].max().item<int64_t>(), 0);
  EXPECT_EQ(batch.inputs[1][0].item<int64_t>(), 7);
}

}  // namespace
}  // namespace trireme
