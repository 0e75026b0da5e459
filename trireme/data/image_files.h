// Files of small labelled images, read whole: IDX (MNIST, Fashion-MNIST; also gzipped) and the binary batches of
// CIFAR-10. What a folder holds is recognised by the names in it.
//   IDX:       big-endian int32: magic 2051, images, rows, columns; then a byte a pixel. Labels: magic 2049, count; a
//              byte each.
//   CIFAR-10:  records of 3073 bytes: the label, then 32 x 32 pixels of red, of green, of blue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct LabelledImages {
  std::string source;  // the file or folder, for people
  int64_t channels = 0, size = 0;
  std::vector<uint8_t> pixels;  // [count, channels, size, size]
  std::vector<uint8_t> labels;

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
};

struct ImageFolder {
  LabelledImages train, test;  // the test set is empty where there is none
};

// Refuses files that are cut short, or not what their names say.
ImageFolder read_images(const std::filesystem::path& folder);

// The bytes of a gzip file, unpacked. One of two files is built: with zlib, or one that says what to install.
std::vector<std::byte> read_gzip(const std::filesystem::path& path);

}  // namespace trireme
