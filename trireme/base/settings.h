// Configuration with one declaration a setting: key, type, unit, default, bounds and one sentence. Parsing, validation,
// the help text, the docs page and the resolved copy that a run keeps all come from that declaration.
//
//   Settings settings;
//   settings.section("optimizer", "How gradients change the parameters.");
//   settings.add("optimizer.lr", config.lr, "Learning rate after the warmup.").above(0);
//   settings.read_file("gpt.yaml");                    // later files win
//   settings.override_with("optimizer.lr=3e-4");       // and overrides win over files
//   settings.check();                                  // "command line: optimizer.lr = -1 must be above 0"
//
// Whatever is wrong with what the user gave is refused with file and line, key, value and the rule it broke.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace YAML {
class Node;
}

namespace trireme {

// One setting: the field that holds its value, what that value may be, and what people are told about it.
class Setting {
 public:
  // One of a few names; `get` and `set` translate between the caller's enum and a place in `names`.
  struct Choice {
    std::vector<std::string> names;
    std::function<size_t()> get;
    std::function<void(size_t)> set;
  };
  using List = std::vector<int64_t>;
  using Numbers = std::vector<double>;
  using Field = std::variant<int64_t*, double*, bool*, std::string*, List*, Numbers*, Choice>;

  // The value that the field has now is the default.
  Setting(std::string key, Field field, std::string sentence);

  Setting& unit(std::string unit);
  Setting& at_least(double bound);
  Setting& above(double bound);
  Setting& at_most(double bound);
  Setting& below(double bound);
  // A number that earlier versions knew as a switch: false still reads as 0, true as 1.
  Setting& once_a_switch();
  // Whether the value is read at all depends on the values of others, such as a momentum on the kind of optimizer.
  Setting& read_if(std::function<bool()> condition);
  bool is_read() const { return !condition_ || condition_(); }

  const std::string& key() const { return key_; }
  std::string section() const;  // "optimizer" of "optimizer.lr", "" of a setting without section
  std::string name() const;     // "lr" of "optimizer.lr"
  const std::string& sentence() const { return sentence_; }
  const std::string& unit() const { return unit_; }
  const std::string& default_text() const { return default_text_; }
  bool is_text() const { return std::holds_alternative<std::string*>(field_); }
  bool is_list() const { return std::holds_alternative<List*>(field_) || std::holds_alternative<Numbers*>(field_); }
  // "integer", "number", "true or false", "text", "list of integers", "list of numbers", or the names of a choice
  std::string type() const;
  std::string bounds() const;  // "at least 0 and below 1", or ""
  std::string text() const;    // the value now, as `read` takes it: doubles to their last bit

  // Where the value came from: "gpt.yaml:7", "command line" or "default".
  std::string location() const { return is_set() ? location_ : "default"; }
  bool is_set() const { return !location_.empty(); }

  // A value in a sentence: as it is, or "" in quotes when there is nothing to see.
  static std::string shown(const std::string& text) { return text.empty() ? "\"\"" : text; }

  void read(const std::string& text, const std::string& location);
  void check() const;

 private:
  std::string key_, sentence_, unit_, default_text_, location_;
  Field field_;
  std::function<bool()> condition_;  // without one it is always read

  static constexpr double infinity = std::numeric_limits<double>::infinity();
  double least_ = -infinity, most_ = infinity;
  bool least_itself_ = true, most_itself_ = true;  // whether the bound itself is a valid value
  bool once_a_switch_ = false;
};

// The settings of one struct, in sections. The struct must outlive its Settings.
class Settings {
 public:
  // `subject` is what a file of these settings is called in complaints.
  explicit Settings(std::string subject = "configuration") : subject_(std::move(subject)) {}

  // A section is declared before its settings; "section.name" is a key of it, a key without a dot stands by itself.
  void section(std::string name, std::string sentence);

  // The reference stays valid, for .unit("steps").at_least(1).
  Setting& add(std::string key, int64_t& field, std::string sentence);
  Setting& add(std::string key, double& field, std::string sentence);
  Setting& add(std::string key, bool& field, std::string sentence);
  Setting& add(std::string key, std::string& field, std::string sentence);
  Setting& add(std::string key, std::vector<int64_t>& field, std::string sentence);  // [5, 9], or 5,9
  Setting& add(std::string key, std::vector<double>& field, std::string sentence);   // [2.5, 1]

  template <class Enum>
  Setting& add_choice(std::string key, Enum& field,
                      const std::vector<std::pair<const char*, std::type_identity_t<Enum>>>& choices,
                      std::string sentence);

  // Gives these settings a version. A file may say for which one it was written (`version: 2`) and is refused when that
  // is a newer one; a resolved copy says the present one. It is a key of files only, no value of the configuration.
  void add_version(int64_t present, std::string sentence);

  void read_file(const std::filesystem::path& path);
  void read_text(const std::string& yaml, const std::string& source_name);
  void override_with(const std::string& assignment);

  // Sets a value that came from elsewhere, such as a file of another program; `source` is named in complaints.
  void take(const std::string& key, const std::string& text, const std::string& source);

  // Refuses values out of their bounds.
  void check() const;

  // Refuses two values that do not go together: "gpt.yaml:3: model.width = 130 must be divisible by model.heads = 4".
  [[noreturn]] void refuse_together(const std::string& key, const std::string& rule, const std::string& other) const;
  void require(bool holds, const std::string& key, const std::string& rule, const std::string& other) const {
    if (!holds) refuse_together(key, rule, other);
  }

  bool is_set(const std::string& key) const { return at(key).is_set(); }  // by a file or an override
  bool is_read(const std::string& key) const { return at(key).is_read(); }
  std::string text(const std::string& key) const { return at(key).text(); }
  std::string location(const std::string& key) const { return at(key).location(); }
  std::vector<std::string> keys() const;

  std::string resolved_yaml() const;  // every setting; reads back as exactly the same values
  std::string help() const;           // for a terminal of 110 columns
  std::string markdown() const;       // one table a section

 private:
  struct Section {
    std::string name, sentence;
  };
  struct Document;  // one YAML text while it is read

  Setting& add(Setting setting);
  Setting* find(const std::string& key);
  const Setting& at(const std::string& key) const;
  bool is_version(const std::string& key) const { return present_version_ && key == "version"; }
  void check_version(const YAML::Node& top, const Document& document) const;
  bool has_section(const std::string& name) const;
  void read_map(const YAML::Node& map, const std::string& prefix, Document& document);
  void read_entry(const std::string& key, const YAML::Node& value, const std::string& location, Document& document);
  std::vector<Section> sections_to_print() const;  // first one named "" for the settings without section
  std::vector<const Setting*> settings_of(const std::string& section) const;
  [[noreturn]] void refuse_unknown(const std::string& key, const std::string& location) const;
  std::string names_in(const std::string& section) const;
  std::string suggestion(const std::string& key) const;

  std::string subject_;
  std::deque<Setting> settings_;              // a deque, so that growing it moves no setting
  std::unique_ptr<int64_t> present_version_;  // where there is one: the field of the setting `version`
  std::vector<Section> sections_;
};

template <class Enum>
Setting& Settings::add_choice(std::string key, Enum& field,
                              const std::vector<std::pair<const char*, std::type_identity_t<Enum>>>& choices,
                              std::string sentence) {
  Setting::Choice choice;
  std::vector<Enum> values;
  for (const auto& [name, value] : choices) {
    choice.names.emplace_back(name);
    values.push_back(value);
  }
  choice.get = [&field, values] {
    size_t place = 0;
    while (place < values.size() && values[place] != field) ++place;
    return place;
  };
  choice.set = [&field, values](size_t place) { field = values.at(place); };
  return add(Setting(std::move(key), std::move(choice), std::move(sentence)));
}

}  // namespace trireme
