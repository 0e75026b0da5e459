// Settings as people read them: in a terminal and as a page of the documentation.
#include <algorithm>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/settings.h"

namespace trireme {
namespace {

constexpr size_t columns = 110;
constexpr size_t least_columns_of_text = 40;

// Lines of at most `width` characters, broken between words.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
  }
  return lines;
}

// "[integer, steps, at least 1]"
std::string facts_of(const Setting& setting) {
  std::vector<std::string> facts = {setting.type()};
  if (!setting.unit().empty()) facts.push_back(setting.unit());
  if (!setting.bounds().empty()) facts.push_back(setting.bounds());
  return fmt::format("[{}]", fmt::join(facts, ", "));
}

std::string shown_default(const Setting& setting) { return Setting::shown(setting.default_text()); }

// A vertical bar would end the cell.
std::string cell(const std::string& text) {
  std::string safe;
  for (char c : text) safe += c == '|' ? std::string("\\|") : std::string(1, c);
  return safe;
}

}  // namespace

std::string Settings::help() const {
  size_t key_width = 0, default_width = 0;
  for (const auto& setting : settings_) {
    key_width = std::max(key_width, setting.key().size());
    default_width = std::max(default_width, shown_default(setting).size());
  }
  const size_t indent = 2 + key_width + 2 + default_width + 2;
  const size_t text_width = std::max(columns, indent + least_columns_of_text) - indent;

  std::string help;
  for (const auto& section : sections_to_print()) {
    if (!help.empty()) help += '\n';
    help += section.name.empty() ? section.sentence : fmt::format("{}: {}", section.name, section.sentence);
    help += '\n';
    for (const Setting* setting : settings_of(section.name)) {
      auto lines = wrapped(setting->sentence(), text_width);
      const auto facts = facts_of(*setting);
      if (lines.back().size() + 1 + facts.size() > text_width) {
        for (auto& line : wrapped(facts, text_width)) lines.push_back(std::move(line));
      } else {
        lines.back() += ' ' + facts;
      }
      help += fmt::format("  {:<{}}  {:<{}}  {}\n", setting->key(), key_width, shown_default(*setting), default_width,
                          lines[0]);
      for (size_t i = 1; i < lines.size(); ++i) help += std::string(indent, ' ') + lines[i] + '\n';
    }
  }
  return help;
}

std::string Settings::markdown() const {
  std::string page;
  for (const auto& section : sections_to_print()) {
    if (!page.empty()) page += '\n';
    page += fmt::format("## {}\n\n", section.name.empty() ? "Without a section" : section.name);
    page += section.sentence + "\n\n";
    page += "| key | type | unit | default | bounds | meaning |\n";
    page += "| --- | --- | --- | --- | --- | --- |\n";
    for (const Setting* setting : settings_of(section.name)) {
      page += fmt::format("| `{}` | {} | {} | `{}` | {} | {} |\n", setting->key(), cell(setting->type()),
                          cell(setting->unit()), cell(shown_default(*setting)), setting->bounds(),
                          cell(setting->sentence()));
    }
  }
  return page;
}

}  // namespace trireme
