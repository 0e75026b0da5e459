// Top-k and threshold against a sort.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/codec/messages.h"

namespace trireme {
namespace {

// The k largest by a stable sort, of equal ones the first; the rest is zero.
at::Tensor sorted_top(const at::Tensor& values, int64_t kept) {
  const float* v = values.data_ptr<float>();
  std::vector<int64_t> places(static_cast<size_t>(values.numel()));
  std::iota(places.begin(), places.end(), 0);
  const auto size = [&](int64_t i) {
    return std::isnan(v[i]) ? infinity : std::min(1e300, std::abs(static_cast<double>(v[i])));
  };
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return size(a) > size(b); });
  auto top = at::zeros_like(values);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t place = places[static_cast<size_t>(i)];
    top.data_ptr<float>()[place] = v[place];
  }
  return top;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(), b.nan_to_num());
}

void expect_top(const at::Tensor& values, double keep, const std::string& what) {
  auto config = codec_config(CodecKind::top_k);
  config.keep = keep;
  const auto kept = static_cast<int64_t>(std::ceil(keep * static_cast<double>(values.numel())));
  const auto codec = make_codec(config);
  EXPECT_TRUE(same(there_and_back(*codec, values), sorted_top(values, kept))) << what << ", " << keep;
  const auto residual = normal_values(values.numel(), 30, 0.1), sum = values + residual;
  EXPECT_TRUE(same(there_and_back(*codec, values, residual), sorted_top(sum, kept))) << what << ", " << keep;
}

TEST(TopK, IsTheLargestByASort) {
  for (const double keep : {1e-5, 0.01, 0.1, 0.5, 1.0}) {
    for (const int64_t count : {1, 2, 10, 1000, 65537, 200000}) {
      const auto values = normal_values(count, 31);
      expect_top(values, keep, fmt::format("{} normal values", count));
    }
  }
}

TEST(TopK, IsExactWhereTheSampleMisleads) {
  const int64_t count = 200000;
  for (const double keep : {0.0001, 0.01, 0.3}) {
    expect_top(at::zeros({count}), keep, "zeros");
    expect_top(at::full({count}, -2.f), keep, "equal values");
    expect_top((normal_values(count, 32) * 2).round(), keep, "few different values");
    auto spike = at::zeros({count});
    spike.narrow(0, 77777, 50).copy_(normal_values(50, 33));
    expect_top(spike, keep, "one place");
    auto halves = normal_values(count, 34, 1e-3);
    halves.narrow(0, 0, 40000).mul_(1e6);
    expect_top(halves, keep, "large ones first");
    auto nans = normal_values(count, 35);
    nans.slice(0, 5, count, 31).fill_(not_a_number);
    nans.slice(0, 6, count, 3001).fill_(-infinity);
    expect_top(nans, keep, "with NaN");
    expect_top(normal_values(count, 36) * at::logspace(-44, 38, count, 10), keep, "all sizes");
  }
}

TEST(Threshold, KeepsWhatReachesIt) {
  for (const double threshold : {0.0, 0.1, 1.0, 2.5, 100.0}) {
    auto config = codec_config(CodecKind::threshold);
    config.threshold = threshold;
    for (const int64_t count : {1, 100, 65536, 70000}) {
      auto values = normal_values(count, 41);
      values.data_ptr<float>()[count / 2] = static_cast<float>(threshold);
      values.data_ptr<float>()[count / 3] = not_a_number;
      const auto expected = at::where(values.abs().ge(threshold).logical_or(values.isnan()), values, at::zeros({1}));
      EXPECT_TRUE(same(there_and_back(*make_codec(config), values), expected)) << threshold << " of " << count;
    }
  }
}

TEST(Sparse, MessagesAreAsLongAsWhatTheyKeepButNeverLongerThanTheValues) {
  const int64_t count = 1 << 20;
  const auto values = normal_values(count, 42);
  for (const double keep : {0.001, 0.01, 0.1, 0.6, 0.7, 1.0}) {
    auto config = codec_config(CodecKind::top_k);
    config.keep = keep;
    const auto kept = std::ceil(keep * count);
    const auto bytes = static_cast<double>(message_of(*make_codec(config), values).numel());
    EXPECT_LE(bytes, std::min(6 * kept + 4 * 16, 4.0 * count) + 64) << keep;
  }
}

TEST(Sparse, SumsAreSaidExactly) {
  for (const auto kind : {CodecKind::top_k, CodecKind::threshold}) {
    auto config = codec_config(kind);
    config.threshold = 2;
    const auto codec = make_codec(config);
    const auto& sums = codec->of_sums();
    EXPECT_EQ(&sums.of_sums(), &sums);
    const int64_t count = 150000;
    auto sum = at::zeros({count});
    for (uint64_t rank = 0; rank < 4; ++rank) codec->add(message_of(*codec, normal_values(count, 50 + rank)), sum);
    sum.data_ptr<float>()[3] = 1e-44f;
    const auto message = message_of(sums, sum);
    EXPECT_TRUE(at::equal(decoded(sums, message, count), sum));
    EXPECT_LT(message.numel(), 4 * count);
    EXPECT_TRUE(at::equal(there_and_back(sums, normal_values(count, 60)), normal_values(count, 60)));
    EXPECT_THROW(decoded(*codec, message, count), Error);  // a sum's message is no message of a rank
  }
}

}  // namespace
}  // namespace trireme
