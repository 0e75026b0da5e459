// Casts, integers and signs against what they are, element by element.
#include <gmock/gmock.h>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

std::vector<float> awkward() {
  std::vector<float> values = {0.f,      -0.f,      1.f,          -1.f,          65504.f, 65519.f,
                               65520.f,  1e6f,      1e-8f,        6e-8f,         1e-40f,  -3e38f,
                               infinity, -infinity, not_a_number, -not_a_number, 3.4e38f, 5.9604645e-8f};
  for (uint32_t i = 0; i < 4000; ++i) {  // every exponent, and halves between neighbours
    values.push_back(std::bit_cast<float>(bits32(Key{3}, i)));
    values.push_back(std::bit_cast<float>(bits32(Key{4}, i) & 0xfffff000u));
    values.push_back(std::bit_cast<float>(bits32(Key{5}, i) & 0xffff8000u));
  }
  return values;
}

TEST(Casts, AreTorchsBitForBit) {
  const auto values = tensor_of(awkward());
  for (const auto& [kind, type] : {std::pair{CodecKind::fp16, at::kHalf}, {CodecKind::bf16, at::kBFloat16}}) {
    const auto back = there_and_back(*make_codec(codec_config(kind)), values);
    const auto expected = values.to(type).to(at::kFloat);
    EXPECT_TRUE(at::equal(back.isnan(), expected.isnan()));
    EXPECT_TRUE(at::equal(back.nan_to_num(0, INFINITY, -INFINITY), expected.nan_to_num(0, INFINITY, -INFINITY)));
    EXPECT_TRUE(at::equal(back.signbit(), values.signbit()));
  }
}

// The scale of each element's block.
at::Tensor scales_of(const at::Tensor& values, int64_t block, bool mean, double levels) {
  auto scales = at::empty_like(values);
  for (int64_t first = 0; first < values.numel(); first += block) {
    const int64_t count = std::min(block, values.numel() - first);
    const auto part = values.narrow(0, first, count).abs();
    scales.narrow(0, first, count).fill_(((mean ? part.mean() : part.max()) / levels).item<float>());
  }
  return scales;
}

TEST(Integers, AreNoFurtherThanHalfAScale) {
  for (const auto& [kind, levels] : {std::pair{CodecKind::int8, 127.0}, {CodecKind::int4, 7.0}}) {
    for (const int64_t block : {8, 64, 256, 1000}) {
      for (const int64_t count : {1, 8, 255, 256, 257, 5000}) {
        auto config = codec_config(kind);
        config.block = block;
        const auto values = normal_values(count, 21, 0.01) * at::logspace(-3, 3, count, 10);
        const auto back = there_and_back(*make_codec(config), values);
        const auto scales = scales_of(values, block, false, levels);
        EXPECT_TRUE(((back - values).abs() <= scales * 0.50002).all().item<bool>()) << count << " by " << block;
        // What is said is a whole number of scales, and the largest is said exactly but for a rounding.
        const auto wholes = back / scales;
        EXPECT_TRUE(at::allclose(wholes, wholes.round(), 0, 1e-4));
      }
    }
  }
}

TEST(Integers, RoundAtRandomWithoutBias) {
  for (const auto kind : {CodecKind::int8, CodecKind::int4}) {
    auto config = codec_config(kind);
    config.rounding = Rounding::stochastic;
    config.block = 64;
    const auto codec = make_codec(config);
    const int64_t count = 640, draws = 4000;
    const auto values = normal_values(count, 22);
    auto sum = at::zeros({count}, at::kDouble);
    const double levels = kind == CodecKind::int8 ? 127 : 7;
    const auto scales = scales_of(values, 64, false, levels).to(at::kDouble);
    for (int64_t i = 0; i < draws; ++i) {
      const auto back = there_and_back(*codec, values, {}, Key{99}.with(static_cast<uint64_t>(i)));
      EXPECT_TRUE(((back - values).abs() <= scales * 1.00002).all().item<bool>());
      sum += back.to(at::kDouble);
    }
    const auto bias = (sum / static_cast<double>(draws) - values.to(at::kDouble)) / scales;
    // A draw's deviation is at most half a scale; five standard deviations of the mean, for each and for all.
    EXPECT_LE(bias.abs().max().item<double>(), 5 * 0.5 / std::sqrt(draws));
    EXPECT_LE(std::abs(bias.mean().item<double>()), 5 * 0.5 / std::sqrt(static_cast<double>(draws * count)));
  }
}

TEST(Integers, LeaveWholeNumbersOfScalesAloneWhenRoundingAtRandom) {
  auto config = codec_config(CodecKind::int4);
  config.rounding = Rounding::stochastic;
  std::vector<float> values;
  for (int i = -7; i <= 7; ++i) values.push_back(static_cast<float>(i) * 0.25f);
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_TRUE(at::equal(there_and_back(*make_codec(config), tensor_of(values), {}, Key{i}), tensor_of(values)));
}

TEST(Integers, RoundingDependsOnThePlaceAndTheKeyAlone) {
  auto config = codec_config(CodecKind::int8);
  config.rounding = Rounding::stochastic;
  const auto codec = make_codec(config);
  const auto values = at::full({1024}, 0.3f);
  values.slice(0, 0, 1024, 256).fill_(1);
  const auto one = there_and_back(*codec, values, {}, Key{1}), other = there_and_back(*codec, values, {}, Key{2});
  EXPECT_FALSE(at::equal(one, other));
  EXPECT_FALSE(at::equal(one.narrow(0, 0, 256), one.narrow(0, 256, 256)));
  const auto first = there_and_back(*codec, values.narrow(0, 0, 512), {}, Key{1});
  EXPECT_TRUE(at::equal(one.narrow(0, 0, 512), first));
}

TEST(Integers, MakeABlockWithoutANumberNotANumber) {
  for (const auto kind : {CodecKind::int8, CodecKind::int4, CodecKind::sign}) {
    auto config = codec_config(kind);
    config.block = 64;
    const auto values = normal_values(192, 23);
    values.data_ptr<float>()[70] = -infinity;
    const auto back = there_and_back(*make_codec(config), values);
    EXPECT_TRUE(back.narrow(0, 64, 64).isnan().all().item<bool>());
    EXPECT_TRUE(back.narrow(0, 0, 64).isfinite().all().item<bool>());
    EXPECT_TRUE(back.narrow(0, 128, 64).isfinite().all().item<bool>());
  }
}

TEST(Integers, TakeTheSmallestAndTheLargestFloats) {
  for (const auto kind : {CodecKind::int8, CodecKind::int4, CodecKind::sign}) {
    const auto codec = make_codec(codec_config(kind));
    for (const float size : {1e-45f, 1e-38f, 1e-36f, 1e-30f, 1e30f, 3.4028235e38f}) {
      const auto values = tensor_of({size, -size, size, size, -size});
      const auto back = there_and_back(*codec, values);
      EXPECT_TRUE(at::allclose(back, values, 1e-5, 2e-36)) << codec->name() << " " << size << back;
    }
    const auto zeros = tensor_of({0, -0.f, 0});
    EXPECT_TRUE(at::equal(there_and_back(*codec, zeros).abs(), zeros.abs()));
  }
}

TEST(Sign, IsTheSignTimesTheMean) {
  for (const int64_t block : {8, 32, 256}) {
    for (const int64_t count : {1, 7, 8, 9, 250, 256, 259, 1111}) {
      auto config = codec_config(CodecKind::sign);
      config.block = block;
      const auto values = normal_values(count, 24);
      const auto back = there_and_back(*make_codec(config), values);
      const auto expected = values.sign() * scales_of(values, block, true, 1);
      EXPECT_TRUE(at::allclose(back, expected, 1e-5)) << count << " by " << block;
    }
  }
}

TEST(Fixed, MessagesAreAsShortAsTheyCanBe) {
  const int64_t count = 1 << 20;
  const auto ratio = [&](CodecKind kind) {
    return 4.0 * count / static_cast<double>(make_codec(codec_config(kind))->most_bytes(count));
  };
  EXPECT_NEAR(ratio(CodecKind::fp16), 2, 0.001);
  EXPECT_NEAR(ratio(CodecKind::bf16), 2, 0.001);
  EXPECT_NEAR(ratio(CodecKind::int8), 4 / (1 + 4.0 / 256), 0.001);
  EXPECT_NEAR(ratio(CodecKind::int4), 4 / (0.5 + 4.0 / 256), 0.01);
  EXPECT_NEAR(ratio(CodecKind::sign), 4 / (0.125 + 4.0 / 256), 0.02);
}

}  // namespace
}  // namespace trireme
