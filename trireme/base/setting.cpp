// One setting: its value as text and back, and its bounds.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/settings.h"

namespace trireme {
namespace {

// What a text is as a value of some type, or the rule that it breaks.
template <class Value>
struct Parsed {
  std::optional<Value> value;
  std::string rule;
};

template <class Number>
std::errc parse_whole(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::invalid_argument || stopped != end) return std::errc::invalid_argument;
  return error;
}

Parsed<double> parse_double(const std::string& text) {
  double number = 0;
  const auto error = parse_whole(text, number);
  if (error == std::errc::result_out_of_range) return {{}, "is outside the range of a double"};
  if (error != std::errc()) return {{}, "must be a number"};
  if (!std::isfinite(number)) return {{}, "must be finite"};
  return {number, ""};
}

Parsed<int64_t> parse_int(const std::string& text) {
  int64_t number = 0;
  const auto error = parse_whole(text, number);
  if (error == std::errc()) return {number, ""};
  if (error == std::errc::result_out_of_range) return {{}, "is outside the range of a 64-bit integer"};
  // 1e6 is an integer too, as long as a double holds every integer of that size.
  const auto real = parse_double(text);
  if (!real.value || *real.value != std::floor(*real.value)) return {{}, "must be an integer"};
  if (std::abs(*real.value) > 0x1p53) return {{}, "is too large for this notation, write all its digits"};
  return {static_cast<int64_t>(*real.value), ""};
}

Parsed<bool> parse_bool(const std::string& text) {
  if (text != "true" && text != "false") return {{}, "must be true or false"};
  return {text == "true", ""};
}

Parsed<std::string> parse_string(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) return {{}, "must be one line without control characters"};
  return {text, ""};
}

// "[5, 9]", "5,9", or nothing.
template <class Number>
Parsed<std::vector<Number>> parse_list(const std::string& text, Parsed<Number> (*parse)(const std::string&),
                                       const char* rule) {
  std::string inside = text;
  std::erase(inside, ' ');
  if (inside.size() >= 2 && inside.front() == '[' && inside.back() == ']') inside = inside.substr(1, inside.size() - 2);
  std::vector<Number> list;
  for (size_t begin = 0; begin < inside.size();) {
    const size_t end = std::min(inside.find(',', begin), inside.size());
    const auto number = parse(inside.substr(begin, end - begin));
    if (!number.value) return {{}, rule};
    list.push_back(*number.value);
    begin = end + 1;
  }
  return {list, ""};
}

Parsed<size_t> parse_choice(const std::string& text, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return {static_cast<size_t>(found - names.begin()), ""};
  auto rule = fmt::format("must be {}{}", names.size() > 1 ? "one of " : "", fmt::join(names, ", "));
  if (const auto near = nearest(text, names); !near.empty()) rule += fmt::format(" (did you mean {}?)", near);
  return {{}, rule};
}

// std::visit with one lambda a type.
template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

}  // namespace

Setting::Setting(std::string key, Field field, std::string sentence)
    : key_(std::move(key)), sentence_(std::move(sentence)), field_(std::move(field)) {
  default_text_ = text();
}

Setting& Setting::unit(std::string unit) {
  unit_ = std::move(unit);
  return *this;
}

Setting& Setting::at_least(double bound) {
  least_ = bound;
  least_itself_ = true;
  return *this;
}

Setting& Setting::above(double bound) {
  least_ = bound;
  least_itself_ = false;
  return *this;
}

Setting& Setting::at_most(double bound) {
  most_ = bound;
  most_itself_ = true;
  return *this;
}

Setting& Setting::below(double bound) {
  most_ = bound;
  most_itself_ = false;
  return *this;
}

Setting& Setting::once_a_switch() {
  once_a_switch_ = true;
  return *this;
}

Setting& Setting::read_if(std::function<bool()> condition) {
  condition_ = std::move(condition);
  return *this;
}

std::string Setting::section() const {
  const auto dot = key_.rfind('.');
  return dot == std::string::npos ? "" : key_.substr(0, dot);
}

std::string Setting::name() const { return key_.substr(key_.rfind('.') + 1); }

std::string Setting::type() const {
  return std::visit(
      Match{[](int64_t*) -> std::string { return "integer"; }, [](double*) -> std::string { return "number"; },
            [](bool*) -> std::string { return "true or false"; }, [](std::string*) -> std::string { return "text"; },
            [](List*) -> std::string { return "list of integers"; },
            [](Numbers*) -> std::string { return "list of numbers"; },
            [](const Choice& choice) { return fmt::format("{}", fmt::join(choice.names, " | ")); }},
      field_);
}

std::string Setting::bounds() const {
  std::vector<std::string> parts;
  if (least_ != -infinity) parts.push_back(fmt::format("{} {}", least_itself_ ? "at least" : "above", least_));
  if (most_ != infinity) parts.push_back(fmt::format("{} {}", most_itself_ ? "at most" : "below", most_));
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::string Setting::text() const {
  return std::visit(Match{[](std::string* field) { return *field; },
                          [](List* field) { return fmt::format("[{}]", fmt::join(*field, ", ")); },
                          [](Numbers* field) { return fmt::format("[{}]", fmt::join(*field, ", ")); },
                          [this](const Choice& choice) {
                            const size_t place = choice.get();
                            if (place == choice.names.size()) fail("{} has a value that is none of its choices", key_);
                            return choice.names[place];
                          },
                          [](auto* field) { return fmt::format("{}", *field); }},
                    field_);
}

void Setting::read(const std::string& text, const std::string& location) {
  const auto accept = [&](auto parsed) {
    if (!parsed.value) refuse("{}: {} = {} {}", location, key_, shown(text), parsed.rule);
    return *parsed.value;
  };
  std::visit(Match{[&](int64_t* field) { *field = accept(parse_int(text)); },
                   [&](double* field) {
                     const auto word = once_a_switch_ ? parse_bool(text).value : std::nullopt;
                     *field = word ? *word : accept(parse_double(text));
                   },
                   [&](bool* field) { *field = accept(parse_bool(text)); },
                   [&](std::string* field) { *field = accept(parse_string(text)); },
                   [&](List* field) {
                     *field = accept(parse_list(text, parse_int, "must be a list of integers, such as [5, 9]"));
                   },
                   [&](Numbers* field) {
                     *field =
                         accept(parse_list(text, parse_double, "must be a list of finite numbers, such as [2.5, 1]"));
                   },
                   [&](const Choice& choice) { choice.set(accept(parse_choice(text, choice.names))); }},
             field_);
  location_ = location;
}

void Setting::check() const {
  const auto is_inside = [this](double value) {  // false for NaN, which a program may have put into the field
    return (least_itself_ ? value >= least_ : value > least_) && (most_itself_ ? value <= most_ : value < most_);
  };
  const auto all_inside = [&](const auto& list) {
    return std::all_of(list.begin(), list.end(), [&](auto one) { return is_inside(static_cast<double>(one)); });
  };
  const bool holds = std::visit(
      Match{[&](int64_t* field) { return is_inside(static_cast<double>(*field)); },
            [&](double* field) { return is_inside(*field); }, [&](List* field) { return all_inside(*field); },
            [&](Numbers* field) { return all_inside(*field); }, [](const auto&) { return true; }},
      field_);
  if (!holds) refuse("{}: {} = {} must be {}", location(), key_, text(), bounds());
}

}  // namespace trireme
