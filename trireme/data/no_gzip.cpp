#include "trireme/base/error.h"
#include "trireme/data/image_files.h"

namespace trireme {

std::vector<std::byte> read_gzip(const std::filesystem::path& path) {
  refuse("{}: this build cannot unpack gzip files: install zlib1g-dev and build again, or unpack it with gunzip",
         path.string());
}

}  // namespace trireme
