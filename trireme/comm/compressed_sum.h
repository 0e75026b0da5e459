// A sum over ranks that is said in fewer bytes. All ranks end with the same bits.
//
// By a codec: every rank encodes part r of its tensor for rank r, which adds up what it gets, encodes the sum, and
// sends that to all. What both messages leave out is kept, and said in the next sums (error feedback). Codecs that keep
// few elements send the sums of those as they are, so that the result is exactly the sum of what was kept.
//
// By matrices of low rank (PowerSGD): the factors are summed, which is the same as factors of the sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/codec/codec.h"
#include "trireme/comm/transport.h"
#include "trireme/spec/config.h"

namespace trireme {

// What sums cost so far.
struct SumTraffic {
  int64_t plain_bytes = 0;  // that would have left this rank at the least without a codec,
  int64_t sent_bytes = 0;   // and that did
  double codec_s = 0;       // encoding and decoding
};

class CompressedSum {
 public:
  virtual ~CompressedSum() = default;

  // Sums a share over the courier's ranks, in place; always as many elements. `noise` differs from sum to sum and from
  // rank to rank.
  virtual void sum(const Courier& courier, const at::Tensor& share, Key noise, SumTraffic& traffic) = 0;

  // What was left out so far; undefined without feedback.
  const at::Tensor& residual() const { return residual_; }
  // What this rank must keep to go on exactly, by name.
  virtual std::map<std::string, at::Tensor> state() const;

 protected:
  CompressedSum(const CodecConfig& config, int64_t count);

  at::Tensor residual_;
};

// For shares of `count` elements, in which the matrices lie.
std::unique_ptr<CompressedSum> make_compressed_sum(const CodecConfig& config, int64_t count,
                                                   const std::vector<MatrixPlace>& matrices);

}  // namespace trireme
