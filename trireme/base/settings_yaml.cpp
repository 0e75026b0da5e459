// Settings from YAML and back. yaml-cpp parses; which keys there are, and that each is given once, is seen to here,
// because yaml-cpp takes a repeated key in silence.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/settings.h"
#include "trireme/base/yaml_error.h"

namespace trireme {

struct Settings::Document {
  std::string name;
  std::map<std::string, int> line_of;  // of every key read so far, sections included

  std::string location(int line) const { return fmt::format("{}:{}", name, line); }
};

namespace {

constexpr uint64_t most_bytes = 16'000'000;  // of a configuration: far more than any person writes

int line_of(const YAML::Node& node) { return node.Mark().line + 1; }

std::string kind_of(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Sequence: return "a list";
    case YAML::NodeType::Map: return "a map";
    case YAML::NodeType::Scalar: return "a single value";
    default: return "nothing";
  }
}

std::vector<YAML::Node> parse(const std::string& yaml, const std::string& source_name) {
  try {
    return YAML::LoadAll(yaml);
  } catch (const YAML::Exception& error) {
    refuse_yaml(source_name, yaml, error);
  }
}

// As YAML, plain where every YAML reader takes it for the same text, else in single quotes, which escape nothing.
std::string yaml_text(const std::string& text) {
  static const std::vector<std::string> other_meaning = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || std::strchr("/._-", c); };
  std::string lower = text;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (!text.empty() && (is_letter(text[0]) || text[0] == '/') && std::all_of(text.begin(), text.end(), is_plain) &&
      std::find(other_meaning.begin(), other_meaning.end(), lower) == other_meaning.end()) {
    return text;
  }
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

void Settings::read_file(const std::filesystem::path& path) {
  read_text(read_input_text(path, fmt::format("a {} file", subject_), most_bytes), path.string());
}

void Settings::read_text(const std::string& yaml, const std::string& source_name) {
  const auto documents = parse(yaml, source_name);
  if (documents.empty() || (documents.size() == 1 && documents[0].IsNull())) return;  // an empty file changes nothing
  Document document{source_name, {}};
  const auto& top = documents[0];
  if (documents.size() > 1) {
    refuse("{}: holds {} YAML documents, a {} is one", document.location(line_of(documents[1])), documents.size(),
           subject_);
  }
  if (!top.IsMap()) {
    refuse("{}: a {} is a map of sections, not {}", document.location(line_of(top)), subject_, kind_of(top));
  }
  if (present_version_) check_version(top, document);
  read_map(top, "", document);
}

// Before any other key is looked at: a newer program's file may have keys that nobody here knows.
void Settings::check_version(const YAML::Node& top, const Document& document) const {
  for (const auto& pair : top) {
    if (!pair.first.IsScalar() || !is_version(pair.first.Scalar()) || !pair.second.IsScalar()) continue;
    const auto location = document.location(line_of(pair.first));
    int64_t written_for = 0;
    Setting given("version", &written_for, "");
    given.at_least(1).read(pair.second.Scalar(), location);
    given.check();
    if (written_for > *present_version_) {
      refuse(
          "{}: version = {}: made by a newer Trireme than this one, which reads {}s up to version {}: "
          "use the newer program",
          location, written_for, subject_, *present_version_);
    }
  }
}

void Settings::read_map(const YAML::Node& map, const std::string& prefix, Document& document) {
  for (const auto& pair : map) {
    const auto location = document.location(line_of(pair.first));
    if (!pair.first.IsScalar()) refuse("{}: a key must be a word, not {}", location, kind_of(pair.first));
    const auto key = prefix + pair.first.Scalar();
    const auto [earlier, is_new] = document.line_of.emplace(key, line_of(pair.first));
    if (!is_new) refuse("{}: {} is given twice, first in line {}", location, key, earlier->second);
    read_entry(key, pair.second, location, document);
  }
}

void Settings::read_entry(const std::string& key, const YAML::Node& value, const std::string& location,
                          Document& document) {
  if (has_section(key)) {
    if (value.IsNull()) return;  // "model:" with every line under it commented out
    if (!value.IsMap()) {
      refuse("{}: {} must be a map of settings ({}), not {}", location, key, names_in(key), kind_of(value));
    }
    read_map(value, key + ".", document);
    return;
  }
  Setting* setting = find(key);
  if (!setting) refuse_unknown(key, location);
  if (setting->is_list() && value.IsSequence()) {
    std::string list;
    for (const auto& item : value) {
      if (!item.IsScalar()) refuse("{}: {} must be a {}, not of {}", location, key, setting->type(), kind_of(item));
      list += (list.empty() ? "" : ", ") + item.Scalar();
    }
    return setting->read("[" + list + "]", location);
  }
  if (!value.IsScalar()) {
    refuse("{}: {} must have one value ({}), not {}", location, key, setting->type(), kind_of(value));
  }
  if (!is_version(key)) setting->read(value.Scalar(), location);
}

std::string Settings::resolved_yaml() const {
  std::string yaml;
  for (const auto& section : sections_to_print()) {
    const bool stands_alone = section.name.empty();
    if (!stands_alone) yaml += section.name + ":\n";
    for (const Setting* setting : settings_of(section.name)) {
      const auto value = setting->is_text() ? yaml_text(setting->text()) : setting->text();
      yaml += fmt::format("{}{}: {}\n", stands_alone ? "" : "  ", setting->name(), value);
    }
  }
  return yaml;
}

}  // namespace trireme
