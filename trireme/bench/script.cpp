#include "trireme/bench/script.h"

#include <filesystem>

#include "trireme/base/error.h"

namespace trireme {

namespace fs = std::filesystem;

std::string script(const std::string& place) {
  const fs::path installed = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/trireme" / place;
  const fs::path source = fs::path(TRIREME_SOURCE) / place;
  for (const auto& path : {installed, source}) {
    if (fs::exists(path)) return path.string();
  }
  refuse(
      "this benchmark needs {}, which is neither at {} (where cmake --install puts it) nor at {} (where this program "
      "was built)",
      place, installed.string(), source.string());
}

}  // namespace trireme
