// When a codec pays: what an all-reduce costs with it, by the same model as without (collective_cost).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/links.h"

namespace trireme {

// A codec as it was measured on a core.
struct CodecSpeed {
  CodecKind kind = CodecKind::none;
  double ratio = 1;  // bytes of a message for each byte that it stands for
  double encode_s_per_byte = 0, decode_s_per_byte = 0;
};

// Who sums, and over what.
struct SumPlace {
  int hosts = 1, local = 1;  // ranks on each host, which share its link to the others
  Links links;
  double cores = 1;  // that a rank has
};

double plain_sum_seconds(const SumPlace& place, int64_t bytes);
double compressed_sum_seconds(const SumPlace& place, int64_t bytes, const CodecSpeed& codec);

struct CodecChoice {
  CodecKind kind = CodecKind::none;
  double plain_s = 0;
  std::vector<double> seconds;  // by codec that was asked for

  std::string brief(const std::vector<CodecSpeed>& codecs) const;
};

// The codec that makes sums of so many bytes fastest; none unless it takes at most `worth` of the time without one:
// sums overlap with the backward pass, and codecs take cores from it, so that less hardly shows in a step. Of two that
// are about as fast (within a tenth) the one that says more.
CodecChoice choose_codec(const SumPlace& place, int64_t bytes, const std::vector<CodecSpeed>& codecs,
                         double worth = 1.0 / 3);

const char* name(CodecKind kind);

}  // namespace trireme
