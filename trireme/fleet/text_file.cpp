#include "trireme/fleet/text_file.h"

#include "trireme/base/error.h"
#include "trireme/base/paths.h"

namespace trireme::fleet {

std::string read_text_file(const std::filesystem::path& path) {
  constexpr uint64_t most_bytes = 4'000'000'000;  // a trace of many millions of jobs
  auto text = read_input_text(path, "a text file", most_bytes);
  if (text.empty()) refuse("{}: the file is empty", path.string());
  return text;
}

}  // namespace trireme::fleet
