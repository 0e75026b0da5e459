// The codec that a run sums with: the one asked for, or with `auto` what the links and the cores make fastest.
#pragma once

#include "trireme/comm/world.h"
#include "trireme/spec/config.h"

namespace trireme {

// With `auto`: measures the codecs on this rank's core and, where comm.links names no file, the link between hosts;
// `bytes` is what is summed at once as a rule. The same on all ranks. Collective.
CodecConfig chosen_codec(CodecConfig codec, const std::string& links, World& world, int64_t bytes);

}  // namespace trireme
