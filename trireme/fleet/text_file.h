// A whole file as text, read at once: unlike a mapped one it may shrink meanwhile without harm.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::fleet {

// Refuses a file that is missing, empty, or no plain file.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace trireme::fleet
