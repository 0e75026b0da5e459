#include "trireme/base/host.h"

#include <limits.h>
#include <unistd.h>

#include <ctime>

#include "trireme/base/error.h"

namespace trireme {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) fail_errno("gethostname");
  return name;
}

std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char text[32] = {};
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, length), now.tv_nsec / 1'000'000);
}

}  // namespace trireme
