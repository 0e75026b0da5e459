// What makes the codecs of each kind, for make_codec alone.
#pragma once

#include "trireme/codec/codec.h"

namespace trireme {

std::unique_ptr<Codec> make_fixed_codec(const CodecConfig& config);
std::unique_ptr<Codec> make_sparse_codec(const CodecConfig& config);
std::unique_ptr<Codec> make_low_rank_codec(const CodecConfig& config, const std::vector<MatrixPlace>& matrices);
std::unique_ptr<Codec> make_bound_codec(const CodecConfig& config);

}  // namespace trireme
