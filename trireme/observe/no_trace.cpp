// Takes the place of trace.cpp where there is no protozero.
#include "trireme/base/error.h"
#include "trireme/observe/trace.h"

namespace trireme {

std::string encode_trace(const std::vector<TraceSpan>&, int, const std::string&, int64_t) {
  fail("no trace: this program was built without protozero; install libprotozero-dev and build again");
}

bool trace_built() { return false; }

}  // namespace trireme
