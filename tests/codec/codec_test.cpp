// What every codec promises.
#include "trireme/codec/codec.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

class EveryCodec : public testing::TestWithParam<CodecConfig> {
 protected:
  std::unique_ptr<Codec> codec(int64_t count) const { return make_codec(GetParam(), some_matrices(count)); }
};

std::string name_of(const testing::TestParamInfo<CodecConfig>& info) {
  std::string name = make_codec(info.param)->name();
  for (auto& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(All, EveryCodec, testing::ValuesIn(all_configs()), name_of);

const std::vector<int64_t> counts = {0,  1,  2,  3,   7,   8,   9,   15,  16,  17,  31,   32,   33,
                                     63, 64, 65, 127, 128, 255, 256, 257, 400, 500, 1000, 1024, 33000};

TEST_P(EveryCodec, DecodesAsManyValuesAsWereEncodedOfAnyCount) {
  for (const int64_t count : counts) {
    const auto codec = this->codec(count);
    const auto values = normal_values(count, 7);
    const auto message = message_of(*codec, values);
    EXPECT_LE(message.numel(), codec->most_bytes(count));
    const auto back = decoded(*codec, message, count);
    EXPECT_TRUE(back.isfinite().all().item<bool>()) << count;
    // No codec is further from the values than a few times what these are.
    EXPECT_LE((back - values).norm().item<double>(), 1.0 * values.norm().item<double>() + 1e-6) << count;
  }
}

TEST_P(EveryCodec, AddsWhatItDecodes) {
  for (const int64_t count : counts) {
    const auto codec = this->codec(count);
    const auto message = message_of(*codec, normal_values(count, 8));
    const auto before = normal_values(count, 9);
    const auto sum = before.clone();
    codec->add(message, sum);
    const auto expected = before + decoded(*codec, message, count);
    EXPECT_TRUE(at::allclose(sum, expected, 1e-5, 1e-6)) << count;
    EXPECT_TRUE(GetParam().kind == CodecKind::low_rank || at::equal(sum, expected)) << count;
  }
}

TEST_P(EveryCodec, LeavesInTheResidualWhatItDidNotSay) {
  for (const int64_t count : counts) {
    const auto codec = this->codec(count);
    const auto values = normal_values(count, 10), before = normal_values(count, 11);
    const auto residual = before.clone(), given = values.clone();
    const auto back = there_and_back(*codec, values, residual);
    EXPECT_TRUE(at::equal(values, given)) << "values were changed";
    const auto expected = (values + before) - back;
    EXPECT_TRUE(at::allclose(residual, expected, 1e-5, 2e-6)) << count;
    EXPECT_TRUE(GetParam().kind == CodecKind::low_rank || at::equal(residual, expected)) << count;
    // A message with a residual is the message of the sum.
    const auto sum = there_and_back(*codec, values + before);
    EXPECT_TRUE(at::equal(back, sum)) << count;
  }
}

TEST_P(EveryCodec, SaysInTheEndAllThatItWasGiven) {
  const int64_t count = 1000, steps = 40;
  const auto codec = this->codec(count);
  auto residual = at::zeros({count}), sent = at::zeros({count}, at::kDouble), given = at::zeros({count}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    const auto values = normal_values(count, 100 + static_cast<uint64_t>(step));
    sent += there_and_back(*codec, values, residual, Key{static_cast<uint64_t>(step)}).to(at::kDouble);
    given += values.to(at::kDouble);
  }
  const auto error = (sent + residual.to(at::kDouble) - given).abs().max().item<double>();
  EXPECT_LE(error, 1e-4);  // forty roundings of fp32
}

TEST_P(EveryCodec, NeverHidesWhatIsNotFinite) {
  for (const float bad : {not_a_number, infinity, -infinity}) {
    const int64_t count = 600;
    const auto codec = this->codec(count);
    const auto values = normal_values(count, 12);
    for (const int64_t place : {0, 5, 31, 110, 599}) values.data_ptr<float>()[place] = bad;
    auto residual = at::zeros({count});
    const auto back = there_and_back(*codec, values, residual);
    for (const int64_t place : {0, 5, 31, 110, 599})
      EXPECT_FALSE(std::isfinite(back.data_ptr<float>()[place])) << bad << " at " << place;
    EXPECT_TRUE(residual.isfinite().all().item<bool>()) << "the next message would say it again";
  }
}

TEST_P(EveryCodec, IsAFunctionOfItsInputs) {
  const int64_t count = 1000;
  const auto codec = this->codec(count);
  const auto values = normal_values(count, 13);
  EXPECT_TRUE(at::equal(message_of(*codec, values, {}, Key{5}), message_of(*codec, values, {}, Key{5})));
}

TEST_P(EveryCodec, TakesMessagesThatBeginAtAnyByte) {
  const int64_t count = 500;
  const auto codec = this->codec(count);
  const auto values = normal_values(count, 14);
  const auto expected = there_and_back(*codec, values);
  const auto memory = at::empty({codec->most_bytes(count) + 3}, at::kByte);
  for (const int64_t offset : {1, 2, 3}) {
    const auto room = memory.narrow(0, offset, codec->most_bytes(count));
    const auto message = room.narrow(0, 0, codec->encode(values, {}, Key{1}, room));
    EXPECT_TRUE(at::equal(decoded(*codec, message, count), expected));
  }
}

void expect_refused(const Codec& codec, const at::Tensor& message, int64_t count, const std::string& what) {
  const auto values = at::full({count}, 3.f);
  EXPECT_THROW(codec.decode(message, values), Error) << what;
}

TEST_P(EveryCodec, RefusesMessagesThatAreDamagedAnywhere) {
  for (const int64_t count : {0, 1, 300}) {
    const auto codec = this->codec(count);
    const auto message = message_of(*codec, normal_values(count, 15));
    for (int64_t place = 0; place < message.numel(); ++place) {
      for (const int flip : {1, 0x80, 0xff}) {
        const auto damaged = message.clone();
        damaged.data_ptr<uint8_t>()[place] ^= static_cast<uint8_t>(flip);
        expect_refused(*codec, damaged, count, fmt::format("byte {} of {}", place, message.numel()));
      }
    }
  }
}

TEST_P(EveryCodec, RefusesMessagesThatAreCutOrTooLong) {
  for (const int64_t count : {0, 1, 300}) {
    const auto codec = this->codec(count);
    const auto message = message_of(*codec, normal_values(count, 16));
    for (int64_t length = 0; length < message.numel(); ++length)
      expect_refused(*codec, message.narrow(0, 0, length), count, fmt::format("{} bytes", length));
    expect_refused(*codec, at::cat({message, at::zeros({1}, at::kByte)}), count, "a byte too many");
  }
}

TEST_P(EveryCodec, RefusesMessagesOfOtherCountsAndCodecs) {
  const auto codec = this->codec(300);
  const auto message = message_of(*codec, normal_values(300, 17));
  for (const int64_t count : {0, 299, 301, 600}) expect_refused(*codec, message, count, "another count");
  for (auto config : all_configs()) {
    if (config.kind == GetParam().kind && config.bound_kind == GetParam().bound_kind) continue;
    expect_refused(*make_codec(config, some_matrices(300)), message, 300, make_codec(config)->name());
  }
}

TEST_P(EveryCodec, RefusesTensorsThatItCannotWorkOn) {
  const auto codec = this->codec(100);
  const auto room = at::empty({codec->most_bytes(100)}, at::kByte);
  EXPECT_THROW(codec->encode(at::zeros({100}, at::kDouble), {}, Key{}, room), Error);
  EXPECT_THROW(codec->encode(at::zeros({10, 10}), {}, Key{}, room), Error);
  EXPECT_THROW(codec->encode(at::zeros({200}).slice(0, 0, 200, 2), {}, Key{}, room), Error);
  EXPECT_THROW(codec->encode(at::zeros({100}), at::zeros({99}), Key{}, room), Error);
  EXPECT_THROW(codec->encode(at::zeros({100}), {}, Key{}, room.narrow(0, 0, room.numel() - 1)), Error);
}

TEST(ErrorFeedback, TelescopesExactlyWhereNothingIsRounded) {
  // Values on a grid of 2^-10 whose sums and differences fp32 holds exactly.
  const int64_t count = 500, steps = 30;
  for (const auto kind : {CodecKind::fp16, CodecKind::bf16, CodecKind::top_k, CodecKind::threshold}) {
    const auto codec = make_codec(codec_config(kind));
    auto residual = at::zeros({count}), sent = at::zeros({count}, at::kDouble), given = at::zeros_like(sent);
    for (int64_t step = 0; step < steps; ++step) {
      const auto values = (normal_values(count, 200 + static_cast<uint64_t>(step)) * 1024).round() / 1024;
      sent += there_and_back(*codec, values, residual).to(at::kDouble);
      given += values.to(at::kDouble);
    }
    EXPECT_TRUE(at::equal(sent + residual.to(at::kDouble), given)) << codec->name();
  }
}

TEST(MakeCodec, RefusesSettingsThatMakeNoSense) {
  const auto expect = [](auto change) {
    CodecConfig config = codec_config(CodecKind::int8);
    change(config);
    EXPECT_THROW(make_codec(config), Error);
  };
  expect([](auto& c) { c.kind = CodecKind::none; });
  expect([](auto& c) { c.block = 12; });
  expect([](auto& c) { c.block = 0; });
  expect([](auto& c) { c.kind = CodecKind::top_k, c.keep = 0; });
  expect([](auto& c) { c.kind = CodecKind::top_k, c.keep = 1.5; });
  expect([](auto& c) { c.kind = CodecKind::threshold, c.threshold = -1; });
  expect([](auto& c) { c.kind = CodecKind::low_rank, c.rank = 0; });
  expect([](auto& c) { c.kind = CodecKind::bound, c.bound = 0; });
  expect([](auto& c) { c.kind = CodecKind::bound, c.bound = 1, c.bound_kind = BoundKind::relative; });
}

}  // namespace
}  // namespace trireme
