#include "trireme/data/image_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr int32_t image_magic = 2051, label_magic = 2049;
constexpr int64_t cifar_size = 32, cifar_channels = 3, cifar_classes = 10;
constexpr size_t cifar_pixels = cifar_channels * cifar_size * cifar_size, cifar_record = 1 + cifar_pixels;

// The file of that name, or the gzipped one; an empty path where there is neither.
fs::path find(const fs::path& folder, const std::string& name) {
  for (const auto& candidate : {folder / name, folder / (name + ".gz")}) {
    if (fs::exists(candidate)) return candidate;
  }
  return {};
}

fs::path found(const fs::path& folder, const std::string& name) {
  const auto path = find(folder, name);
  if (path.empty()) refuse("{} holds no {}, nor that with .gz", folder.string(), name);
  return path;
}

std::vector<std::byte> read_bytes(const fs::path& path) {
  if (path.extension() == ".gz") return read_gzip(path);
  const MappedFile file(path);
  return {file.bytes().begin(), file.bytes().end()};
}

int32_t big_endian(std::span<const std::byte> bytes, size_t place) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint32_t>(bytes[4 * place + i]);
  return static_cast<int32_t>(value);
}

// The numbers after the magic, and what follows them, of which there must be exactly as much as they promise.
struct Idx {
  std::vector<int64_t> sizes;
  std::vector<uint8_t> values;
};

Idx read_idx(const fs::path& path, int32_t magic, size_t dims) {
  const auto bytes = read_bytes(path);
  const size_t header = 4 * (dims + 1);
  if (bytes.size() < header)
    refuse("{}: the file is cut short: it ends after {} of the {} bytes of its header", path.string(), bytes.size(),
           header);
  if (const int32_t seen = big_endian(bytes, 0); seen != magic)
    refuse("{}: not a file of {}: it begins with {}, where {} was expected", path.string(),
           magic == image_magic ? "images" : "labels", seen, magic);
  Idx idx;
  uint64_t promised = 1;
  for (size_t i = 0; i < dims; ++i) {
    const int64_t size = big_endian(bytes, i + 1);
    if (size < 1 || promised > uint64_t{1} << 40) refuse("{}: the header is damaged", path.string());
    idx.sizes.push_back(size);
    promised *= static_cast<uint64_t>(size);
  }
  if (bytes.size() - header != promised)
    refuse("{}: its header promises {} bytes, {} follow", path.string(), promised, bytes.size() - header);
  const auto* from = reinterpret_cast<const uint8_t*>(bytes.data()) + header;
  idx.values.assign(from, from + promised);
  return idx;
}

LabelledImages read_pair(const fs::path& images_path, const fs::path& labels_path) {
  auto images = read_idx(images_path, image_magic, 3);
  auto labels = read_idx(labels_path, label_magic, 1);
  if (images.sizes[1] != images.sizes[2])
    refuse("{}: images of {} x {} pixels are not square", images_path.string(), images.sizes[1], images.sizes[2]);
  if (images.sizes[0] != labels.sizes[0])
    refuse("{} holds {} images, {} holds {} labels", images_path.string(), images.sizes[0], labels_path.string(),
           labels.sizes[0]);
  return {images_path.string(), 1, images.sizes[1], std::move(images.values), std::move(labels.values)};
}

void append_cifar(const fs::path& path, LabelledImages& images) {
  const auto bytes = read_bytes(path);
  if (bytes.empty() || bytes.size() % cifar_record != 0)
    refuse("{}: {} bytes are not a whole number of CIFAR-10's records of {}", path.string(), bytes.size(),
           cifar_record);
  for (size_t at = 0; at < bytes.size(); at += cifar_record) {
    const auto* record = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
    if (record[0] >= cifar_classes)
      refuse("{}: label {} of image {} is not one of CIFAR-10's {}", path.string(), record[0], at / cifar_record,
             cifar_classes);
    images.labels.push_back(record[0]);
    images.pixels.insert(images.pixels.end(), record + 1, record + cifar_record);
  }
}

ImageFolder read_cifar(const fs::path& folder) {
  ImageFolder read;
  read.train = {folder.string(), cifar_channels, cifar_size, {}, {}};
  read.test = read.train;
  for (int i = 1; i <= 5; ++i) append_cifar(found(folder, fmt::format("data_batch_{}.bin", i)), read.train);
  if (const auto test = find(folder, "test_batch.bin"); !test.empty()) append_cifar(test, read.test);
  return read;
}

}  // namespace

ImageFolder read_images(const fs::path& folder) {
  if (!fs::is_directory(folder))
    refuse("{} is no folder: give one that holds the files of MNIST, Fashion-MNIST or CIFAR-10", folder.string());
  if (!find(folder, "data_batch_1.bin").empty()) return read_cifar(folder);
  if (find(folder, "train-images-idx3-ubyte").empty())
    refuse(
        "{} holds neither train-images-idx3-ubyte (MNIST, Fashion-MNIST; or with .gz) nor data_batch_1.bin (CIFAR-10)",
        folder.string());
  ImageFolder read;
  read.train = read_pair(found(folder, "train-images-idx3-ubyte"), found(folder, "train-labels-idx1-ubyte"));
  if (const auto test = find(folder, "t10k-images-idx3-ubyte"); !test.empty())
    read.test = read_pair(test, found(folder, "t10k-labels-idx1-ubyte"));
  return read;
}

}  // namespace trireme
