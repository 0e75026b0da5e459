// What yaml-cpp complains of, in plain words and with the place.
#pragma once

#include <string>

namespace YAML {
class Exception;
}

namespace trireme {

// 'gpt.yaml:3: not valid YAML at column 13: a colon cannot stand here; …; the line is "model: width: 128"'.
// `text` is the whole YAML text that was read from `source`.
[[noreturn]] void refuse_yaml(const std::string& source, const std::string& text, const YAML::Exception& error);

}  // namespace trireme
