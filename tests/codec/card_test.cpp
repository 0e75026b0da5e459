// Codecs on a card say what they say on the host. Skipped where there is no card.
#include <gmock/gmock.h>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

class OnCards : public testing::TestWithParam<CodecConfig> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
};

std::vector<CodecConfig> configs_on_cards() {
  std::vector<CodecConfig> configs;
  for (auto config : all_configs()) {
    if (!make_codec(config)->on_cards()) continue;
    for (const int64_t block : {256, 8, 40, 1000}) {
      config.block = block;
      configs.push_back(config);
    }
  }
  return configs;
}

INSTANTIATE_TEST_SUITE_P(All, OnCards, testing::ValuesIn(configs_on_cards()));

// A mean's terms are added in another order.
bool same(const at::Tensor& a, const at::Tensor& b, bool sign) {
  if (!at::equal(a.isnan(), b.isnan())) return false;
  const auto x = a.nan_to_num(0, INFINITY, -INFINITY), y = b.nan_to_num(0, INFINITY, -INFINITY);
  return sign ? at::allclose(x, y, 1e-5, 1e-6) : at::equal(x, y);
}

at::Tensor there_and_back_on_card(const Codec& codec, const at::Tensor& values, const at::Tensor& residual) {
  const auto room = at::zeros({codec.most_bytes(values.numel())}, values.options().dtype(at::kByte));
  const auto back = at::full_like(values, 12345.f);
  codec.decode(room.narrow(0, 0, codec.encode(values, residual, Key{1}, room)), back);
  return back.cpu();
}

TEST_P(OnCards, SayWhatTheySayOnTheHost) {
  const auto codec = make_codec(GetParam());
  const bool sign = GetParam().kind == CodecKind::sign;
  for (const int64_t count : {0, 1, 7, 255, 256, 257, 1000, 100003}) {
    const auto values = normal_values(count, 80), before = normal_values(count, 81);
    if (count > 500) values.data_ptr<float>()[300] = not_a_number;
    const auto here = there_and_back(*codec, values);
    const auto residual = before.clone();
    const auto fed = there_and_back(*codec, values, residual);

    const auto there = values.cuda();
    EXPECT_TRUE(same(there_and_back_on_card(*codec, there, {}), here, sign)) << codec->name() << " of " << count;
    const auto left = before.cuda();
    EXPECT_TRUE(same(there_and_back_on_card(*codec, there, left), fed, sign)) << codec->name() << " of " << count;
    EXPECT_TRUE(same(left.cpu(), residual, sign)) << codec->name() << " of " << count;
  }
}

TEST_P(OnCards, AddAndLookAtTheLengthAlone) {
  const auto codec = make_codec(GetParam());
  const auto values = normal_values(3001, 82).cuda(), sum = normal_values(3001, 83).cuda();
  const auto room = at::zeros({codec->most_bytes(3001)}, values.options().dtype(at::kByte));
  const auto message = room.narrow(0, 0, codec->encode(values, {}, Key{1}, room));
  const auto said = at::empty_like(values), before = sum.clone();
  codec->decode(message, said);
  codec->add(message, sum);
  EXPECT_TRUE(at::equal(sum, before + said));
  EXPECT_THROW(codec->decode(message.narrow(0, 0, message.numel() - 1), said), Error);
  EXPECT_THROW(codec->decode(room.cpu(), said), Error);
}

}  // namespace
}  // namespace trireme
