// The error bound, element by element, in double precision.
#include <gmock/gmock.h>

#include <functional>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

// Counts the elements that break the promise.
int64_t broken(const at::Tensor& values, const at::Tensor& back, double bound, BoundKind kind) {
  const float* x = values.const_data_ptr<float>();
  const float* y = back.const_data_ptr<float>();
  int64_t found = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double from = x[i], to = y[i];
    if (!std::isfinite(from)) {
      found += std::isnan(from) ? !std::isnan(to) : from != to;
    } else {
      found += !(std::abs(from - to) <= (kind == BoundKind::absolute ? bound : bound * std::abs(from)));
    }
  }
  return found;
}

// Values of sorts that are hard to keep, 65,536 each; `seed` makes them others.
std::vector<std::pair<std::string, at::Tensor>> hard_values(uint64_t seed, double bound) {
  constexpr int64_t count = 65536;
  const auto made = [&](const std::function<float(uint32_t bits, int64_t i)>& make) {
    auto values = at::empty({count}, at::kFloat);
    for (int64_t i = 0; i < count; ++i)
      values.data_ptr<float>()[i] = make(bits32(Key{seed}.with("hard"), static_cast<uint32_t>(i)), i);
    return values;
  };
  const auto step = static_cast<float>(bound);
  const std::vector<float> special = {0.f,    -0.f,    infinity,       -infinity,     not_a_number,
                                      1e-45f, -1e-40f, 1.1754944e-38f, 3.4028235e38f, -3.4028235e38f,
                                      1.f,    step,    -step,          2 * step,      3 * step};
  return {
      {"any bits", made([](uint32_t bits, int64_t) { return std::bit_cast<float>(bits); })},
      {"special", made([&](uint32_t bits, int64_t) { return special[bits % special.size()]; })},
      {"multiples of the bound",
       made([&](uint32_t bits, int64_t) { return static_cast<float>(static_cast<int32_t>(bits) % 100000) * step; })},
      {"next to multiples", made([&](uint32_t bits, int64_t) {
         const float at = static_cast<float>(static_cast<int32_t>(bits >> 2) % 5000) * step;
         return std::nextafter(at, bits & 1 ? infinity : -infinity);
       })},
      {"constant", made([](uint32_t, int64_t) { return 0.1234567f; })},
      {"small",
       made([&](uint32_t bits, int64_t) { return std::ldexp(static_cast<float>(static_cast<int32_t>(bits)), -170); })},
      {"near the largest codes", made([&](uint32_t bits, int64_t) {
         return step * (8388608.f - 500 + static_cast<float>(bits % 1000)) * (bits >> 31 ? 1 : -1);
       })},
      {"fractions of nothing but ones", made([](uint32_t bits, int64_t) {
         return std::bit_cast<float>((bits & 0xff800000u) | (0x7fffffu >> bits % 3));
       })},
      {"mostly small, some large", made([&](uint32_t bits, int64_t) {
         const float value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f * 20 * step;
         return bits % 97 ? value : value * 1e4f;
       })},
  };
}

void expect_bound(const at::Tensor& values, double bound, BoundKind kind, const std::string& what) {
  CodecConfig config = codec_config(CodecKind::bound);
  config.bound = bound;
  config.bound_kind = kind;
  const auto codec = make_codec(config);
  EXPECT_EQ(broken(values, there_and_back(*codec, values), bound, kind), 0) << what << ", bound " << bound;
}

TEST(Bound, IsKeptByEveryElement) {
  for (const auto kind : {BoundKind::absolute, BoundKind::relative}) {
    for (const double bound : {1e-6, 1e-3, 0.1, 0.5, 0.97}) {
      for (const auto& [what, values] : hard_values(1, bound)) expect_bound(values, bound, kind, what);
    }
  }
  for (const double bound : {1e-30, 1e-12, 3.0, 1e10, 1e30}) {
    for (const auto& [what, values] : hard_values(2, bound)) expect_bound(values, bound, BoundKind::absolute, what);
  }
}

TEST(Bound, IsKeptByAMillionNormalValues) {
  for (const double size : {1e-4, 1.0, 1e4}) {
    const auto values = normal_values(1 << 20, 70, size);
    for (const double bound : {1e-5, 1e-2}) {
      expect_bound(values, bound, BoundKind::absolute, "normal");
      expect_bound(values, bound, BoundKind::relative, "normal");
    }
  }
}

// By hand: test_codec --gtest_also_run_disabled_tests --gtest_filter='*HundredMillion*'
TEST(Bound, DISABLED_IsKeptByAHundredMillionValues) {
  int64_t seen = 0;
  for (uint64_t seed = 10; seen < 100'000'000; ++seed) {
    const double bound = std::pow(10.0, -7 + 8 * uniform(Key{seed}.with("bound"), 0));
    for (const auto& [what, values] : hard_values(seed, bound)) {
      expect_bound(values, bound, BoundKind::absolute, what);
      if (bound < 1) expect_bound(values, bound, BoundKind::relative, what);
      seen += (bound < 1 ? 2 : 1) * values.numel();
    }
    ASSERT_FALSE(HasFailure());
  }
  RecordProperty("values", std::to_string(seen));
  fmt::print("{} values, none beyond its bound\n", seen);
}

TEST(Bound, MeetsExactTies) {
  // Odd whole numbers lie exactly a bound of 1 from their neighbours: that is within it, and no reason to give up.
  const auto values = at::arange(-5000, 5000, at::kFloat);
  CodecConfig config = codec_config(CodecKind::bound);
  config.bound = 1;
  const auto codec = make_codec(config);
  EXPECT_EQ(broken(values, there_and_back(*codec, values), 1, BoundKind::absolute), 0);
  EXPECT_LT(message_of(*codec, values).numel(), 2 * values.numel() + 200);
}

TEST(Bound, SaysSmoothAndSmallValuesInFewBytes) {
  CodecConfig config = codec_config(CodecKind::bound);
  config.bound = 0.01;
  const auto codec = make_codec(config);
  const auto bytes = [&](const at::Tensor& values) { return static_cast<double>(message_of(*codec, values).numel()); };
  const int64_t count = 1 << 18;
  EXPECT_LT(bytes(at::zeros({count})), 0.01 * count);
  EXPECT_LT(bytes(normal_values(count, 71, 0.01)), 0.25 * count);  // about 1.6 bits each
  EXPECT_LT(bytes(normal_values(count, 72, 0.2)), 0.8 * count);
  // What cannot be coded is as long as it was.
  EXPECT_LE(bytes(normal_values(count, 73, 1e9)), 4.01 * count);
}

TEST(Bound, RelativeKeepsSignsAndZeros) {
  CodecConfig config = codec_config(CodecKind::bound);
  config.bound_kind = BoundKind::relative;
  const auto values = tensor_of({0.f, -0.f, 1e-40f, -1e-45f, 3.4028235e38f, -2.f});
  const auto back = there_and_back(*make_codec(config), values);
  EXPECT_TRUE(at::equal(back.signbit(), values.signbit()));
  EXPECT_TRUE(at::equal(back.eq(0), values.eq(0)));
}

}  // namespace
}  // namespace trireme
