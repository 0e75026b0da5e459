#include "trireme/parallel/bucket_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// The matrices of a bucket as far as whole rows of them lie in [begin, end), counted from there.
std::vector<MatrixPlace> matrices_of(const Bucket& bucket, int64_t begin, int64_t end) {
  std::vector<MatrixPlace> places;
  for (const auto& stored : bucket.parameters) {
    const auto& value = stored.parameter->value;
    if (value.dim() < 2 || value.size(0) == 0) continue;
    const int64_t rows = value.size(0), columns = value.numel() / rows;
    if (value.stride(0) != columns) continue;  // rows do not lie behind each other
    const int64_t first = std::max<int64_t>(0, (begin - stored.offset + columns - 1) / columns);
    const int64_t last = std::min(rows, (end - stored.offset) / columns);
    if (end > stored.offset && last - first > 1)
      places.push_back({stored.offset + first * columns - begin, last - first, columns});
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return places;
}

}  // namespace

// Elements of [begin, end), counted from there, that belong to no parameter.
std::vector<BucketSums::Gap> BucketSums::gaps_of(const Bucket& bucket, int64_t begin, int64_t end) {
  std::vector<Gap> gaps;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const auto& stored = bucket.parameters[i];
    const int64_t next = i + 1 < bucket.parameters.size() ? bucket.parameters[i + 1].offset : bucket.elements;
    const int64_t first = std::max(begin, stored.offset + stored.parameter->value.numel()), last = std::min(end, next);
    if (first < last) gaps.push_back({first - begin, last - first});
  }
  return gaps;
}

BucketSums::BucketSums(const CodecConfig& codec, uint64_t seed, const ParameterStore& store, Communicator& communicator,
                       Recorder& recorder, std::vector<Group> groups)
    : codec_(codec),
      noise_(Key{seed}.with("codec").with(static_cast<uint64_t>(communicator.rank()))),
      communicator_(communicator),
      recorder_(recorder),
      groups_(std::move(groups)) {
  if (!compresses()) return;
  for (size_t b = 0; b < groups_.size(); ++b) {
    const auto& bucket = store.buckets()[b];
    const auto [begin, end] = communicator.share_across(groups_[b], bucket.elements, sizeof(float));
    sums_.push_back(end > begin && communicator.size(groups_[b]) > 1
                        ? make_compressed_sum(codec_, end - begin, matrices_of(bucket, begin, end))
                        : nullptr);
    gaps_.push_back(gaps_of(bucket, begin, end));
  }
}

void BucketSums::start(size_t bucket, const at::Tensor& tensor, int64_t number, const char* name,
                       Communicator::Done done) {
  if (!compresses()) {
    communicator_.all_reduce(tensor, ReduceOp::sum, name, std::move(done), groups_[bucket]);
    return;
  }
  communicator_.sum_across(
      tensor,
      [this, bucket, number](const Courier& courier, const at::Tensor& share) { sum(bucket, number, courier, share); },
      name, std::move(done), groups_[bucket]);
}

// On the thread that communicates; one sum at a time.
void BucketSums::sum(size_t bucket, int64_t number, const Courier& courier, const at::Tensor& share) {
  SumTraffic traffic;
  const Key noise = noise_.with(bucket).with(static_cast<uint64_t>(number));
  sums_[bucket]->sum(courier, share, noise, traffic);
  // Codecs of signs make something of nothing. It would be in the gradient's norm, and in the next sum.
  for (const auto& gap : gaps_[bucket]) share.narrow(0, gap.offset, gap.count).zero_();
  recorder_.sent(traffic.sent_bytes);
  std::lock_guard lock(mutex_);
  traffic_.plain_bytes += traffic.plain_bytes;
  traffic_.sent_bytes += traffic.sent_bytes;
  traffic_.codec_s += traffic.codec_s;
}

SumTraffic BucketSums::take_traffic() {
  std::lock_guard lock(mutex_);
  return std::exchange(traffic_, {});
}

double BucketSums::residual_norm() const {
  double squares = 0;
  for (const auto& sum : sums_) {
    if (sum && sum->residual().defined()) squares += at::dot(sum->residual(), sum->residual()).item<double>();
  }
  return std::sqrt(squares);
}

std::map<std::string, at::Tensor> BucketSums::own_state() const {
  std::map<std::string, at::Tensor> state;
  for (size_t b = 0; b < sums_.size(); ++b) {
    if (!sums_[b]) continue;
    for (const auto& [name, tensor] : sums_[b]->state()) state[fmt::format("bucket-{}.codec.{}", b, name)] = tensor;
  }
  return state;
}

}  // namespace trireme
