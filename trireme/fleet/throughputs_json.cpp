// The published throughput files: three levels of keys, numbers at the bottom. They are read as a stream, so that what
// is wrong is refused where it stands, however large or deep the rest is.
#include <array>
#include <string>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/fleet/text_file.h"
#include "trireme/fleet/throughputs.h"

namespace trireme::fleet {

namespace {

// "('ResNet-18 (batch size 64)', 1)" -> its two parts; a scale of 0 when it is something else.
std::pair<std::string, int> split_key(const std::string& key) {
  const size_t comma = key.rfind("', ");
  if (key.size() < 8 || key.compare(0, 2, "('") != 0 || key.back() != ')' || comma == std::string::npos || comma < 3) {
    return {"", 0};
  }
  int scale = 0;
  for (size_t i = comma + 3; i + 1 < key.size(); ++i) {
    if (key[i] < '0' || key[i] > '9' || scale > 1'000'000) return {"", 0};
    scale = scale * 10 + (key[i] - '0');
  }
  return {key.substr(2, comma - 2), scale};
}

class TableReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TableReader(const std::string& file) : file_(file), table_(file) {}

  bool null() override { refuse_here("is null, and must be a number"); }
  bool boolean(bool) override { refuse_here("is true or false, and must be a number"); }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t&) override { refuse_here("is a text, and must be a number"); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override {
    if (in_list_ || depth_ == 3) refuse_here("is a map, and must be a number");
    ++depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      begin_device_type(key);
    } else if (depth_ == 2) {
      kind_ = read_kind(key);
      kind_name_ = key;
    } else {
      other_name_ = key;
      other_ = key == "null" ? -1 : read_kind(key);
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 3 || in_list_) refuse_here("is a list, and must not be");
    if (other_ < 0) refuse_here("is a list, and must be one number: the steps a second of the job alone");
    in_list_ = true;
    count_ = 0;
    return true;
  }
  bool end_array() override {
    if (count_ != 2) refuse_here("must hold two numbers: the steps a second of both jobs");
    in_list_ = false;
    table_.set_together(kind_, other_, device_type_, pair_[0], pair_[1]);
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 3, column 5: …"
    if (const size_t end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    refuse("{}: {}", file_, what);
  }

  Throughputs take() {
    if (table_.kinds() == 0) refuse("{}: holds no throughputs", file_);
    return std::move(table_);
  }

 private:
  void begin_device_type(const std::string& name) {
    const auto before = table_.device_types().size();
    device_type_ = table_.add_device_type(name);
    if (table_.device_types().size() == before) refuse("{}: device type {} is given twice", file_, name);
    device_name_ = name;
    kind_name_ = other_name_ = "";
  }

  int read_kind(const std::string& key) {
    if (const auto known = kinds_.find(key); known != kinds_.end()) return known->second;
    const auto [type, scale] = split_key(key);
    if (scale < 1) {
      refuse("{}: {}: \"{}\" is not a job's key such as \"('ResNet-18 (batch size 64)', 1)\"", file_, device_name_,
             key);
    }
    return kinds_[key] = table_.add_kind(type, scale);
  }

  bool number(double value) {
    if (depth_ != 3) refuse_here("is a number, and must be a map");
    if (!(value >= 0) || value > 1e15) refuse_here("must be at least 0 and finite");
    if (in_list_) {
      if (count_ < 2) pair_[count_] = value;
      ++count_;
    } else {
      if (other_ >= 0) refuse_here("must be a list of two numbers: the steps a second of both jobs");
      if (table_.alone(kind_, device_type_) != Throughputs::not_given) refuse_here("is given twice");
      table_.set_alone(kind_, device_type_, value);
    }
    return true;
  }

  [[noreturn]] void refuse_here(const char* what) const {
    std::string place = device_name_.empty() ? "the file" : device_name_;
    if (depth_ >= 2 && !kind_name_.empty()) place += " / " + kind_name_;
    if (depth_ >= 3 && !other_name_.empty()) place += " / " + other_name_;
    refuse("{}: {} {}", file_, place, what);
  }

  std::string file_;
  Throughputs table_;
  std::unordered_map<std::string, int> kinds_;
  std::string device_name_, kind_name_, other_name_;
  int depth_ = 0, device_type_ = 0, kind_ = 0, other_ = 0;
  bool in_list_ = false;
  size_t count_ = 0;
  std::array<double, 2> pair_{};
};

}  // namespace

Throughputs read_throughputs_json(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  TableReader reader(path.string());
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

Throughputs read_throughputs(const std::filesystem::path& path) {
  const auto ending = path.extension();
  return ending == ".yaml" || ending == ".yml" ? read_throughputs_yaml(path) : read_throughputs_json(path);
}

}  // namespace trireme::fleet
