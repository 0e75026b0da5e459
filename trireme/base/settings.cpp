// The set of all settings: declaring, finding, overriding, and what to say about a key that does not exist.
#include "trireme/base/settings.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr const char* command_line = "command line";

}  // namespace

void Settings::section(std::string name, std::string sentence) {
  if (has_section(name) || find(name)) fail("the section {} is declared twice", name);
  sections_.push_back({std::move(name), std::move(sentence)});
}

Setting& Settings::add(std::string key, int64_t& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(std::string key, double& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(std::string key, bool& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(std::string key, std::string& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(std::string key, std::vector<int64_t>& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(std::string key, std::vector<double>& field, std::string sentence) {
  return add(Setting(std::move(key), &field, std::move(sentence)));
}

Setting& Settings::add(Setting setting) {
  if (find(setting.key()) || has_section(setting.key())) fail("the setting {} is declared twice", setting.key());
  if (!setting.section().empty() && !has_section(setting.section())) {
    fail("the setting {} is declared before its section", setting.key());
  }
  return settings_.emplace_back(std::move(setting));
}

void Settings::add_version(int64_t present, std::string sentence) {
  present_version_ = std::make_unique<int64_t>(present);
  add("version", *present_version_, std::move(sentence)).at_least(1);
}

Setting* Settings::find(const std::string& key) {
  const auto found = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.key() == key; });
  return found == settings_.end() ? nullptr : &*found;
}

const Setting& Settings::at(const std::string& key) const {
  for (const auto& setting : settings_) {
    if (setting.key() == key) return setting;
  }
  fail("no setting is called {}", key);
}

bool Settings::has_section(const std::string& name) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& s) { return s.name == name; });
}

std::vector<std::string> Settings::keys() const {
  std::vector<std::string> keys;
  for (const auto& setting : settings_) keys.push_back(setting.key());
  return keys;
}

std::vector<Settings::Section> Settings::sections_to_print() const {
  std::vector<Section> sections = {{"", "Settings that stand by themselves."}};
  sections.insert(sections.end(), sections_.begin(), sections_.end());
  std::erase_if(sections, [this](const Section& section) { return settings_of(section.name).empty(); });
  return sections;
}

std::vector<const Setting*> Settings::settings_of(const std::string& section) const {
  std::vector<const Setting*> settings;
  for (const auto& setting : settings_) {
    if (setting.section() == section) settings.push_back(&setting);
  }
  return settings;
}

void Settings::override_with(const std::string& assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    if (settings_.empty()) fail("there are no settings to override");
    const Setting* known = find(assignment);
    const Setting& example = known ? *known : settings_.front();
    refuse("{}: \"{}\" gives no value to a setting, write key=value, for example {}={}", command_line, assignment,
           example.key(), example.default_text());
  }
  const auto key = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  if (has_section(key)) {
    refuse("{}: {} = {} must name one setting of the section: {}", command_line, key, Setting::shown(value),
           names_in(key));
  }
  if (is_version(key)) refuse("{}: version says for which version a file was written, it cannot be set", command_line);
  Setting* setting = find(key);
  if (!setting) refuse_unknown(key, command_line);
  setting->read(value, command_line);
}

void Settings::take(const std::string& key, const std::string& text, const std::string& source) {
  Setting* setting = find(key);
  if (!setting) refuse_unknown(key, source);
  setting->read(text, source);
}

void Settings::check() const {
  for (const auto& setting : settings_) setting.check();
}

void Settings::refuse_together(const std::string& key, const std::string& rule, const std::string& other) const {
  const Setting &first = at(key), &second = at(other);
  const auto where = first.is_set() ? first.location() : second.location();
  const auto shown = [&](const Setting& setting) {  // says where a value came from unless the line starts with it
    const auto note = setting.location() == where ? "" : fmt::format(" ({})", setting.location());
    return fmt::format("{} = {}{}", setting.key(), Setting::shown(setting.text()), note);
  };
  refuse("{}: {} {} {}", where, shown(first), rule, shown(second));
}

std::string Settings::names_in(const std::string& section) const {
  std::vector<std::string> names;
  for (const Setting* setting : settings_of(section)) names.push_back(setting->name());
  return fmt::format("{}", fmt::join(names, ", "));
}

void Settings::refuse_unknown(const std::string& key, const std::string& location) const {
  const auto suggested = suggestion(key);
  if (!suggested.empty()) refuse("{}: unknown key {}, did you mean {}?", location, key, suggested);
  const auto section = key.substr(0, key.find('.'));
  if (has_section(section)) refuse("{}: unknown key {}, {} has {}", location, key, section, names_in(section));
  std::vector<std::string> names;
  for (const auto& one : sections_) names.push_back(one.name);
  refuse("{}: unknown key {}, the sections are {}", location, key, fmt::join(names, ", "));
}

// The likely mistakes, likeliest first: a slip in the section, the right name in the wrong section, a slip in the name.
// Names are compared without their sections, whose common letters would make everything look near.
std::string Settings::suggestion(const std::string& key) const {
  const auto dot = key.find('.');
  const auto section = dot == std::string::npos ? "" : key.substr(0, dot);
  const auto name = dot == std::string::npos ? key : key.substr(dot + 1);

  std::vector<std::string> section_names, same_name;
  for (const auto& one : sections_) section_names.push_back(one.name);
  for (const auto& setting : settings_) {
    if (setting.name() == name) same_name.push_back(setting.key());
  }
  const auto meant_section = section.empty() || has_section(section) ? section : nearest(section, section_names);
  const auto corrected = meant_section + "." + name;
  if (std::count(same_name.begin(), same_name.end(), corrected)) return corrected;
  if (!same_name.empty()) return fmt::format("{}", fmt::join(same_name, " or "));

  const auto near_name_in = [&](auto is_candidate) {
    std::vector<std::string> names, keys;
    for (const auto& setting : settings_) {
      if (!is_candidate(setting)) continue;
      names.push_back(setting.name());
      keys.push_back(setting.key());
    }
    const auto found = std::find(names.begin(), names.end(), nearest(name, names));
    return found == names.end() ? "" : keys[static_cast<size_t>(found - names.begin())];
  };
  auto near = near_name_in([&](const Setting& setting) { return setting.section() == meant_section; });
  if (near.empty() && section.empty()) near = nearest(name, section_names);
  if (near.empty() && section == meant_section) near = near_name_in([](const Setting&) { return true; });
  return near;
}

}  // namespace trireme
