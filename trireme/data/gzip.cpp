#include <zlib.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/data/image_files.h"

namespace trireme {

std::vector<std::byte> read_gzip(const std::filesystem::path& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail_errno(fmt::format("opening {}", path.string()));
  constexpr size_t piece = 1 << 20;
  std::vector<std::byte> bytes;
  while (true) {
    const size_t before = bytes.size();
    bytes.resize(before + piece);
    const int count = gzread(file.get(), bytes.data() + before, piece);
    int status = Z_OK;
    const char* problem = gzerror(file.get(), &status);
    if (count < 0 || status == Z_BUF_ERROR) refuse("{}: cannot be unpacked: {}", path.string(), problem);
    bytes.resize(before + static_cast<size_t>(count));
    if (static_cast<size_t>(count) < piece) return bytes;
  }
}

}  // namespace trireme
