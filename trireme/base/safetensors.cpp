#include "trireme/base/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

namespace trireme {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian; bytes are used as they lie");

constexpr uint64_t length_bytes = 8;
constexpr uint64_t largest_header = 100'000'000;  // the format's own limit, against headers made to exhaust memory
constexpr uint64_t data_alignment = 64;           // a cache line; the format asks for 8
constexpr size_t write_chunk = 1 << 20;           // checksummed and written while still in the cache
constexpr const char* metadata_key = "__metadata__";

struct DTypeRow {
  DType dtype;
  const char* name;
  uint64_t bytes;
};

constexpr std::array<DTypeRow, 15> dtype_rows = {{
    {DType::boolean, "BOOL", 1},
    {DType::u8, "U8", 1},
    {DType::i8, "I8", 1},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1},
    {DType::u16, "U16", 2},
    {DType::i16, "I16", 2},
    {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},
    {DType::u32, "U32", 4},
    {DType::i32, "I32", 4},
    {DType::f32, "F32", 4},
    {DType::u64, "U64", 8},
    {DType::i64, "I64", 8},
    {DType::f64, "F64", 8},
}};

constexpr bool rows_follow_the_enum() {
  for (size_t i = 0; i < dtype_rows.size(); ++i) {
    if (dtype_rows[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum(), "row_of finds a dtype's row by its place");

const DTypeRow& row_of(DType dtype) { return dtype_rows.at(static_cast<size_t>(dtype)); }

// Offsets and bytes of tensors that lie one after the other.
std::vector<TensorInfo> lay_out(std::vector<TensorInfo> tensors) {
  std::set<std::string> names;
  uint64_t end = 0;
  for (auto& tensor : tensors) {
    if (tensor.name == metadata_key) fail("a tensor must not be named {}", metadata_key);
    if (!names.insert(tensor.name).second) fail("two tensors are named '{}'", tensor.name);
    tensor.offset = end;
    tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (__builtin_add_overflow(end, tensor.bytes, &end)) fail("the tensors are larger than any file");
  }
  return tensors;
}

std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail("'{}' is not UTF-8 text and cannot be written into a header", text);
  }
}

// Built as text: a JSON object would sort the tensors by name.
std::string header_text(const std::vector<TensorInfo>& tensors, const SafetensorsMetadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += fmt::format("\"{}\":{{", metadata_key);
    for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", json_text(key), json_text(value));
    text.back() = '}';
    text += ',';
  }
  for (const auto& tensor : tensors) {
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", json_text(tensor.name),
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), tensor.offset,
                        tensor.offset + tensor.bytes);
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  while ((length_bytes + text.size()) % data_alignment != 0) text += ' ';
  return text;
}

// The JSON value of a header. Duplicate keys, of which a JSON library keeps the last in silence, are refused, and so
// is nesting deeper than a tensor's shape.
json parse_header(std::string_view header) {
  constexpr int deepest = 2;
  std::vector<std::set<std::string>> keys(deepest + 1);  // seen so far in the open object of each depth
  const auto check = [&](int depth, json::parse_event_t event, const json& value) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth > deepest) refuse("the header is nested too deeply");
    if (event == json::parse_event_t::object_start) keys.at(static_cast<size_t>(depth)).clear();
    if (event == json::parse_event_t::key) {
      const auto key = value.get<std::string>();
      // A key is one deeper than the object that it belongs to.
      if (!keys.at(static_cast<size_t>(depth - 1)).insert(key).second) refuse("the header has '{}' twice", key);
    }
    return true;
  };
  try {
    return json::parse(header, check);
  } catch (const json::parse_error& error) {
    refuse("the header is not valid JSON at byte {}", length_bytes + error.byte);
  } catch (const json::exception&) {
    refuse("the header is not valid JSON");  // a number beyond all ranges
  }
}

SafetensorsMetadata read_metadata(const json& entry) {
  if (!entry.is_object()) refuse("{} is not an object", metadata_key);
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) refuse("{} has a value that is not text: '{}'", metadata_key, key);
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

std::vector<int64_t> read_shape(const json& entry) {
  std::vector<int64_t> shape;
  for (const auto& size : entry) {
    if (!size.is_number_integer()) refuse("its shape has an entry that is not a whole number");
    if (size.is_number_unsigned() && size.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      refuse("its shape has an entry beyond 63 bits");
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

TensorInfo read_tensor(const std::string& name, const json& entry, uint64_t data_bytes) {
  const auto field = [&](const char* key, bool (json::*has_type)() const noexcept) -> const json& {
    if (!entry.is_object() || !entry.contains(key) || !(entry.at(key).*has_type)()) {
      refuse("its {} is missing or of the wrong type", key);
    }
    return entry.at(key);
  };
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = dtype_named(field("dtype", &json::is_string).get<std::string>());
  tensor.shape = read_shape(field("shape", &json::is_array));

  const auto& offsets = field("data_offsets", &json::is_array);
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    refuse("its data_offsets are not two whole numbers from 0");
  }
  tensor.offset = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (tensor.offset > end) refuse("its data_offsets run backwards, from {} to {}", tensor.offset, end);
  if (end > data_bytes) {
    refuse("it ends at byte {} of the data, but the file has only {}; the file was cut short", end, data_bytes);
  }
  tensor.bytes = end - tensor.offset;
  const auto expected = tensor_bytes(tensor.dtype, tensor.shape);
  if (tensor.bytes != expected) {
    refuse("its shape [{}] of {} takes {} bytes, but its data_offsets span {}", fmt::join(tensor.shape, ", "),
           dtype_name(tensor.dtype), expected, tensor.bytes);
  }
  return tensor;
}

// Tensors sorted as they lie must follow each other without overlap or hole, up to the end of the file.
void check_coverage(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (tensor.offset < end) refuse("tensors '{}' and '{}' overlap", tensors[i - 1].name, tensor.name);
    if (tensor.offset > end) {
      refuse("bytes {} to {} of the data, before tensor '{}', belong to no tensor", end, tensor.offset, tensor.name);
    }
    end = tensor.offset + tensor.bytes;
  }
  if (const auto rest = static_cast<int64_t>(data_bytes - end); rest != 0) {
    refuse("{} after the last tensor {} to no tensor", counted(rest, "byte"), plural(rest, "belongs", "belong"));
  }
}

}  // namespace

uint64_t dtype_bytes(DType dtype) { return row_of(dtype).bytes; }
std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

DType dtype_named(const std::string& name) {
  std::vector<std::string> valid;
  for (const auto& row : dtype_rows) {
    if (row.name == name) return row.dtype;
    valid.emplace_back(row.name);
  }
  refuse("unknown dtype '{}' (known: {})", name, fmt::join(valid, ", "));
}

uint64_t tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  uint64_t bytes = dtype_bytes(dtype);
  for (const int64_t size : shape) {
    if (size < 0) refuse("shape [{}] has a negative size", fmt::join(shape, ", "));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      refuse("shape [{}] is too large: its bytes do not fit into 64 bits", fmt::join(shape, ", "));
    }
  }
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const SafetensorsMetadata& metadata, RateLimit* limit)
    : tensors_(lay_out(std::move(tensors))), file_(path, File::Mode::create), limit_(limit) {
  const auto header = header_text(tensors_, metadata);
  const uint64_t length = header.size();
  if (length > largest_header) {
    fail("writing {}: a header of {} bytes is more than the {} that readers accept; use several files", path.string(),
         length, largest_header);
  }
  write(std::as_bytes(std::span(&length, 1)));
  write(bytes_of(header));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  pass_complete_tensors();
  if (current_ == tensors_.size()) {
    fail("writing {}: {} bytes more than its tensors take", file_.path().string(), bytes.size());
  }
  const auto& tensor = tensors_[current_];
  const uint64_t missing = tensor.bytes - filled_;
  if (bytes.size() > missing) {
    fail("writing {}: tensor '{}' takes {} more bytes, not {}", file_.path().string(), tensor.name, missing,
         bytes.size());
  }
  write(bytes);
  filled_ += bytes.size();
}

SafetensorsWriter::Written SafetensorsWriter::finish() {
  pass_complete_tensors();
  if (current_ != tensors_.size()) {
    const auto& tensor = tensors_[current_];
    fail("writing {}: tensor '{}' has {} of its {} bytes", file_.path().string(), tensor.name, filled_, tensor.bytes);
  }
  file_.sync();
  return {written_, checksum_.value()};
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), write_chunk));
    if (limit_) limit_->take(chunk.size());
    checksum_.update(chunk);
    file_.write_all(chunk);
    written_ += chunk.size();
    bytes = bytes.subspan(chunk.size());
  }
}

void SafetensorsWriter::pass_complete_tensors() {
  while (current_ < tensors_.size() && filled_ == tensors_[current_].bytes) {
    ++current_;
    filled_ = 0;
  }
}

SafetensorsLayout parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < length_bytes) refuse("{} bytes are too few for a safetensors file", file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > largest_header) refuse("not a safetensors file: it claims a header of {} bytes", length);
  if (length > file.size() - length_bytes) {
    refuse("the header should have {} bytes, but only {} follow; the file was cut short", length,
           file.size() - length_bytes);
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + length_bytes, length);
  if (!header.starts_with('{')) refuse("not a safetensors file: its header is not a JSON object");

  SafetensorsLayout layout;
  layout.data_start = length_bytes + length;
  const uint64_t data_bytes = file.size() - layout.data_start;
  const auto entries = parse_header(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == metadata_key) {
      layout.metadata = read_metadata(entry);
      continue;
    }
    try {
      layout.tensors.push_back(read_tensor(name, entry, data_bytes));
    } catch (Error& error) {
      error.add_context(fmt::format("tensor '{}'", name));
      throw;
    }
  }
  // A tensor without bytes shares its offset with the next one and comes before it.
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  check_coverage(layout.tensors, data_bytes);
  return layout;
}

Safetensors::Safetensors(const std::filesystem::path& path) : file_(path) {
  try {
    layout_ = parse_safetensors(file_.bytes());
  } catch (Error& error) {
    error.add_context(path.string());
    throw;
  }
  for (size_t i = 0; i < layout_.tensors.size(); ++i) places_.emplace(layout_.tensors[i].name, i);
}

const TensorInfo* Safetensors::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &layout_.tensors[place->second];
}

}  // namespace trireme
