// The safetensors format, in which checkpoints lie: 8 bytes with the header's length (little-endian), a JSON header
// {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}, and the
// tensors' bytes, which fill the rest without overlap or hole. Here tensors are named bytes; nothing computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/files.h"

namespace trireme {

enum class DType { boolean, u8, i8, f8_e4m3, f8_e5m2, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };

uint64_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);    // as the format writes it: "F32", "BOOL", …
DType dtype_named(const std::string& name);  // refuses unknown names

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // no entries: a scalar
  uint64_t offset = 0;         // from the start of the data
  uint64_t bytes = 0;

  bool operator==(const TensorInfo&) const = default;
};

// What a tensor of this shape takes. Refuses negative sizes and products beyond 64 bits.
uint64_t tensor_bytes(DType dtype, std::span<const int64_t> shape);

using SafetensorsMetadata = std::map<std::string, std::string>;

// Writes one file front to back. Tensors lie in the order given, the data starts on a 64-byte boundary, and the same
// input makes the same bytes. To keep every tensor aligned to its dtype, give wide dtypes before narrow ones.
// Until finish() has returned the file is not whole (and the reader refuses it): write in a folder that is renamed.
class SafetensorsWriter {
 public:
  struct Written {
    uint64_t bytes = 0;
    uint64_t checksum = 0;  // of the whole file, header included
  };

  // Writes the header. Offsets and bytes of `tensors` are computed here. A `limit` must outlive the writer.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const SafetensorsMetadata& metadata = {}, RateLimit* limit = nullptr);

  // The next bytes of the data, straight from the caller's memory: a whole tensor or a piece of one. A piece that
  // would reach into the next tensor is an error, so a wrong size is found at the tensor that has it.
  void append(std::span<const std::byte> bytes);

  Written finish();  // checks that every tensor is complete, and returns when the disk has it

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // with offsets and bytes

 private:
  void write(std::span<const std::byte> bytes);
  void pass_complete_tensors();

  std::vector<TensorInfo> tensors_;
  File file_;
  RateLimit* limit_;
  Checksum checksum_;
  uint64_t written_ = 0;
  size_t current_ = 0;   // the tensor that the next bytes belong to
  uint64_t filled_ = 0;  // how many bytes it has
};

// What a header says, checked against the format and the size of the file.
struct SafetensorsLayout {
  std::vector<TensorInfo> tensors;  // as they lie in the file
  SafetensorsMetadata metadata;
  uint64_t data_start = 0;
};

// Reads the header of a whole file in memory. Refuses, with the reason, whatever the format forbids.
SafetensorsLayout parse_safetensors(std::span<const std::byte> file);

// A file opened for reading: tensors are views of mapped memory, so only what is touched is read from disk.
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return layout_.tensors; }
  const SafetensorsMetadata& metadata() const { return layout_.metadata; }
  const TensorInfo* find(std::string_view name) const;  // null when there is none

  // The bytes of one of tensors(). They live as long as this object and need not be aligned to the dtype.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const {
    return file_.bytes().subspan(layout_.data_start + tensor.offset, tensor.bytes);
  }

 private:
  MappedFile file_;
  SafetensorsLayout layout_;
  std::map<std::string, size_t, std::less<>> places_;  // where in tensors() a name is
};

}  // namespace trireme
