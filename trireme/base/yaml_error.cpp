#include "trireme/base/yaml_error.h"

#include <yaml-cpp/exceptions.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

namespace {

namespace message = YAML::ErrorMsg;

// yaml-cpp's words and ours. Those that end in ": " are followed by what was found.
constexpr std::array<std::pair<const char*, const char*>, 24> meanings = {{
    {message::MAP_VALUE,
     "a colon cannot stand here: a line has one key (put a text with a colon in quotes), and the line above may lack "
     "its own colon"},
    {message::MAP_KEY, "a key cannot begin here"},
    {message::BLOCK_ENTRY, "an entry of a list (-) cannot begin here"},
    {message::END_OF_MAP, "this line does not belong to the keys above it: it is indented unlike them, or no key"},
    {message::END_OF_SEQ, "this line does not belong to the list above it: it is indented unlike it, or no entry"},
    {message::END_OF_MAP_FLOW, "a { is not closed by a }"},
    {message::END_OF_SEQ_FLOW, "a [ is not closed by a ]"},
    {message::FLOW_END, "a bracket is closed here that was not opened"},
    {message::TAB_IN_INDENTATION, "a tab indents this line: use spaces"},
    {message::UNKNOWN_TOKEN, "no value can begin with this character: put the text in quotes"},
    {message::EOF_IN_SCALAR, "a quote is not closed"},
    {message::DOC_IN_SCALAR, "a --- or ... stands inside quotes that are not closed"},
    {message::CHAR_IN_SCALAR, "a character stands in this text that cannot: put the text in quotes"},
    {message::INVALID_ESCAPE, "an unknown escape stands in double quotes: single quotes escape nothing"},
    {message::INVALID_HEX, "an escape in double quotes has a digit that is not hexadecimal"},
    {message::INVALID_UNICODE, "an escape in double quotes is no character of Unicode"},
    {message::UNKNOWN_ANCHOR, "* refers to something that & has not named: put a text that begins with * in quotes"},
    {message::ALIAS_NOT_FOUND, "* is followed by no name: put a text that begins with * in quotes"},
    {message::ANCHOR_NOT_FOUND, "& is followed by no name: put a text that begins with & in quotes"},
    {message::CHAR_IN_ALIAS, "the name after * has a character that it cannot have: put the text in quotes"},
    {message::CHAR_IN_ANCHOR, "the name after & has a character that it cannot have: put the text in quotes"},
    {message::END_OF_VERBATIM_TAG, "a tag that !< opens is not closed by >"},
    {message::CHAR_IN_BLOCK, "text that begins with | or > starts in the next line"},
    {message::BAD_FILE, "it is nested too deeply"},
}};

std::string meaning_of(const std::string& theirs) {
  for (const auto& [prefix, ours] : meanings) {
    if (theirs.starts_with(prefix)) return ours;
  }
  return theirs;
}

std::string line_of(const std::string& text, int number) {
  size_t begin = 0;
  for (int i = 0; i < number && begin != std::string::npos; ++i) {
    const auto end = text.find('\n', begin);
    begin = end == std::string::npos ? end : end + 1;
  }
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

// What fits into a message and a terminal.
std::string shown(std::string line) {
  constexpr size_t most = 60;
  line.erase(0, line.find_first_not_of(" \t"));
  for (char& c : line) c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (line.size() > most) {
    size_t end = most;  // not inside of a character of several bytes
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
    line = line.substr(0, end) + " ...";
  }
  return line;
}

}  // namespace

void refuse_yaml(const std::string& source, const std::string& text, const YAML::Exception& error) {
  if (error.mark.is_null()) refuse("{}: not valid YAML: {}", source, meaning_of(error.msg));
  const auto line = line_of(text, error.mark.line);
  // yaml-cpp takes such a line for a part of the line above, and complains of what comes next in it.
  const auto tab = line.find('\t');
  const bool tab_indents = tab < line.find_first_not_of(" \t");
  const auto quoted = shown(line);
  refuse("{}:{}: not valid YAML at column {}: {}{}", source, error.mark.line + 1,
         tab_indents ? static_cast<int>(tab) + 1 : error.mark.column + 1,
         meaning_of(tab_indents ? message::TAB_IN_INDENTATION : error.msg),
         quoted.empty() ? "" : fmt::format("; the line is \"{}\"", quoted));
}

}  // namespace trireme
