// Names chosen by patterns: "h.0.*,wte.weight" is a list of two, in which * stands for any characters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// The patterns of a list, without the spaces around them.
std::vector<std::string> split_patterns(const std::string& list);

bool matches(std::string_view pattern, std::string_view name);
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);

}  // namespace trireme
