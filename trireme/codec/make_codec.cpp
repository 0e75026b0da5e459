#include "trireme/base/error.h"
#include "trireme/codec/kinds.h"

namespace trireme {

std::unique_ptr<Codec> make_codec(const CodecConfig& config, const std::vector<MatrixPlace>& matrices) {
  switch (config.kind) {
    case CodecKind::fp16:
    case CodecKind::bf16:
    case CodecKind::int8:
    case CodecKind::int4:
    case CodecKind::sign: return make_fixed_codec(config);
    case CodecKind::top_k:
    case CodecKind::threshold: return make_sparse_codec(config);
    case CodecKind::low_rank: return make_low_rank_codec(config, matrices);
    case CodecKind::bound: return make_bound_codec(config);
    case CodecKind::none:
    case CodecKind::automatic: break;
  }
  fail("there is no codec to make: none was asked for, or nobody has chosen one yet");
}

}  // namespace trireme
