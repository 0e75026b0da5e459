#include "trireme/codec/targets.h"

namespace trireme {

Target widest_target() {
#if defined(__x86_64__)
  static const Target found = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2"))
      return Target::avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Target::avx2 : Target::plain;
  }();
  return found;
#else
  return Target::plain;
#endif
}

}  // namespace trireme
