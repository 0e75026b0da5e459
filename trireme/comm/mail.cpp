#include "trireme/comm/mail.h"

#include "trireme/base/error.h"

namespace trireme {

void MessageHeader::check(int from) const {
  const auto type = static_cast<int>(dtype);
  const bool known =
      type >= 0 && type < static_cast<int>(at::ScalarType::NumOptions) && dtype != at::ScalarType::Undefined;
  bool fits = known && bytes >= 0 && dims >= 0 && dims <= most_dims;
  int64_t expected_bytes = fits ? static_cast<int64_t>(c10::elementSize(dtype)) : 0;
  for (int dim = 0; fits && dim < dims; ++dim)
    fits = sizes[dim] >= 0 && !__builtin_mul_overflow(expected_bytes, sizes[dim], &expected_bytes);
  if (!fits || expected_bytes != bytes) {
    fail(
        "a message from rank {} has a header that cannot be true ({} bytes, {} dims, type {}); its memory may be "
        "faulty",
        from, bytes, static_cast<int>(dims), type);
  }
}

}  // namespace trireme
