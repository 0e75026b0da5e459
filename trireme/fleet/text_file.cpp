#include "trireme/fleet/text_file.h"

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::fleet {

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code ignored;  // what the status cannot tell, opening will
  const auto status = std::filesystem::status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found) refuse("{}: there is no such file", path.string());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    refuse("{}: this is a folder or a device, not a plain file", path.string());
  }
  const File file(path, File::Mode::read);
  std::string text(file.size(), '\0');
  if (text.empty()) refuse("{}: the file is empty", path.string());
  file.pread_all(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace trireme::fleet
